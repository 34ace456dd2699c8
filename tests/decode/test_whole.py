"""Messages that are kept as they are: RawBLOB, lines, and the raw message beside its columns."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Mapped, TableSpec
from sluice.decode.engine.session import run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import MessageFacts, alone
from sluice.decode.messages.memory import memory_file
from tests.decode.support import fill, rows, table
from tests.decode.text_support import made
from tests.support.examples import examples

LINE, ID = Column("line", "String"), Column("id", "UInt64")
HOSTILE = [b"", b"a\tb\n", b'{"a":1}', b"\x00\xff\xfe", "ä".encode(), b"x" * 70_000, b'"', b"\\n"]
RAW = Mapped("line", "kafka", "_raw_message")


def decode(text: TableSpec, values: list[bytes], **facts: Any) -> Decoded:
    with MessageBuffer(framing_of(text)) as buffer:
        fill(buffer, values)
        if facts:
            buffer.facts = MessageFacts(alone("orders", 3), **facts)
        return make_decoder(text).decode(buffer, alone("orders", 3))


def test_every_message_is_a_row_as_it_is() -> None:
    text = table(LINE, format="RawBLOB")
    decoded = decode(text, [one for one in HOSTILE if one.isascii()])
    assert [row[0].encode() for row in rows(decoded)] == [one for one in HOSTILE if one.isascii()]
    assert decoded.bad == ()
    of_all = decode(
        table(
            LINE,
            Column("n", "UInt64", "DEFAULT", "length(line)"),
            format="RawBLOB",
            options=(("columns", "line"),),
        ),
        HOSTILE,
    )
    assert [int(row[1]) for row in rows(of_all)] == list(map(len, HOSTILE))


def test_a_column_of_another_type_judges_the_message() -> None:
    decoded = decode(table(ID, format="RawBLOB"), [b"7", b"-7", b"seven", b"8"])
    assert [row[0] for row in rows(decoded)] == ["7", "8"]
    assert [one.index for one in decoded.bad] == [1, 2]


def test_which_column_it_is_has_to_be_said() -> None:
    with pytest.raises(TerminalError, match="id, line are 2"):
        make_decoder(table(ID, LINE, format="RawBLOB"))
    named = table(ID, LINE, format="RawBLOB", options=(("columns", "line"),))
    assert rows(decode(named, [b"x"])) == [["0", "x"]]


def test_expressions_take_lines_apart() -> None:
    mapping = (Mapped("id", "sql", "toUInt64(extract(text, 'id=([0-9]+)'))"), RAW)
    text = table(ID, LINE, format="RawBLOB", mapping=mapping, fields=(("text", "String"),))
    decoded = decode(text, [b"GET / id=7 ok", b"GET /  id= ok", b"id=8"])
    assert rows(decoded) == [["7", "GET / id=7 ok"], ["8", "id=8"]]
    assert [one.index for one in decoded.bad] == [1]


LINES: dict[str, Any] = {"format": "LineAsString", "options": (("columns", "line"),)}
HEXED = (LINE, Column("bytes", "String", "DEFAULT", "hex(line)"))
PIECES = [
    *(b"a", b"\n", b"\r\n", b"\t", b"\\", b"\\N", b'"', b"'", b"{", b"\x00", b"\xff"),
    *(b",", b"\xc3"),
]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join), max_size=6))
def test_each_line_is_what_the_engine_reads(values: list[bytes]) -> None:
    decoded = decode(table(*HEXED, rows="many", **LINES), values)
    bad = {one.index for one in decoded.bad}
    assert bad == {place for place, value in enumerate(values) if not value.strip(b"\r\n")}
    expected: list[str] = []
    for value in (value for place, value in enumerate(values) if place not in bad):
        with memory_file(value) as path:
            query = f"SELECT hex(line) FROM file('{path}', LineAsString, 'line String')"
            expected += run(query, "TSV").bytes().decode().split("\n")[:-1]
    # A carriage return before a newline belongs to it.
    assert [row[1] for row in rows(decoded)] == [one.removesuffix("0D") for one in expected]


def test_a_message_of_lines() -> None:
    """One line unless the entry says otherwise; its end is no part of it."""
    values = [
        *(b"a", b"b\n", b"c\r\n", b"d\re", b"f\ng", b"", b"\n"),
        *(b"h\r\r\n", b"\xef\xbb\xbfi", b"\\N"),
    ]
    assert made(table(LINE, **LINES), *values) == [
        *(["a"], ["b"], ["c"], ["d\re"], "not-one-row", "not-one-row", "not-one-row"),
        *("cannot-parse", "cannot-parse", ["\\N"]),
    ]


def test_lines_of_another_type() -> None:
    text = table(ID, LINE, format="LineAsString", options=(("columns", "id"),), rows="many")
    decoded = decode(text, [b"7\n8", b"9\n-1", b"\n5", b"6"])
    assert [row[0] for row in rows(decoded)] == ["7", "8", "6"]
    reasons = [(one.index, one.reason) for one in decoded.bad]
    assert reasons == [(1, "out-of-range"), (2, "cannot-parse")]
    assert "row 1: " in decoded.bad[0].error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "id, line are 2"),
        ((("columns", "id, line"),), "id, line are 2"),
        ((("columns", "-"),), "- is none"),
        ((("columns", "nine"),), "has no column nine"),
    ],
)
def test_a_line_is_one_column(options: tuple[tuple[str, str], ...], words: str) -> None:
    with pytest.raises(TerminalError, match=words):
        make_decoder(table(ID, LINE, format="LineAsString", options=options))


@pytest.mark.parametrize("many", [False, True])
def test_the_raw_message_beside_its_columns(many: bool) -> None:
    text = table(ID, LINE, mapping=(RAW,), rows="many" if many else "one")
    values = [b'{"id": 1, "more":[1, 2]}', b'{"id":"x"}', b' {"id":2}\n']
    values += [b'{"id":3}{"id":4}'] * many
    decoded = decode(text, values)
    expected = [["1", values[0].decode()], ["2", values[2].decode()]]
    expected += [["3", values[-1].decode()], ["4", values[-1].decode()]] * many
    assert rows(decoded) == expected
    assert [one.index for one in decoded.bad] == [1]


def test_the_raw_message_is_as_it_stands_in_kafka() -> None:
    length = Mapped("line", "sql", "hex(_raw_message)")
    value = gzip.compress(b'{"id":1}')
    decoded = decode(table(ID, LINE, mapping=(length,), decompress="gzip"), [value])
    assert rows(decoded) == [["1", value.hex().upper()]]


def test_a_tombstone_has_no_raw_message() -> None:
    text = table(
        ID,
        LINE,
        mapping=(RAW, Mapped("id", "sql", "ifNull(n, 9)")),
        tombstones="delete",
        fields=(("n", "Nullable(UInt64)"),),
    )
    facts = {"keys": [b"k"] * 2, "timestamps_ms": [1] * 2, "headers": [()] * 2}
    decoded = decode(text, [b'{"n":1}', b"{}"], **facts, tombstones=[False, True])
    assert rows(decoded) == [["1", '{"n":1}'], ["9", ""]]
