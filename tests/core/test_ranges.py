"""Sets of offsets, against plain Python sets."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ranges import (
    Interval,
    Range,
    RangeRelation,
    TopicPartition,
    contains,
    digest_of_rest,
    intervals_of,
    normalize,
    relate,
    subtract,
)

SOURCE = TopicPartition("orders", 3)
INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def offsets(intervals: list[Interval] | tuple[Interval, ...]) -> set[int]:
    return {offset for begin, end in intervals for offset in range(begin, end)}


@given(INTERVALS)
def test_normalize_keeps_the_set_and_nothing_touches(intervals: list[Interval]) -> None:
    normal = normalize(intervals)
    assert offsets(normal) == offsets(intervals)
    assert all(begin < end for begin, end in normal)
    assert all(left[1] < right[0] for left, right in pairwise(normal))


@given(INTERVALS)
def test_equal_sets_are_equal_tuples(intervals: list[Interval]) -> None:
    single = [(offset, offset + 1) for offset in sorted(offsets(intervals), reverse=True)]
    assert normalize(single) == normalize(intervals)


def test_single_offsets_in_any_order_as_intervals() -> None:
    assert intervals_of([5, 1, 2, 2, 9]) == ((1, 3), (5, 6), (9, 10))


@given(st.integers(0, 40), st.integers(0, 40), INTERVALS)
def test_subtract(begin: int, length: int, present: list[Interval]) -> None:
    whole = (begin, begin + length)
    rest = subtract(whole, present)
    assert offsets(rest) == offsets([whole]) - offsets(present)
    assert normalize(rest) == rest


@given(INTERVALS, st.integers(-1, 41))
def test_contains(intervals: list[Interval], offset: int) -> None:
    assert contains(normalize(intervals), offset) == (offset in offsets(intervals))


@given(INTERVALS, INTERVALS)
def test_digests_are_equal_for_equal_rests_only(
    left: list[Interval], right: list[Interval]
) -> None:
    digests = [digest_of_rest({"orders": tuple(each)}) for each in (left, right)]
    assert (digests[0] == digests[1]) == (offsets(left) == offsets(right))
    assert all(len(digest) == 12 for digest in digests)


def test_a_digest_tells_entries_apart_but_not_their_order() -> None:
    one, two = ((1, 2),), ((3, 4),)
    assert digest_of_rest({"a": one, "b": two}) == digest_of_rest({"b": two, "a": one})
    assert digest_of_rest({"a": one, "b": two}) != digest_of_rest({"a": two, "b": one})
    assert digest_of_rest({"a": one}) != digest_of_rest({"a": one, "b": ()})
    stored = {"a": ((3, 0, 2),)}
    assert digest_of_rest({"a": one}) == digest_of_rest({"a": one}, stored={})
    assert digest_of_rest({"a": one}) != digest_of_rest({"a": one}, stored=stored)
    for other in ((3, 0, 1), (3, 1, 2), (4, 0, 2)):
        assert digest_of_rest({"a": one}, stored={"a": (other,)}) != digest_of_rest(
            {"a": one}, stored=stored
        )
    assert digest_of_rest({"a": ((3, 5),)}) != digest_of_rest({"a": ((3, 6),)})


def test_every_relation_has_one_name() -> None:
    recorded = Range(SOURCE, 10, 20)
    examples = {
        (10, 20): RangeRelation.SAME,
        (20, 30): RangeRelation.NEXT,
        (20, 20): RangeRelation.NEXT,
        (10, 15): RangeRelation.SHORTER,
        (25, 30): RangeRelation.GAP,
        (15, 25): RangeRelation.OVERLAP,
        (5, 25): RangeRelation.OVERLAP,
        (10, 30): RangeRelation.OVERLAP,
        (0, 10): RangeRelation.BACKWARD,
    }
    for (begin, end), relation in examples.items():
        assert relate(recorded, Range(SOURCE, begin, end)) is relation, (begin, end)


def test_an_overlap_is_what_shares_offsets_and_is_neither_same_nor_shorter() -> None:
    recorded = Range(SOURCE, 3, 6)
    for begin, end in product(range(9), repeat=2):
        if begin >= end:
            continue
        relation = relate(recorded, Range(SOURCE, begin, end))
        shares = bool(offsets([(begin, end)]) & offsets([(3, 6)]))
        assert shares == (
            relation in (RangeRelation.OVERLAP, RangeRelation.SAME, RangeRelation.SHORTER)
        )


def test_what_is_no_range_is_refused() -> None:
    for begin, end in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError):
            Range(SOURCE, begin, end)
    with pytest.raises(ValueError):
        relate(Range(SOURCE, 0, 1), Range(TopicPartition("orders", 4), 0, 1))
