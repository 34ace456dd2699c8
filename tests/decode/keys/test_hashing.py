"""Deduplication keys: the same for the same values, another one for any other."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sluice.claims.owners import NOBODY, Owners, owners_of
from sluice.core.claims import KEY_BYTES, OWNER_BYTES, key_space, loader_number
from sluice.core.errors import TerminalError
from sluice.core.load_spec import SOURCE, Column, TableSpec
from sluice.decode.keys.hashing import RowKeys
from tests.decode.keys.support import (
    ALL_LINEAGE,
    TOPIC_ID,
    block_of,
    column,
    decoded_of,
    hexes,
    keyed_table,
    keys_of,
    stored,
)
from tests.support.examples import examples

COLUMNS = (
    Column("name", "String"),
    Column("other", "LowCardinality(String)"),
    Column("tags", "Array(String)"),
    Column("more", "Array(String)"),
    Column("maybe", "Nullable(UInt32)"),
    Column("code", "FixedString(3)"),
    Column("id", "Int64"),
    Column("at", "DateTime"),
    Column("words", "Array(Nullable(String))"),
    Column("pairs", "Map(String, UInt8)"),
    Column("day", "Date", "DEFAULT", "toDate(at)"),
    Column("loaded", "DateTime", "DEFAULT", "now()"),
    Column("twice", "Int64", "MATERIALIZED", "id * 2"),
    Column("half", "Int64", "ALIAS", "intDiv(id, 2)"),
    Column("raw", "String", "EPHEMERAL"),
    Column("total", "SimpleAggregateFunction(sum, UInt64)"),
    Column("odd name", "String"),
)
#: Also "", what looks like a length, and what looks like an element.
TEXTS = st.sampled_from(["", "a", "b", "ab", "ba", "\x00", "\x01", "\x01a", "ö"])
EVENTS = st.fixed_dictionaries(
    {
        "name": TEXTS,
        "other": TEXTS,
        "tags": st.lists(TEXTS, max_size=2),
        "more": st.lists(TEXTS, max_size=2),
        "maybe": st.none() | st.sampled_from([0, 1, 256]),
        "code": st.sampled_from(["", "a", "ab", "abc"]),
        "id": st.sampled_from([-1, 0, 1, 256, 2**63 - 1]),
        "words": st.lists(st.none() | TEXTS, max_size=2),
    }
)
PARTS = ("name", "other", "tags", "more", "maybe", "code", "id", "words")


def owners(offsets: NDArray[np.uint64], rows: NDArray[np.uint32]) -> Owners:
    """Of rows of blocks as `support.WHO` loads them."""
    loader = loader_number("shop", "dc1", "orders")
    return owners_of([TOPIC_ID], [3], 0, loader, offsets, rows)


def keyed(*key: str, **changes: Any) -> TableSpec:
    return keyed_table(*COLUMNS, key=key, **changes)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(EVENTS, min_size=1, max_size=30),
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4, unique=True),
    st.booleans(),
)
def test_keys_are_equal_if_and_only_if_the_values_are(
    values: list[dict[str, Any]], key: list[str], is_sorted: bool
) -> None:
    """Each with each, in the block's order; a row of a null part has none."""
    text = keyed(*key, sort=is_sorted, sorting_key="id, name")
    decoded = block_of(text, values)
    found = keys_of(text, decoded)
    by_offset = dict(zip(sorted(column(decoded, "_offset"), key=int), values, strict=True))
    in_order = [by_offset[offset] for offset in column(decoded, "_offset")]
    parts = [tuple(json.dumps(value[name]) for name in key) for value in in_order]
    assert found.has_key.tolist() == ["null" not in part for part in parts]
    assert found.keys.shape == (len(values), KEY_BYTES) and found.keys.flags.c_contiguous
    assert found.keys.dtype == np.uint8 and found.rows.dtype == np.uint32
    of_keys = [pair for pair in zip(parts, hexes(found), strict=True) if "null" not in pair[0]]
    for (part, one), (other_part, other) in combinations(of_keys, 2):
        assert (one == other) == (part == other_part)


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        (("name", "other"), {"name": "ab", "other": "c"}, {"name": "a", "other": "bc"}),
        (("name", "other"), {"name": "", "other": "a"}, {"name": "a", "other": ""}),
        (("name", "other"), {"name": "a\x01b"}, {"name": "a", "other": "b"}),
        (("tags", "more"), {"tags": ["a"], "more": ["b"]}, {"tags": ["a", "b"]}),
        (("tags", "more"), {"tags": [""]}, {"more": [""]}),
        (("tags",), {"tags": ["", ""]}, {"tags": [""]}),
        (("words",), {"words": [None]}, {"words": [""]}),
        (("name", "id"), {"name": "\x01", "id": 0}, {"name": "", "id": 1}),
    ],
)
def test_nothing_is_joined_so_that_it_could_be_something_else(
    key: tuple[str, ...], one: dict[str, Any], other: dict[str, Any]
) -> None:
    text = keyed(*key)
    assert len(set(hexes(keys_of(text, block_of(text, [one, other, one]))))) == 2


