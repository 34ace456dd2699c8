"""What a block may take of a window: what is compared with the reservation, what a larger one
costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard
from sluice.core.ledger import Background
from sluice.core.load_spec import Sharding
from sluice.core.ranges import EpochOffset, Range, TopicPartition, digest_of_rest
from sluice.core.receipts import NeedsReservation
from sluice.core.records import Kind, Record
from sluice.driver.dispatching import assigned
from sluice.driver.state import PartitionState, Probed
from sluice.worker.assignment import Assignment
from sluice.worker.bundle import Bundle
from sluice.worker.errors import NeedsReservationError
from sluice.worker.leases import HeldLease
from sluice.worker.loading import _Loading
from sluice.worker.worker_cache import WorkerCache
from tests.decode.test_sharding import SHARDS, decoded_of, sharded
from tests.driver.loop_world import World
from tests.worker.test_loading import NOWHERE

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)


def in_doubt(
    world: World, source: TopicPartition, reservation: int, left_ms: int
) -> PartitionState:
    """A range that came back just now; its window was as it is.

    :param left_ms: what is left of its lease.
    """
    world.ends[source] = 10
    state = world.settled(source)
    state.record = world.group[source] = replace(
        state.record,
        kind=Kind.INTEND,
        attempt=1,
        end=10,
        reservation=reservation,
        deadline_ms=world.now + left_ms,
    )
    insert_counter = world.tables[TargetShard("t", "s1")].insert_counter
    state.background = Background(insert_counters={"t/s1": insert_counter}, since_ms=world.now)
    return state


@pytest.mark.parametrize(("left_ms", "is_reserved"), [(300_000, True), (-60_000, False)])
def test_a_larger_reservation_replaces_only_what_still_holds_its_window(
    left_ms: int, is_reserved: bool
) -> None:
    """Ten entries may be used. Another range holds four of them and this one three: it may have six
    in their place. Where its lease is over, its three are not among what is held, so they give
    nothing back: of the five that the other one leaves, six cannot be reserved."""
    world = World([P0, P1], blocks=20)
    mine = in_doubt(world, P0, 3, left_ms)
    other = in_doubt(world, P1, 4 if is_reserved else 5, 600_000)
    other.out = True
    mine.answered(NeedsReservation("t", 6))
    loop = world.loop([mine, other])
    planned = loop._round_planner.plan(
        list(loop.states.values()), world.now, flush=True, stopping=False
    )
    steps, ready = planned.updates, planned.ready
    assert ready == []
    assert [(step.source, step.record.reservation) for step in steps] == [(P0, 6)] * is_reserved


def test_repeats_whose_leases_are_over_share_the_window_and_new_ranges_wait_for_them() -> None:
    """Ten entries may be used, and both repeats may take six: what an earlier attempt stored may
    have to be known again while the other one inserts."""
    new = TopicPartition("a", 2)
    world = World([P0, P1, new], blocks=20)
    states = [in_doubt(world, source, 6, -60_000) for source in (P0, P1)]
    world.ends[new] = 10
    third = world.settled(new)
    third.see_end(EpochOffset(10, 0), world.now)
    loop = world.loop([*states, third])
    planned = loop._round_planner.plan(
        list(loop.states.values()), world.now, flush=True, stopping=False
    )
    steps, ready = planned.updates, planned.ready
    assert ready == []
    assert [(step.source, step.record.kind) for step in steps] == [(P0, Kind.RENEW)]
    assert not states[1].has_to_be_probed


@pytest.mark.parametrize(("created", "is_probed"), [(6, False), (7, True)])
def test_a_repeat_that_could_never_have_room_is_probed(created: int, is_probed: bool) -> None:
    """Its own four entries come on top of what was created since its first attempt."""
    world = World([P0], blocks=20)
    state = in_doubt(world, P0, 4, -60_000)
    world.tables[TargetShard("t", "s1")].fill(created)
    loop = world.loop([state])
    steps = loop._round_planner.plan(
        list(loop.states.values()), world.now, flush=True, stopping=False
    ).updates
    assert (len(steps), state.has_to_be_probed) == (int(not is_probed), is_probed)


@pytest.mark.parametrize("reservation", [1, 2, 3])
def test_the_block_of_every_shard_is_compared_with_the_reservation(reservation: int) -> None:
    """Shards take one, two and three entries: whoever is reserved less than three inserts none."""
    rows = [
        {"user": shard, "at": f"{10**9 + 86400 * day}.0"}
        for shard in range(3)
        for day in range(shard + 1)
    ]
    spec = sharded(Sharding("key", "user"), partition_key="toDate(at)")
    decoded = decoded_of(spec, rows)
    record = Record(Kind.INTEND, 1, 1, 0, 6, "a", 0, "topic", "text", reservation, 1 << 50)
    block_range = Range(P0, 0, 6)
    loading = _Loading(
        WorkerCache(),
        NOWHERE,
        Bundle((Assignment(block_range, record, Background(), 0),)),
        HeldLease(block_range, 1 << 50, 0),
        World([P0]).spec,
    )
    if reservation < 3:
        with pytest.raises(NeedsReservationError) as refused:
            loading._split(spec, decoded)
        assert refused.value.need == NeedsReservation(spec.entry, 3, inserted=False)
        return
    parts = {shard: part.clickhouse_partitions for shard, part in loading._split(spec, decoded)}
    assert parts == dict(zip(SHARDS, (1, 2, 3), strict=True))


@pytest.mark.parametrize("is_full", [False, True])
def test_what_a_probe_found_is_recorded_under_insert_counters_of_now(is_full: bool) -> None:
    """Its blocks are new to the window: what was there before them says nothing of them."""
    world = World([P0, P1], blocks=20)
    state = in_doubt(world, P0, 4, -60_000)
    rest, stored = {"t": ((3, 5),)}, {"t": ((3, 0, 2),)}
    found = replace(state.background, rest=rest, bytes_max=99, stored=stored)
    state.stage = Probed(state.outdated, found)
    other = in_doubt(world, P1, 7 if is_full else 6, 600_000)
    other.out = True
    world.tables[TargetShard("t", "s1")].insert_counter = 0
    world.now += 5_000
    loop = world.loop([state, other])
    planned = loop._round_planner.plan(
        list(loop.states.values()), world.now, flush=True, stopping=False
    )
    steps, ready = planned.updates, planned.ready
    assert ready == []
    if is_full:
        assert steps == []
        return
    (step,) = steps
    assert (step.record.kind, step.record.rest) == (
        Kind.PROBE,
        digest_of_rest(rest, 2, stored),
    )
    assert step.record.deadline_ms == world.now + 600_000 and step.record.attempt == 2
    assert step.background.since_ms == world.now
    assert step.background.insert_counters == {"t/s1": 0}
    assert (step.background.rest, step.background.bytes_max) == (rest, 99)
    assert step.background.stored == stored
    state.background = step.background
    assert assigned(state, world.now, False).background.stored == stored
    assert step.dispatch
