"""What a loop repeats in the ledger, so that the next start need not read far back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.errors import OwnerChangedError, TerminalError, TransientError
from sluice.core.ledger import Commit
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record, encode
from sluice.driver.recording import CHECKPOINT_EVERY_MS
from tests.driver.loop_world import World

P0, P1, P2 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 2)
GONE = TopicPartition("gone", 7)


def repeated(world: World) -> list[list[dict[str, Any]]]:
    """The parts of each checkpoint."""
    return [
        found
        for commit in world.commits
        if (found := [e.body for e in commit.entries if e.body["type"] == "checkpoint"])
    ]


def grow(world: World, every_ms: int, times: int) -> None:
    for number in range(1, times + 1):
        world.at(number * every_ms, lambda end=10 * number: world.ends.update({P0: end}))  # type: ignore[misc]


def test_the_last_record_of_each_partition_is_repeated_with_the_specs_every_few_minutes() -> None:
    world = World([P0, P1], rounds_max=10**6)
    grow(world, CHECKPOINT_EVERY_MS // 4, 12)
    loop = world.loop(recorded=frozenset({P0, P1, GONE}))
    idle = loop.states[P1].record
    loop.run({P0: 120}, 5.0)
    assert 3 <= len(repeated(world)) <= 4
    for (part,) in repeated(world):
        last = {(r["topic"], r["partition"]): r["metadata"] for r in part["records"]}
        assert last.keys() == {("a", 0), ("a", 1)}
        assert last["a", 1] == encode(idle)
        assert part["others"] == {"gone": ((7, 8),)}
    specs = [e.body["digest"] for e in world.ledger if e.body["type"] == "load_spec"]
    assert specs == [world.spec.digest()] * len(repeated(world))


def test_nobody_who_does_not_know_says_that_there_are_no_others() -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.loop().run({P0: 10}, 5.0)
    ((part,),) = repeated(world)
    assert part["others"] is None


def test_a_partition_that_stopped_is_looked_for_further_back() -> None:
    """What the group holds may be no record of this loop."""
    world = World([P0, P1])
    world.ends[P0] = 10
    states = [world.settled(P0), world.settled(P1)]
    states[1].stop(TerminalError("stops at the start"))
    world.loop(states, recorded=frozenset({P0, P1})).run({P0: 10}, 5.0)
    ((part,),) = repeated(world)
    assert [record["partition"] for record in part["records"]] == [0]
    assert part["others"] == {"a": ((1, 2),)}


def test_a_partition_that_another_driver_has_is_not_spoken_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A successor took P1, and had to leave P0 to this driver."""
    world = World([P0, P1])
    world.ends[P0] = 10
    loop = world.loop(recorded=frozenset({P0, P1}))
    differences = world.differences

    def look(expected: Mapping[TopicPartition, Record]) -> dict[TopicPartition, str]:
        if P1 in expected:
            raise OwnerChangedError(f"{P1} belongs to another one")
        return differences(expected)

    monkeypatch.setattr(world, "differences", look)
    with pytest.raises(OwnerChangedError):
        loop.run({P0: 10}, 5.0)
    assert repeated(world) == []


def test_what_was_not_committed_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([P0])
    world.ends[P0] = 10
    failures = iter([True, True])
    record = world.record

    def fails_twice(commit: Commit, expected: Mapping[TopicPartition, Record]) -> None:
        if next(failures, False):
            raise TransientError("Kafka does not answer")
        record(commit, expected)

    monkeypatch.setattr(world, "record", fails_twice)
    world.loop().run({P0: 10}, 5.0)
    assert len(repeated(world)) == 1 and repeated(world)[0][0]["parts"] == 1


def test_what_a_probe_found_is_not_said_before_it_is_committed() -> None:
    """A partition that is probed has new insert counters before its record has them."""
    world = World([P0, P1])
    loop = world.loop([world.settled(P0), world.overrun(P1, 10, 2)])
    before = loop.states[P1].background
    loop.states[P1].background = replace(before, insert_counters={}, since_ms=before.since_ms + 5)
    _, part = loop._recorder.checkpoints.due(world.now, loop.planner.specs)
    (probed,) = [record for record in part.body["records"] if record["partition"] == 1]
    assert (probed["insert_counters"], probed["since_ms"]) == (
        before.insert_counters,
        before.since_ms,
    )
