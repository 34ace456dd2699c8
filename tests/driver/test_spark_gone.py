"""A loop whose Spark ends."""

from __future__ import annotations

import pytest

from sluice.core.ranges import TopicPartition
from sluice.spark.jobs import SparkGoneError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import Answer, World, run

P0 = TopicPartition("a", 0)


def test_spark_that_is_gone_ends_the_loop_in_doubt() -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.script = lambda world, assignment: SparkGoneError("gone")
    loop = world.loop()
    with pytest.raises(SparkGoneError):
        run(world, loop)
    assert loop.in_doubt() == [loop.states[P0]]


@pytest.mark.parametrize("stops", [False, True])
def test_a_loop_hears_that_spark_is_gone_unless_it_stops_anyway(stops: bool) -> None:
    """Who stops settles what is loaded, for which Spark is not needed."""
    world = World([P0])
    world.ends[P0] = 10
    loop = world.loop()

    def script(world: World, assignment: Assignment) -> Answer:
        world.put(SparkGoneError("gone"))
        if stops:
            loop.stopping.set()
        return world.load(assignment)

    world.script = script
    if stops:
        run(world, loop)
        assert loop.in_doubt() == []
        assert world.rows_of(P0) == [1] * 10
    else:
        with pytest.raises(SparkGoneError):
            run(world, loop)
        assert loop.in_doubt() == [loop.states[P0]]
