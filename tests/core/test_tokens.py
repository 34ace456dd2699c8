"""Tokens: different blocks have different names, equal ones equal names."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ranges import Range, TopicPartition
from sluice.core.tokens import NAME, block_token, is_of_rest

#: Few and similar, so that parts that run into one another would meet.
NAMES = st.sampled_from(["a", "1", "a-1", "a.1", "1-1", "0"])
TARGETS = st.sampled_from(["a.a", "a.1", "1.a", "a-1.a"])


@st.composite
def parts(draw: st.DrawFn) -> dict[str, Any]:
    begin = draw(st.integers(0, 2))
    source = TopicPartition(draw(NAMES), draw(st.integers(0, 2)))
    return {
        "pipeline": draw(NAMES),
        "generation": draw(st.integers(0, 2)),
        "connector": draw(NAMES),
        "topic_id": draw(st.sampled_from(["abcdefghijk", "-----------"])),
        "block_range": Range(source, begin, begin + draw(st.integers(1, 2))),
        "entry": draw(NAMES),
        "target": draw(TARGETS),
        "shard": draw(NAMES),
        "rest": draw(st.sampled_from(["", "0123456789ab", "ba9876543210"])),
    }


@given(parts(), parts())
def test_tokens_are_equal_for_equal_parts_only(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert (block_token(**left) == block_token(**right)) == (left == right)


@given(parts(), parts())
def test_every_part_counts(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Changing one part alone changes the token."""
    token = block_token(**left)
    for name, value in right.items():
        assert (block_token(**{**left, name: value}) == token) == (value == left[name]), name


@given(parts(), st.sampled_from(["", "name"]))
def test_a_block_of_a_rest_is_known_by_its_token(of: dict[str, Any], bundle: str) -> None:
    assert is_of_rest(block_token(**of, bundle=bundle)) == (bool(of["rest"]) and not bundle)


def test_a_token_as_it_looks() -> None:
    token = block_token(
        pipeline="orders",
        generation=0,
        connector="dc1",
        topic_id="abcdefghijk",
        block_range=Range(TopicPartition("events", 3), 10, 20),
        entry="orders",
        target="shop.orders",
        shard="s1",
        rest="0123456789ab",
    )
    assert token == ("orders/0/dc1/abcdefghijk/events/3/orders+shop.orders/s1/10-20/0123456789ab")


def test_no_name_can_hold_a_separator() -> None:
    for name in ("a/b", "a+b", "", "a" * 49, "a b", "a\n"):
        assert not NAME.fullmatch(name), name
