"""How many dead letters are too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.dead_letters import DeadLetterLimit, DeadLetterWindow, Excess, examples
from tests.kafka.groups import letter

LIMIT = DeadLetterLimit(max_ratio=0.5, min_dead_letters=10, window_messages=100)


def test_a_range_that_is_mostly_bad_is_refused_at_once() -> None:
    window = DeadLetterWindow(LIMIT)
    assert window.take(1000, {"orders": 501}) == Excess("orders", 501, 1000)
    assert (window.messages, window.dead_letters) == (0, {"orders": 0})
    assert window.take(1000, {"orders": 500}) is None


def test_few_dead_letters_never_stop() -> None:
    window = DeadLetterWindow(LIMIT)
    for _ in range(9):
        assert window.take(1, {"orders": 1}) is None
    assert window.take(1, {"orders": 1}) == Excess("orders", 10, 10)


def test_table_entries_are_judged_by_themselves() -> None:
    window = DeadLetterWindow(LIMIT)
    assert window.take(100, {"a": 40, "b": 40}) is None
    assert (window.ratio("a"), window.ratio("c")) == (0.4, 0.0)
    assert window.take(100, {"a": 10, "b": 70}) == Excess("b", 70, 100)


def test_the_window_forgets_whole_ranges() -> None:
    window = DeadLetterWindow(LIMIT)
    for _ in range(20):
        assert window.take(10, {}) is None
    assert window.messages == 100
    assert window.take(250, {"a": 100}) is None
    assert window.messages == 250  # one range is as large as it is


def test_off_never_stops() -> None:
    window = DeadLetterWindow(DeadLetterLimit())
    assert DeadLetterLimit().is_off
    assert window.take(1_000_000, {"a": 1_000_000}) is None


@given(
    st.lists(
        st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=40
    )
)
def test_the_sums_are_those_of_the_ranges_held(ranges: list[tuple[int, int]]) -> None:
    window = DeadLetterWindow(LIMIT)
    taken: list[tuple[int, int]] = []
    for messages, bad in ranges:
        kept = [*taken, (messages, bad)]
        while sum(n for n, _ in kept[1:]) >= LIMIT.window_messages:
            kept.pop(0)
        total, dead_letters = sum(n for n, _ in kept), sum(b for _, b in kept)
        excess = window.take(messages, {"a": bad} if bad else {})
        assert (excess is not None) == (dead_letters >= 10 and dead_letters > 0.5 * total)
        if excess is None:
            taken = kept
        assert window.messages == sum(n for n, _ in taken)
        assert window.dead_letters.get("a", 0) == sum(b for _, b in taken)


@pytest.mark.parametrize("table", ["orders", "other"])
def test_examples_name_the_first_of_each_reason(table: str) -> None:
    dead_letters = [
        letter(4, table="orders", reason="a", error="x" * 500),
        letter(5, table="orders", reason="a"),
        letter(6, table="orders", reason="b", error="why"),
    ]
    said = examples(dead_letters, table)
    assert said == (f"offset 4 a: {'x' * 200}; offset 6 b: why" if table == "orders" else "")


def test_the_share_is_of_the_messages_that_an_entry_was_given() -> None:
    """An entry whose route gives it few messages must not be drowned by the others."""
    window = DeadLetterWindow(LIMIT)
    few = LIMIT.min_dead_letters
    assert window.take(100 * few, {}, {"t": 100 * few}) is None
    assert window.messages_of("t") == 0 and window.ratio("t") == 0.0
    excess = window.take(100 * few, {"t": few}, {"t": 99 * few})
    assert excess == Excess("t", few, few) and excess.ratio == 1.0
    assert window.messages_of("t") == 0, "it was not taken in"
    assert window.take(100 * few, {"t": few}) is None, "of all messages it is little"


def test_small_ranges_share_parts_of_a_window() -> None:
    """A window of ten thousand messages in ranges of two holds no five thousand ranges."""
    window = DeadLetterWindow(DeadLetterLimit(max_ratio=0.5, window_messages=10_000))
    for number in range(20_000):
        assert window.take(2, {"t": 1} if number % 4 == 0 else {}, {"u": 1}) is None
    assert 10_000 <= window.messages <= 10_000 + 2 * 10_000 // 64
    assert window.ratio("t") == 1 / 8
    assert window.messages_of("u") == window.messages / 2
    assert len(window._ranges) <= 2 * 64
