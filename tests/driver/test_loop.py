"""the connector's loop over a world in memory: what happens, in which order, exactly."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.reactions import build_error, reaction_to
from sluice.core.budget import TargetShard
from sluice.core.errors import InDoubtError, OwnerChangedError, TransientError
from sluice.core.lease import LeaseOverError, has_expired
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter, Failed, Loaded, NeedsReservation, TooHeavy
from sluice.driver.dispatching import PATIENCE_MS
from sluice.driver.ports import ClusterRead
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, Answer, World, kinds, run, table_spec

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
OTHER = TopicPartition("b", 0)


def test_ranges_follow_one_another_and_the_last_one_is_settled() -> None:
    world = World([P0])
    world.ends[P0] = 25
    run(world)
    assert kinds(world, P0) == [
        ("INTEND", 0, 10),
        ("INTEND", 10, 20),
        ("INTEND", 20, 25),
        ("SETTLE", 25, 25),
    ]
    assert world.rows_of(P0) == [1] * 25


def test_no_transaction_has_more_dead_letters_than_it_may_carry() -> None:
    sources = [TopicPartition("a", number) for number in range(4)]
    world = World(sources)
    world.ends = dict.fromkeys(sources, 10)
    letter = DeadLetter("a", 0, 3, None, None, b"v", (), "syntax", "e", "t")
    world.transaction_size.bytes_max = 4 * letter.weight

    def script(world: World, assignment: Assignment) -> Answer:
        return replace(world.load(assignment), dead_letters=(letter,) * 2)

    world.script = script
    run(world)
    assert [len(commit.dead_letters) for commit in world.commits if commit.dead_letters] == [4, 4]
    assert len(world.dead_letters) == 8


def test_too_heavy_after_a_lost_job_is_shortened_and_loses_nothing() -> None:
    world = World([P0])
    world.ends[P0] = 10
    tries: list[tuple[int, int]] = []

    def script(world: World, assignment: Assignment) -> Answer:
        tries.append((assignment.block_range.begin, assignment.block_range.end))
        if len(tries) == 1:
            return JobLostError("lost")
        if assignment.block_range.span > 4:
            return TooHeavy(assignment.block_range.begin + 4, 1000)
        return world.load(assignment)

    world.script = script
    run(world)
    assert tries[:3] == [(0, 10), (0, 10), (0, 4)]
    assert kinds(world, P0)[:3] == [("INTEND", 0, 10), ("SHORTEN", 0, 4), ("INTEND", 4, 10)]
    assert world.rows_of(P0) == [1] * 10


def test_a_block_that_needs_more_gets_it_and_stops_nobody_else() -> None:
    """Half of the window is 50. One range of partition 0 needs 40 entries, so that twice as
    much, the next reservation, could never be given; partition 1 needs 1."""
    world = World([P0, P1], (table_spec("t", ("a",), "day"),), blocks=100)
    world.ends.update({P0: 30, P1: 200})
    needs = {(P0, 0): 40}

    def script(world: World, assignment: Assignment) -> Answer:
        entries = needs.get((assignment.block_range.source, assignment.block_range.begin), 1)
        if entries > assignment.record.reservation:
            return NeedsReservation("t", entries)
        return world.load(assignment, entries)

    world.script = script
    loop = run(world)
    assert [state.stopped for state in loop.states.values()] == [None, None]
    assert world.rows_of(P0) == [1] * 30
    assert world.rows_of(P1) == [1] * 200
    assert world.now < START_MS + 600_000  # it does not wait for its own first lease to end
    assert (
        max(record.reservation for commit in world.commits for record in commit.records.values())
        == 50
    )


def test_a_block_that_no_window_holds_stops_its_partition_only() -> None:
    world = World([P0, P1], (table_spec("t", ("a",), "day"),), blocks=100)
    world.ends.update({P0: 30, P1: 60})

    def script(world: World, assignment: Assignment) -> Answer:
        if assignment.block_range.source == P0:
            return NeedsReservation("t", 51)
        return world.load(assignment)

    world.script = script
    loop = run(world)
    stopped = loop.states[P0].stopped
    assert stopped is not None and "table entry t takes 51 entries" in str(stopped)
    assert stopped.hint.startswith("ALTER TABLE d.t MODIFY SETTING")
    assert loop.states[P1].stopped is None
    assert world.rows_of(P1) == [1] * 60


def test_what_is_loaded_is_settled_before_its_partition_stops_for_a_window() -> None:
    """The window is made smaller while the first range loads."""
    world = World([P0], blocks=100)
    world.ends[P0] = 30

    def script(world: World, assignment: Assignment) -> Answer:
        world.now += 2_000
        world.tables[TargetShard("t", "s1")].blocks = 1
        return world.load(assignment)

    world.script = script
    state = run(world).states[P0]
    assert "half of it may be used" in str(state.stopped)
    assert kinds(world, P0) == [("INTEND", 0, 10), ("SETTLE", 10, 10)]
    assert "receipt" in {entry.body["type"] for entry in world.ledger}


def test_a_window_that_is_too_small_is_named_whoever_needs_the_entries() -> None:
    """One reservation serves both tables; the block of the one does not fit the window of the
    other, and a third one is narrower than it needs to be for that."""
    world = World([P0], tuple(table_spec(entry, ("a",), "day") for entry in ("t", "u", "v")))
    world.ends[P0] = 30
    world.tables[TargetShard("u", "s1")].blocks = 100
    world.tables[TargetShard("v", "s1")].blocks = 90
    world.script = lambda world, assignment: NeedsReservation("t", 51)
    stopped = run(world).states[P0].stopped
    assert "a block of table entry t takes 51 entries" in str(stopped)
    assert "the deduplication window of d.v in shard s1 holds 90" in str(stopped)
    assert stopped is not None and stopped.hint.startswith("ALTER TABLE d.v MODIFY SETTING")


def test_what_left_the_window_is_probed_after_its_lease_and_loaded_once() -> None:
    world = World([P0], blocks=20)
    world.ends[P0] = 10
    lost = [True]

    def script(world: World, assignment: Assignment) -> Answer:
        loaded = world.load(assignment)
        if lost.pop() if lost else False:
            world.tables[TargetShard("t", "s1")].fill(30)
            return JobLostError("lost after the insert")
        return loaded

    world.script = script
    run(world)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "PROBE", "SETTLE"]
    ((probed_at, _),) = world.probes
    assert probed_at > START_MS + 610_000
    assert world.rows_of(P0) == [1] * 10


def test_probed_ranges_share_the_window_like_new_ones() -> None:
    """Six ranges, reserved 8 each, left a window of which 10 entries may be used."""
    sources = [TopicPartition("a", number) for number in range(6)]
    world = World(sources, (table_spec("t", ("a",), "day"),), blocks=20)
    world.ends.update(dict.fromkeys(sources, 10))
    loop = world.loop([world.overrun(source, 10, reservation=8) for source in sources])
    run(world, loop)
    held: dict[TopicPartition, int] = {}
    most = 0
    for commit in world.commits:
        held.update({source: record.reservation for source, record in commit.records.items()})
        most = max(most, sum(held.values()))
    assert most == 8
    assert all(world.rows_of(source) == [1] * 10 for source in sources)


def test_a_clock_ahead_of_the_drivers_is_said_and_not_hammered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.script = lambda world, assignment: (
        Failed(LeaseOverError("the lease ended 900.0 s ago"))
        if world.now < START_MS + 120_000
        else world.load(assignment)
    )
    run(world)
    assert len(world.jobs) < 20
    assert "ended 900.0 s ago" in caplog.text
    assert world.rows_of(P0) == [1] * 10


def test_a_report_after_a_stop_changes_nothing() -> None:
    """And the loop does not spin on it."""
    world = World([P0, P1], rounds_max=3000)
    world.ends.update({P0: 10, P1: 0})
    loop = world.loop()
    world.at(50, lambda: world.ids.update({"a": "BBBBBBBBBBB"}))
    world.at(60, loop.look_at_topics)
    world.at(60_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert loop.states[P0].loaded is None
    assert world.now >= START_MS + 60_000


def test_a_clock_that_is_set_back_does_not_stop_the_loop() -> None:
    world = World([P0])
    world.ends[P0] = 10
    loop = world.loop()

    def back() -> None:
        world.now -= 3_600_000
        world._events = []
        world.ends[P0] = 500

    world.at(5_000, back)
    loop.run({P0: 500}, 5.0)
    assert world.rows_of(P0) == [1] * 500
    assert world.now < START_MS - 3_000_000


def test_a_task_that_never_returns_is_said(caplog: pytest.LogCaptureFixture) -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.script = lambda world, assignment: None
    loop = world.loop()
    world.at(700_000, loop.stopping.set)
    with caplog.at_level(logging.WARNING):
        loop.run(None, 5.0)
    assert "has not come back" in caplog.text
    assert loop.in_doubt() == [loop.states[P0]]


def test_a_job_that_hangs_is_ended_after_its_lease_and_sent_again() -> None:
    """It may have inserted before it hung: its ranges are sent under the same tokens, and hold
    their places in the window."""
    world = World([P0, P1])
    world.ends.update({P0: 10, P1: 10})
    hung: list[Assignment] = []

    def script(world: World, assignment: Assignment) -> Loaded | None:
        if not hung and assignment.block_range.source == P0:
            hung.append(assignment)
            world.load(assignment)
            return None
        return world.load(assignment)

    world.script = script
    run(world)
    ((at_ms, job),) = world.cancelled
    (deadline_ms,) = {each.record.deadline_ms for each in job.assignments}
    assert has_expired(deadline_ms + PATIENCE_MS, at_ms)
    assert not has_expired(deadline_ms + PATIENCE_MS, at_ms - 1_000)
    assert world.rows_of(P0) == world.rows_of(P1) == [1] * 10
    late_inserts = [entry.body for entry in world.ledger if entry.body["type"] == "late_insert"]
    assert late_inserts == []  # the lease was over long before


def test_who_is_slow_each_time_is_given_more_time() -> None:
    world = World([P0])
    world.planner.lease_seconds = world.planner._configured_seconds = 20.0
    world.ends[P0] = 10
    world.script = lambda world, assignment: None if len(world.jobs) < 4 else world.load(assignment)
    run(world)
    assert world.rows_of(P0) == [1] * 10
    waits = [at - job.assignments[0].record.deadline_ms for at, job in world.cancelled]
    assert [round(wait / PATIENCE_MS) for wait in waits] == [1, 2, 4]


def test_another_owner_ends_the_loop() -> None:
    world = World([P0])
    world.ends[P0] = 10
    loop = world.loop()
    world.group[P0] = replace(world.group[P0], owner="somebody")
    with pytest.raises(OwnerChangedError):
        run(world, loop)
    assert world.jobs == []


def test_a_foreign_commit_stops_its_partition_only() -> None:
    world = World([P0, P1])
    world.ends.update({P0: 10, P1: 10})
    loop = world.loop()
    del world.group[P0]
    run(world, loop)
    assert loop.states[P0].stopped is not None
    assert world.rows_of(P0) == [0] * 10
    assert world.rows_of(P1) == [1] * 10


def test_what_may_land_late_is_a_late_insert_whatever_the_outcome_was() -> None:
    """The first attempt's block may be under way at a server that did not answer, although another
    one has it, and another shard failed for reasons of its own."""
    world = World([P0])
    world.ends[P0] = 10
    attempts = []

    def script(world: World, assignment: Assignment) -> Answer:
        attempts.append(assignment)
        world.may_land = len(attempts) == 1
        return Failed(TransientError("another shard")) if world.may_land else world.load(assignment)

    world.script = script
    loop = run(world)
    assert len(attempts) == 2
    (late_insert,) = loop.holds.late_inserts
    assert late_insert.deadline_ms >= attempts[0].record.deadline_ms


def test_hours_leave_nothing_behind() -> None:
    world = World([P0], rounds_max=10**6)
    world.task_attempt = 1
    loop = world.loop()
    for minute in range(1, 30):
        world.at(minute * 60_000, lambda: world.ends.update({P0: world.ends[P0] + 10}))
    world.at(2 * 3_600_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(P0) == [1] * 290
    assert loop.holds.late_inserts == []
    assert len(loop.holds.ended) <= 1


def test_an_idle_partition_is_settled_again_before_its_offset_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.driver.loop.OBSERVE_EVERY_MS", 30_000)
    world = World([P0])
    loop = world.loop()
    world.at(13 * 3_600_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert kinds(world, P0) == [("SETTLE", 0, 0), ("SETTLE", 0, 0)]


def test_an_insert_in_doubt_holds_its_place_in_the_window_until_its_lease_is_over() -> None:
    """The server may still finish it after the repeat is settled, by this driver or the next."""
    world = World([P0])
    world.ends[P0] = 10
    tries: list[int] = []

    def script(world: World, assignment: Assignment) -> Answer:
        tries.append(assignment.record.deadline_ms)
        return Failed(InDoubtError("no reply")) if len(tries) == 1 else world.load(assignment)

    world.script = script
    loop = run(world)
    (late_insert,) = loop.holds.late_inserts
    assert late_insert.deadline_ms >= tries[0]
    written = [entry.body for entry in world.ledger if entry.body["type"] == "late_insert"]
    assert [(body["end"], body["deadline_ms"]) for body in written] == [
        (10, late_insert.deadline_ms)
    ]
    world.at(late_insert.deadline_ms - world.now + 60_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert loop.holds.late_inserts == []


def test_a_replica_that_did_not_answer_holds_a_place_though_another_one_has_the_block() -> None:
    """The task says that the range is loaded; that replica may come to store the block later."""
    world = World([P0])
    world.ends[P0] = 10

    def script(world: World, assignment: Assignment) -> Answer:
        loaded = world.load(assignment)
        assert isinstance(loaded, Loaded)
        (receipt,) = loaded.receipts
        failed_over = ("http://a:8123 SOCKET_TIMEOUT",)
        world.may_land = True
        return replace(loaded, receipts=(replace(receipt, failed_over=failed_over, in_doubt=True),))

    world.script = script
    loop = run(world)
    (late_insert,) = loop.holds.late_inserts
    assert late_insert.deadline_ms > world.now
    assert loop.counters.failovers == 1
    written = [entry.body for entry in world.ledger if entry.body["type"] == "late_insert"]
    assert [(body["end"], body["deadline_ms"]) for body in written] == [
        (10, late_insert.deadline_ms)
    ]
    (receipt,) = [entry.body for entry in world.ledger if entry.body["type"] == "receipt"]
    assert receipt["failed_over"] == ("http://a:8123 SOCKET_TIMEOUT",)
    assert receipt["in_doubt"] is True


def test_a_range_is_not_sent_again_while_its_kafka_does_not_answer() -> None:
    """Its task could only wait, in a slot that another connector needs."""
    world = World([P0])
    world.ends[P0] = 10

    def script(world: World, assignment: Assignment) -> Answer:
        world.unreadable.add(P0)
        return Failed(TransientError("no messages came"))

    world.script = script
    loop = world.loop()
    while_away: list[int] = []

    def heal() -> None:
        while_away.append(len(world.jobs))
        world.unreadable.clear()
        world.script = lambda world, assignment: world.load(assignment)

    world.at(200_000, heal)  # less than half of the lease: it needs no record to be sent again
    run(world, loop)
    assert while_away == [1]
    assert len(world.jobs) == 2
    assert world.rows_of(P0) == [1] * 10


def test_a_range_in_doubt_through_a_long_outage_is_recorded_again_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its offset must not expire; nobody gets more time to insert."""
    monkeypatch.setattr("sluice.driver.loop.OBSERVE_EVERY_MS", 30_000)
    world = World([P0])
    world.ends[P0] = 10

    def script(world: World, assignment: Assignment) -> Answer:
        world.outages["s1"] = "connection refused"
        return Failed(InDoubtError("connection refused"))

    world.script = script
    loop = world.loop()

    def heal() -> None:
        world.outages.clear()
        world.script = lambda world, assignment: world.load(assignment)

    world.at(13 * 3_600_000, heal)
    run(world, loop)
    records = [commit.records[P0] for commit in world.commits]
    assert [record.kind.name for record in records[:3]] == ["INTEND", "RENEW", "RENEW"]
    assert {(record.begin, record.end) for record in records[:3]} == {(0, 10)}
    assert {record.deadline_ms for record in records[:3]} == {records[0].deadline_ms}
    assert records[-1].kind.name == "SETTLE"
    assert world.rows_of(P0) == [1] * 10


def test_failures_are_counted_by_the_name_that_clickhouse_has_for_them() -> None:
    world = World([P0])
    world.ends[P0] = 10
    errors = [
        build_error(reaction_to(286), 286, "http://a", "not yet"),
        InDoubtError("no reply"),
    ]
    world.script = lambda world, assignment: (
        Failed(errors.pop()) if errors else world.load(assignment)
    )
    loop = run(world)
    assert loop.counters.failures == {
        "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE": 1,
        "InDoubtError": 1,
    }


def test_tasks_are_sent_with_the_replicas_that_were_told_of_last() -> None:
    world = World([P0])
    world.ends[P0] = 10
    loop = world.loop()
    access = ClickHouseAccess({"s1": ("http://new:1",)}, "u", "", "single")
    world.at(5_000, lambda: world.put(ClusterRead(access)))
    world.at(10_000, lambda: world.ends.update({P0: 20}))
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert [environment.clickhouse == access for environment in world.environments] == [False, True]
    assert world.rows_of(P0) == [1] * 20