def test_the_order_of_the_parts_counts() -> None:
    decoded = block_of(keyed("name"), [{"name": "a", "other": "b"}])
    one, other = (keys_of(keyed(*key), decoded) for key in (("name", "other"), ("other", "name")))
    assert hexes(one) != hexes(other)


@pytest.mark.parametrize(
    "type_text",
    ["String", "LowCardinality(String)", "Nullable(String)", "LowCardinality(Nullable(String))"],
)
@pytest.mark.parametrize("key", [("s",), ("s", "n")])
def test_dictionaries_and_what_may_be_null_make_the_same_keys(
    key: tuple[str, ...], type_text: str
) -> None:
    """A server may answer with a type that its table had before, or without dictionaries."""
    text = keyed_table(Column("s", type_text), Column("n", "UInt8"), key=key)
    decoded = block_of(text, [{"s": s, "n": 1} for s in ("", "a", "ab", "a")])
    row_keys = RowKeys(text, decoded.columns)
    expected = row_keys.of(decoded)
    assert expected.has_key.all() and len(set(hexes(expected))) == 3
    for kind in ("String", "LowCardinality(String)", "Nullable(String)"):
        select = ", ".join(row_keys.columns).replace("s,", f"CAST(s, '{kind}') AS s,", 1)
        keys, _ = row_keys.of_stored(stored(decoded, select))
        assert keys.tolist() == expected.keys.tolist()


def test_a_number_of_another_width_has_another_key() -> None:
    found = set()
    for kind in ("UInt8", "UInt16", "UInt32", "UInt64", "Int128", "String"):
        text = keyed_table(Column("n", kind), key=("n",))
        found.update(hexes(keys_of(text, block_of(text, [{"n": "1"}]))))
    assert len(found) == 6


def test_keys_of_one_scope_are_compared_whatever_the_table() -> None:
    found = {}
    for scope in ("", "a", "b"):
        text = keyed_table(Column("id", "UInt64"), key=("id",), scope=scope)
        found[scope] = hexes(keys_of(text, block_of(text, [{"id": 1}])))
    assert len(set(map(tuple, found.values()))) == 3
    other = keyed_table(
        Column("x", "String"), Column("id", "UInt64"), key=("id",), scope="a", entry="others"
    )
    assert hexes(keys_of(other, block_of(other, [{"id": 1}]))) == found["a"]


def test_keys_stay_what_they_are() -> None:
    """Claims are kept for days: another key for the same values lets duplicates pass."""
    text = keyed("name", "tags", "maybe", "code", "id", "toDate(at)")
    value = {"name": "ab", "tags": ["x", ""], "maybe": 7, "code": "q", "id": -2, "at": 10**9}
    assert hexes(keys_of(text, block_of(text, [value]))) == ["d671ad9e34c7304b94e24205a59a32d1"]


def sip_hash_128(key: bytes, text: bytes) -> bytes:
    """SipHash-2-4 of 128 bits as its authors write it: independent of the engine."""
    mask = 2**64 - 1
    k0, k1 = (int.from_bytes(half, "little") for half in (key[:8], key[8:]))
    state = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, bits, turned in (
                (0, 1, 13, 0),
                (2, 3, 16, -1),
                (0, 3, 21, -1),
                (2, 1, 17, 2),
            ):
                state[a] = (state[a] + state[b]) & mask
                state[b] = ((state[b] << bits | state[b] >> (64 - bits)) & mask) ^ state[a]
                if turned in (0, 2):
                    state[a] = (state[a] << 32 | state[a] >> 32) & mask

    words = text + bytes(7 - len(text) % 8) + bytes([len(text) % 256])
    for begin in range(0, len(words), 8):
        word = int.from_bytes(words[begin : begin + 8], "little")
        state[3] ^= word
        rounds(2)
        state[0] ^= word
    halves = []
    for place, value in ((2, 0xEE), (1, 0xDD)):
        state[place] ^= value
        rounds(4)
        halves.append((state[0] ^ state[1] ^ state[2] ^ state[3]).to_bytes(8, "little"))
    return b"".join(halves)


