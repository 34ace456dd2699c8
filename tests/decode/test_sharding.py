"""Which shard each row goes to, and one block of a table entry as one for each shard."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Sharding, TableSpec
from sluice.decode.engine.native import checksum, read_header
from sluice.decode.engine.session import run
from sluice.decode.formats import make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Block, Decoded, TableDecoder
from sluice.decode.messages.facts import alone
from sluice.decode.messages.memory import memory_file
from sluice.decode.sharding.splitter import Splitter
from tests.decode.support import FIRST_OFFSET, LINEAGE, fill, table
from tests.support.examples import examples

LINEAGE_NAMES = tuple(column.name for column in LINEAGE)
COLUMNS = (
    Column("id", "Int64"),
    Column("user", "UInt32"),
    Column("name", "String"),
    Column("country", "LowCardinality(String)"),
    Column("at", "DateTime64(3)"),
    Column("day", "Date", "DEFAULT", "toDate(at)"),
    Column("maybe", "Nullable(UInt32)"),
    Column("tags", "Array(String)"),
    Column("kind", "Enum8('a' = 1, 'b' = 2)"),
    Column("price", "Decimal(18, 4)"),
    Column("code", "FixedString(4)"),
    Column("twice", "Int64", "MATERIALIZED", "id * 2"),
    Column("dice", "UInt64", "DEFAULT", "rand64()"),
)
SHARDS = ("east", "north", "west")

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "user": st.integers(0, 2**32 - 1) | st.integers(0, 9),
            "name": st.text(max_size=6),
            "country": st.sampled_from(["", "DE", "ö", "日本"]),
            "at": st.integers(10**9, 4 * 10**9).map(lambda seconds: f"{seconds}.25"),
            "maybe": st.none() | st.integers(0, 5),
            "tags": st.lists(st.text(max_size=3), max_size=3),
            "kind": st.sampled_from(["a", "b"]),
            "price": st.integers(-100, 100),
            "code": st.sampled_from(["", "ab", "abcd"]),
            "dice": st.just(7),
        }
    ),
    min_size=1,
    max_size=30,
)
SHARDINGS = st.one_of(
    st.builds(
        Sharding,
        by=st.just("key"),
        column=st.sampled_from(["id", "user"]),
        stripe=st.sampled_from([1, 3, 1000, 2**62]),
    ),
    st.builds(
        Sharding,
        by=st.just("key"),
        column=st.sampled_from(["name", "country", "code", "at", "day", "kind", "price", "tags"]),
    ),
    st.builds(Sharding, by=st.just("offset"), stripe=st.sampled_from([1, 2, 7, 100])),
    st.builds(
        Sharding,
        by=st.just("expression"),
        expression=st.sampled_from(
            ["cityHash64(user, name)", "length(name) -- short", "ifNull(maybe, 0)", "id % 5"]
        ),
    ),
)


def sharded(
    sharding: Sharding | None, shards: tuple[str, ...] = SHARDS, **changes: Any
) -> TableSpec:
    lineage = changes.pop("lineage", LINEAGE_NAMES)
    columns = (*COLUMNS, *LINEAGE) if lineage else COLUMNS
    return table(*columns, lineage=lineage, shards=shards, sharding=sharding, **changes)


@cache
def decoder_of(text: TableSpec) -> TableDecoder:
    """Kept: to compile one takes longer than to use it, and sharding is none of its business."""
    return make_decoder(text)


def decoded_of(text: TableSpec, values: list[dict[str, Any]]) -> Decoded:
    messages = [json.dumps(value).encode() for value in values]
    with MessageBuffer() as buffer:
        decoded = decoder_of(replace(text, sharding=None)).decode(
            fill(buffer, messages), alone("orders", 3)
        )
    assert not decoded.bad, decoded.bad
    return decoded


def split(text: TableSpec, decoded: Decoded) -> list[tuple[str, Block]]:
    return Splitter(text, decoded.columns).split(decoded)


def lines(native: memoryview, more: str = "*") -> list[str]:
    """The rows of a block as the engine reads them, one text each."""
    with memory_file(native) as path:
        query = f"SELECT {more} FROM file('{path}', Native) SETTINGS session_timezone='UTC'"
        return str(run(query, "TSV").bytes().decode()).split("\n")[:-1]


#: The number of a row, written as the issue says it: independent of what the code builds.
def place_in_sql(sharding: Sharding) -> str:
    if sharding.by == "expression":
        return f"toUInt64({sharding.expression}\n) % 3"
    if sharding.by == "offset":
        return f"intDiv(_offset, {sharding.stripe}) % 3"
    if sharding.column in ("id", "user"):
        return f"intDiv(reinterpretAsUInt64(toInt64({sharding.column})), {sharding.stripe}) % 3"
    return f"xxHash64({sharding.column}) % 3"


@settings(max_examples=examples(25), deadline=None)
@given(ROWS, SHARDINGS, st.booleans())
def test_the_parts_are_the_block(
    values: list[dict[str, Any]], sharding: Sharding, is_sorted: bool
) -> None:
    """Each row in exactly the shard that the engine's own function says, in the block's order."""
    text = sharded(sharding, sort=is_sorted, sorting_key="user, name")
    decoded = decoded_of(text, values)
    parts = split(text, decoded)
    places = [int(place) for place in lines(decoded.native, place_in_sql(sharding))]
    whole = lines(decoded.native)
    assert len(places) == len(whole) == decoded.rows
    expected = {
        shard: [row for row, at in zip(whole, places, strict=True) if at == place]
        for place, shard in enumerate(SHARDS)
        if place in places
    }
    assert {shard: lines(part.native) for shard, part in parts} == expected
    assert [shard for shard, _ in parts] == sorted(expected)
    for shard, part in parts:
        columns, rows, _ = read_header(part.native)
        assert (columns, rows) == (len(decoded.columns), len(expected[shard]))
        assert rows == part.rows == part.messages
        assert part.columns == decoded.columns
        assert part.checksum == checksum(part.native)
    again = split(text, decoded_of(text, values))
    assert [(s, bytes(p.native)) for s, p in again] == [(s, bytes(p.native)) for s, p in parts]


def test_a_part_of_all_rows_is_the_block_to_the_byte() -> None:
    """What the block carries goes through the engine unchanged: types, nulls, dictionaries."""
    values = [{"id": 6 * n, "name": "ü", "country": "DE", "tags": ["x"]} for n in range(2000)]
    text = sharded(Sharding("expression", expression="id % 2 + 1"))
    decoded = decoded_of(text, values)
    ((shard, part),) = split(text, decoded)
    assert shard == "north"
    assert bytes(part.native) == bytes(decoded.native)
    assert part.checksum == decoded.checksum


def test_a_large_block_stays_one_block_for_each_shard() -> None:
    values = [{"id": n, "user": n % 1000} for n in range(150_000)]
    text = sharded(Sharding("key", "user"))
    decoded = decoded_of(text, values)
    parts = split(text, decoded)
    assert [(s, read_header(p.native)[1]) for s, p in parts] == [(s, p.rows) for s, p in parts]
    assert [part.rows for _, part in parts] == [50_100, 49_950, 49_950]


def test_with_one_shard_the_block_is_the_part() -> None:
    text = sharded(None, ("s1",))
    decoded = decoded_of(text, [{"id": 1}])
    ((shard, part),) = split(text, decoded)
    assert shard == "s1" and part is decoded


@pytest.mark.parametrize(
    ("value", "place"),
    [(0, 0), (1, 1), (-1, (2**64 - 1) % 3), (-(2**63), 2**63 % 3), (2**63 - 1, (2**63 - 1) % 3)],
)
def test_negative_keys_are_their_twos_complement(value: int, place: int) -> None:
    text = sharded(Sharding("key", "id"))
    ((shard, _),) = split(text, decoded_of(text, [{"id": value}]))
    assert shard == SHARDS[place]


def test_rows_of_one_message_stay_together_and_are_counted_as_one_message() -> None:
    text = sharded(Sharding("offset", stripe=2), rows="many")
    with MessageBuffer() as buffer:
        values = [b"\n".join(b'{"id":%d}' % n for n in range(count)) for count in (2, 3, 1, 2)]
        decoded = make_decoder(text).decode(fill(buffer, values), alone("orders", 3))
    assert (decoded.rows, decoded.messages) == (8, 4)
    parts = split(text, decoded)
    found = {shard: (part.rows, part.messages) for shard, part in parts}
    offsets = [FIRST_OFFSET + 2 * message for message in range(4)]
    expected: dict[str, tuple[int, int]] = {}
    for offset, count in zip(offsets, (2, 3, 1, 2), strict=True):
        shard = SHARDS[offset // 2 % 3]
        rows, messages = expected.get(shard, (0, 0))
        expected[shard] = (rows + count, messages + 1)
    assert found == expected


@pytest.mark.parametrize("key", ["day", "(day, _partition)"])
def test_each_part_counts_its_own_clickhouse_partitions(key: str) -> None:
    values = [{"user": n % 3, "at": f"{10**9 + 86400 * (n % 3 * 4 + n % 2)}.0"} for n in range(60)]
    text = sharded(Sharding("key", "user"), partition_key=key)
    decoded = decoded_of(text, values)
    assert decoded.clickhouse_partitions == 6
    parts = split(text, decoded)
    assert [part.clickhouse_partitions for _, part in parts] == [2, 2, 2]


REFUSED = [
    (Sharding("key", "maybe"), "null belongs to no shard", "ifNull(`maybe`"),
    (Sharding("key", "name", 2), "stripe divides numbers, and name is String", "Leave stripe out"),
    (Sharding("key", "twice"), "depends on twice, which blocks do not carry", "inserted"),
    (Sharding("key", "absent"), "names no column of shop.orders", "columns of the table"),
    (Sharding("key", "dice"), "depends on rand64", "deterministic DEFAULT"),
    (Sharding("expression", expression="name"), "String, not a whole number", "xxHash64(name)"),
    (Sharding("expression", expression="price"), "not a whole number", "xxHash64(price)"),
    (Sharding("expression", expression="maybe + 1"), "null belongs to no shard", "ifNull"),
    (Sharding("expression", expression="user + now()"), "depends on now", "messages fill"),
    (Sharding("expression", expression="(SELECT 1) + user"), "depends on subquery", "messages"),
    (Sharding("expression", expression="arrayJoin([user])"), "arrayJoin", "messages fill"),
    (Sharding("expression", expression="sum(user)"), "depends on sum", "messages fill"),
    (Sharding("expression", expression="count() OVER (ORDER BY id)"), "on count", "messages"),
    (Sharding("expression", expression="user +"), "cannot be parsed", "server"),
    (Sharding("expression", expression="nothing(user)"), "depends on nothing", "messages"),
    (Sharding("expression", expression="intDiv(user)"), "cannot be compiled", "Correct it"),
]


@pytest.mark.parametrize(("sharding", "what", "hint"), REFUSED)
def test_what_would_not_give_each_row_one_shard_is_refused(
    sharding: Sharding, what: str, hint: str
) -> None:
    text = sharded(sharding)
    columns = tuple(column.name for column in text.columns if column.kind != "MATERIALIZED")
    with pytest.raises(TerminalError) as refused:
        Splitter(text, columns)
    assert what in refused.value.message
    assert hint in refused.value.hint


def test_the_function_is_evaluated_in_the_time_zone_of_the_table() -> None:
    """Which is in the text; a worker's own zone decides nothing."""
    late = {"id": 1, "at": "1000050400.0"}  # 2001-09-09 15:46:40 in UTC
    days = Sharding("expression", expression="toDayOfMonth(at)")
    found = {}
    for zone in ("UTC", "Asia/Tokyo"):
        text = sharded(days, time_zone=zone)
        ((found[zone], _),) = split(text, decoded_of(text, [late]))
    assert found == {"UTC": SHARDS[9 % 3], "Asia/Tokyo": SHARDS[10 % 3]}


