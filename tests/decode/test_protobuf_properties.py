"""Protobuf: any message as the library reads it; mutated messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.decode.schema.protobuf_schema import ProtobufFiles
from sluice.decode.schema.structure import check_protobuf
from sluice.decode.typed.decoder import TypedDecoder
from tests.decode.protobuf_support import (
    COLUMNS,
    DESCRIPTORS,
    HOSTILE,
    ONE,
    Order,
    assert_equal,
    decode,
    protobuf,
)
from tests.decode.slow_walk import check_protobuf_slowly
from tests.decode.support import rows
from tests.support.examples import examples


@pytest.fixture(scope="module")
def orders() -> TypedDecoder:
    return protobuf(*COLUMNS)


#: `rows` reads line by line, and Python knows many line ends.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
DOUBLES = st.floats(allow_nan=False)
COLORS = st.sampled_from([0, 1, 5, -3])
ITEMS = st.fixed_dictionaries(
    {},
    optional={"count": INT32, "tags": st.lists(TEXTS, max_size=3), "limit": INT32, "color": COLORS},
)
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "id": U64,
        "name": TEXTS,
        "opt": INT32,
        "color": COLORS,
        "nums": st.lists(INT32, max_size=5),
        "item": ITEMS,
        "items": st.lists(ITEMS, max_size=3),
        "counts": st.dictionaries(TEXTS, INT64, max_size=3),
        "text": TEXTS,
        "d": DOUBLES,
        "f": st.floats(width=32, allow_nan=False),
        "b": st.booleans(),
        "raw": st.binary(max_size=20),
        "f32": U32,
        "f64": U64,
        "s32": INT32,
        "s64": INT64,
        "z32": INT32,
        "z64": INT64,
        "u32": U32,
        "i64": INT64,
        "colors": st.lists(COLORS, max_size=3),
        "doubles": st.lists(DOUBLES, max_size=3),
        "wrapped": st.builds(lambda value: {"value": value}, TEXTS),
        "at": st.just({"seconds": 5}),
        "parent": st.just({"id": 3, "parent": {"id": 4}}),
        "inside": st.just({"x": "y"}),
    },
)


@settings(max_examples=examples(60), deadline=None)
@given(values=st.lists(ORDERS, min_size=1, max_size=6))
def test_any_message_is_what_the_library_says(
    orders: TypedDecoder, values: list[dict[str, Any]]
) -> None:
    messages = [Order(**value) for value in values]
    decoded = decode(orders, [message.SerializeToString() for message in messages])
    assert decoded.bad == ()
    for found, message in zip(rows(decoded), messages, strict=True):
        assert_equal(found, message)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    raw = bytearray(Order(**draw(ORDERS)).SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        action = draw(st.sampled_from(["set", "insert", "delete", "cut", "append"]))
        byte = draw(st.sampled_from([0, 1, 2, 3, 8, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        if action == "set" and at < len(raw):
            raw[at] = byte
        elif action == "insert":
            raw.insert(at, byte)
        elif action == "delete" and at < len(raw):
            del raw[at]
        elif action == "cut":
            del raw[at:]
        elif action == "append":
            raw += draw(st.sampled_from(sorted(HOSTILE)))
    return bytes(raw)


def read_by_library(raw: bytes) -> Any:
    """The message; None where the library wants UTF-8 and the engine does not, or for maps that
    name a key twice, of which the engine keeps both."""
    try:
        message = Order.FromString(raw)
    except Exception:
        return None
    return None if any(raw.count(key.encode()) > 1 for key in message.counts) else message


@settings(max_examples=examples(100), deadline=None)
@given(values=st.lists(mutated(), min_size=1, max_size=8))
def test_mutated_messages_are_rows_or_bad_and_neighbours_are_untouched(
    orders: TypedDecoder, values: list[bytes]
) -> None:
    joined = [one for value in values for one in (value, ONE)]
    decoded = decode(orders, joined)
    bad_ones = {one.index for one in decoded.bad}
    assert all(index % 2 == 0 for index in bad_ones)
    assert decoded.rows == len(joined) - len(bad_ones)
    text = bytes(decoded.native)
    if any(line_end in text for line_end in LINE_ENDS):
        return
    found = iter(rows(decoded))
    for index, message in enumerate(joined):
        if index in bad_ones:
            continue
        row, known = next(found), read_by_library(message)
        if known is not None:
            assert_equal(row, known)


LINE_ENDS = [end.encode() for end in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"]


@settings(max_examples=examples(200), deadline=None)
@given(values=st.lists(mutated(), min_size=1, max_size=8), refuses_unknown=st.booleans())
def test_both_walks_say_the_same(values: list[bytes], refuses_unknown: bool) -> None:
    targets = {column.name: column.type for column in COLUMNS}
    tables = ProtobufFiles(DESCRIPTORS).named("Order").tables_for(targets, refuses_unknown)
    text = b"".join(values)
    ends = np.cumsum([len(value) for value in values]).astype(np.int64)
    begins = np.concatenate(([0], ends[:-1])).astype(np.int64)
    fast, unknown = check_protobuf(text, begins, ends, tables, refuses_unknown)
    slow, slowly_unknown = check_protobuf_slowly(text, begins, ends, tables, refuses_unknown)
    assert fast.tolist() == slow.tolist()
    assert unknown == slowly_unknown[:64]
