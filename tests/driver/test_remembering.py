"""Whether a range in doubt may be sent again: every window that it depends on, their seconds, and
the processes that serve tables that are not replicated."""

from __future__ import annotations

from functools import partial

import pytest

from sluice.core.budget import TargetShard
from sluice.core.errors import TransientError
from sluice.core.ledger import Background, LedgerView
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed, NeedsReservation
from sluice.core.server_runs import server_run
from sluice.driver.record_updates import FIRST_RESERVATION
from sluice.driver.state import AsRecorded
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, Answer, Table, World, kinds, run, table_spec

OWN, TARGET = TargetShard("t", "s1"), TargetShard("t", "s1", "d.sums")
P0, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)
FIRST, SECOND = server_run("first", 1_000_000), server_run("second", 2_000_000)


def failing_once(world: World, after: int = 1) -> list[Assignment]:
    """Stores every block, and says of the first ones that nobody knows; gives what was sent."""
    sent: list[Assignment] = []

    def script(world: World, assignment: Assignment) -> Answer:
        sent.append(assignment)
        loaded = world.load(assignment)
        return Failed(TransientError("no answer")) if len(sent) <= after else loaded

    world.script = script
    return sent


def test_seconds_of_a_window_end_the_repeats() -> None:
    """Half of them count; then the range is looked for, after its lease."""
    world = World([P0])
    world.ends[P0] = 10
    world.tables[OWN].seconds = 600
    sent: list[int] = []

    def script(world: World, assignment: Assignment) -> Answer:
        sent.append(world.now)
        world.load(assignment)
        return Failed(TransientError("no answer")) if not world.probes else world.load(assignment)

    world.script = script
    loop = run(world)
    assert loop.states[P0].stopped is None
    repeats = [at - START_MS for at in sent if at < world.probes[0][0]]
    assert 250_000 < max(repeats) <= 300_000  # up to half of ten minutes from the first insert
    assert len(repeats) > 3  # each of which was renewed, and none began the time anew
    assert world.rows_of(P0) == [1] * 10


@pytest.mark.parametrize("target_shard", [OWN, TARGET])
def test_a_renewal_keeps_the_time_of_the_first_insert(target_shard: TargetShard) -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.tables[TARGET] = Table(1000)
    world.tables[target_shard].seconds = 600
    failing_once(world, 12)
    run(world)
    since = {
        entry.body["since_ms"]
        for entry in world.ledger
        if entry.body.get("kind") in ("intend", "renew")
    }
    assert len(since) == 1
    assert [kind for kind, _, _ in kinds(world, P0)].count("RENEW") > 1


def test_a_window_of_few_seconds_shortens_leases_while_the_driver_runs() -> None:
    world = World([P0])
    world.ends[P0] = 10
    loop = world.loop()
    world.at(60_000, lambda: setattr(world.tables[OWN], "seconds", 600))
    world.at(62_000, lambda: world.ends.update({P0: 20}))
    world.at(70_000, lambda: setattr(world.tables[OWN], "seconds", None))
    world.at(72_000, lambda: world.ends.update({P0: 30}))
    world.at(90_000, loop.stopping.set)
    loop.run(None, 5.0)
    leases = [
        (record.deadline_ms - START_MS) // 1000
        for commit in world.commits
        for record in commit.records.values()
        if record.in_doubt
    ]
    assert 600 <= leases[0] <= 602 and 160 <= leases[1] <= 170 and leases[2] > 670
    assert world.rows_of(P0) == [1] * 30


def test_a_clock_that_was_ahead_when_the_range_began_makes_its_age_unknown() -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.tables[OWN].seconds = 3600
    loop = world.loop([world.overrun(P0, 10, reservation=1)])
    state = loop.states[P0]
    state.stage = AsRecorded()
    state.background = Background(insert_counters={OWN.key: 0}, since_ms=START_MS + 3_600_000)
    run(world, loop)
    assert len(world.probes) == 1


def test_the_window_behind_a_view_decides_too() -> None:
    """Foreign blocks fill the table that a view writes to, and not the entry's own."""
    world = World([P0])
    world.ends[P0] = 10
    world.tables[TARGET] = Table(100)

    def script(world: World, assignment: Assignment) -> Answer:
        loaded = world.load(assignment)
        if not world.probes and len(world.jobs) == 1:
            world.tables[TARGET].fill(60)
            return JobLostError("lost after the insert")
        return loaded

    world.script = script
    run(world)
    assert len(world.probes) == 1
    (first, *_) = [e for e in world.ledger if e.body.get("kind") == "intend"]
    assert first.body["insert_counters"] == {"t/s1": 0, "t/s1>d.sums": 0}


def test_a_view_that_came_after_the_range_counts_all_that_its_table_took() -> None:
    """And one that went does not count, nor is it waited for."""
    for taken, is_probed in ((40, False), (60, True)):
        world = World([P0])
        world.ends[P0] = 10
        gone = TargetShard("t", "s1", "d.gone")
        world.tables[gone] = Table(100)
        sent = failing_once(world)

        def change(world: World = world, taken: int = taken, gone: TargetShard = gone) -> None:
            world.tables[TARGET] = Table(100, insert_counter=taken)
            del world.tables[gone]

        world.at(120, change)
        run(world)
        assert bool(world.probes) is is_probed, taken
        assert len(sent) == 2


