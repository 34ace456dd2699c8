"""What a bundle is called, and what a place is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.bundles import OFFSET_BITS, Member, bundle_name, is_whole, place_of, replica_number
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind, Record, decode, encode, may_follow
from sluice.core.tokens import block_token


def member(topic: str, partition: int, begin: int, end: int, generation: int = 0) -> Member:
    return Member(Range(TopicPartition(topic, partition), begin, end), f"id-{topic}", generation)


MEMBERS = [member("a", 0, 10, 20), member("a", 10, 0, 3), member("b", 2, 7, 9)]
NAME = bundle_name(MEMBERS)


@given(st.permutations(MEMBERS))
def test_the_order_in_which_members_are_found_changes_nothing(members: list[Member]) -> None:
    assert bundle_name(members) == NAME and is_whole(NAME, members)
    assert NAME.endswith(".3")


@pytest.mark.parametrize(
    "other",
    [
        member("a", 0, 10, 21),
        member("a", 0, 9, 20),
        member("a", 1, 10, 20),
        member("c", 0, 10, 20),
        member("a", 0, 10, 20, generation=1),
        MEMBERS[0]._replace(topic_id="another"),
    ],
)
def test_whatever_a_member_is_changes_the_name(other: Member) -> None:
    assert not is_whole(NAME, [other, *MEMBERS[1:]])


def test_a_part_of_a_bundle_is_not_whole() -> None:
    assert not is_whole(NAME, MEMBERS[:2])
    assert not is_whole(NAME, MEMBERS[:1])
    assert not is_whole(NAME, [*MEMBERS, member("d", 0, 0, 1)])


@pytest.mark.parametrize(
    "members",
    [[], MEMBERS[:1], [MEMBERS[0], member("a", 0, 20, 30)], [*MEMBERS, member("z", 0, 1, 1 << 60)]],
)
def test_what_can_be_no_bundle(members: list[Member]) -> None:
    with pytest.raises(ValueError):
        bundle_name(members)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, (1 << OFFSET_BITS) - 1)), min_size=2)
)
def test_places_are_in_the_order_of_members_and_offsets(pairs: list[tuple[int, int]]) -> None:
    assert sorted(place_of(*pair) for pair in pairs) == [place_of(*p) for p in sorted(pairs)]
    assert place_of(0, pairs[0][1]) == pairs[0][1]


RECORD = Record(Kind.INTEND, 7, 1, 10, 20, "me", 0, "id-a", "text", 1, 1_000, bundle=NAME)


def test_a_record_names_its_bundle() -> None:
    assert decode(10, encode(RECORD)) == RECORD
    with_epoch = replace(RECORD, epoch=4)
    assert decode(10, encode(with_epoch)) == with_epoch
    absent = replace(RECORD, kind=Kind.PROBE, rest="0123456789ab")
    assert decode(10, encode(absent)) == absent
    with pytest.raises(ValueError, match="only a range in doubt"):
        replace(RECORD, kind=Kind.SETTLE, end=10)


def test_a_range_stays_in_its_bundle_or_leaves_it() -> None:
    again = replace(RECORD, kind=Kind.RENEW, attempt=2)
    assert may_follow(RECORD, again)
    assert not may_follow(RECORD, replace(again, bundle="")), "its block is known by the bundle"
    assert not may_follow(RECORD, replace(again, bundle=bundle_name(MEMBERS[:2])))
    assert not may_follow(replace(RECORD, bundle=""), again)
    for kind in (Kind.CHANGE_SPEC, Kind.ADD_COLUMNS):
        other = replace(RECORD, kind=kind, spec="other")
        assert may_follow(RECORD, other) and not may_follow(RECORD, replace(other, bundle=""))
    shorter = replace(RECORD, kind=Kind.SHORTEN, end=15, bundle="")
    assert may_follow(replace(RECORD, bundle=""), shorter) and not may_follow(RECORD, shorter)
    assert may_follow(RECORD, replace(again, kind=Kind.PROBE, rest="0123456789ab", bundle=""))
    assert may_follow(RECORD, replace(RECORD, kind=Kind.SETTLE, end=10, bundle=""))


def test_the_token_of_a_bundle_is_that_of_no_range() -> None:
    facts = {
        "pipeline": "p",
        "generation": 0,
        "connector": "dc1",
        "topic_id": "id-a",
        "block_range": MEMBERS[0].block_range,
        "entry": "orders",
        "target": "shop.orders",
        "shard": "s1",
    }
    alone, bundled = block_token(**facts), block_token(**facts, bundle=NAME)
    assert bundled == f"p/bundle/dc1/{NAME}/orders+shop.orders/s1"
    assert alone != bundled
    other = block_token(**{**facts, "block_range": MEMBERS[1].block_range}, bundle=NAME)
    assert other == bundled, "whichever member is told of it"


def test_bundles_spread_over_replicas_whichever_partition_they_begin_with() -> None:
    """And a range alone goes by its partition, again and again."""
    first = TopicPartition("a", 0)
    names = [
        bundle_name(
            [Member(Range(TopicPartition("a", n), begin, begin + 2), "t", 0) for n in range(3)]
        )
        for begin in range(0, 400, 2)
    ]
    for count in (2, 3, 4):
        found = Counter(replica_number(first, name) % count for name in names)
        assert len(found) == count and min(found.values()) > 200 / count / 2
    assert replica_number(TopicPartition("a", 7), "") == 7
