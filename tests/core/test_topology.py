"""Shards are recognised by the names that their servers give, whatever order they are told in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import ConfigurationError
from sluice.core.topology import Found, Member, difference, recognise, taken_up, url_of

GROUPS = [["http://a:1", "http://b:1"], ["http://c:1", "http://d:1"]]
SAID: dict[str, str | None] = {
    "http://a:1": "east",
    "http://b:1": "east",
    "http://c:1": "west",
    "http://d:1": "west",
}
SHARDS = {"east": ("http://a:1", "http://b:1"), "west": ("http://c:1", "http://d:1")}


@given(st.integers())
def test_another_order_changes_nothing(seed: int) -> None:
    """Neither of the shards in the list, nor of the replicas in a shard (H15)."""
    order = random.Random(seed)
    groups = [order.sample(group, len(group)) for group in GROUPS]
    order.shuffle(groups)
    assert recognise(groups, SAID) == Found(SHARDS)


def test_a_silent_server_belongs_to_those_that_it_is_listed_with() -> None:
    assert recognise(GROUPS, {**SAID, "http://a:1": None}) == Found(SHARDS)


def test_a_shard_of_which_nobody_answers_has_no_name() -> None:
    found = recognise(GROUPS, {**SAID, "http://c:1": None, "http://d:1": None})
    assert found == Found({"east": SHARDS["east"]}, (SHARDS["west"],))


@pytest.mark.parametrize(
    ("groups", "said", "words"),
    [
        (GROUPS, {**SAID, "http://b:1": "west"}, "http://a:1: east, http://b:1: west"),
        (GROUPS, dict.fromkeys(SAID, "one"), "two shards of the cluster have one name, one"),
        ([["http://a:1"], ["http://a:1"]], SAID, "address of two servers in different shards"),
    ],
)
def test_contradictions_are_refused(
    groups: list[list[str]], said: dict[str, str | None], words: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        recognise(groups, said)
    assert words in raised.value.message and raised.value.hint


def test_addresses() -> None:
    member = Member(1, "ch1", 9000)
    assert url_of(member, "http", 8123, {}) == "http://ch1:8123"
    assert url_of(member, "http", 8123, {"ch1:9000": "https://gate:443"}) == "https://gate:443"
    assert url_of(Member(1, "::1", 9000), "http", 8123, {}) == "http://[::1]:8123"


EAST = {"east": SHARDS["east"]}
SILENT = (SHARDS["west"],)


@pytest.mark.parametrize(
    ("named", "found", "words"),
    [
        (["east", "west"], Found(SHARDS), ""),
        (["west", "east"], Found(EAST, SILENT), ""),  # it may be the silent one
        (["east"], Found(SHARDS), "it has the shard west, which [clickhouse] shards does not name"),
        (["east", "west"], Found(EAST), "it lacks the shard west, which [clickhouse] shards names"),
        (["east", "north"], Found(SHARDS), "north"),
        (["east"], Found(EAST, SILENT), "more shards than are named, of which nobody answers"),
    ],
)
def test_how_a_cluster_differs_from_what_is_named(
    named: list[str], found: Found, words: str
) -> None:
    assert words in difference(named, found) and bool(words) == bool(difference(named, found))


def test_replicas_are_taken_up_and_shards_are_not() -> None:
    known = {"east": ("http://a:1",), "west": SHARDS["west"]}
    more = {"east": ("http://a:1", "http://x:1"), "north": ("http://n:1",)}
    assert taken_up(known, Found(more)) == {"east": more["east"], "west": SHARDS["west"]}
