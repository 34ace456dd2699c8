"""What a member of a fleet may reserve, and what it says of its holds (R24)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.core.budget import TargetShard
from sluice.core.errors import TerminalError
from sluice.core.fleet.floors import Share
from sluice.core.fleet.records import Report
from sluice.core.fleet.view import Member, View
from sluice.core.ledger import Background
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind
from sluice.driver.ports import ShardWindow
from sluice.driver.record_updates import Budget, WindowTooSmallError
from sluice.driver.shared_windows import SharedWindows, floors_of
from sluice.driver.state import Holds, PartitionState, PossibleLateInsert, Probed, Probing
from tests.driver.loop_world import START_MS, World

P0 = TopicPartition("a", 0)
AT = TargetShard("t", "s1")
WINDOW = "d.t/s1"
LEASE_MS = 600_000


def windows(
    world: World, insert_counter: int, share: Share | None = None
) -> dict[TargetShard, ShardWindow]:
    [window] = world.current().values()
    state = replace(window.state, blocks=160, insert_counter=insert_counter, share=share)
    return {AT: replace(window, state=state)}


def in_doubt(
    world: World, insert_counter: int, reservation: int = 1, partition: int = 0
) -> PartitionState:
    state = world.settled(TopicPartition("a", partition))
    state.record = replace(
        state.record,
        kind=Kind.INTEND,
        end=10,
        reservation=reservation,
        deadline_ms=START_MS + LEASE_MS,
    )
    state.background = Background({AT.key: insert_counter}, START_MS)
    return state


def test_a_floor_is_of_the_oldest_hold_or_of_the_last_reading() -> None:
    world = World([P0])
    read = windows(world, 100)

    def floor(*states: PartitionState, late: tuple[int, ...] = (), now_ms: int = START_MS) -> int:
        holds = Holds([PossibleLateInsert({AT.key: each}, now_ms) for each in late])
        lowest, is_within = floors_of(read, states, holds, 2, now_ms)
        assert is_within
        return lowest[WINDOW]

    assert floor() == floor(world.settled(P0)) == 100
    assert floor(in_doubt(world, 60), in_doubt(world, 70, partition=1)) == 60
    assert floor(late=(30,)) == 30
    # A range whose lease is over keeps it as long as an eighth of the window came since.
    after = START_MS + 2 * LEASE_MS
    assert floor(in_doubt(world, 80), now_ms=after) == 80
    assert floor(in_doubt(world, 79), now_ms=after) == 100
    stopped = in_doubt(world, 80)
    stopped.stop(TerminalError("stopped"))
    assert floor(stopped, now_ms=after) == 100
    # What was probed is recorded as a new hold, for which its own floor may leave no room.
    probed = in_doubt(world, 80)
    probed.probe()
    assert floor(probed, now_ms=after) == 80
    probed.become(Probing())
    probed.become(Probed())
    assert floor(probed, now_ms=after) == 100
    assert floor(probed) == 80, "its insert may still come"


def test_who_has_more_than_a_share_says_so() -> None:
    world = World([P0])
    read = windows(world, 100)
    assert floors_of(read, [in_doubt(world, 90, 10)], Holds(), 2, START_MS)[1]
    assert not floors_of(read, [in_doubt(world, 90, 11)], Holds(), 2, START_MS)[1]
    # The members of a bundle have one block.
    members = [in_doubt(world, 90, 10, partition) for partition in range(3)]
    for state in members:
        state.record = replace(state.record, bundle="0123456789abcdef-3")
    assert floors_of(read, members, Holds(), 2, START_MS)[1]
    holds = Holds()
    holds.end(in_doubt(world, 90, 11), START_MS)
    assert not floors_of(read, [], holds, 2, START_MS)[1]


def budget(share: Share | None, insert_counter: int, *states: PartitionState) -> Budget:
    world = World([P0])
    return Budget(windows(world, insert_counter, share), Holds(), list(states), START_MS)


def test_a_member_reserves_its_share() -> None:
    world = World([P0])
    share = Share(floor=100, own=100, members_max=2)
    alone, together = budget(None, 100), budget(share, 100)
    assert alone.take([AT], 80) and not alone.take([AT], 1)
    assert together.take([AT], 10) and not together.take([AT], 1)
    assert not budget(Share(None, 100, 2), 100).take([AT], 1)
    # Forty entries came since the oldest hold of somebody else.
    assert not budget(share, 140).take([AT], 1) and budget(share, 136).take([AT], 1)
    held = in_doubt(world, 100, 4)
    assert budget(share, 104, held).take([AT], 5)
    assert not budget(share, 104, held).take([AT], 6)


def test_more_than_a_share_is_too_small_a_window() -> None:
    share = Share(floor=100, own=100, members_max=2)
    assert budget(share, 100).affordable([AT], 30) == 10
    with pytest.raises(
        WindowTooSmallError, match=r"each of up to 2 members of a fleet may use 10"
    ) as caught:
        budget(share, 100).take([AT], 11)
    assert "non_replicated_deduplication_window = 352" in caught.value.hint
    assert budget(None, 100).affordable([AT], 30) == 30


def test_only_what_all_know_of_is_sent_again() -> None:
    share = Share(floor=90, own=95, members_max=2)

    def again(insert_counter: int, now: int = 100, reserved: int = 1) -> bool | None:
        return budget(share, now).take_again([AT], reserved, {AT.key: insert_counter})

    assert again(95) is True
    assert again(94) is False  # nobody knows yet of a hold that is so old
    assert again(95, 116) is None  # it is probed: more than an eighth came since
    assert again(95, 100, 9) is None  # it would never get so many
    assert again(95, 100, 8) is False and again(95, 100, 7) is True
    assert budget(None, 100).take_again([AT], 60, {AT.key: 94}) is True


def test_what_waits_behind_a_partition_that_stopped_is_no_wait_of_the_member() -> None:
    """It waits for a person, and its end is told all the same."""
    world = World([P0])
    planner = SimpleNamespace(digest="d", spec=world.spec)
    blank = Report("me", "m", 1, members_max=2)
    shared = SharedWindows(world, cast(Any, planner), world, blank)
    going, stopped = world.settled(P0), world.settled(TopicPartition("a", 1))
    going.waiting_since_ms, stopped.waiting_since_ms = START_MS - 2_000, START_MS - 60_000
    states = {state.source: state for state in (going, stopped)}

    def wait() -> float:
        view = View("me", 1, (Member("me", "m", "s"),))
        return shared.report(1, states, Holds(), 0, view, START_MS).oldest_wait_seconds

    assert wait() == 60
    stopped.stop(TerminalError("stopped"))
    assert wait() == 2