def test_entries_that_go_to_one_table_share_its_window() -> None:
    """Two topics, two tables, and one table that the views of both write to, with room for four
    entries: never is more reserved there."""
    world = World([P0, OTHER], (table_spec("t", ("a",)), table_spec("u", ("b",))))
    world.ends.update({P0: 200, OTHER: 200})
    world.slots = 8
    for entry in ("t", "u"):
        world.tables[TargetShard(entry, "s1", "d.sums")] = Table(2)
    held: dict[object, int] = {}
    most = 0
    run(world)
    for commit in world.commits:
        held.update({source: record.reservation for source, record in commit.records.items()})
        most = max(most, sum(held.values()))
    assert most == 1
    assert world.rows_of(P0) == [1] * 200


def refusing_below(entries: int, world: World, assignment: Assignment) -> Answer:
    """A view of the server takes no block of a smaller reservation."""
    if assignment.record.reservation < entries:
        return NeedsReservation("t", 2 * assignment.record.reservation, views=True)
    return world.load(assignment)


def test_a_reservation_for_views_grows_until_the_server_takes_the_block_and_stays() -> None:
    world = World([P0])
    world.ends[P0] = 50
    world.tables[TARGET] = Table(1000, is_partitioned=True)

    world.script = partial(refusing_below, 20)
    run(world)
    reservations = [j.assignments[0].record.reservation for j in world.jobs]
    assert reservations == [
        FIRST_RESERVATION,
        2 * FIRST_RESERVATION,
        4 * FIRST_RESERVATION,
        *[4 * FIRST_RESERVATION] * 4,
    ]
    assert world.rows_of(P0) == [1] * 50


def test_the_most_that_a_window_gives_is_tried_before_a_larger_guess_stops_a_partition() -> None:
    """What a view takes nobody counts: what was refused is doubled. 50 entries may be used."""
    world = World([P0])
    world.ends[P0] = 50
    world.tables[TARGET] = Table(100, is_partitioned=True)

    world.script = partial(refusing_below, 40)
    run(world)
    assert [j.assignments[0].record.reservation for j in world.jobs][:4] == [8, 16, 32, 50]
    assert world.rows_of(P0) == [1] * 50


@pytest.mark.parametrize("target_shard", [OWN, TARGET])
def test_another_process_of_the_server_may_have_lost_the_part(target_shard: TargetShard) -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.tables[TARGET] = Table(1000)
    world.tables[target_shard].server = FIRST
    failing_once(world)
    world.at(120, lambda: setattr(world.tables[target_shard], "server", SECOND))
    run(world)
    assert len(world.probes) == 1
    servers = [e.body.get("servers") for e in world.ledger if e.body["type"] == "record"]
    assert servers[0] == {"s1": FIRST}
    assert servers[1] == {"s1": SECOND}  # of the probe: its blocks are new to that process


@pytest.mark.parametrize("target_shard", [OWN, TARGET])
@pytest.mark.parametrize(("sent_ms", "is_probed"), [(-1, True), (0, False)])
def test_what_may_have_gone_with_parts_that_merged_to_no_row_is_probed(
    target_shard: TargetShard, sent_ms: int, is_probed: bool
) -> None:
    """It was sent again and again as long as its task refused it, and nobody was asked."""
    world = World([P0])
    world.ends[P0] = 10
    world.tables[TARGET] = Table(1000)
    sent = failing_once(world)

    def alter() -> None:
        world.tables[target_shard].lost_until_ms = sent[0].background.since_ms - sent_ms

    world.at(120, alter)
    run(world)
    assert len(world.probes) == is_probed


def test_the_same_process_is_believed() -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.tables[OWN].server = FIRST
    sent = failing_once(world)
    run(world)
    assert world.probes == [] and len(sent) == 2
    assert [each.background.servers for each in sent] == [{"s1": FIRST}] * 2
    assert sent[0].background.since_ms == sent[1].background.since_ms > 0


def test_a_failure_that_may_lack_a_part_is_in_the_ledger_before_anything_else() -> None:
    """Who takes over then must not trust the server either."""
    world = World([P0])
    world.ends[P0] = 10
    world.tables[OWN].server = FIRST
    failing_once(world)
    world.may_lack_part = True
    loop = world.loop()
    world.at(5_000, loop.stopping.set)
    loop.run(None, 1.0)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "RENEW"]
    first, second = (commit.records[P0] for commit in world.commits)
    assert (second.deadline_ms, second.attempt) == (first.deadline_ms, first.attempt)
    view = LedgerView(records={P0: world.ledger[-1].body})
    assert view.background(P0).servers == {}
    assert view.background(P0).insert_counters == {"t/s1": 0}
    assert loop.states[P0].has_to_be_probed and len(world.jobs) == 1


def test_where_all_tables_are_replicated_such_a_failure_means_nothing() -> None:
    world = World([P0])
    world.ends[P0] = 10
    sent = failing_once(world)
    world.may_lack_part = True
    run(world)
    assert world.probes == [] and len(sent) == 2