@pytest.mark.parametrize("name", ["", "ab", "longer than one word", "x" * 300])
def test_a_key_is_the_hash_of_the_parts_as_row_binary_writes_them(name: str) -> None:
    text = keyed("name", "tags", "id", scope="a scope")
    decoded = block_of(text, [{"name": name, "tags": ["x", ""], "id": -2}])
    length = (
        bytes([len(name)]) if len(name) < 128 else bytes([len(name) & 127 | 128, len(name) >> 7])
    )
    written = length + name.encode() + b"\x02\x01x\x00" + (-2).to_bytes(8, "little", signed=True)
    assert text.deduplicate is not None
    space = key_space(text.deduplicate, text.columns)
    key = hashlib.blake2b(space.encode(), digest_size=16).digest()
    assert bytes(keys_of(text, decoded).keys[0]) == sip_hash_128(key, written)


def test_an_expression_is_a_part_like_others() -> None:
    text = keyed("concat(name, other) -- both", "maybe + 1")
    decoded = block_of(
        text,
        [
            {"name": "ab", "other": "c", "maybe": 1},
            {"name": "a", "other": "bc", "maybe": 1},
            {"name": "a", "other": "bc", "maybe": 2},
            {"name": "a", "other": "bc", "maybe": None},
        ],
    )
    found = keys_of(text, decoded)
    assert found.has_key.tolist() == [True, True, True, False]
    first, second, third, _ = hexes(found)
    assert first == second != third


def test_names_of_columns_are_never_read_as_expressions() -> None:
    text = keyed("odd name")
    found = keys_of(text, block_of(text, [{"odd name": "a"}, {"odd name": "b"}]))
    assert len(set(hexes(found))) == 2


@pytest.mark.parametrize("is_sorted", [False, True])
def test_rows_of_one_message_are_numbered(is_sorted: bool) -> None:
    text = keyed("id", rows="many", sort=is_sorted, sorting_key="id")
    ids = ([3, 1], [5], [4, 2, 0])
    lines = [b"\n".join(b'{"id":%d}' % n for n in some) for some in ids]
    decoded = decoded_of(text, lines)
    numbers = {n: place for some in ids for place, n in enumerate(some)}
    order = [n for some in ids for n in some]
    order = sorted(order) if is_sorted else order
    found = keys_of(text, decoded)
    assert [numbers[n] for n in order] == found.rows.tolist()
    alone = [hexes(keys_of(text, decoded_of(text, [b'{"id":%d}' % n])))[0] for n in order]
    assert hexes(found) == alone


def test_a_table_of_one_row_a_message_need_not_number_them() -> None:
    lineage = tuple(one for one in ALL_LINEAGE if one.name != "_row")
    text = keyed("id", lineage=lineage)
    decoded = block_of(text, [{"id": 1}, {"id": 2}])
    assert keys_of(text, decoded).rows.tolist() == [0, 0]
    _, found = RowKeys(text, decoded.columns).of_stored(decoded.native)
    assert found.tolist() == owners(decoded.offsets, np.zeros(2, np.uint32)).tolist()


def test_a_block_without_rows_has_no_keys() -> None:
    text = keyed("id")
    row_keys = RowKeys(text, block_of(text, [{"id": 1}]).columns)
    found = row_keys.of(decoded_of(text, []))
    assert found.keys.shape == (0, KEY_BYTES) and not len(found.rows) and not len(found.has_key)
    keys, claimed = row_keys.of_stored(memoryview(b""))
    assert keys.shape == (0, KEY_BYTES) and claimed.shape == (0, OWNER_BYTES)


def test_expressions_see_the_time_zone_of_the_table() -> None:
    found = []
    for zone in ("UTC", "Asia/Tokyo"):
        text = keyed("toHour(at)", time_zone=zone)
        found.append(hexes(keys_of(text, block_of(text, [{"at": 10**9}]))))
    assert found[0] != found[1]


def test_an_expression_that_fails_on_a_row_stops_with_words() -> None:
    text = keyed("intDiv(100, id)")
    decoded = block_of(text, [{"id": 1}, {"id": 0}])
    with pytest.raises(TerminalError, match="Division by zero") as failed:
        keys_of(text, decoded)
    assert "deduplicate of table entry orders" in failed.value.message
    assert "sluice adopt" in failed.value.hint


