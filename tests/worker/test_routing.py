"""Which messages go to which entries; pure but for the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sluice.core.ledger import Rest
from sluice.core.load_spec import Column, Mapped, Route, TableSpec
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from sluice.producer import SQLBatchRequest
from sluice.worker.routing import Router

Headers = tuple[tuple[str, bytes | None], ...]


def a_table(entry: str, route: Route | None = None) -> TableSpec:
    return TableSpec(
        entry=entry,
        database="d",
        table=entry,
        topics=("t",),
        format="JSONEachRow",
        columns=(Column("a", "UInt8"),),
        lineage=(),
        partition_key="",
        sorting_key="",
        unknown_fields="ignore",
        on_null="dead-letter",
        time_zone="UTC",
        shards=("s1",),
        route=route,
    )


def a_router(
    *tables: TableSpec, rest: Rest | None = None, of_topic: Sequence[TableSpec] = ()
) -> Router:
    return Router(alone("t", 3), tables, rest or {}, MessageBuffer, of_topic)


def put(router: Router, *messages: tuple[int, bytes | None, Headers]) -> None:
    """Messages (offset, key, headers); the value names the offset."""
    if router.looks:
        router.look([(key, headers, offset * 10) for offset, key, headers in messages])
    router.deliver([b'{"a":%d}' % offset for offset, _, _ in messages], [m[0] for m in messages])


def offsets(router: Router, entry: str) -> list[int]:
    with router.messages_of(entry) as buffer:
        found = [int(offset) for offset in buffer.offsets]
        values = [b'{"a":%d}' % offset for offset in found]
        assert list(buffer.iterate(np.arange(buffer.messages))) == values
    return found


def by_header(entry: str, name: str = "") -> TableSpec:
    return a_table(entry, Route("header", name, entry))


def test_one_entry_takes_everything_and_nobody_looks_at_headers() -> None:
    router = a_router(a_table("one"))
    assert not router.looks and router.only_view is not None


def test_entries_without_routes_share_one_buffer() -> None:
    router = a_router(a_table("one"), a_table("two"))
    assert len(router.buffers) == 1 and router.looks
    put(router, (3, None, ()), (4, b"k", (("table", b"two"),)))
    assert offsets(router, "one") == offsets(router, "two") == [3, 4]
    assert router.unrouted == []


@pytest.mark.parametrize("name", ["table", "__table_name"])
def test_a_header_names_the_table(name: str) -> None:
    router = a_router(by_header("one"), by_header("two"))
    put(router, (1, None, ((name, b"one"),)), (2, None, ((name, b"two"),)), (3, None, ()))
    put(router, (5, None, ((name, b"three"),)), (6, None, ((name, None),)))
    put(router, (8, None, (("x", b"two"), (name, b"one"), (name, b"two"))))
    assert offsets(router, "one") == [1, 8]  # the first header of a name counts
    assert offsets(router, "two") == [2]
    assert router.unrouted == [3, 5, 6]


def test_a_header_of_another_name() -> None:
    router = a_router(by_header("one", "kind"))
    put(router, (1, None, (("table", b"one"),)), (2, None, (("kind", b"one"),)))
    assert offsets(router, "one") == [2] and router.unrouted == [1]


def test_a_key_prefix_chooses_and_one_message_may_go_to_several() -> None:
    router = a_router(
        a_table("long", Route("key-prefix", "", "ab")),
        a_table("short", Route("key-prefix", "", "a")),
    )
    put(router, (1, b"abc", ()), (2, b"ax", ()), (3, b"b", ()), (4, None, ()), (5, b"ab", ()))
    assert offsets(router, "long") == [1, 5]
    assert offsets(router, "short") == [1, 2, 5]
    assert router.unrouted == [3, 4]


def test_a_message_itself_names_the_table() -> None:
    tables = [replace(a_table(name), route=Route("envelope", "", name)) for name in ("one", "two")]
    router = a_router(*tables)
    values = [SQLBatchRequest(name, "", [(1,)]).encode() for name in ("two", "one", "three", "")]
    for first in (0, 10):  # each poll for itself
        router.look([(b"one", (("table", b"one"),), 1)] * 5)
        router.deliver([*values, b"one"], range(first, first + 5))
    for entry, found in (("one", [1, 11]), ("two", [0, 10])):
        with router.messages_of(entry) as buffer:
            assert buffer.offsets.tolist() == found
    assert router.unrouted == [2, 3, 4, 12, 13, 14]


def test_who_does_not_look_is_told_so() -> None:
    router = a_router(by_header("one"))
    put(router, (1, None, (("table", b"one"),)))
    with pytest.raises(ValueError, match="argument 2 is longer"):
        router.deliver([b"{}"], [2])


def test_some_entries_of_a_topic_are_given_what_all_of_them_would_leave_them() -> None:
    only, one, two = (("sluice.table", b"two"),), a_table("one"), a_table("two")
    router = a_router(one, of_topic=(one, two))
    put(router, (1, None, ()), (2, None, only))
    assert offsets(router, "one") == [1]
    router = a_router(one, of_topic=(by_header("one"), two))  # its own route counts
    put(router, (1, None, ()))
    assert offsets(router, "one") == [1]


def test_an_entry_without_a_route_leaves_nothing_unrouted() -> None:
    router = a_router(a_table("all"), by_header("one"))
    put(router, (1, None, (("table", b"one"),)), (2, None, ()))
    assert offsets(router, "all") == [1, 2] and offsets(router, "one") == [1]
    assert router.unrouted == []


def test_a_dead_letter_comes_back_to_its_entry_only() -> None:
    only = (("sluice.table", b"two"),)
    router = a_router(a_table("one"), a_table("two"), by_header("three"))
    put(router, (1, None, ()), (2, None, only), (3, None, ()))
    put(router, (4, None, only), (5, None, (("table", b"three"),)))
    assert offsets(router, "one") == [1, 3, 5]
    assert offsets(router, "two") == [1, 2, 3, 4, 5]
    assert offsets(router, "three") == [5]
    assert router.unrouted == []


def test_a_dead_letter_of_an_entry_that_is_gone_is_not_lost() -> None:
    router = a_router(a_table("one"), a_table("two"))
    put(router, (1, None, (("sluice.table", b"gone"),)), (2, None, ()))
    assert offsets(router, "one") == offsets(router, "two") == [2]
    assert router.unrouted == [1]


def test_a_probe_loads_what_was_missing_of_each_entry() -> None:
    rest: Rest = {"one": ((1, 3),), "two": ((2, 4), (6, 7))}
    router = a_router(a_table("one"), by_header("two"), rest=rest)
    two = (("table", b"two"),)
    put(router, *((offset, None, two if offset != 3 else ()) for offset in range(1, 8)))
    assert offsets(router, "one") == [1, 2]
    assert offsets(router, "two") == [2, 6]


def test_equal_rests_share_a_buffer() -> None:
    rest: Rest = {"one": ((1, 3),), "two": ((1, 3),)}
    router = a_router(a_table("one"), replace(a_table("two")), rest=rest)
    assert len(router.buffers) == 1
    put(router, (0, None, ()), (1, None, ()), (2, None, ()), (3, None, ()))
    assert offsets(router, "one") == offsets(router, "two") == [1, 2]


def test_facts_follow_their_messages() -> None:
    mapped = replace(by_header("one"), mapping=(Mapped("a", "sql", "length(_key)"),))
    router = a_router(mapped, a_table("two"))
    one, only = (("table", b"one"),), (("sluice.table", b"two"),)
    put(router, (1, b"x", one), (2, b"y", ()), (3, b"z", one), (4, None, only))
    with router.messages_of("one") as buffer:
        assert buffer.facts is not None
        assert buffer.facts.origins == alone("t", 3)
        assert (buffer.facts.keys, buffer.facts.timestamps_ms) == ([b"x", b"z"], [10, 30])
        assert buffer.facts.headers == [one, one]


def test_facts_of_a_dead_letter_that_came_back() -> None:
    mapped = replace(a_table("one"), check=("length(_key) > 0",))
    router = a_router(mapped, replace(mapped, entry="two", table="two"))
    put(router, (1, b"x", ()), (2, b"y", (("sluice.table", b"two"),)), (3, b"z", ()))
    for entry, keys in (("one", [b"x", b"z"]), ("two", [b"x", b"y", b"z"])):
        with router.messages_of(entry) as buffer:
            assert buffer.facts is not None and buffer.facts.keys == keys


def test_the_raw_message_alone_needs_neither_keys_nor_headers() -> None:
    raw = replace(a_table("raw"), mapping=(Mapped("a", "kafka", "_raw_message"),))
    assert not a_router(raw).looks
    assert a_router(replace(raw, check=("_key != ''",))).looks


def test_tombstones_go_to_who_deletes_by_them_and_are_passed_over_by_others() -> None:
    gone = (Mapped("a", "kafka", "_tombstone"),)
    deleting = replace(a_table("deleting"), mapping=gone, tombstones="delete")
    by_name = replace(deleting, entry="by_name", route=Route("header", "table", "x"))
    router = a_router(deleting, by_name, a_table("other"))
    assert router.takes_tombstones and not a_router(a_table("other")).takes_tombstones
    router.look([(b"k1", (), 1), (b"k2", (), 2), (b"k3", (("table", b"x"),), 3)])
    router.deliver([b'{"a":1}', None, None], [1, 2, 3])  # type: ignore[list-item]
    assert router.unrouted == []
    for entry, found, dead in (
        ("deleting", [1, 2, 3], [False, True, True]),
        ("by_name", [3], [True]),
        ("other", [1], [False]),
    ):
        with router.messages_of(entry) as buffer:
            assert buffer.offsets.tolist() == found
            assert buffer.facts is not None and buffer.facts.tombstones == dead
