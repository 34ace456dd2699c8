"""What the simulator found, each as small as it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.core.errors import ForeignHandsError, OwnerChangedError, TransientError
from sluice.core.ledger import Background, Commit, CommittedOffset, LedgerView
from sluice.core.ranges import EpochOffset, TopicPartition, digest_of_rest
from sluice.core.receipts import NeedsReservation, TooHeavy
from sluice.core.records import Kind, Record, encode
from sluice.driver import start
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.record_updates import LOOK_AGE_MS_MAX
from sluice.driver.round_planner import Round
from sluice.driver.start import Started, StartParts
from sluice.driver.state import PartitionState, Probed
from sluice.kafka.errors import KafkaUnavailableError
from sluice.kafka.recorder import Recorder, TakeOver, _OwnProducer
from sluice.kafka.transactions import RecorderNames
from sluice.testbed.simulate.inserters import Inserters
from sluice.testbed.simulate.invariants import Invariants
from sluice.testbed.simulate.processes import DriverProcess
from sluice.testbed.simulate.world import World as SimulatedWorld
from tests.driver.loop_world import World, table_spec

P0, P1 = TopicPartition("a", 0), TopicPartition("b", 0)


def probed(world: World) -> PartitionState:
    """A range whose recorded probe found [0, 10) missing, and whose next probe found the same."""
    state = world.overrun(P0, 10, reservation=1)
    rest = {"t": ((0, 10),)}
    state.record = world.group[P0] = replace(
        state.record, kind=Kind.PROBE, spec="f" * 16, rest=digest_of_rest(rest)
    )
    state.stage = Probed()
    state.background = Background(since_ms=world.now, rest=rest)
    return state


def test_a_probe_that_finds_the_same_again_is_recorded_again() -> None:
    """Else the record keeps a load spec that cannot be executed, and a background without insert
    counters."""
    world = World([P0])
    world.ends[P0] = 10
    loop = world.loop([probed(world)])
    loop.run({P0: 10}, 5.0)
    first = world.commits[0].records[P0]
    assert first.kind is Kind.PROBE
    assert first.spec == world.spec.digest()
    assert world.commits[0].entries[-1].body["insert_counters"] == {"t/s1": 0}
    assert world.rows_of(P0) == [1] * 10


def test_a_driver_that_slept_looks_again_before_it_repeats() -> None:
    """The windows were read after the range came back, but before the driver slept."""
    world = World([P0], blocks=20)
    world.ends[P0] = 10
    state = world.settled(P0)
    state.record = world.group[P0] = replace(
        state.record,
        kind=Kind.INTEND,
        attempt=1,
        end=10,
        reservation=1,
        deadline_ms=world.now + 1_000,
    )
    state.background = Background(insert_counters={"t/s1": 0}, since_ms=world.now)
    loop = world.loop([state])
    windows = dict(world.current())
    world.now += LOOK_AGE_MS_MAX + 1_000
    round_planner = loop._round_planner
    round_planner._windows = cast(
        Any, SimpleNamespace(current=lambda: windows, outage=lambda target_shard: None)
    )
    assert round_planner.plan([state], world.now, flush=True, stopping=False) == Round()
    windows.update(
        {
            target_shard: replace(window, read_started_ms=world.now)
            for target_shard, window in windows.items()
        }
    )
    planned = round_planner.plan([state], world.now, flush=True, stopping=False)
    (step,), ready = planned.updates, planned.ready
    assert step.record.kind is Kind.RENEW and ready == []


def test_a_spec_is_executable_for_all_topics_that_need_it_or_for_none() -> None:
    recorded = replace(World([P0, P1]).spec, decoder="chdb 0")
    today = replace(recorded, tables=(table_spec("t", ("a", "b")),), decoder="chdb 1")
    record = World([P0]).settled(P0).record
    doubt = replace(record, kind=Kind.INTEND, end=5, spec=recorded.digest())
    view = LedgerView(
        records={source: {"metadata": encode(doubt), "topic": source.topic} for source in (P0, P1)},
        specs={recorded.digest(): recorded.canonical()},
    )
    watched: list[Any] = []
    parts = SimpleNamespace(
        planner=SimpleNamespace(specs=LoadSpecs(today)),
        why_not_executable=lambda spec, topic: "its key changed" if topic == "a" else None,
        watch=watched.append,
    )
    started = Started()
    start._load_specs(cast(StartParts, parts), view, started)
    assert list(started.specs) == [today.digest()]
    assert watched == []


def test_what_is_parked_needs_no_look_at_its_window_before_a_repeat() -> None:
    """The range was intended for both entries: it has a counter of each. Its task was refused by
    one table, and a later load spec parks that entry, so the repeat inserts nothing there."""
    told: list[str] = []
    tables = [SimpleNamespace(target_shards=[f"{entry}/s1"]) for entry in ("t", "u")]
    clickhouse = SimpleNamespace(tables=lambda: iter(tables))
    world = SimpleNamespace(
        clickhouse=clickhouse, now=2_000, excused={}, violate=told.append, plan=None
    )
    invariants = Invariants(cast(Any, world), cast(Any, None))
    driver = cast(DriverProcess, object())
    marks = {"t/s1": 0, "u/s1": 0}
    invariants._backgrounds[P0] = {"insert_counters": marks}
    invariants._back_at[driver, P0] = 1_000
    record = World([P0]).settled(P0).record
    looked = {(driver, id(tables[0])): 1_500, (driver, id(tables[1])): 900}
    invariants.looks._told_at.update(cast(Any, looked))
    both = replace(World([P0]).spec, tables=(table_spec("t", ("a",)), table_spec("u", ("a",))))
    parked = replace(both, tables=(both.tables[0], replace(both.tables[1], parked=True)))
    invariants._check_look(driver, P0, record, parked)
    assert told == []
    invariants._check_look(driver, P0, record, both)
    (violation,) = told
    assert "on what u/s1 held before (R10)" in violation


class Group(Recorder):
    """A recorder without clients; `held` is what the group holds."""

    def __init__(self, held: Mapping[TopicPartition, CommittedOffset | None]) -> None:
        self.held = dict(held)
        self.names = RecorderNames("g", "ledger", "dead", "me")
        self._own = _OwnProducer(lambda lost: SimpleNamespace(poll=lambda seconds: None))

    def committed(self, sources: Any) -> Any:
        return {source: self.held[source] for source in sources}


def offset_of(record: Record) -> CommittedOffset:
    return CommittedOffset.of(record)


def test_a_foreign_commit_on_one_partition_leaves_the_others_of_its_transaction_alone() -> None:
    old = World([P0]).settled(P0).record
    new = replace(old, kind=Kind.INTEND, batch=2, end=5)
    foreign = CommittedOffset(3, None)
    commit, expected = Commit({P0: new, P1: new}), {P0: old, P1: old}
    Group({P0: offset_of(new), P1: foreign})._find_out(commit, expected)
    with pytest.raises(KafkaUnavailableError):
        Group({P0: offset_of(old), P1: foreign})._find_out(commit, expected)
    with pytest.raises(ForeignHandsError):
        Group({P0: foreign, P1: foreign})._find_out(commit, expected)


def test_a_foreign_commit_after_a_take_over_of_unknown_outcome_is_no_owner() -> None:
    """It is taken over again, and that finds the foreign commit and stops its partition."""
    old = World([P0]).settled(P0).record
    new = replace(old, batch=2)
    taken = TakeOver({P0: offset_of(old), P1: offset_of(old)}, {P0: "before", P1: "before"}, {})

    def find_out(*found: CommittedOffset | None) -> None:
        held = dict(zip((P0, P1), found, strict=True))
        Group(held)._find_out_first({P0: new, P1: new}, taken)

    find_out(offset_of(new), offset_of(new))
    with pytest.raises(TransientError, match="was not committed"):
        find_out(CommittedOffset(3, None), offset_of(old))
    for foreign in (CommittedOffset(3, None), None):
        with pytest.raises(TransientError, match="which is no record") as caught:
            find_out(offset_of(new), foreign)
        assert "stops" in caught.value.hint
    with pytest.raises(OwnerChangedError, match="taken over by rival"):
        find_out(CommittedOffset(3, None), offset_of(replace(old, owner="rival")))


def test_a_take_over_whose_group_changed_is_no_reason_to_stop() -> None:
    old = World([P0]).settled(P0).record
    taken = TakeOver({P0: offset_of(old)}, {P0: "me"}, {})

    def refuse(now: CommittedOffset | None) -> None:
        parts = SimpleNamespace(recorder=Group({P0: now}))
        start._refuse_change(cast(StartParts, parts), taken)

    refuse(offset_of(old))
    with pytest.raises(OwnerChangedError, match="taken over by rival"):
        refuse(offset_of(replace(old, owner="rival")))
    with pytest.raises(TransientError, match="changed while"):
        refuse(CommittedOffset(3, None))


def lapsed(world: World, source: TopicPartition, reservation: int) -> PartitionState:
    """A range in doubt whose lease is over."""
    world.ends[source] = 20
    state = world.settled(source)
    state.record = world.group[source] = replace(
        state.record,
        kind=Kind.INTEND,
        attempt=1,
        end=10,
        reservation=reservation,
        deadline_ms=world.now - 60_000,
    )
    state.background = Background(insert_counters={"t/s1": 0}, since_ms=world.now - 90_000)
    return state


def test_a_range_whose_lease_was_over_is_sent_again_only_beside_what_has_room_with_it() -> None:
    """Ten entries may be used, and two ranges that are out may take eight of them. One in doubt
    that may take three more waits, and nothing new is reserved before it."""
    sources = [P0, P1, TopicPartition("c", 0)]
    world = World(sources, blocks=20)
    mine, out = lapsed(world, P0, 3), lapsed(world, P1, 8)
    out.out, out.record = True, replace(out.record, deadline_ms=world.now + 600_000)
    new = world.settled(sources[2])
    world.ends[sources[2]] = 10
    loop = world.loop([mine, out, new])
    new.waiting_since_ms, new.stable_end = 0, 10
    assert (
        loop._round_planner.plan(list(loop.states.values()), world.now, flush=True, stopping=False)
        == Round()
    )
    out.record = replace(out.record, reservation=7)
    planned = loop._round_planner.plan(
        list(loop.states.values()), world.now, flush=True, stopping=False
    )
    steps, ready = planned.updates, planned.ready
    assert [(step.source, step.record.kind) for step in steps] == [(P0, Kind.RENEW)]
    assert ready == []


def test_what_a_probe_finds_again_is_loaded_under_another_name() -> None:
    """A server that is not replicated may know the block of the first attempt and not have it."""
    rest = {"t": ((0, 10),)}
    assert digest_of_rest(rest, 2) != digest_of_rest(rest, 3)
    world = World([P0])
    world.ends[P0] = 10
    state = probed(world)
    before = state.record.rest
    loop = world.loop([state])
    loop.run({P0: 10}, 5.0)
    assert world.commits[0].records[P0].rest not in ("", before)


def test_a_range_that_needs_a_larger_reservation_after_its_lease_takes_all_of_it_or_is_probed() -> (
    None
):
    """Nine entries came since, of ten that may be used: the reservation of one would have room,
    that of two has not. Taking the first each time, it would keep every reservation from the others
    for ever."""
    world = World([P0, P1], blocks=20)
    state, new = lapsed(world, P0, 1), world.settled(P1)
    state.answered(NeedsReservation("t", 2))
    world.ends[P1], new.waiting_since_ms, new.stable_end = 10, 0, 10
    (table,) = world.tables.values()
    table.insert_counter = 9
    loop = world.loop([state, new])
    steps = loop._round_planner.plan(
        list(loop.states.values()), world.now, flush=True, stopping=False
    ).updates
    assert state.has_to_be_probed
    assert [step.source for step in steps] == [P1]


def test_a_range_that_is_cut_shorter_after_its_lease_is_reserved_anew() -> None:
    """Its task said only after its lease that the range is too heavy: its reservation is no hold
    any more, and others hold eight of the ten entries that may be used."""
    world = World([P0, P1], blocks=20)
    mine, out = lapsed(world, P0, 3), lapsed(world, P1, 8)
    mine.answered(TooHeavy(5, 0))
    out.out, out.record = True, replace(out.record, deadline_ms=world.now + 600_000)
    (table,) = world.tables.values()
    table.insert_counter = 2
    out.background = replace(out.background, insert_counters={"t/s1": 2})
    loop = world.loop([mine, out])
    assert (
        loop._round_planner.plan(list(loop.states.values()), world.now, flush=True, stopping=False)
        == Round()
    )
    out.record = replace(out.record, reservation=7)
    (step,) = loop._round_planner.plan(
        list(loop.states.values()), world.now, flush=True, stopping=False
    ).updates
    assert (step.record.kind, step.record.end) == (Kind.SHORTEN, 5)
    assert step.background.insert_counters == {"t/s1": 2}


@pytest.mark.parametrize(
    ("kind", "end", "is_lacking"),
    [(Kind.SHORTEN, 17, False), (Kind.SHORTEN, 18, True), (Kind.SETTLE, 0, False)],
)
def test_a_log_that_was_cut_lacks_what_is_recorded_and_nothing_else(
    kind: Kind, end: int, is_lacking: bool
) -> None:
    """A range of which nobody inserted anything was cut at 17 while it was in doubt. If it becomes
    shorter, or is given back, the log holds all that is recorded, and the partition goes on."""
    world = SimulatedWorld(1, 0.0, 0)
    invariants = Invariants(world, Inserters(world))
    intended = replace(
        World([P0]).settled(P0).record, kind=Kind.INTEND, batch=1, attempt=1, end=27, epoch=0
    )
    invariants.cut(P0, EpochOffset(17, 1))
    less = replace(intended, kind=kind, batch=2, end=end)
    settled = replace(less, kind=Kind.SETTLE, batch=3, begin=end, deadline_ms=0)
    more = replace(intended, batch=4, begin=end, end=30, epoch=1)
    entry = {"topic": "a", "partition": 0, "kind": "intend", "insert_counters": {}, "since_ms": 0}
    invariants.background_recorded({**entry, "begin": end})
    for before, after in ((intended, less), (less, settled), (settled, more)):
        invariants.committed(P0, before, after, [])
    lacks = [what for what in world.violations if "cut below what was recorded" in what]
    assert bool(lacks) == is_lacking, world.violations
    assert world.violations == lacks