@pytest.mark.parametrize("source_type", ["String", "LowCardinality(String)"])
def test_claims_are_made_again_from_what_the_table_stores(source_type: str) -> None:
    """Whatever the server writes: in several blocks, without dictionaries, null or not."""
    lineage = (*ALL_LINEAGE[:-1], Column(SOURCE, source_type))
    text = keyed("other", "maybe", rows="many", lineage=lineage)
    row = b'{"other":"%d","maybe":%d}'
    lines = [row % (n % 9, n) + b"\n" + row % (n, 1) for n in range(100)]
    decoded = decoded_of(text, [*lines, b'{"other":"x","maybe":null}'])
    row_keys = RowKeys(text, decoded.columns)
    found = row_keys.of(decoded)
    assert not found.has_key[-1]
    select = ", ".join(row_keys.columns).replace("other", "toString(other) AS other")
    answer = stored(decoded, select, "SETTINGS max_block_size = 30")
    several = memoryview(bytes(answer) + bytes(stored(decoded, select, "LIMIT 0")) + bytes(answer))
    keys, claimed = row_keys.of_stored(several)
    assert keys.tolist() == 2 * found.keys[:-1].tolist()
    expected = owners(decoded.offsets, found.rows)[:-1]
    assert claimed.shape == (400, OWNER_BYTES) and claimed.tolist() == 2 * expected.tolist()


@pytest.mark.parametrize(
    "source",
    ["", "by hand", "a/b/c/d/1", "shop/dc1/Zm9vYmFyYmE/orders", "shop/dc1/Zm9vYmFyYmE/orders/x",
     "shop/dc1/Zm9vYmFyYm!/orders/2", "x/shop/dc1/Zm9vYmFyYmE/orders/2"],
)  # fmt: skip
def test_rows_of_foreign_hands_belong_to_nobody(source: str) -> None:
    text = keyed("id")
    decoded = block_of(text, [{"id": 1}, {"id": 2}])
    row_keys = RowKeys(text, decoded.columns)
    names = ", ".join(row_keys.columns).replace(
        SOURCE, f"if(id = 2, '{source}', {SOURCE}) AS {SOURCE}"
    )
    keys, claimed = row_keys.of_stored(stored(decoded, names))
    assert keys.tolist() == row_keys.of(decoded).keys.tolist()
    known = owners(decoded.offsets[:1], np.zeros(1, np.uint32))
    assert claimed.tolist() == [known[0].tolist(), list(NOBODY)]


REFUSED = [
    ("absent", "has no column absent", "columns of the table"),
    ("twice", "twice is MATERIALIZED", "as an expression"),
    ("half", "half is ALIAS", "as an expression"),
    ("raw", "raw is EPHEMERAL", "plain columns"),
    ("upper(raw)", "raw is EPHEMERAL", "plain columns"),
    ("_offset", "no two messages have the same _offset", "which event"),
    ("concat(name, _source)", "no two messages have the same _source", "which event"),
    ("loaded", "depends on now", "deterministic DEFAULT"),
    ("id + rand()", "depends on rand", "messages fill"),
    ("(SELECT 1) + id", "depends on subquery", "messages fill"),
    ("arrayJoin(tags)", "depends on arrayJoin", "messages fill"),
    ("sum(id)", "depends on sum", "messages fill"),
    ("count() OVER (ORDER BY id)", "depends on count", "messages fill"),
    ("1 + 1", "1 + 1 names no column of shop.orders", "columns of the table"),
    ("id + absent", "id + absent cannot be compiled", "Correct it"),
    ("id +", "cannot be parsed", "server"),
    ("if(id = 0, NULL, NULL)", "is always null", "values that are there"),
    ("pairs", "pairs is Map(String, UInt8), whose equal values", "single values"),
    ("total", "total is SimpleAggregateFunction", "single values"),
]


@pytest.mark.parametrize(("item", "what", "hint"), REFUSED)
def test_what_would_not_know_an_event_again_is_refused(item: str, what: str, hint: str) -> None:
    text = keyed("name", item)
    carried = [one.name for one in text.columns if one.kind not in ("MATERIALIZED", "ALIAS")]
    with pytest.raises(TerminalError) as refused:
        RowKeys(text, carried)
    assert what in refused.value.message
    assert hint in refused.value.hint


def test_what_blocks_do_not_carry_is_refused() -> None:
    with pytest.raises(TerminalError, match="depends on name, which blocks do not carry"):
        RowKeys(keyed("id", "name"), ["id"])


@pytest.mark.parametrize("lacking", ["_topic", "_partition", "_offset", "_row", "_source"])
def test_a_row_has_to_say_of_which_message_it_is(lacking: str) -> None:
    lineage = tuple(one for one in ALL_LINEAGE if one.name != lacking)
    text = keyed("id", rows="many", lineage=lineage)
    with pytest.raises(TerminalError, match=f"carries no {lacking}") as refused:
        RowKeys(text, ["id"])
    assert "sluice doctor" in refused.value.hint


def test_a_source_that_is_a_number_is_refused() -> None:
    text = keyed("id", lineage=(*ALL_LINEAGE[:-1], Column(SOURCE, "UInt64")))
    with pytest.raises(TerminalError, match="_source is UInt64"):
        RowKeys(text, ["id"])
