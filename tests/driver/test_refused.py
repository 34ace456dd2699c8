"""A loop whose workers are not let in by Kafka for a while: they were let in before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed, Outcome
from sluice.kafka.errors import KafkaDeniedError, KafkaRefusedError, KafkaTerminalError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, World

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
#: Longer than a few attempts take.
REFUSED_MS = 120_000


def refusing(error: TerminalError) -> Callable[[World, Assignment], Outcome]:
    """The first partition's ranges come back with this for a while."""

    def load(world: World, assignment: Assignment) -> Outcome:
        is_refused = world.now < START_MS + REFUSED_MS
        if assignment.block_range.source == P0 and is_refused:
            return Failed(error, inserted_nothing=True)
        return world.load(assignment)

    return load


@pytest.mark.parametrize("kind", [KafkaRefusedError, KafkaDeniedError])
def test_who_is_refused_while_it_runs_tries_again(
    kind: type[TerminalError], caplog: pytest.LogCaptureFixture
) -> None:
    world = World([P0, P1])
    world.ends.update({P0: 20, P1: 20})
    world.script = refusing(kind("authenticating at broker:9092 by PLAIN: refused"))
    loop = world.loop()
    loop.run({P0: 20, P1: 20}, 5.0)
    assert [state.stopped for state in loop.states.values()] == [None, None]
    assert world.rows_of(P0) == world.rows_of(P1) == [1] * 20
    assert loop.counters.failures[kind.__name__] > 3
    told = [record.message for record in caplog.records if "is not loaded yet" in record.message]
    assert told and all("authenticating at broker:9092" in line for line in told)


def test_what_is_wrong_for_good_stops() -> None:
    world = World([P0, P1])
    world.ends.update({P0: 20, P1: 20})
    world.script = refusing(KafkaTerminalError("no such property"))
    loop = world.loop()
    loop.run({P0: 20, P1: 20}, 5.0)
    assert [state.stopped is None for state in loop.states.values()] == [False, True]
