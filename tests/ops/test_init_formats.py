"""What the bytes of a topic tell of their format."""

from __future__ import annotations

import gzip

import pytest

from sluice.core.errors import TerminalError
from sluice.ops.init_formats import recognise


def many(make: bytes, count: int = 20) -> list[bytes]:
    return [make.replace(b"%d", b"%d" % number) for number in range(count)]


@pytest.mark.parametrize(
    ("values", "table_format", "rows", "options"),
    [
        (many(b'{"a":%d}'), "JSONEachRow", "one", {}),
        (many(b'\n {"a":\n%d}\n'), "JSONEachRow", "one", {}),
        (many(b'{"a":%d}\n{"a":1}\n'), "JSONEachRow", "many", {}),
        (many(b'[{"a":%d},{"a":1}]'), "JSONEachRow", "many", {}),
        (many(b'[%d,"x",null]'), "JSONCompactEachRow", "one", {}),
        (many(b"%d,x,2026-01-01"), "CSV", "one", {}),
        (many(b'%d,"a, b",x'), "CSV", "one", {}),
        (many(b"%d;x"), "CSV", "one", {"delimiter": ";"}),
        (many(b"%d\tx\n1\ty\n"), "TSV", "many", {}),
        (many(b"id,name\n%d,x\n"), "CSVWithNames", "one", {}),
        (many(b"id\tname\n%d\tx\n2\ty"), "TSVWithNames", "many", {}),
    ],
)
def test_recognised(
    values: list[bytes], table_format: str, rows: str, options: dict[str, str]
) -> None:
    found = recognise("orders", values)
    assert (found.format, found.rows, found.options) == (table_format, rows, options)
    assert found.unreadable == 0


def test_names_and_rows() -> None:
    found = recognise("orders", many(b"id,name\n%d,x\n", 3))
    assert found.names == ("id", "name")
    assert found.lines == [["0", "x"], ["1", "x"], ["2", "x"]]
    found = recognise("orders", many(b'[{"a":%d},{"b":1}]', 2))
    assert found.records == [{"a": 0}, {"b": 1}, {"a": 1}, {"b": 1}]
    assert recognise("orders", many(b"[%d,2]", 2)).names == ("c1", "c2")


def test_a_few_bad_messages_do_not_matter() -> None:
    values = [*many(b'{"a":%d}', 90), *many(b'{"a":', 8), b"", b'{"a":1}{"a":2}']
    found = recognise("orders", values)
    assert (found.format, found.rows, found.unreadable) == ("JSONEachRow", "one", 10)


@pytest.mark.parametrize(
    ("values", "words", "hint"),
    [
        (many(b"Obj\x01..."), "whole Avro files", 'format = "Avro"'),
        (many(b"PAR1..."), "whole Parquet files", 'format = "Parquet"'),
        (many(b"\x08\x96\x01\x12\x03ab\xff"), "begins with 08 96 01 12", "Protobuf"),
        (many(b"one line of a log"), '20 are UTF-8 text; the first begins with "one', "Protobuf"),
        (many(gzip.compress(b"x")), "20 of 20 messages begin like gzip; set decompress", "set"),
        (many('{"a":1}'.encode("utf-16")), "begin like text in UTF-16; write it in UTF-8", "set"),
        (many(b"17"), "not recognised", "`format`"),
    ],
)
def test_not_recognised(values: list[bytes], words: str, hint: str) -> None:
    with pytest.raises(TerminalError) as caught:
        recognise("orders", values)
    assert words in str(caught.value)
    assert hint in caught.value.hint


ONE_FILE = [b"id,name\n1,x\n2,y\n"]


def test_the_first_line_of_an_only_message_is_asked_for() -> None:
    """Nothing tells whether it has names: every row might be of texts."""
    with pytest.raises(TerminalError, match='only message, "id,name", has names or') as caught:
        recognise("orders", ONE_FILE)
    assert "--first-line names, or --first-line values" in caught.value.hint
    named = recognise("orders", ONE_FILE, "names")
    assert (named.format, named.rows, named.names) == ("CSVWithNames", "many", ("id", "name"))
    assert named.lines == [["1", "x"], ["2", "y"]]
    valued = recognise("orders", ONE_FILE, "values")
    assert (valued.format, valued.names, len(valued.lines)) == ("CSV", ("c1", "c2"), 3)
    # A number is no name, nor are two equal texts.
    assert recognise("orders", [b"1,x\n2,y\n"]).format == "CSV"
    assert recognise("orders", [b"x,x\n2,y\n"]).format == "CSV"


def test_names_that_are_a_message_of_their_own() -> None:
    found = recognise("orders", [b"id,name", *many(b"%d,x")])
    assert (found.format, found.rows, found.names) == ("CSV", "one", ("id", "name"))
    assert (len(found.lines), found.unreadable) == (20, 1)
    assert 'the first message, "id,name", is taken for the names' in found.remark
    assert recognise("orders", [b"id,name", *many(b"%d,x")], "values").names == ("c1", "c2")
    assert recognise("orders", [b"id,name", *many(b"a%d,x")]).names == ("c1", "c2")
