"""Trouble in one place, for long or at the wrong moment, that may not become another one's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard
from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.errors import ForeignHandsError
from sluice.core.ledger import Background, Commit
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.core.records import Record
from sluice.driver.dispatching import PATIENCE_MS, HungJobs
from sluice.driver.effects import LetGo
from sluice.driver.ports import ProbeEnded, ProbeFound
from sluice.driver.record_updates import refresh
from sluice.driver.state import AsRecorded, Probed, Probing
from sluice.kafka.recorder import StopRequestedError
from sluice.ops.running import behind_seconds
from sluice.worker.assignment import Assignment, Job
from tests.driver.loop_world import START_MS, World, run, table_spec

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
        raise StopRequestedError("asked to stop while it waited for Kafka")

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


def test_what_no_transaction_has_taken_yet_lets_no_new_range_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table that refuses everything, and a long backlog: each partition would hold a report."""
    sources = [TopicPartition("a", number) for number in range(50)]
    world = World(sources)
    world.ends = dict.fromkeys(sources, 10)
    letters = (DeadLetter("a", 0, 3, None, None, b"v", (), "syntax", "e", "t"),) * 10
    world.transaction_size.bytes_max = 10 * letters[0].weight
    world.script = lambda world, each: replace(world.load(each), dead_letters=letters)
    loop, record, held = world.loop(), world.record, list[int]()

    def slow(commit: Commit, expected: Mapping[TopicPartition, Record]) -> None:
        world.now += 1_000
        held.append(sum(state.out or state.loaded is not None for state in loop.states.values()))
        record(commit, expected)

    monkeypatch.setattr(world, "record", slow)
    run(world, loop)
    assert len(world.dead_letters) == 500
    assert max(held) <= 2 * world.slots + 3, "what is out, and two transactions"


def test_the_lag_of_a_partition_that_stopped_grows_with_what_comes() -> None:
    world = World([P0, OTHER])
    world.ends.update({P0: 10, OTHER: 10})
    loop = world.loop()
    world.at(5_000, lambda: world.group.update({P0: replace(world.group[P0], owner="")}))
    world.at(5_000, lambda: loop.states[P0].stop(ForeignHandsError("somebody commits")))
    world.at(10_000, lambda: world.ends.update({P0: 1_000}))
    world.at(60_000, loop.stopping.set)
    loop.run(None, 5.0)
    state = loop.states[P0]
    assert (state.settled, state.stable_end) == (10, 1_000)
    assert state.behind_since_ms is not None and behind_seconds(state, world.now) > 10
    assert world.rows_of(P0) == [1] * 10 + [0] * 990


def test_a_window_that_was_never_read_is_told_to_be_away() -> None:
    world = World([P0])
    world.outages["s1"] = "nobody answers"
    loop = world.loop()
    assert loop.windows == {}
    assert loop.waits.windows == {TargetShard("t", "s1"): "nobody answers"}


def test_what_is_let_go_leaves_no_ratio_of_dead_letters() -> None:
    world = World([P0, OTHER])
    world.dead_letter_limit = DeadLetterLimit()
    world.ends.update({P0: 10, OTHER: 10})
    loop = run(world)
    assert set(loop.dead_letters.windows) == {P0, OTHER}
    loop._apply([LetGo(P0)])
    assert set(loop.dead_letters.windows) == {OTHER}


def test_a_probe_of_what_was_let_go_meanwhile_is_passed_over() -> None:
    world = World([P0])
    loop = world.loop()
    loop._take_report(ProbeEnded((ProbeFound(OTHER, {}), ProbeFound(P0, {"t": ()}))))
    assert isinstance(loop.states[P0].stage, AsRecorded)


def test_what_a_probe_found_is_no_part_of_a_record_that_is_written_again() -> None:
    """Its shard was away then: hours later the record is written again as it is."""
    world = World([P0])
    state = world.overrun(P0, 10, 1)
    state.background = before = Background({"t/s1": 3}, START_MS - 7, servers={"s1": "run"})
    state.become(Probing(None))
    loop = world.loop([state])
    loop._take_report(ProbeEnded((ProbeFound(P0, {"t": ((0, 10),)}),)))
    assert isinstance(state.stage, Probed) and state.found.rest == {"t": ((0, 10),)}
    assert refresh(state).background == before


def test_a_job_that_does_not_end_is_told_so_again() -> None:
    jobs, record = HungJobs("loop"), World([P0]).settled(P0).record
    job = Job("one", 1, ((Assignment(Range(P0, 0, 1), record, Background(), 0),),))
    jobs.sent(job)
    late = record.deadline_ms + 10 * PATIENCE_MS
    assert jobs.due(late) == [job] and jobs.due(late + 1) == []
    assert jobs.due(late + 4 * PATIENCE_MS) == [job]
    jobs.came_back(job)
    assert jobs.due(late + 100 * PATIENCE_MS) == []