@pytest.mark.parametrize(("zone", "partitions"), [("UTC", 2), ("Asia/Tokyo", 1)])
def test_parts_count_their_partitions_in_the_time_zone_of_the_table(
    zone: str, partitions: int
) -> None:
    values = [{"user": n, "at": f"{10**9 - 6401 + 7200 * (n % 2)}.0"} for n in (0, 3, 6, 9)]
    values.append({"user": 1, "at": f"{10**9 + 86_400}.0"})
    text = sharded(Sharding("key", "user"), partition_key="toDate(at)", time_zone=zone)
    parts = dict(split(text, decoded_of(text, values)))
    assert parts[SHARDS[0]].clickhouse_partitions == partitions


def test_by_offset_needs_the_offset_column() -> None:
    text = sharded(Sharding("offset"), lineage=())
    with pytest.raises(TerminalError, match="_offset` names no column"):
        Splitter(text, tuple(column.name for column in COLUMNS))


@pytest.mark.parametrize("with_offsets", [False, True])
def test_an_expression_that_fails_on_a_row_stops_with_words(with_offsets: bool) -> None:
    text = sharded(Sharding("expression", expression="intDiv(100, user)"))
    decoded = decoded_of(text, [{"user": 1}, {"user": 0}])
    with pytest.raises(TerminalError, match="Division by zero") as failed:
        Splitter(text, decoded.columns).split(decoded, with_offsets=with_offsets)
    assert "sluice adopt" in failed.value.hint
