"""The budget: a block is still remembered when it is repeated (R10)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.core.budget import (
    HISTORY_GONE,
    WINDOW_SHARE,
    Hold,
    TargetShard,
    WindowState,
    room,
    still_remembered,
    still_young,
)
from tests.support.examples import examples


@pytest.mark.parametrize(
    "target_shard",
    [TargetShard("t", "s1"), TargetShard("a.b-c", "s.1", "d.t"), TargetShard("t", "s1", "d.x>y/z")],
)
def test_a_target_shard_is_known_by_its_key(target_shard: TargetShard) -> None:
    assert TargetShard.of(target_shard.key) == target_shard
    assert target_shard.own == TargetShard(target_shard.entry, target_shard.shard)


def test_a_table_of_an_entry_is_called_as_ever() -> None:
    """In ledgers that older versions wrote."""
    assert TargetShard("t", "s1").key == "t/s1"


@pytest.mark.parametrize(
    ("age_ms", "is_young"),
    [(0, True), (1_800_000, True), (1_800_001, False), (-5_000, True), (-5_001, False)],
)
def test_half_of_a_windows_seconds_count(age_ms: int, is_young: bool) -> None:
    assert still_young(3600, 10**12, 10**12 + age_ms) is is_young
    assert still_young(None, 10**12, 10**12 + age_ms)


def test_half_of_a_window_may_be_held() -> None:
    assert WINDOW_SHARE == 2
    assert WindowState(100, 0).usable == 50
    assert room(WindowState(100, 7), []) == 50


def test_everything_since_the_oldest_hold_counts() -> None:
    window = WindowState(100, 120)
    assert room(window, [Hold(110, 4)]) == 50 - 10 - 4
    assert room(window, [Hold(110, 4), Hold(115, 6)]) == 50 - 10 - 10
    assert room(window, [Hold(120, 4)], ended=9) == 50 - 9 - 4
    assert room(window, [Hold(60, 0)]) == -10


def test_an_insert_counter_that_fell_gives_nothing_while_anything_is_held() -> None:
    assert room(WindowState(100, 5), [Hold(9, 1)]) < 0
    assert room(WindowState(100, 5), []) == 50


def test_an_insert_counter_without_its_history_gives_nothing_while_anything_is_held() -> None:
    assert room(WindowState(100, 5 + HISTORY_GONE), [Hold(9, 1)]) < 0
    assert room(WindowState(100, 5 + HISTORY_GONE), [Hold(5 + HISTORY_GONE, 1)]) == 49


@pytest.mark.parametrize(
    ("insert_counter", "now", "remembered"),
    [
        (10, 5 + HISTORY_GONE, False),
        (10, 10, True),
        (10, 60, True),
        (10, 61, False),
        (10, 9, False),
        (0, 0, True),
    ],
)
def test_still_remembered(insert_counter: int, now: int, remembered: bool) -> None:
    assert still_remembered(WindowState(100, now), insert_counter) is remembered


def test_no_window_remembers_nothing() -> None:
    assert not still_remembered(WindowState(0, 1), 0)
    assert still_remembered(WindowState(0, 1), 1)  # nothing was inserted since
    assert room(WindowState(0, 0), []) == 0


ACTIONS = ("intend", "intend", "insert", "insert", "insert", "settle", "read", "foreign")


@dataclass
class Window:
    """ClickHouse's side: keeps the last `blocks` entries; a repeat refreshes nothing."""

    blocks: int
    insert_counter: int = 0
    kept: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def insert(self, token: str) -> bool:
        """Whether rows were stored."""
        if token in self.kept:
            return False
        self.insert_counter += 1
        self.kept[token] = None
        while len(self.kept) > self.blocks:
            self.kept.popitem(last=False)
        return True


@dataclass
class Intent:
    """A range in doubt: its hold, and its entries that some attempt has inserted."""

    name: str
    hold: Hold
    inserted: set[str] = field(default_factory=set)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(2, 12), st.data())
def test_what_the_budget_allows_is_never_evicted_before_its_repeat(
    blocks: int, data: st.DataObject
) -> None:
    """Several writers intend, insert in part, repeat, settle; an insert counter may be stale.

    Ours stay within the room; a foreign writer also inserts, but no more than the half of
    the window that is left free between two readings of the insert counter.
    """
    window, intents = Window(blocks), list[Intent]()
    reading, ended, foreign = window.insert_counter, 0, 0
    for step in range(data.draw(st.integers(8, 60))):
        action = data.draw(st.sampled_from(ACTIONS))
        if action == "read":
            reading, ended, foreign = window.insert_counter, 0, 0
        elif action == "foreign" and foreign + 1 < blocks - blocks // WINDOW_SHARE:
            # Only while the holds that are read lie within the usable half.
            seen = room(WindowState(blocks, window.insert_counter), [i.hold for i in intents])
            if seen > 0 or not intents:
                window.insert(f"foreign-{step}")
                foreign += 1
        elif action == "intend":
            reservation = data.draw(st.integers(1, 3))
            held = [intent.hold for intent in intents]
            if room(WindowState(blocks, reading), held, ended) >= reservation:
                intents.append(Intent(f"range-{step}", Hold(reading, reservation)))
        elif action == "insert" and intents:
            intent = data.draw(st.sampled_from(intents))
            token = f"{intent.name}/{data.draw(st.integers(1, intent.hold.reservation))}"
            assert window.insert(token) is (token not in intent.inserted)
            intent.inserted.add(token)
        elif action == "settle" and intents:
            intent = intents.pop(data.draw(st.integers(0, len(intents) - 1)))
            for number in range(1, intent.hold.reservation + 1):
                token = f"{intent.name}/{number}"
                assert window.insert(token) is (token not in intent.inserted)
            ended += intent.hold.reservation


@settings(max_examples=examples(100))
@given(st.integers(2, 24), st.integers(0, 40))
def test_what_counts_as_remembered_is_remembered(blocks: int, others: int) -> None:
    """Insert counters only grow by what is inserted, so `still_remembered` errs on the safe
    side."""
    window = Window(blocks)
    insert_counter = window.insert_counter
    assert window.insert("ours")
    for number in range(others):
        window.insert(f"other-{number}")
    if still_remembered(WindowState(blocks, window.insert_counter), insert_counter):
        assert not window.insert("ours")
    elif others >= blocks:
        assert window.insert("ours")
