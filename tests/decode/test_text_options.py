"""Options of CSV, TSV and JSON arrays: what they change, and what is refused."""

from __future__ import annotations

import pytest

from sluice.core.errors import TerminalError
from sluice.core.formats import first_problem
from sluice.core.load_spec import Column
from sluice.decode.formats import make_decoder
from tests.decode.text_support import ID, TEXT, made, text_of

PARSE = "cannot-parse"


def test_options() -> None:
    columns = (ID, TEXT, Column("n", "Nullable(Int8)"), Column("d", "UInt8", "DEFAULT", "id + 1"))
    options = (("columns", "id, -, n, s"), ("delimiter", ";"), ("null", "NULL"))
    assert made(text_of("CSV", *columns, options=options), b"5;x;NULL;a,b") == [
        ["5", "a,b", None, 6]
    ]
    for delimiter in ("\t", "\x01"):  # as Hive writes them
        hive = text_of("CSV", options=(("delimiter", delimiter),))
        assert made(hive, f"1{delimiter}a,b".encode()) == [["1", "a,b"]]
    tabs = text_of("TSV", *columns, options=(("columns", "`s`, id"),))
    assert made(tabs, b"x\t1", b"x\t1\t2") == [["1", "x", None, 2], PARSE]
    arrays = text_of("JSONCompactEachRow", *columns, options=(("columns", "n, -, id"),))
    assert made(arrays, b'[null,{"a":[1]},7]') == [["7", "", None, 8]]


@pytest.mark.parametrize(
    ("table_format", "options"),
    [
        ("CSV", (("columns", "id, nope"),)),
        ("CSV", (("delimiter", "ab"),)),
        ("CSV", (("delimiter", '"'),)),
        ("TSV", (("columns", "id UInt64"),)),
        ("NoSuchFormat", ()),
    ],
)
def test_wrong_options_are_terminal(
    table_format: str, options: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(TerminalError) as error:
        make_decoder(text_of(table_format, options=options))
    assert error.value.hint


def test_options_are_checked_without_a_table() -> None:
    assert first_problem("CSV", (("columns", "a, b"), ("delimiter", "\t"), ("null", "NULL"))) == ""
    assert "twice" in first_problem("CSV", (("columns", "a, a"),))
    assert first_problem("CSV", (("null", "a,b"),)).startswith("option null: ")
    assert first_problem("JSONEachRow", ()) == ""
