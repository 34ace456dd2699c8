"""Ranges that are loaded as one block: how bundles come about, and how they end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard
from sluice.core.bundles import Member, bundle_name, members_in
from sluice.core.errors import InDoubtError, TerminalError
from sluice.core.ledger import Background
from sluice.core.planning import Limits
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import BundleTooHeavy, Failed, NeedsReservation, Untried
from sluice.core.records import Kind, Record
from sluice.driver.parking import Parking
from sluice.driver.state import PartitionState
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import TOPIC_ID, Answer, World, kinds, run, table_spec
from tests.support.examples import examples

SOURCES = [TopicPartition("a", number) for number in range(20)]


def bundling(
    count: int = 20, members_max: int = 500, messages_max: int = 1000, blocks: int = 1000
) -> World:
    """A few messages in each of many partitions, and one task at a time."""
    world = World(SOURCES[:count], blocks=blocks)
    world.slots = 1
    world.planner = replace(
        world.planner, limits=Limits(messages_max, 1 << 20, 1000), members_max=members_max
    )
    world.ends.update(dict.fromkeys(SOURCES[:count], 5))
    return world


def blocks_of(world: World) -> int:
    return world.tables[TargetShard("t", "s1")].insert_counter


def assert_exact(world: World) -> None:
    for source, end in world.ends.items():
        assert world.rows_of(source) == [1] * end, source


def bundles_of(world: World) -> list[list[str]]:
    """The names of the bundles of each commit, once for each member."""
    return [
        [record.bundle for record in commit.records.values() if record.bundle]
        for commit in world.commits
    ]


def test_many_small_ranges_are_one_block() -> None:
    world = bundling()
    run(world)
    assert_exact(world)
    assert blocks_of(world) == 1
    names = [name for names in bundles_of(world) for name in names]
    assert len(names) == 20 and len(set(names)) == 1
    assert names[0].endswith(".20")
    assert all(kinds(world, s) == [("INTEND", 0, 5), ("SETTLE", 5, 5)] for s in world.ends)


@pytest.mark.parametrize(("members_max", "blocks"), [(1, 20), (2, 10), (7, 3), (500, 1)])
def test_no_bundle_has_more_members_than_it_may(members_max: int, blocks: int) -> None:
    world = bundling(members_max=members_max)
    run(world)
    assert_exact(world)
    assert blocks_of(world) == blocks


def test_a_bundle_is_no_larger_than_one_range() -> None:
    world = bundling(messages_max=12)
    run(world)
    assert_exact(world)
    assert blocks_of(world) == 10


@pytest.mark.parametrize(("learned", "blocks"), [(False, 3), (True, 1)])
def test_partitions_that_were_not_seen_are_as_those_of_their_topic(
    learned: bool, blocks: int
) -> None:
    """Nothing is known of a message: 1 KiB, until the first bundles say what the others take. A
    backlog of many partitions is one range of each."""
    world = bundling()
    world.planner = replace(world.planner, limits=Limits(1000, 16 * 1024, 1000))
    if learned:
        world.planner.learn_bytes("a", 10, 1_000)
    run(world)
    assert_exact(world)
    assert blocks_of(world) == blocks


def test_large_ranges_go_alone() -> None:
    world = bundling(count=3, messages_max=8)
    world.ends[SOURCES[0]] = 2
    run(world)
    assert_exact(world)
    assert blocks_of(world) == 3


def test_ranges_of_other_tables_are_in_other_bundles() -> None:
    tables = (table_spec("t", ("a",)), table_spec("u", ("b",)))
    others = [TopicPartition("b", number) for number in range(3)]
    world = World([*SOURCES[:3], *others], tables)
    world.slots = 1
    limits = Limits(1000, 1 << 20, 1000)
    world.planner = replace(world.planner, limits=limits, members_max=500)
    world.ends.update(dict.fromkeys(world.ends, 4))
    run(world)
    assert [world.rows_of(s) for s in SOURCES[:3]] == [[1] * 4] * 3
    assert [world.rows_of(s, "u") for s in others] == [[1] * 4] * 3
    assert [table.insert_counter for table in world.tables.values()] == [1, 1]


def test_whoever_waits_goes_along() -> None:
    """One has waited for long enough; the others came a moment ago."""
    world = bundling(count=10)
    world.ends.update(dict.fromkeys(SOURCES[1:10], 0))
    world.at(900, lambda: world.ends.update(dict.fromkeys(SOURCES[1:10], 5)))
    loop = world.loop()
    world.at(5_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert_exact(world)
    assert blocks_of(world) == 1


def test_enough_for_a_block_does_not_wait_until_it_is_due() -> None:
    """What is left over waits."""
    world = bundling(count=20)
    world.planner = replace(world.planner, limits=Limits(45, 1 << 20, 60_000))
    loop = world.loop()
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert blocks_of(world) == 2
    assert [world.rows_of(source) for source in SOURCES] == [[1] * 5] * 18 + [[0] * 5] * 2


def test_too_little_for_a_block_waits_until_it_is_due() -> None:
    world = bundling(count=20)
    world.planner = replace(world.planner, limits=Limits(101, 1 << 20, 60_000))
    loop = world.loop()
    world.at(59_500, loop.stopping.set)
    loop.run(None, 5.0)
    assert blocks_of(world) == 0


def test_each_broker_has_bundles_of_its_own() -> None:
    """One that is away holds up no partition of another."""
    world = bundling(count=20)
    world.leaders = {source: source.partition % 3 for source in SOURCES}
    run(world)
    assert_exact(world)
    assert blocks_of(world) == 3
    for commit in world.commits:
        for name in {record.bundle for record in commit.records.values() if record.bundle}:
            members = [s for s, record in commit.records.items() if record.bundle == name]
            assert len({world.leaders[source] for source in members}) == 1


def test_the_window_counts_a_bundle_once() -> None:
    """Half of a window of four entries has room for two blocks, however many ranges they are."""
    world = bundling(blocks=4)
    run(world)
    assert_exact(world)
    assert blocks_of(world) == 1


def test_a_lost_bundle_is_sent_again_as_it_was() -> None:
    world = bundling()
    lost: list[str] = []

    def script(world: World, assignment: Assignment) -> Answer:
        if len(lost) < 20:
            lost.append(assignment.record.bundle)
            world.load(assignment)  # it was stored all the same
            return JobLostError("lost")
        return world.load(assignment)

    world.script = script
    run(world)
    assert_exact(world)
    assert blocks_of(world) == 1
    assert len({a.record.bundle for job in world.jobs for a in job.assignments}) == 1
    assert not world.probes


def test_a_bundle_that_is_too_heavy_is_given_back_and_its_ranges_go_alone() -> None:
    world = bundling(count=6)

    def script(world: World, assignment: Assignment) -> Answer:
        return BundleTooHeavy() if assignment.record.bundle else world.load(assignment)

    world.script = script
    run(world)
    assert_exact(world)
    assert blocks_of(world) == 6
    assert kinds(world, SOURCES[0])[:3] == [("INTEND", 0, 5), ("SETTLE", 0, 0), ("INTEND", 0, 5)]
    assert not world.probes


def test_a_reservation_that_one_block_needs_is_taken_once() -> None:
    world = bundling(count=8, blocks=100)

    def script(world: World, assignment: Assignment) -> Answer:
        if assignment.record.reservation < 30:
            return NeedsReservation("t", 30)
        return world.load(assignment, 30)

    world.script = script
    run(world)
    assert_exact(world)
    assert kinds(world, SOURCES[0])[:2] == [("INTEND", 0, 5), ("RENEW", 0, 5)]


def test_what_a_task_did_not_come_to_is_sent_again_as_the_first_time() -> None:
    world = bundling(count=4)
    seen: list[bool] = []

    def script(world: World, assignment: Assignment) -> Answer:
        seen.append(assignment.is_first)
        return Untried() if len(seen) <= 4 else world.load(assignment)

    world.script = script
    run(world)
    assert_exact(world)
    assert seen == [True] * 8


def foreign(world: World, source: TopicPartition) -> None:
    """Somebody else commits an offset of a partition."""
    record = world.group[source]
    world.group[source] = replace(record, batch=record.batch + 1000)


def test_a_member_that_was_never_recorded_does_not_hold_the_others() -> None:
    """Foreign hands are found before the first record: the bundle of the others is sent to
    nobody, and each goes its own way without a probe."""
    world = bundling(count=5)
    loop = world.loop()
    foreign(world, SOURCES[1])
    run(world, loop)
    assert loop.states[SOURCES[1]].stopped is not None
    assert [world.rows_of(s) for s in SOURCES[:5]] == [
        [int(s != SOURCES[1])] * 5 for s in SOURCES[:5]
    ]
    assert not world.probes


def in_doubt(world: World, members: int) -> list[Record]:
    """Records of a bundle that a driver left when it died."""
    first = world.loop()
    died = world.script
    world.script = lambda world, assignment: None
    world.at(3_000, first.stopping.set)
    first.run(None, 0.0)
    world.script = died
    records = [world.group[source] for source in list(world.ends)[:members]]
    assert all(record.bundle for record in records)
    return records


@pytest.mark.parametrize("missing", [0, 1])
def test_who_takes_over_repeats_a_whole_bundle_and_probes_a_part(missing: int) -> None:
    world = bundling(count=6)
    in_doubt(world, 6)
    sent = world.jobs[-1].assignments
    for assignment in sent:  # the worker outlived its driver
        world._members = {assignment.record.bundle: list(sent)}
        world.load(assignment)
    states = []
    for source in list(world.ends)[missing:]:
        state = world.settled(source)
        (own,) = [a for a in sent if a.block_range.source == source]
        state.record = world.group[source] = own.record
        state.background = own.background
        state.stable_end = state.record.end
        state.back_at_ms = world.now
        states.append(state)
    taken = set(world.ends) - {state.source for state in states}
    world.jobs.clear()
    loop = world.loop(states)
    targets = {state.source: 5 for state in states}
    loop.run(targets, 5.0)
    assert_exact(world)
    probed = {block_range.source for _, block_range in world.probes}
    assert probed == (set() if not missing else {state.source for state in states})
    assert len(taken) == missing


@pytest.mark.examples
@pytest.mark.parametrize("seed", range(examples(20)))
def test_whatever_fails_each_row_is_there_once(seed: int) -> None:
    """Tasks are lost, refuse, time out before or after they stored; partitions stop in between."""
    dice = random.Random(seed)
    world = bundling(count=12, members_max=dice.choice([2, 5, 500]), blocks=60)
    failures = [60]

    def fault(world: World, assignment: Assignment) -> Answer:
        kind = dice.randrange(4)
        if kind == 0:
            world.load(assignment)
            return Failed(InDoubtError("no answer", ""))
        return [
            Failed(InDoubtError("nobody listens", "")),
            Untried() if not assignment.record.rest else Failed(InDoubtError("away", "")),
            Failed(InDoubtError("slow", "")),
        ][kind - 1]

    chosen: dict[tuple[int, str], Callable[[World, Assignment], Answer] | None] = {}
    outcome: dict[tuple[int, str], Answer] = {}

    def script(world: World, assignment: Assignment) -> Answer:
        # What happens to one member of a bundle happens to all.
        if assignment.record.bundle[:1] in ("0", "1", "2", "3"):
            return BundleTooHeavy()  # always, whoever asks
        key = len(world.jobs), assignment.record.bundle or str(assignment.block_range)
        if key not in chosen:
            failing = failures[0] > 0 and dice.random() < 0.5
            failures[0] -= failing
            chosen[key] = fault if failing else None
        found = chosen[key]
        if found is None:
            return world.load(assignment)
        if key not in outcome:
            outcome[key] = found(world, assignment)
        return outcome[key]

    world.script = script
    for delay in (4_000, 9_000):
        world.at(delay, lambda: world.ends.update({s: e + 3 for s, e in world.ends.items()}))
    world.at(1_200, lambda: world.tables[TargetShard("t", "s1")].fill(dice.choice([0, 40])))
    loop = world.loop()
    world.at(900_000, loop.stopping.set)
    loop.run(None, 60.0)
    assert_exact(world)


def left_in_doubt(
    world: World, attempts: list[int], entries: tuple[str, ...]
) -> list[PartitionState]:
    """All partitions in doubt in one bundle, as a driver before this one left them."""
    name = bundle_name(Member(Range(s, 0, end), TOPIC_ID, 0) for s, end in world.ends.items())
    states = []
    for (source, end), attempt in zip(world.ends.items(), attempts, strict=True):
        state = world.settled(source)
        state.record = world.group[source] = replace(
            state.record,
            kind=Kind.RENEW,
            attempt=attempt,
            end=end,
            spec=world.spec.digest(),
            reservation=1,
            deadline_ms=world.now + 100_000,
            bundle=name,
        )
        counters = {TargetShard(entry, "s1").key: 0 for entry in entries}
        state.background = Background(counters, since_ms=world.now, bytes_max=1 << 20)
        state.stable_end, state.back_at_ms = end, world.now
        states.append(state)
    return states


def test_attempts_of_members_never_go_down() -> None:
    """One was recorded by itself, since it had stopped when the others were taken over."""
    world = bundling(count=2)
    loop = world.loop(left_in_doubt(world, [2, 5], ("t",)))
    loop.run(dict(world.ends), 5.0)
    assert_exact(world)
    for source in world.ends:
        attempts = [commit.records[source].attempt for commit in world.commits if commit.records]
        assert attempts[0] == 6, (source, attempts)


def test_a_range_that_leaves_is_not_probed_where_nobody_would_look() -> None:
    """Its other table entry is not configured any more: it stops, like the one that was decided
    for."""
    tables = (table_spec("t", ("a",)), table_spec("u", ("a",)))
    world = World(SOURCES[:3], tables)
    world.slots, world.rounds_left = 1, 10**6
    world.ends.update(dict.fromkeys(SOURCES[:3], 5))
    states = left_in_doubt(world, [2, 2, 2], ("t", "u"))
    limits = Limits(1000, 1 << 20, 1000)
    world.planner = replace(world.planner, limits=limits, members_max=500)
    world.planner.change(replace(world.spec, tables=tables[:1]))
    world.parking = Parking({"t"})
    loop = world.loop(states)
    world.at(3000, lambda: world.gone.update({"t": "table t is gone"}))
    world.script = lambda world, assignment: Failed(InDoubtError("no answer", ""))
    world.at(1_500_000, loop.stopping.set)
    loop.run(None, 1.0)
    assert [state.settled for state in loop.states.values()] == [0, 0, 0]
    assert all("u is not configured" in str(state.stopped) for state in loop.states.values())


@pytest.mark.slow
def test_a_block_that_a_window_can_never_hold_is_divided() -> None:
    """It takes an entry for each member; each range alone takes one."""
    world = bundling(blocks=20)
    world.rounds_left = 10**6

    def script(world: World, assignment: Assignment) -> Answer:
        needed = members_in(assignment.record.bundle)
        if needed > assignment.record.reservation:
            return NeedsReservation("t", needed, inserted=False)
        return world.load(assignment, needed)

    world.script = script
    loop = world.loop()
    for hour in range(1, 3):
        more = dict.fromkeys(world.ends, 5 + 5 * hour)
        world.at(hour * 900_000, lambda more=more: world.ends.update(more))  # type: ignore[misc]
    world.at(3 * 900_000, loop.stopping.set)
    loop.run(None, 1.0)
    assert_exact(world)
    sizes = {members_in(name) for names in bundles_of(world) for name in names}
    assert max(sizes) == 20 and min(sizes) <= 10


def test_rows_that_are_too_many_only_now_are_not_loaded_again() -> None:
    """The block was stored under another load spec, under which it had fewer rows."""
    world = bundling(count=3)
    stored: set[TopicPartition] = set()

    def script(world: World, assignment: Assignment) -> Answer:
        if assignment.block_range.source not in stored:
            stored.add(assignment.block_range.source)
            world.load(assignment)
            return Failed(InDoubtError("no answer", ""))
        if assignment.record.bundle:
            return BundleTooHeavy(by_rows=True)
        return world.load(assignment)

    world.script = script
    run(world)
    assert_exact(world)
    assert all("PROBE" in [kind for kind, *_ in kinds(world, s)] for s in world.ends)


def test_what_is_distrusted_is_recorded_when_a_bundle_ends_too() -> None:
    """A server may know the block without having it; who comes next has to know that."""
    world = bundling(count=3)
    world.rounds_left = 10**6
    world.tables[TargetShard("t", "s1")].server = "11111111-1111-1111-1111-111111111111 100"
    world.may_lack_part = True

    def script(world: World, assignment: Assignment) -> Answer:
        world.load(assignment)
        state = loop.states[SOURCES[1]]
        if state.stopped is None:
            state.stop(TerminalError("its log was cut", ""))
        return Failed(InDoubtError("a rename failed", ""))

    world.script = script
    loop = world.loop()
    world.at(60_000, loop.stopping.set)
    loop.run(None, 0.0)
    entries = [entry for entry in world.ledger if entry.source and entry.body["type"] == "record"]
    last = {entry.source: entry.body.get("servers") for entry in entries}
    assert not last[SOURCES[0]] and not last[SOURCES[2]], last


@pytest.mark.parametrize("is_narrowed", [False, True])
def test_as_many_ranges_as_a_block_may_be_of_are_not_enough_for_a_block(is_narrowed: bool) -> None:
    """With one message each they would be blocks of a few rows, again and again."""
    world = bundling(count=20, members_max=500 if is_narrowed else 5)
    world.planner = replace(world.planner, limits=Limits(100, 1 << 20, 60_000))
    world.planner._members_of[("t",)] = 1 if is_narrowed else 5
    loop = world.loop()
    world.at(59_500, loop.stopping.set)
    loop.run(None, 5.0)
    assert blocks_of(world) == 0
