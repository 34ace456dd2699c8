"""What a loop knows of a partition, and what holds on to a window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.budget import Hold, TargetShard
from sluice.core.errors import TerminalError, TransientError
from sluice.core.ledger import Background
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, Range, TopicPartition
from sluice.core.receipts import Loaded, NeedsReservation, Outdated
from sluice.core.records import Kind, Record
from sluice.driver.state import (
    AsRecorded,
    Holds,
    PartitionState,
    PossibleLateInsert,
    Probed,
    Probing,
    ToProbe,
    target_shards_gone,
)
from tests.driver.loop_world import START_MS, World, table_spec

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
TARGET_SHARD, OTHER = TargetShard("t", "s1"), TargetShard("u", "s1")
#: What an observer adds to a lease: 5 s for the clocks, and 5 s for a server to store.
GRACE_MS = 10_000


@pytest.fixture
def state() -> PartitionState:
    made = World([P0]).settled(P0)
    made.record = replace(
        made.record,
        kind=Kind.INTEND,
        attempt=1,
        begin=10,
        end=20,
        reservation=3,
        deadline_ms=START_MS + 60_000,
    )
    made.background = Background(insert_counters={TARGET_SHARD.key: 7}, since_ms=START_MS)
    return made


def test_of_a_range_in_doubt_only_what_is_before_it_is_settled(state: PartitionState) -> None:
    assert state.block_range == Range(P0, 10, 20)
    assert state.settled == 10


def test_a_range_may_be_inserted_until_its_lease_is_over_everywhere(state: PartitionState) -> None:
    over = state.record.deadline_ms + GRACE_MS
    assert state.may_insert(over) and not state.may_insert(over + 1)
    state.out = True
    assert state.may_insert(over + 1), "its task may still be there"


def test_messages_wait_from_when_they_were_first_seen(state: PartitionState) -> None:
    def see(end: int, now_ms: int, epoch: int = EPOCH_UNKNOWN) -> tuple[int, int | None]:
        state.see_end(EpochOffset(end, epoch), now_ms)
        return state.stable_end, state.waiting_since_ms

    assert see(20, 1) == (20, None)
    assert see(21, 2) == (21, 2)
    assert see(30, 3) == (30, 2)
    assert see(25, 4) == (30, 2), "an end never goes back"
    state.record = replace(state.record, end=30)
    assert see(30, 5) == (30, None)


def test_an_end_of_another_epoch_may_be_less(state: PartitionState) -> None:
    state.see_end(EpochOffset(30, 4), 1)
    state.see_end(EpochOffset(25, 4), 2)
    assert (state.stable_end, state.epoch) == (30, 4)
    state.see_end(EpochOffset(24, EPOCH_UNKNOWN), 3)
    assert (state.stable_end, state.epoch) == (30, 4)
    state.see_end(EpochOffset(22, 5), 4)
    assert (state.stable_end, state.epoch) == (22, 5)


def test_only_what_may_follow_a_stage_does(state: PartitionState) -> None:
    with pytest.raises(AssertionError, match="AsRecorded to Probed"):
        state.become(Probed())
    state.answered(Outdated("t", "no", ()))
    state.probe()
    assert (state.stage, state.loaded) == (ToProbe(Outdated("t", "no", ())), None)
    state.become(Probing(state.outdated))
    with pytest.raises(AssertionError, match="Probing to Answered"):
        state.answered(NeedsReservation("t", 2))
    state.stop(TerminalError("no"))
    with pytest.raises(AssertionError, match="Stopped to ToProbe"):
        state.probe()


def test_a_record_takes_the_last_answer_in_and_leaves_a_stopped_partition_stopped(
    state: PartitionState,
) -> None:
    state.answered(NeedsReservation("t", 4))
    state.recorded(state.record, state.background, 5)
    assert (state.stage, state.committed_at_ms) == (AsRecorded(), 5)
    state.probe()
    state.recorded(state.record, state.background, 6)
    assert state.stage == ToProbe()
    state.stop(TerminalError("no"))
    state.recorded(state.record, state.background, 7)
    assert str(state.stopped) == "no"


def test_a_partition_that_stops_forgets_what_it_was_about_to_do(state: PartitionState) -> None:
    state.answered(Loaded((), (), 0, 0, 0))
    why = TerminalError("no")
    state.stop(why)
    assert (state.stopped, state.loaded) == (why, None)
    state.fail(TransientError("away"), 77)
    assert (state.failures, state.retry_at_ms) == (1, 77)


def test_servers_are_distrusted_once_and_that_is_recorded(state: PartitionState) -> None:
    state.distrust_servers()
    assert not state.is_unrecorded, "no table has a server of its own"
    state.background = replace(state.background, servers={"http://h": "run"})
    state.distrust_servers()
    assert state.is_unrecorded and state.background.servers == {}
    assert state.background.insert_counters == {TARGET_SHARD.key: 7}
    settled = replace(state, record=replace(state.record, kind=Kind.SETTLE, begin=20))
    settled.background = Background(servers={"http://h": "run"})
    settled.is_unrecorded = False
    settled.distrust_servers()
    assert not settled.is_unrecorded and settled.background.servers


def test_holds_are_what_may_be_inserted_and_what_may_come_late(state: PartitionState) -> None:
    holds = Holds([PossibleLateInsert({TARGET_SHARD.key: 3, OTHER.key: 4}, START_MS)])
    over = state.record.deadline_ms + GRACE_MS + 1
    assert holds.at(TARGET_SHARD, [state], START_MS) == [Hold(3, 0), Hold(7, 3)]
    assert holds.at(OTHER, [state], START_MS) == [Hold(4, 0)]
    assert holds.at(TARGET_SHARD, [state], over) == [Hold(3, 0)]
    assert Holds().at(TARGET_SHARD, [], START_MS) == []


def test_late_inserts_count_once_and_until_nothing_of_them_can_come() -> None:
    one, two = (
        PossibleLateInsert({TARGET_SHARD.key: 3}, START_MS),
        PossibleLateInsert({TARGET_SHARD.key: 3}, START_MS + 1),
    )
    holds = Holds([one])
    holds.add_late_inserts([one, two, two])
    assert holds.late_inserts == [one, two]
    holds.forget(START_MS + GRACE_MS, {})
    assert holds.late_inserts == [one, two]
    holds.forget(START_MS + GRACE_MS + 1, {})
    assert holds.late_inserts == [two]


def reserved(reservation: int, at: int = 0, bundle: str = "", *keys: str) -> PartitionState:
    state = World([P0]).settled(TopicPartition("a", at))
    ids = "me", 0, "t", "text", reservation, START_MS
    state.record = Record(Kind.INTEND, 1, 1, 0, 5, *ids, bundle=bundle)
    state.background = Background(dict.fromkeys(keys or (TARGET_SHARD.key,), 7))
    return state


def test_the_members_of_a_bundle_are_one_hold() -> None:
    holds = Holds()
    members = [reserved(4, at, "one.3") for at in range(3)]
    for state in members:
        holds.end(state, 100)
    holds.end(reserved(2, 3, "two.2"), 100)
    assert holds.ended_since(TARGET_SHARD, 100) == 6
    assert Holds().at(TARGET_SHARD, members, START_MS) == [Hold(7, 4)]


def test_reservations_that_ended_count_until_an_insert_counter_was_read_after_them() -> None:
    holds = Holds()
    holds.end(reserved(4), 100)
    holds.end(reserved(2, 1), 101)
    holds.end(reserved(8, 2, "", OTHER.key), 101)
    assert holds.ended_since(TARGET_SHARD, 100) == 6
    assert holds.ended_since(TARGET_SHARD, 101) == 2
    assert holds.ended_since(TARGET_SHARD, 102) == 0
    assert holds.ended_since(OTHER, 100) == 8
    holds.forget(START_MS, {TARGET_SHARD.key: 101, OTHER.key: 101})
    assert holds.ended_since(TARGET_SHARD, 0) == 2


def test_a_window_that_cannot_be_read_keeps_only_what_was_held_of_it() -> None:
    holds = Holds()
    holds.end(reserved(4), 100)
    holds.end(reserved(2, 1, "", TARGET_SHARD.key, OTHER.key), 100)
    holds.end(reserved(8, 2, "", OTHER.key), 100)
    holds.forget(START_MS, {TARGET_SHARD.key: 101, OTHER.key: 50})
    assert (holds.ended_since(TARGET_SHARD, 0), holds.ended_since(OTHER, 0)) == (2, 10)
    holds.forget(START_MS, {TARGET_SHARD.key: 101})
    assert not holds.ended, "a window that nobody watches any more keeps nothing"


def test_tables_and_shards_that_a_spec_leaves_out_are_named() -> None:
    tables = (replace(table_spec("t", ("a",)), shards=("s1", "s2")), table_spec("u", ("a",)))
    spec = World([P0], tables).spec
    insert_counters = {
        TargetShard("t", "s1").key: 1,
        TargetShard("t", "s3").key: 1,
        TargetShard("v", "s1").key: 1,
    }
    assert target_shards_gone(Background(insert_counters=insert_counters), spec, "a") == [
        "table entry v",
        "shard s3 of table entry t",
    ]
    assert target_shards_gone(Background(rest={"w": ()}), spec, "a") == ["table entry w"]
    assert (
        target_shards_gone(
            Background(insert_counters={TargetShard("t", "s2").key: 1}, rest={"u": ()}), spec, "a"
        )
        == []
    )
    assert target_shards_gone(Background(rest={"t": ()}), spec, "other") == ["table entry t"]


def test_how_old_the_oldest_message_is_that_is_not_settled(state: PartitionState) -> None:
    """Of a backlog that is loaded in parts, by the last timestamp; where all was taken, by when."""

    def settle(end: int, last_ms: int | None, now_ms: int) -> int | None:
        state.answered(Loaded((), (), 10, 100, 0, last_ms=last_ms))
        begin = state.record.end
        kind = Kind.INTEND if end > begin else Kind.SETTLE
        following = replace(state.record, kind=kind, begin=begin, end=end)
        state.recorded(following, Background(since_ms=now_ms), now_ms)
        return state.behind_since_ms

    day_ms = 86_400_000
    began = START_MS + day_ms
    state.see_end(EpochOffset(60, 1), began)
    assert state.behind_since_ms == began, "nobody knows how old they are"
    assert settle(30, START_MS, began + 1_000) == START_MS
    assert settle(40, None, began + 2_000) == START_MS, "messages without a timestamp"
    assert settle(50, began + day_ms, began + 2_500) == began + 2_500, "a clock that is ahead"
    assert settle(60, START_MS + 7, began + 3_000) == START_MS + 7
    state.see_end(EpochOffset(65, 1), began + 4_000)
    assert state.behind_since_ms == START_MS + 7
    assert settle(65, START_MS, began + 5_000) == began + 3_000, "what was there then is settled"
    state.clock_went_back(began + 2_500)
    assert state.behind_since_ms == began + 2_500
    assert settle(65, None, began + 6_000) is None
    state.see_end(EpochOffset(66, 1), began + day_ms)
    assert state.behind_since_ms == began + day_ms, "it had nothing to load meanwhile"


def test_a_range_that_is_cut_takes_no_longer_all_that_is_there(state: PartitionState) -> None:
    state.see_end(EpochOffset(30, 1), START_MS)
    state.recorded(replace(state.record, end=30), Background(since_ms=START_MS), START_MS + 1_000)
    assert state.whole_at_ms == START_MS + 1_000
    shorter = replace(state.record, kind=Kind.SHORTEN, end=20)
    state.recorded(shorter, Background(since_ms=START_MS), START_MS + 2_000)
    state.answered(Loaded((), (), 10, 100, 0, last_ms=START_MS - 5_000))
    state.recorded(replace(shorter, begin=20, end=30), Background(), START_MS + 3_000)
    assert state.behind_since_ms == START_MS - 5_000
