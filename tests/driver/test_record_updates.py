"""Each step of a partition by itself: what its record says, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard
from sluice.core.ledger import Background
from sluice.core.planning import Limits
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter, Loaded, Receipt
from sluice.core.records import Kind
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.record_updates import (
    Budget,
    RecordPlanner,
    RecordUpdate,
    bounded,
    refresh,
    settle,
    settling,
)
from sluice.driver.state import AsRecorded, Holds, PartitionState, PossibleLateInsert
from tests.driver.loop_world import START_MS, Table, World, table_spec

P0 = TopicPartition("a", 0)
NOW = START_MS + 5_000
REST = {"t": ((3, 5),)}


def in_doubt(world: World) -> PartitionState:
    """A range that was probed, and whose rest was sent."""
    state = world.settled(P0)
    state.record = replace(
        state.record,
        kind=Kind.PROBE,
        attempt=4,
        begin=10,
        end=20,
        owner="before",
        generation=2,
        reservation=3,
        deadline_ms=NOW - 1,
        rest="0123456789ab",
    )
    state.background = Background(
        insert_counters={"t/s1": 7}, since_ms=NOW - 100, rest=REST, bytes_max=99
    )
    return state


@pytest.fixture
def world() -> World:
    return World([P0])


def test_a_renewed_range_is_the_same_under_a_new_lease(world: World) -> None:
    state = in_doubt(world)
    step = world.planner.renew(state, NOW)
    assert step.record == replace(
        state.record, kind=Kind.RENEW, attempt=5, owner="me", deadline_ms=NOW + 600_000
    )
    assert (step.source, step.background, step.dispatch) == (P0, state.background, True)
    assert world.planner.renew(state, NOW, reservation=9).record.reservation == 9


def test_another_spec_changes_nothing_else(world: World) -> None:
    state = in_doubt(world)
    renewed = world.planner.renew(state, NOW)
    today = replace(world.spec, range_bytes_max=1)
    world.planner.change(today)
    change_spec = world.planner.change_spec(state, NOW)
    assert change_spec == replace(
        renewed, record=replace(renewed.record, kind=Kind.CHANGE_SPEC, spec=today.digest())
    )
    widened = world.planner.add_columns(state, "fedcba9876543210", NOW)
    assert widened == replace(
        renewed, record=replace(renewed.record, kind=Kind.ADD_COLUMNS, spec="fedcba9876543210")
    )


def test_a_shortened_range_has_no_rest_and_is_sent(world: World) -> None:
    """Nobody inserted anything of it, so nothing of it was ever probed."""
    state = in_doubt(world)
    step = world.planner.shorten(state, 12, NOW)
    assert step.record == replace(
        state.record, kind=Kind.SHORTEN, end=12, rest="", deadline_ms=NOW + 600_000
    )
    assert step.background == replace(state.background, rest={})
    assert step.dispatch


def test_what_is_recorded_again_gives_nobody_more_time(world: World) -> None:
    state = in_doubt(world)
    step = refresh(state)
    assert step.record == replace(state.record, kind=Kind.RENEW)
    assert (step.background, step.dispatch) == (state.background, False)


def loaded(*dead_letters: DeadLetter) -> Loaded:
    receipt = Receipt("t", "d.t", "s1", "token", 8, 99, "sum", "http://h", 1, 5)
    return Loaded((receipt,), dead_letters, 10, 1000, 2)


def letter(value: bytes | None = b"{") -> DeadLetter:
    return DeadLetter("a", 0, 11, NOW, None, value, (), "syntax", "no object", "t", "")


def test_a_settled_range_is_empty_at_its_end_and_says_what_it_was(world: World) -> None:
    state = in_doubt(world)
    state.answered(loaded(letter()))
    step = settle(state, "me", 7, NOW)
    assert step.record == replace(
        state.record,
        kind=Kind.SETTLE,
        batch=7,
        attempt=0,
        begin=20,
        owner="me",
        reservation=0,
        deadline_ms=0,
        rest="",
    )
    assert (step.background, step.dispatch) == (Background(since_ms=NOW), False)
    assert [entry.body["type"] for entry in step.entries] == ["receipt", "settled"]
    assert {(e.body["begin"], e.body["end"], e.body["attempt"]) for e in step.entries} == {
        (10, 20, 4)
    }
    assert step.dead_letters == (letter(),)
    assert settling(replace(state, stage=AsRecorded()), NOW) == ((), (), "", 0)


@pytest.mark.parametrize(
    ("until_ms", "may_come_late"),
    [(NOW + 1, True), (NOW - 9_000, True), (NOW - 11_000, False), (0, False)],
)
def test_a_settled_range_of_which_an_insert_may_come_says_so(
    world: World, until_ms: int, may_come_late: bool
) -> None:
    """To the driver after this one, too: with the insert counters from before its first insert. A
    server may store for a while after the lease what it has wholly received."""
    state = in_doubt(world)
    state.background = replace(state.background, servers={"@claims": "a@0"})
    state.answered(loaded())
    state.late_insert_until_ms = until_ms
    late_inserts = [e.body for e in settling(state, NOW)[0] if e.body["type"] == "late_insert"]
    assert len(late_inserts) == may_come_late
    if may_come_late:
        assert (late_inserts[0]["deadline_ms"], late_inserts[0]["insert_counters"]) == (
            until_ms,
            {"t/s1": 7},
        )
        assert late_inserts[0]["claimed_in"] == state.late_insert.claimed_in == "a@0"


def test_dead_letters_of_one_transaction_are_bounded(world: World) -> None:
    """At least one range that has any is settled; those without any always are."""
    record = world.settled(P0).record

    def step(partition: int, dead_letters: int) -> RecordUpdate:
        source = TopicPartition("a", partition)
        many = (letter(b""),) * dead_letters
        weight = sum(one.weight for one in many)
        return RecordUpdate(source, record, Background(), False, (), many, weight=weight)

    def taken(*dead_letters: int) -> list[int]:
        steps = [step(place, count) for place, count in enumerate(dead_letters)]
        return [each.source.partition for each in bounded(steps, 3 * 1024)]

    assert taken(5, 0, 1) == [0, 1]
    assert taken(1, 2, 1, 0) == [0, 1, 3]
    assert taken(2, 2, 1) == [0, 2]
    assert taken(0, 4) == [0, 1]


def test_what_no_transaction_can_carry_is_settled_with_pointers(world: World) -> None:
    """Else it would be written again and again."""
    record, values = world.settled(P0).record, (b"a" * 600, b"b" * 600, None, b"c" * 300)

    def step(partition: int, bundle: str, *some: bytes | None) -> RecordUpdate:
        source, letters = TopicPartition("a", partition), tuple(map(letter, some))
        weight = sum(one.weight for one in letters)
        return RecordUpdate(source, record, Background(), False, (), letters, bundle, weight)

    def written(*steps: RecordUpdate) -> list[tuple[bytes | None, bool]]:
        taken = bounded(list(steps), 1000)
        return [(one.value, one.truncated) for update in taken for one in update.dead_letters]

    whole = [(value, False) for value in values]
    expected = [whole[0], (None, True), whole[2], whole[3]]
    assert written(step(0, "", *values)) == expected
    assert written(step(0, "bundle", *values[:1]), step(1, "bundle", *values[1:])) == expected
    assert written(step(0, "", b"a" * 1000)) == [(b"a" * 1000, False)]


def budget(
    world: World, *states: PartitionState, late_inserts: list[PossibleLateInsert] | None = None
) -> Budget:
    return Budget(world.current(), Holds(late_inserts or []), list(states), world.now)


def test_what_was_taken_is_not_given_twice_in_a_round(world: World) -> None:
    world = World([P0], blocks=20)
    target_shard = TargetShard("t", "s1")
    one = budget(world)
    assert (
        one.take([target_shard], 6)
        and not one.take([target_shard], 5)
        and one.take([target_shard], 4)
    )
    assert not one.take([target_shard], 1)


def test_entries_that_share_a_window_can_have_half_of_it_each() -> None:
    """What one block needed must not stop the partitions whose blocks need less."""
    world = World([P0], tuple(table_spec(name, ("a",)) for name in ("t", "u")), blocks=20)
    windows = {
        target_shard: replace(window, state=replace(window.state, table="d.t"))
        for target_shard, window in world.current().items()
    }
    one = Budget(windows, Holds([]), [], world.now)
    target_shards = [TargetShard("t", "s1"), TargetShard("u", "s1")]
    assert one.affordable(target_shards, 8) == 5
    assert one.take(target_shards, 5) and not one.take(target_shards[:1], 1)


def test_a_window_that_was_not_read_gives_nothing(world: World) -> None:
    unread = TargetShard("other", "s1")
    one = budget(world)
    assert not one.take([TargetShard("t", "s1"), unread], 1)
    assert one.affordable([unread], 5) == 5
    assert one.affordable([TargetShard("t", "s1"), unread], 501) == 500
    assert one.take([TargetShard("t", "s1")], 500), "nothing was taken before"


def test_all_that_may_land_is_held_against_the_window() -> None:
    """A range in doubt by its reservation, a possible late insert by what was created since its
    insert counter."""
    world = World([P0], blocks=20)
    world.tables[TargetShard("t", "s1")].fill(3)
    state = world.settled(P0)
    state.record = replace(
        state.record, kind=Kind.INTEND, attempt=1, end=10, reservation=2, deadline_ms=world.now + 1
    )
    state.background = Background(insert_counters={"t/s1": 1}, since_ms=world.now)
    late_insert = PossibleLateInsert({"t/s1": 0}, world.now + 1)
    for late_inserts, room in (([], 10 - 2 - 2), ([late_insert], 10 - 3 - 2)):
        assert budget(world, state, late_inserts=late_inserts).take([TargetShard("t", "s1")], room)
        assert not budget(world, state, late_inserts=late_inserts).take(
            [TargetShard("t", "s1")], room + 1
        )


def test_a_reservation_is_twice_what_blocks_of_a_partitioned_table_took() -> None:
    world = World(
        [P0],
        (table_spec("plain", ("a",)), table_spec("days", ("a",), "toDate(ts)")),
    )
    planner = RecordPlanner(LoadSpecs(world.spec), "me", Limits(10, 1 << 20, 1000), 600.0)
    assert planner.reservation("a", [], {}) == 8
    planner.learn("days", 3)
    assert planner.reservation("a", [], {}) == 6
    planner.learn("days", 9)
    assert planner.reservation("a", [], {}) == 18
    planner.learn("days", 2)
    planner.learn("plain", 50)
    assert planner.reservation("a", [], {}) == 16, "it shrinks slowly, and by its own blocks only"
    tables = tuple(replace(table, parked=table.entry == "days") for table in world.spec.tables)
    planner.change(replace(world.spec, tables=tables))
    assert planner.reservation("a", [], {}) == 1


@pytest.mark.parametrize(("insert_ms", "is_kept"), [(14_999, False), (15_000, True)])
def test_blocks_that_are_quick_again_get_no_more_time_than_configured(
    world: World, insert_ms: int, is_kept: bool
) -> None:
    """Of all blocks of the range, the slowest counts."""
    state = in_doubt(world)
    state.insert_seconds = 120.0
    assert world.planner.insert_seconds == 30.0
    slow = replace(loaded().receipts[0], insert_ms=insert_ms)
    quick = replace(slow, insert_ms=5)
    world.planner.learn_time(state, replace(loaded(), receipts=(quick, slow, quick)))
    assert state.insert_seconds == (120.0 if is_kept else 0.0)


T, U = TargetShard("t", "s1"), TargetShard("u", "s1")


def two_tables() -> World:
    """Ten entries of the one window may be used, six of the other one."""
    world = World([P0], (table_spec("t", ("a",)), table_spec("u", ("a",))), blocks=20)
    world.tables[U].blocks = 12
    return world


@pytest.mark.parametrize("full", [T, U])
def test_a_repeat_whose_lease_is_over_needs_room_in_each_window(full: TargetShard) -> None:
    """Its own entries and those created since its insert counters; one window without room is
    enough."""
    world, insert_counters = two_tables(), {"t/s1": 0, "u/s1": 0}
    world.tables[full].fill({T: 8, U: 4}[full])
    assert budget(world).take_again([T, U], 2, insert_counters) is True
    assert budget(world).take_again([T, U], 3, insert_counters) is None
    assert budget(world).take_again([T, U], 2, {"t/s1": -1, "u/s1": -1}) is None
    # A window without an insert counter (its view came later) counts from now.
    other = {T: "u/s1", U: "t/s1"}[full]
    assert budget(world).take_again([T, U], 6, {other: 0}) is True


def test_what_a_repeat_takes_is_a_hold_as_old_as_its_insert_counters() -> None:
    world = two_tables()
    world.tables[T].fill(3)
    one = budget(world)
    assert one.take_again([T], 2, {"t/s1": 1}) is True
    assert not one.take([T], 10 - 2 - 2 + 1) and one.take([T], 10 - 2 - 2)
    two = budget(world)
    assert two.take_again([T], 2, {"t/s1": 1}) is True
    # A second one that is older shares what is left, with what was created since its insert
    # counters.
    assert two.take_again([T], 10 - 3 - 2 + 1, {"t/s1": 0}) is False
    three = budget(world)
    assert three.take_again([T], 2, {"t/s1": 1}) is True
    assert three.take_again([T], 10 - 3 - 2, {"t/s1": 0}) is True
    assert not three.take([T], 1)


@pytest.mark.parametrize("held", [T, U])
def test_while_a_repeat_waits_nothing_new_is_reserved_where_it_needs_room(
    held: TargetShard,
) -> None:
    world, insert_counters = two_tables(), {"t/s1": 0, "u/s1": 0}
    one = budget(world)
    assert one.take([held], 4)
    assert one.take_again([T, U], {T: 7, U: 3}[held], insert_counters) in (None, False)
    if held is U:
        assert not one.take([T], 1) and not one.take([U], 1)


def test_a_repeat_waits_for_a_window_that_was_not_read() -> None:
    one = budget(two_tables())
    assert one.take_again([T, TargetShard("unread", "s1")], 1, {"t/s1": 0}) is False
    assert one.take([T], 10), "nothing was taken before"


def test_two_blocks_of_a_repeat_that_go_to_one_window_take_it_twice() -> None:
    """Views of two tables write to a third one."""
    world = two_tables()
    behind = [TargetShard(entry, "s1", "d.shared") for entry in ("t", "u")]
    for target_shard in behind:
        world.tables[target_shard] = Table(20)
    insert_counters = {target_shard.key: 0 for target_shard in behind}
    assert budget(world).take_again(behind, 5, insert_counters) is True
    assert budget(world).take_again(behind, 6, insert_counters) is None
