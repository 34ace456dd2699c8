"""Trouble in one place, for long or at the wrong moment, that may not become another one's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sluice.core.ledger import Commit
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.kafka.recorder import StopRequestedError
from tests.driver.loop_world import World, run, table_spec

P0, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)


def test_a_driver_that_stops_and_does_not_know_whether_it_recorded_goes_on_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own record would be a foreign commit to it (H6)."""
    world = World([P0])
    world.ends[P0] = 10
    loop, record = world.loop(), world.record

    def unknown(commit: Commit, expected: Mapping[TopicPartition, Record]) -> None:
        record(commit, expected)
        loop.stopping.set()
        raise StopRequestedError("asked to stop while Kafka did not answer")

    monkeypatch.setattr(world, "record", unknown)
    with pytest.raises(StopRequestedError):
        run(world, loop)
    assert loop.states[P0].stopped is None


def test_a_table_that_is_gone_for_hours_keeps_nothing_of_the_others() -> None:
    world = World([P0, OTHER], (table_spec("t", ("a",)), table_spec("u", ("b",))))
    loop = world.loop()
    world.at(5_000, lambda: world.gone.update(u="somebody dropped it"))
    for second in range(10, 200):
        world.at(second * 1000, lambda: world.ends.update({P0: world.ends[P0] + 10}))
    world.at(210_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(P0) == [1] * 1900
    assert len(loop.holds.ended) <= 2
