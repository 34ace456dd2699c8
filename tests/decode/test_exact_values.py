"""A value arrives as it is, or its message is a dead letter: in each format, for each type.

The cases are those that other tools' messages brought; test_exact_search.py looks for more of their
kind.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, orc, parquet

from sluice.core.load_spec import Column, Mapped
from sluice.decode.formats import _FORMATS, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import MessageFacts, alone
from sluice.decode.text.plan import Plan
from tests.decode.support import fill, rows, table
from tests.decode.typed_support import written

PARSE, RANGE, NULL, UNKNOWN = "cannot-parse", "out-of-range", "null-in-column", "unknown-field"
NOTHING = "no-column"
ID = Column("id", "UInt64")


def load(fmt: str, columns: list[Column], values: list[bytes], **changes: Any) -> tuple[Any, Any]:
    """The rows, and the reasons by message."""
    options = tuple(sorted(changes.pop("options", {}).items()))
    headers = changes.pop("headers", [])
    decoder = make_decoder(table(*columns, format=fmt, options=options, **changes))
    with MessageBuffer(_FORMATS[fmt].framing) as buffer:
        nobody = [None] * len(values)
        facts = headers or [()] * len(values)
        buffer.facts = MessageFacts(alone("orders", 3), nobody, list(nobody), facts)
        decoded = decoder.decode(fill(buffer, values), alone("orders", 3))
        return rows(decoded), {bad.index: bad.reason for bad in decoded.bad}


def one(fmt: str, columns: list[Column], value: bytes, **changes: Any) -> Any:
    """What one message becomes: its row, or the reason."""
    found, bad = load(fmt, columns, [value], **changes)
    assert len(found) + len(bad) == 1
    return found[0] if found else bad[0]


def in_json(type_text: str, field: str, **changes: Any) -> Any:
    found = one("JSONEachRow", [Column("a", type_text)], b'{"a":%b}' % field.encode(), **changes)
    return found if isinstance(found, str) else found[0]


# Names ------------------------------------------------------------------------------------------

T_COLUMNS = [ID, Column("t", "Tuple(id UInt64, x String)"), Column("x", "String")]


def test_a_column_may_be_named_t() -> None:
    value = b'{"id":1,"t":{"id":99,"x":"in"},"x":"out"}'
    expected = ["1", {"id": "99", "x": "in"}, "out"]
    assert one("JSONEachRow", T_COLUMNS, value) == expected
    assert one("CSV", T_COLUMNS, b"1,99,in,out") == expected
    native = written(
        "Native",
        "toUInt64(1) AS id, CAST((99, 'in'), 'Tuple(id UInt64, x String)') AS t, 'out' AS x",
    )
    assert one("Native", T_COLUMNS, native, rows="many") == expected
    assert one("JSONEachRow", [ID, Column("t", "JSON")], b'{"id":1,"t":{"id":9}}') == [
        "1",
        {"id": "9"},
    ]
    assert one(
        "JSONEachRow", [ID, Column("t", "Nested(id UInt8)")], b'{"id":1,"t":[{"id":9}]}'
    ) == [
        "1",
        [{"id": 9}],
    ]


@pytest.mark.slow
def test_a_column_may_have_any_name_of_the_decoders_own() -> None:
    """Each name that a query of a plan has, as a tuple with the elements of the other column."""
    query = Plan(table(ID, Column("a", "Array(Date)"))).strict("/dev/null", "/f", 1)
    names = set(re.findall("[a-z_][a-z_0-9]*", query)) | {"_sluice_row", "_sluice_row_", "i", "f"}
    for name in sorted(names - {"id", "a"}):
        columns = [ID, Column(name, "Tuple(id UInt64)")]
        values = [
            json.dumps({"id": 1, name: {"id": 2}}).encode(),
            json.dumps({"id": "x", name: {"id": 2}}).encode(),
        ]
        found, bad = load("JSONEachRow", columns, values * 3)
        assert found == [["1", {"id": "2"}]] * 3, name
        assert set(bad) == {1, 3, 5}, name


def test_names_are_told_apart_by_case_in_every_format() -> None:
    columns = [ID, Column("x", "String", "DEFAULT", "'none'")]
    assert one("JSONEachRow", columns, b'{"id":1,"X":"a"}') == ["1", "none"]
    assert one("JSONEachRow", columns, b'{"id":1,"ID":2}') == ["1", "none"]
    assert one("CSVWithNames", columns, b"id,X\n1,a") == ["1", "none"]
    for fmt in ("Native", "Parquet", "ORC", "Arrow", "RowBinaryWithNamesAndTypes"):
        value = written(fmt, "toInt64(1) AS id, 'a' AS X")
        assert one(fmt, columns, value, rows="many") == ["1", "none"], fmt
    nested = [Column("a", "Tuple(b UInt8, c UInt8)")]
    assert one("JSONEachRow", nested, b'{"a":{"b":1,"C":2}}') == [{"b": 1, "c": 0}]


@pytest.mark.parametrize(
    "value", [b"{}", b'{"ID":1}', b'{"a":{"id":1}}', b'{"i\\u0044":1}', b" { } "]
)
def test_an_object_that_fills_no_column_is_a_dead_letter(value: bytes) -> None:
    for columns in ([ID], [Column("id", "UInt64", "DEFAULT", "7"), Column("b", "UInt8")]):
        found, bad = load("JSONEachRow", columns, [b'{"id":1}', value, b'{"x":0,"id":2}'])
        assert [row[0] for row in found] == ["1", "2"] and bad == {1: NOTHING}
        many = b'{"id":1}' + value
        assert one("JSONEachRow", columns, many, rows="many") == NOTHING
    assert one("JSONEachRow", [ID], b'{"\\u0069d":5}') == ["5"]
    assert one("JSONEachRow", [ID], b"{}", unknown_fields="refuse") == NOTHING
    assert one("JSONEachRow", [ID], b'{"x":1}', unknown_fields="refuse") == UNKNOWN


def test_a_file_that_fills_no_column_is_a_dead_letter() -> None:
    for fmt in ("Native", "Parquet", "ORC", "Arrow", "RowBinaryWithNamesAndTypes"):
        value = written(fmt, "toInt64(1) AS ID, 'a' AS X")
        assert one(fmt, [ID], value, rows="many") == NOTHING, fmt
    assert one("CSVWithNames", [ID], b"ID\n1") == NOTHING


def test_a_mapped_entry_needs_one_of_its_fields() -> None:
    columns = [ID, Column("at", "UInt64")]
    mapping = (Mapped("at", "kafka", "_offset"),)
    values = [b'{"id":1}', b"{}"]
    assert load("JSONEachRow", columns, values, mapping=mapping) == (
        [["1", "1000"]],
        {1: NOTHING},
    )


def test_unknown_fields_are_refused_in_tuples_too() -> None:
    refused = {"unknown_fields": "refuse"}
    for type_text, field in (
        ("Tuple(b UInt8)", '{"b":1,"c":2}'),
        ("Array(Tuple(b UInt8))", '[{"b":1},{"c":2}]'),
        ("Map(String, Tuple(b UInt8))", '{"k":{"c":2}}'),
        ("Nullable(Tuple(b UInt8))", '{"b":1,"c":2}'),
    ):
        assert in_json(type_text, field, **refused) == UNKNOWN, type_text
        assert not isinstance(in_json(type_text, field), str)
    native = written("Native", "CAST((1, 2), 'Tuple(b UInt8, c UInt8)') AS a")
    for type_text in ("Tuple(b UInt8)", "Tuple(b Int64)"):
        columns = [Column("a", type_text)]
        assert one("Native", columns, native, rows="many", **refused) == UNKNOWN
        assert one("Native", columns, native, rows="many")[0] in ({"b": 1}, {"b": "1"})


# Nested -----------------------------------------------------------------------------------------

NESTED = [ID, Column("n.k", "Array(String)"), Column("n.v", "Array(UInt8)")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"id": 1, "n": [{"k": "a", "v": 1}, {"k": "b"}]}, ["1", ["a", "b"], [1, 0]]),
        ({"id": 1, "n": []}, ["1", [], []]),
        ({"id": 1}, ["1", [], []]),
        ({"n": [{"v": 7}]}, ["0", [""], [7]]),
        ({"id": 1, "n.k": ["a"], "n.v": [1]}, ["1", ["a"], [1]]),
        ({"id": 1, "n": [{"k": "a", "v": 300}]}, RANGE),
        ({"id": 1, "n": [{"k": "a", "v": ""}]}, PARSE),
        ({"id": 1, "n": {"k": ["a"], "v": [1]}}, PARSE),
        ({"id": 1, "n": None}, NULL),
        ({"id": 1, "n": [{"k": "a", "v": 1}], "n.k": ["z"], "n.v": [7]}, RANGE),
        ({"id": 1, "n.k": ["a", "b"], "n.v": [1]}, PARSE),
    ],
)
def test_an_array_of_records_fills_the_columns_of_a_nested(value: Any, expected: Any) -> None:
    assert one("JSONEachRow", NESTED, json.dumps(value).encode()) == expected


def test_a_default_sees_the_records_of_a_nested() -> None:
    columns = [*NESTED, Column("count", "UInt64", "DEFAULT", "length(n.k)")]
    found, bad = load(
        "JSONEachRow",
        columns,
        [b'{"n":[{"k":"a"},{"k":"b"}]}', b'{"n.k":["a"],"n.v":[1]}', b'{"n":[{"v":-1}]}'],
    )
    assert [row[-1] for row in found] == ["2", "1"] and bad == {2: RANGE}


def test_records_of_typed_formats_fill_the_columns_of_a_nested() -> None:
    select = "toUInt64(1) AS id, CAST([('a', 1), ('b', 2)], 'Array(Tuple(k String, v Int64))') AS n"
    for fmt in ("Native", "Parquet", "ORC", "Arrow", "Avro"):
        value = written(fmt, select, ", output_format_avro_codec='null'")
        assert one(fmt, NESTED, value, rows="many") == ["1", ["a", "b"], [1, 2]], fmt
        assert one(fmt, [ID, NESTED[1]], value, rows="many") == ["1", ["a", "b"]], fmt
        one_more = [*NESTED, Column("n.w", "Array(UInt8)")]
        assert one(fmt, one_more, value, rows="many")[-1] == [0, 0], fmt
        refused = one(fmt, [ID, NESTED[1]], value, rows="many", unknown_fields="refuse")
        assert refused == UNKNOWN, fmt
    strange = written("Native", "toUInt64(1) AS id, [1, 2] AS n")
    assert one("Native", NESTED, strange, rows="many") == PARSE


def test_a_list_that_is_null_is_not_an_empty_one() -> None:
    """The engine shows it so; with on_null = "default" that is what is wanted."""
    kinds = pyarrow.list_(pyarrow.int64())
    lists = pyarrow.array([[1], None, []], kinds)
    deep = pyarrow.array([[[1], None]] * 3, pyarrow.list_(kinds))
    for fmt in ("Parquet", "ORC", "Arrow", "ArrowStream"):
        for values, type_text in ((lists, "Array(Int8)"), (deep, "Array(Array(Int8))")):
            value = a_file(fmt, pyarrow.table({"id": [1, 2, 3], "a": values}))
            columns = [ID, Column("a", type_text)]
            assert load(fmt, columns, [value], rows="many") == ([], {0: NULL}), fmt
            found, bad = load(fmt, columns, [value], rows="many", on_null="default")
            assert len(found) == 3 and not bad
            assert len(load(fmt, [ID], [value], rows="many")[0]) == 3
        sound = a_file(fmt, pyarrow.table({"id": [1, 2], "a": pyarrow.array([[1], []], kinds)}))
        assert load(fmt, [ID, Column("a", "Array(Int8)")], [sound], rows="many")[0] == [
            ["1", [1]],
            ["2", []],
        ]


def a_file(fmt: str, content: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    if fmt == "Parquet":
        parquet.write_table(content, sink)
    elif fmt == "ORC":
        orc.write_table(content, sink)
    else:
        make = ipc.new_file if fmt == "Arrow" else ipc.new_stream
        with make(sink, content.schema) as writer:
            writer.write_table(content)
    written_bytes: bytes = sink.getvalue().to_pybytes()
    return written_bytes


# Empty texts ------------------------------------------------------------------------------------

NUMBERS = (
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)),
    *("Float32", "Float64", "BFloat16", "Decimal(9, 2)", "Decimal(40, 2)", "IntervalDay"),
)
NOT_EMPTY = (*NUMBERS, "Bool", "Date", "Date32", "DateTime", "DateTime64(3)", "Time64(3)", "UUID")
NOT_EMPTY += ("IPv4", "IPv6", "Enum8('a' = 1)")


#: One of each kind that the engine reads in a way of its own.
KINDS = (
    *("UInt8", "Int64", "UInt256", "Float64", "BFloat16", "Decimal(9, 2)", "IntervalDay", "Bool"),
    *("Date", "DateTime64(3)", "Time64(3)", "UUID", "IPv6", "Enum8('a' = 1)"),
)


@pytest.mark.parametrize(
    "type_text",
    [each if each in KINDS else pytest.param(each, marks=pytest.mark.long) for each in NOT_EMPTY],
)
def test_an_empty_text_is_no_value(type_text: str) -> None:
    def refused(fmt: str, column: str, value: bytes, **changes: Any) -> None:
        found = one(fmt, [Column("a", column), Column("b", "String")], value, **changes)
        assert found in (PARSE, RANGE), (fmt, column, value, found)

    for column in (type_text, f"Nullable({type_text})"):
        refused("JSONEachRow", column, b'{"b":"","a" : "" }')
        refused("JSONCompactEachRow", column, b'["",""]')
        refused("CSV", column, b'"",x')
        refused("TSV", column, b"\tx")
        refused("RowBinary", column, b"\0\0", options={"columns": "a String, b String"})
    for wrap, field in (
        ("Array({})", b'[""]'),
        ("Map(String, {})", b'{"k":""}'),
        ("Tuple(a {}, b String)", b'{"a":"","b":""}'),
        ("Tuple({}, String)", b'["",""]'),
        ("Array(Tuple(x Nullable({})))", b'[{"x":""}]'),
    ):
        column = wrap.format(type_text)
        refused("JSONEachRow", column, b'{"b":"","a":%b}' % field)
        refused("JSONCompactEachRow", column, b'[%b,""]' % field)
    refused("CSV", f"Array({type_text})", b"\"['']\",x")
    refused("TSV", f"Array({type_text})", b"['']\tx")


def test_an_empty_text_is_a_text() -> None:
    columns = [Column("a", "UInt8"), Column("s", "String"), Column("t", "Tuple(n UInt8, s String)")]
    columns += [Column("e", "Enum8('' = 0, 'a' = 1)"), Column("m", "Map(String, String)")]
    value = {"a": 1, "s": "", "t": {"n": 1, "s": ""}, "e": "", "m": {"": ""}}
    assert one("JSONEachRow", columns, json.dumps(value).encode()) == list(value.values())
    quotes = b'{"a":1,"s":"x\\"","t":{"n":1,"s":"\\"\\""}}'
    assert one("JSONEachRow", columns, quotes)[1:3] == ['x"', {"n": 1, "s": '""'}]
    assert one("CSV", columns[:2], b',""') == [0, ""]


def test_an_empty_header_is_no_number() -> None:
    columns = [ID, Column("h", "Nullable(UInt32)")]
    headers = [[("h", b"")], [("h", b"5")], []]
    values = [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    mapping = (Mapped("h", "header", "h"),)
    found = load("JSONEachRow", columns, values, mapping=mapping, headers=headers)
    assert found == ([["2", 5], ["3", None]], {0: PARSE})


# Decimals ---------------------------------------------------------------------------------------

#: Digits behind the last one that is kept, however they are written.
CUT_AWAY = (
    *("1e-2147483648", "1e-400", "-1e-70", "1e-99999999999999999999", f"1e-{'9' * 5000}"),
    *("1." + "0" * 76 + "1", "1." + "0" * 42 + "1e0", "0." + "0" * 80 + "1e60"),
)


@pytest.mark.parametrize("type_text", ["Decimal(9, 2)", "Decimal(38, 20)", "Decimal(76, 10)"])
def test_digits_that_a_decimal_has_no_room_for_are_never_cut(type_text: str) -> None:
    """Each of the texts, in a block of them."""

    def refused(fmt: str, column: str, pattern: str, *wraps: str) -> None:
        texts = [wrap.format(text) for text in CUT_AWAY for wrap in wraps]
        values = [pattern.format(text).encode() for text in texts]
        found, bad = load(fmt, [Column("a", column)], values)
        assert (found, bad) == ([], dict.fromkeys(range(len(values)), RANGE)), (fmt, column)

    for column in (type_text, f"Nullable({type_text})"):
        refused("JSONEachRow", column, '{{"a":{}}}', "{}", '"{}"')
        refused("CSV", column, '"{}"', "{}")
        refused("TSV", column, "{}", "{}")
    refused("JSONEachRow", f"Array({type_text})", '{{"a":[{}]}}', "{}", '"{}"')
    refused("CSV", f"Array({type_text})", '"[{}]"', "{}")
    refused("TSV", f"Array({type_text})", "[{}]", "{}")
    refused("JSONEachRow", f"Tuple(a {type_text})", '{{"a":{{"a":{}}}}}', "{}")
    refused("TSV", f"Tuple(a {type_text})", "({})", "{}")


@pytest.mark.parametrize(
    ("text", "expected"), [("0e-400", "0"), ("100e-2", "1"), ("0.00e-5", "0"), ("12e-1", "1.2")]
)
def test_an_exponent_that_cuts_nothing_is_a_number(text: str, expected: str) -> None:
    for column, wrap in (("Decimal(9, 2)", "{}"), ("Array(Decimal(9, 2))", "[{}]")):
        found: Any = expected if wrap == "{}" else [expected]
        for value in (text, f'"{text}"'):
            assert in_json(column, wrap.format(value)) == found, (column, value)
        value = wrap.format(text).encode()
        assert one("CSV", [Column("a", column)], b'"%b"' % value) == [found]
        assert one("TSV", [Column("a", column)], value) == [found]


# Dates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12/31/2026 10:00", "2026-12-31 10:00:00"),
        ("31/12/2026 10:00", "2026-12-31 10:00:00"),
        ("01/02/2026 10:00", PARSE),
        ("10:00 1-2-26", PARSE),
        ("02/02/2026 10:00", "2026-02-02 10:00:00"),
        ("31.12.2026 10:00", "2026-12-31 10:00:00"),
        ("01.02.2026 10:00", "2026-02-01 10:00:00"),
        ("12.31.2026 10:00", PARSE),
        ("31 12 2026", PARSE),
        ("2026-01-00 10:00:00", PARSE),
        ("2026-01-02 25:00:00", PARSE),
        ("2026-01-02 03:61:00", PARSE),
        ("2026-01-02 03:04:60", PARSE),
        ("20260102250000", PARSE),
        ("2026-01-02 00:24:00", "2026-01-02 00:24:00"),
        ("2026-01-02 03:04:05.000", "2026-01-02 03:04:05"),
        ("2026-01-02 03:04:05.100", RANGE),
        ("1767323045123", RANGE),
        ("1767323045000", "2026-01-02 03:04:05"),
    ],
)
def test_a_date_says_one_moment(text: str, expected: str) -> None:
    assert in_json("DateTime", json.dumps(text)) == expected
    assert in_json("Array(DateTime)", f"[{json.dumps(text)}]") in ([expected], expected)
    column, quoted = [Column("a", "DateTime")], text.encode()
    wanted = expected if expected in (PARSE, RANGE) else [expected]
    assert one("CSV", column, quoted) == wanted
    assert one("TSV", column, quoted) == wanted
    assert one("JSONCompactEachRow", column, b'["%b"]' % quoted) == wanted
    value = written("RowBinary", f"'{text}'")
    assert one("RowBinary", column, value, options={"columns": "a String"}) == wanted


def test_a_fraction_of_a_second_is_cut_only_if_that_is_said() -> None:
    for type_text, field, exact in (
        ("DateTime64(3)", '"2026-01-02 03:04:05.1234"', "2026-01-02 03:04:05.123"),
        ("DateTime64(3)", "1767323045.1234", "2026-01-02 03:04:05.123"),
        ("DateTime", "1767323045.5", "2026-01-02 03:04:05"),
        ("Time64(3)", '"01:02:03.1234"', "01:02:03.123"),
        ("Tuple(a DateTime64(3))", '{"a":"2026-01-02T03:04:05.1234Z"}', None),
    ):
        assert in_json(type_text, field) == RANGE, field
        cut = in_json(type_text, field, fractions="cut")
        assert cut == (exact or {"a": "2026-01-02 03:04:05.123"})
    assert in_json("DateTime64(3)", '"2026-01-02 03:04:05.12300"') == "2026-01-02 03:04:05.123"
    for fmt in ("Native", "Parquet", "Avro", "RowBinaryWithNamesAndTypes"):
        select = "toDateTime64('2026-01-02 03:04:05.123456', 6, 'UTC') AS a"
        value = written(fmt, select, ", output_format_avro_codec='null'")
        for type_text, exact in (
            ("DateTime64(3)", "2026-01-02 03:04:05.123"),
            ("DateTime", "2026-01-02 03:04:05"),
        ):
            columns = [Column("a", type_text)]
            assert one(fmt, columns, value, rows="many") == RANGE
            assert one(fmt, columns, value, rows="many", fractions="cut") == [exact]


# Types that are read as they are ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_text", "field"),
    [
        ("Nullable(Tuple(a UInt8))", '{"a":300}'),
        ("Array(Nullable(Tuple(a Decimal(9, 2))))", '[null,{"a":1.239}]'),
        ("Point", "[1e400,1]"),
        ("Point", "[1,null]"),
        ("Polygon", "[[[1,2],[3,1e400]]]"),
        ("IntervalDay", "18446744073709551617"),
        ("IntervalDay", "null"),
        ("Variant(UInt8, String)", '""'),
        ("Variant(Decimal(9, 2), UInt8)", "1.239"),
        ("Variant(Date, UInt8)", '"2026-02-30"'),
        ("Variant(Float64, UInt8)", "1e400"),
        ("Variant(DateTime64(3), UInt8)", '"2026-02-03 01:02:03.123456"'),
        ("JSON(a Decimal(9, 2))", '{"a":1.239}'),
        ("JSON(a Float32)", '{"a":1e300}'),
        ("JSON(a Date)", '{"a":"2026-02-30"}'),
        ("JSON(a.b DateTime64(3))", '{"a":{"b":"2026-02-03 01:02:03.123456"}}'),
        ("Date", '"20260230"'),
        ("Date", '"2026-2-30"'),
    ],
)
def test_what_no_wider_type_shows_is_refused(type_text: str, field: str) -> None:
    assert in_json(type_text, field) in (PARSE, RANGE, NULL)


def test_texts_in_dynamic_columns_stay_texts() -> None:
    for text in ("2026-02-30", "01/02/2026 10:00", "2026-01-02T03:04:05+02:00"):
        assert in_json("Dynamic", json.dumps(text)) == text
        assert in_json("JSON", json.dumps({"a": text})) == {"a": text}
