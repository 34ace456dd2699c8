"""When a range is due, and how far it goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.planning import (
    Backlog,
    Limits,
    in_fair_order,
    messages_of_range,
    next_range,
    smoothed_bytes,
)
from sluice.core.ranges import TopicPartition

LIMITS = Limits(messages_max=1000, bytes_max=64_000, delay_ms_max=500)
SOURCE = TopicPartition("orders", 0)


def backlog(stable_end: int, bytes_per_message: float | None = 10.0, since_ms: int = 0) -> Backlog:
    return Backlog(SOURCE, 100, stable_end, since_ms, bytes_per_message)


def test_a_full_range_is_due_at_once() -> None:
    due = next_range(backlog(5000), LIMITS, now_ms=0, flush=False)
    assert due is not None and (due.begin, due.end) == (100, 1100)


def test_less_waits_for_company_but_not_for_ever() -> None:
    assert next_range(backlog(150), LIMITS, now_ms=499, flush=False) is None
    for now_ms, flush in ((500, False), (0, True)):
        due = next_range(backlog(150), LIMITS, now_ms, flush=flush)
        assert due is not None and (due.begin, due.end) == (100, 150)


def test_nothing_is_not_a_range() -> None:
    for stable_end in (100, 99, 0):
        assert next_range(backlog(stable_end), LIMITS, now_ms=10**9, flush=True) is None


def test_bytes_limit_a_range_as_messages_do() -> None:
    due = next_range(backlog(5000, bytes_per_message=640.0), LIMITS, now_ms=0, flush=False)
    assert due is not None and due.span == 100
    unknown = next_range(backlog(5000, bytes_per_message=None), LIMITS, now_ms=0, flush=False)
    assert unknown is not None and unknown.span == 62  # 1 KiB each


def test_a_single_message_larger_than_the_limit_is_still_planned() -> None:
    assert messages_of_range(LIMITS, 10.0**9) == 1


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.none() | st.floats(0.0, 10.0**7),
    st.integers(0, 2000),
    st.booleans(),
)
def test_a_range_begins_at_the_position_and_stays_below_the_stable_end(
    position: int, stable_end: int, each: float | None, now_ms: int, flush: bool
) -> None:
    waiting = Backlog(SOURCE, position, stable_end, 0, each)
    due = next_range(waiting, LIMITS, now_ms, flush=flush)
    if due is not None:
        assert due.begin == position < due.end <= stable_end
        assert due.span <= LIMITS.messages_max
    elif flush or now_ms >= LIMITS.delay_ms_max:
        assert stable_end <= position


def test_range_bytes_max_is_one_and_a_half() -> None:
    assert LIMITS.range_bytes_max == 96_000


def test_growth_is_followed_at_once_and_shrinkage_slowly() -> None:
    assert smoothed_bytes(None, 10, 2000) == 200
    assert smoothed_bytes(200.0, 10, 500_000) == 50_000
    assert smoothed_bytes(200.0, 10, 1000) == 0.7 * 200 + 0.3 * 100
    assert smoothed_bytes(200.0, 0, 0) == 200.0


def test_the_longest_waiting_comes_first() -> None:
    backlogs = [
        Backlog(TopicPartition(topic, number), 0, 1, since_ms)
        for topic, number, since_ms in (("b", 0, 5), ("a", 1, 9), ("a", 0, 9), ("c", 0, 1))
    ]
    order = [(b.source.topic, b.source.partition) for b in in_fair_order(backlogs)]
    assert order == [("c", 0), ("b", 0), ("a", 0), ("a", 1)]
