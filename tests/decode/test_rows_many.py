"""Messages of several rows: taken apart exactly, all or nothing, unless bad rows are dropped."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.decode.messages.brackets import ARRAYS, OBJECTS
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.framing import JSON_ARRAYS, JSON_OBJECTS
from sluice.decode.text.lines import JsonSplitter
from tests.decode.support import FIRST_OFFSET, fill, rows
from tests.decode.text_support import decode_text, text_of, with_lineage
from tests.support.examples import examples

MANY = {"rows": "many"}


def split_as_python_does(value: bytes, kind: bytes) -> list[str] | None:
    """The rows of a message by a scanner that walks it byte by byte; None: it is a fault."""
    text = value.decode("latin-1")
    array = kind == OBJECTS and text.strip(" \t\r\n")[:1] == "["
    opening = "[" if kind == ARRAYS else "{"
    base, separators = int(array), 0
    stack: list[str] = []
    found: list[str] = []
    begin, in_string, escaped, closed = 0, False, False, False
    for position, symbol in enumerate(text):
        if in_string:
            if symbol == "\n":
                return None
            if escaped:
                escaped = False
            elif symbol == "\\":
                escaped = True
            elif symbol == '"':
                in_string = False
            continue
        if symbol == "\\":
            return None
        if len(stack) <= base and symbol not in " \t\r\n":
            if closed:
                return None
            if array and not stack and symbol == "[":
                stack.append(symbol)
                continue
            if array and len(stack) == 1 and symbol == "]":
                stack.pop()
                closed = True
                continue
            if len(stack) < base:
                return None
            if symbol == ",":
                separators += 1
                if separators > 1 or not found:
                    return None
                continue
            if symbol != opening or (array and found and not separators):
                return None
            begin, separators = position, 0
        if symbol == '"':
            in_string = True
        elif symbol in "{[":
            stack.append(symbol)
        elif symbol in "}]":
            if not stack or {"}": "{", "]": "["}[symbol] != stack.pop():
                return None
            if len(stack) == base:
                found.append(text[begin : position + 1])
    if in_string or stack or separators or (array and not closed) or not (array or found):
        return None
    return found


def split(values: list[bytes], kind: bytes) -> list[list[str] | None]:
    """The same by the splitter, of all messages at once."""
    framing = JSON_OBJECTS if kind == OBJECTS else JSON_ARRAYS
    with fill(MessageBuffer(framing), values, poll=3) as buffer:
        parts = JsonSplitter(kind, drops=True)(buffer)
        assert parts is not None
        with parts.rows as found:
            texts = [one.decode("latin-1") for one in found.iterate(np.arange(found.messages))]
    result: list[list[str] | None] = [[] for _ in values]
    for owner, text in zip(parts.message_of.tolist(), texts, strict=True):
        rows_of = result[owner]
        assert rows_of is not None
        rows_of.append(text)
    for index in parts.faults:
        assert result[index] == []
        result[index] = None
    return result


PIECES = st.lists(
    st.sampled_from([b"{", b"}", b"[", b"]", b'"', b"\\", b",", b" ", b"\n", b"{}", b"[]", b"{},"]),
    max_size=9,
).map(b"".join)
WHOLE = st.lists(st.sampled_from([b"{}", b'{"a":"}"}', b"[1]", b'["]"]']), max_size=4)
JOINED = st.builds(
    lambda parts, joint, head, tail: head + joint.join(parts) + tail,
    WHOLE,
    st.sampled_from([b"", b",", b"\n", b" , ", b",,"]),
    st.sampled_from([b"", b"[", b" ", b" [ "]),
    st.sampled_from([b"", b"]", b"\n", b" ]\n", b","]),
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.one_of(PIECES, JOINED), min_size=1, max_size=7), st.sampled_from([OBJECTS, ARRAYS])
)
def test_messages_are_split_as_a_scanner_splits_them(values: list[bytes], kind: bytes) -> None:
    assert split(values, kind) == [split_as_python_does(value, kind) for value in values]


def test_rows_of_a_message_carry_its_offset_and_their_number() -> None:
    values = [
        b'{"id":1}',
        b'[{"id":2},{"id":3}]',
        b"[]",
        b'{"id":4}\n{"id":5}',
        b'{"id":6}, {"id":7}',
    ]
    decoded = decode_text(with_lineage("JSONEachRow", **MANY), values)
    found = [(row[0], int(row[4]) - FIRST_OFFSET, row[5]) for row in rows(decoded)]
    assert found == [
        ("1", 0, 0),
        ("2", 2, 0),
        ("3", 2, 1),
        ("4", 6, 0),
        ("5", 6, 1),
        ("6", 8, 0),
        ("7", 8, 1),
    ]
    assert decoded.offsets.tolist() == [FIRST_OFFSET + place for _, place, _ in found]
    assert (decoded.rows, decoded.messages, decoded.empty) == (7, 4, (FIRST_OFFSET + 4,))


BAD: dict[str, tuple[bytes, bytes]] = {
    "JSONEachRow": (b'[{"id":1},{"id":-1},{"id":3}]', b'{"id":9}'),
    "JSONCompactEachRow": (b'[1,"a"],[-1,"b"]\n[3,"c"]', b'[9,"d"]'),
    "CSV": (b"1,a\n-1,b\n3,c", b"9,d"),
    "CSVWithNames": (b"s,id\na,1\nb,-1\nc,3\n", b"s,id\nd,9"),
    "TSV": (b"1\ta\r\n-1\tb\r\n3\tc\r\n", b"9\td"),
    "TSVWithNames": (b"id\n1\n-1\n3", b"id\n9"),
    "TSKV": (b"id=1\nid=-1\nid=3", b"id=9"),
}


@pytest.mark.parametrize("table_format", BAD)
def test_a_message_is_all_or_nothing(table_format: str) -> None:
    values = list(BAD[table_format])
    decoded = decode_text(with_lineage(table_format, **MANY), values)
    assert [row[0] for row in rows(decoded)] == ["9"]
    (bad,) = decoded.bad
    assert (bad.index, bad.reason, bad.column) == (0, "out-of-range", "id")
    assert bad.error.startswith("row 1: ") and "does not fit column id UInt64" in bad.error
    dropping = with_lineage(table_format, bad_rows="drop-row", **MANY)
    decoded = decode_text(dropping, values)
    assert [(row[0], row[5]) for row in rows(decoded)] == [("1", 0), ("3", 2), ("9", 0)]
    assert (decoded.bad, decoded.dropped_rows, decoded.messages) == ((), 1, 2)


@pytest.mark.parametrize("table_format", BAD)
def test_one_row_means_one(table_format: str) -> None:
    decoded = decode_text(text_of(table_format), list(BAD[table_format]))
    assert [row[0] for row in rows(decoded)] == ["9"]
    assert [bad.index for bad in decoded.bad] == [0]
    assert decoded.bad[0].reason in ("not-one-row", "not-one-object")


def test_a_single_bad_row_is_dropped_whatever_its_neighbours() -> None:
    dropping = with_lineage("CSV", bad_rows="drop-row", **MANY)
    for more in ([], [b"5,x\n6,y"]):
        decoded = decode_text(dropping, [b"1,a", b"x,b", *more])
        assert (decoded.dropped_rows, decoded.bad) == (1, ())
        assert decoded.empty == (FIRST_OFFSET + 2,)


@pytest.mark.parametrize("table_format", ["JSONEachRow", "CSV"])
def test_a_sorted_block_knows_its_rows(table_format: str) -> None:
    text = with_lineage(table_format, sort=True, sorting_key="id", **MANY)
    numbers = random.Random(5).sample(range(1000), 60)
    messages = []
    for begin in range(0, 60, 6):
        part = numbers[begin : begin + 6]
        if table_format == "CSV":
            messages.append("\n".join(f"{n},x" for n in part).encode())
        else:
            messages.append(json.dumps([{"id": n, "s": "x"} for n in part]).encode())
    decoded = decode_text(text, messages)
    places = {number: divmod(place, 6) for place, number in enumerate(numbers)}
    expected = [
        (str(n), str(FIRST_OFFSET + 2 * places[n][0]), places[n][1]) for n in sorted(numbers)
    ]
    assert [(row[0], row[4], row[5]) for row in rows(decoded)] == expected


@pytest.mark.parametrize("table_format", ["JSONEachRow", "JSONCompactEachRow", "CSV", "TSV"])
def test_a_message_of_100_000_rows_and_one_of_10_mb(table_format: str) -> None:
    lines: dict[str, Any] = {
        "JSONEachRow": lambda n, s: json.dumps({"id": n, "s": s}),
        "JSONCompactEachRow": lambda n, s: json.dumps([n, s]),
        "CSV": lambda n, s: f'{n},"{s}"',
        "TSV": lambda n, s: f"{n}\t{s}",
    }
    line = lines[table_format]
    large = line(7, "é" * 5_000_000).encode()
    values = [
        "\n".join(line(n, f"x{n}") for n in range(100_000)).encode(),
        large,
        line(8, "y").encode(),
    ]
    decoded = decode_text(text_of(table_format, **MANY), values)
    assert (decoded.rows, decoded.messages, decoded.bad) == (100_002, 3, ())
    assert np.count_nonzero(decoded.offsets == FIRST_OFFSET) == 100_000
    single = decode_text(text_of(table_format), values[1:])
    assert [len(row[1]) for row in rows(single)] == [5_000_000, 1]
