"""A date without a year in a message of any format: a dead letter that names it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.core.load_spec import Column, Mapped, TableSpec
from sluice.producer import SQLBatchRequest
from tests.decode.envelope_support import envelope_table
from tests.decode.support import rows, table
from tests.decode.text_support import decode_text, decoder_of, text_of
from tests.decode.typed_support import typed_decode, typed_decoder, written

PARSE = "cannot-parse"


def said(text: TableSpec, *values: str) -> list[Any]:
    """For each message: its row, or the words about it."""
    decoded = decode_text(text, [value.encode() for value in values])
    found = iter(rows(decoded))
    words = {bad.index: f"{bad.reason}: {bad.error}" for bad in decoded.bad}
    return [words[i] if i in words else next(found) for i in range(len(values))]


def no_year(shown: str, type_text: str, column: str = "a") -> str:
    return f'{PARSE}: "{shown}" cannot be read as column {column} {type_text}: it has no year'


SCALAR_TYPES = ["DateTime", "Nullable(DateTime64(3))", "LowCardinality(DateTime)"]


@pytest.mark.parametrize("type_text", SCALAR_TYPES)
@pytest.mark.parametrize(
    ("fmt", "around"),
    [
        ("JSONEachRow", '{{"s":"12","a":"{}"}}'),
        ("JSONCompactEachRow", '["{}"]'),
        ("CSV", "{}"),
        ("CSV", '"{}"'),
        ("CSV", "'{}'"),
        ("TSV", "{}"),
        ("CSVWithNames", "x,a\n12,{}"),
        ("TSVWithNames", "a\n{}"),
        ("TSKV", "x=12\ta={}"),
        ("LineAsString", "{}"),
    ],
)
def test_each_text_format(fmt: str, around: str, type_text: str) -> None:
    values = [
        around.format(text) for text in ("12", "2026-01-02", "10:30", "5 Jan 2026", "0000-01-02")
    ]
    outcomes = said(text_of(fmt, Column("a", type_text)), *values)
    assert [outcomes[i] for i in (0, 2, 4)] == [
        no_year(text, type_text) for text in ("12", "10:30", "0000-01-02")
    ]
    assert [str(outcomes[i][0])[:19] for i in (1, 3)] == [
        "2026-01-02 00:00:00",
        "2026-01-05 00:00:00",
    ]


INSIDE = [
    ("JSONEachRow", "Array(DateTime)", '{{"a":[12,{}]}}'),
    ("JSONEachRow", "Map(DateTime, UInt8)", '{{"a":{{{}:1}}}}'),
    ("JSONEachRow", "Map(String, Array(DateTime))", '{{"a":{{"12":[{}]}}}}'),
    ("JSONEachRow", "Tuple(n String, at DateTime)", '{{"a":{{"at":{},"n":"12"}}}}'),
    ("JSONEachRow", "Tuple(String, DateTime)", '{{"a":["12",{}]}}'),
    ("JSONEachRow", "Nested(at DateTime, n String)", '{{"a":[{{"n":"12","at":{}}}]}}'),
    ("JSONEachRow", "SimpleAggregateFunction(max, DateTime)", '{{"a":{}}}'),
    ("JSONEachRow", "DateTime", '{{"x":{{"a":"2026-01-02"}},"\\u0061":{}}}'),
    ("JSONCompactEachRow", "Array(Array(DateTime))", "[[[12],[{}]]]"),
    ("CSV", "Array(DateTime)", "\"[12,'{}']\""),
    ("CSV", "Tuple(String, DateTime)", "12,{}"),
    ("TSV", "Array(DateTime)", "[12,'{}']"),
    ("TSV", "Map(String, DateTime)", "{{'12':'{}'}}"),
    ("TSV", "Tuple(String, DateTime)", "('12','{}')"),
]


@pytest.mark.parametrize(("fmt", "type_text", "around"), INSIDE)
def test_inside_of_others(fmt: str, type_text: str, around: str) -> None:
    quote = '"{}"' if fmt.startswith("JSON") else "{}"
    values = [around.format(quote.format(text)) for text in ("12", "2026-01-02", "5 Jan")]
    first, second, third = said(text_of(fmt, Column("a", type_text)), *values)
    assert [first, third] == [no_year("12", type_text), no_year("5 Jan", type_text)]
    assert "2026-01-02 00:00:00" in json.dumps(second)


def test_numbers_of_json_are_seconds() -> None:
    values = ('{"a":12}', '{"a":0}', '{"a":20260102}', '{"a":"20260102"}')
    assert [row[0] for row in said(text_of("JSONEachRow", Column("a", "DateTime")), *values)] == [
        *("1970-01-01 00:00:12", "1970-01-01 00:00:00", "1970-08-23 11:48:22"),
        "2026-01-02 00:00:00",
    ]


@pytest.mark.parametrize(
    ("type_text", "value", "shown"),
    [
        ("Variant(DateTime, String)", '"5 Jan"', "5 Jan"),
        ("Variant(DateTime, String)", '"2026-01-02"', ""),
        ("Variant(DateTime, String)", '"12 monkeys"', ""),
        ("Variant(DateTime, UInt8)", '"12"', ""),
        ("Variant(Array(DateTime), UInt8)", '["12"]', "12"),
        ("JSON(b DateTime, c.d Array(DateTime))", '{"b":"2026","e":"12"}', ""),
        ("JSON(b DateTime, c.d Array(DateTime))", '{"b":"12"}', "12"),
        ("JSON(b DateTime, c.d Array(DateTime))", '{"c":{"d":["2026","5 Jan"]}}', "5 Jan"),
        ("JSON", '{"b":"12"}', ""),
        ("Dynamic", '"12"', ""),
    ],
)
def test_types_that_choose(type_text: str, value: str, shown: str) -> None:
    """A text that may be a date or something else is completed only where it would be a date."""
    (found,) = said(text_of("JSONEachRow", Column("a", type_text)), f'{{"a":{value}}}')
    assert found == no_year(shown, type_text) if shown else isinstance(found, list)


def test_what_only_the_engine_takes_for_json() -> None:
    at, n = Column("a", "DateTime"), Column("n", "UInt8")
    values = ('{"n":01,"a":"12"}', '{"n":+1,"a":"2 Jan 2026"}', '{"a":"2026","\\u0061":"12"}')
    first, second, third = said(text_of("JSONEachRow", at, n), *values)
    assert first == no_year("12", "DateTime")
    assert second == ["2026-01-02 00:00:00", 1]
    assert third.startswith(PARSE)


def test_null_is_no_date() -> None:
    column = Column("a", "Nullable(DateTime)")
    assert said(text_of("CSV", column, options=(("null", "-"),)), "-", "12", "\\N") == [
        *([None], no_year("12", "Nullable(DateTime)")),
        no_year("\\\\N", "Nullable(DateTime)"),
    ]
    assert said(text_of("TSV", column, options=(("null", "12"),)), "12") == [[None]]


def test_one_row_of_many() -> None:
    at = Column("a", "DateTime")
    text = text_of("JSONEachRow", at, rows="many")
    assert said(text, '{"a":"2026"}{"a":"12"}') == [
        f'{PARSE}: row 1: "12" cannot be read as column a DateTime: it has no year'
    ]
    decoded = decode_text(
        text_of("TSV", at, rows="many", bad_rows="drop-row"), [b"2026\n12\n2025", b"5 Jan"]
    )
    assert [row[0][:4] for row in rows(decoded)] == ["2026", "2025"]
    assert decoded.dropped_rows == 2


def test_fields_of_a_mapping() -> None:
    """Also those that an expression names, and texts that an expression makes."""
    mapping = (Mapped("a", "field", "when"), Mapped("b", "sql", "substring(s, 1, 5)"))
    text = text_of(
        "JSONEachRow",
        Column("a", "DateTime"),
        Column("b", "Nullable(DateTime)"),
        mapping=mapping,
        fields=(("s", "String"),),
    )
    values = (
        '{"when":"12","s":"2026"}',
        '{"when":"2026","s":"10:30"}',
        '{"when":"2026","s":"2025"}',
    )
    first, second, third = said(text, *values)
    assert first == no_year("12", "DateTime", "when")
    assert second == (
        f'{PARSE}: "10:30" String cannot be read as column b Nullable(DateTime): it has no year'
    )
    assert third == ["2026-01-01 00:00:00", "2025-01-01 00:00:00"]


@pytest.mark.parametrize(
    "target", ["DateTime", "Nullable(DateTime64(6))", "LowCardinality(DateTime)"]
)
def test_text_of_typed_formats(target: str) -> None:
    decoder = typed_decoder("RowBinary", Column("a", target), options={"columns": "a String"})
    messages = [written("RowBinary", f"'{text}'") for text in ("5 Jan", "2026-01-02", "10:30")]
    decoded = typed_decode(decoder, messages)
    assert [row[0][:10] for row in rows(decoded)] == ["2026-01-02"]
    assert [bad.error for bad in decoded.bad] == [
        f'"{text}" String cannot be read as column a {target}: it has no year'
        for text in ("5 Jan", "10:30")
    ]
    inside = typed_decoder(
        "RowBinary", Column("a", "Array(DateTime)"), options={"columns": "a Array(String)"}
    )
    (bad,) = typed_decode(inside, [written("RowBinary", "['2026', '5 Jan']")]).bad
    assert bad.reason == PARSE


def test_text_of_an_envelope() -> None:
    decoder = decoder_of(envelope_table(Column("a", "DateTime")))
    sql = "INSERT INTO t (a) VALUES (?)"
    messages = [
        SQLBatchRequest(table="t", sql=sql, rows=[(text,)]).encode()
        for text in ("12", "2026-01-02")
    ]
    decoded = typed_decode(decoder, messages)
    assert [row[0][:10] for row in rows(decoded)] == ["2026-01-02"]
    (bad,) = decoded.bad
    assert (bad.reason, "it has no year" in bad.error) == (PARSE, True)


def test_dates_without_a_time_are_never_completed() -> None:
    """They are read by another reader, which wants all of the date."""
    for type_text in ("Date", "Date32"):
        decoder = table(Column("a", type_text))
        for text in ("5 Jan", "10:30", "01-02", "26-01-02", "1"):
            (outcome,) = said(decoder, json.dumps({"a": text}))
            assert isinstance(outcome, str) or outcome[0].startswith("1970-01-02"), (text, outcome)
