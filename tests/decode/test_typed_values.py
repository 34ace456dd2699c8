"""From every type to every other one: what fits lands as it is, what does not is refused (H16).

A case reads `value in SQL, which gives its type -> target type -> what it becomes`: the stored
value as JSON, or the reason why the message is set aside. The engine writes the message.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from sluice.core.load_spec import Column
from sluice.decode.engine.session import run
from sluice.decode.messages.decoded import TableDecoder
from tests.decode.support import rows
from tests.decode.typed_support import typed_decode, typed_decoder, typed_outcome, written

RANGE, NULL, PARSE = "out-of-range", "null-in-column", "cannot-parse"


def integer_cases() -> list[tuple[str, str, str]]:
    cases = []
    for bits in (8, 16, 32, 64, 128, 256):
        for name, low, high in (
            (f"UInt{bits}", 0, 2**bits - 1),
            (f"Int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        ):
            quote = '"{}"' if bits >= 64 else "{}"
            cases += [
                (f"CAST('{edge}', '{name}')", name, quote.format(edge)) for edge in (low, high)
            ]
            for edge in (low - 1, low, high, high + 1):
                if not -(2**255) <= edge < 2**255:
                    continue
                fits = low <= edge <= high
                natural = "Int256" if bits > 64 else "Int128"
                cases.append(
                    (f"to{natural}('{edge}')", name, quote.format(edge) if fits else RANGE)
                )
            if name not in ("UInt8", "Int64", "UInt256"):
                continue
            cases += [
                (f"CAST('{2**40}', 'UInt64')", name, quote.format(2**40) if bits > 32 else RANGE),
                ("toInt8(7)", name, quote.format(7)),
                ("toFloat64(7)", name, quote.format(7)),
                ("toFloat64(1.5)", name, RANGE),
                ("toFloat64('nan')", name, RANGE),
                ("toFloat32('inf')", name, RANGE),
                ("toDecimal32('7.00', 2)", name, quote.format(7)),
                ("toDecimal32('7.01', 2)", name, RANGE),
                ("true", name, quote.format(1)),
                ("'7'", name, quote.format(7)),
                ("''", name, PARSE if bits < 256 else RANGE),
                ("'x'", name, PARSE if bits < 256 else RANGE),
                ("'1.5'", name, PARSE if bits < 256 else RANGE),
                (f"'{2**256 + 5}'", name, RANGE),
                ("CAST(NULL, 'Nullable(Int8)')", name, NULL),
                ("toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0')", name, PARSE),
                ("toDate('2026-01-02')", name, PARSE),
                ("[1]", name, PARSE),
            ]
    return cases


FLOAT_CASES = [
    ("toFloat64(1.5)", "Float32", "1.5"),
    ("toFloat64(0.1)", "Float32", "0.1"),
    ("toFloat64(1e39)", "Float32", RANGE),
    ("toFloat64('-inf')", "Float32", '"-inf"'),
    ("toFloat64('nan')", "Float32", '"nan"'),
    ("toFloat64('inf')", "Float64", '"inf"'),
    ("toFloat32(0.5)", "Float64", "0.5"),
    ("toUInt256('9')", "Float32", "9"),
    ("toUInt128('340282366920938463463374607431768211455')", "Float32", RANGE),
    ("toInt64(9007199254740993)", "Float64", "9007199254740992"),
    ("toDecimal64('1.25', 2)", "Float32", "1.25"),
    ("toDecimal256('9e75', 0)", "Float32", RANGE),
    ("'1.5'", "Float64", "1.5"),
    ("'1e400'", "Float64", RANGE),
    ("'x'", "Float64", PARSE),
    ("toFloat64(1.5)", "BFloat16", "1.5"),
    ("true", "Float64", "1"),
]

DECIMAL_CASES = [
    ("toFloat64(0.29)", "Decimal(9, 2)", '"0.29"'),
    ("toFloat64(0.291)", "Decimal(9, 2)", RANGE),
    ("toFloat32(0.29)", "Decimal(9, 2)", '"0.29"'),
    ("toFloat64(1e300)", "Decimal(9, 2)", RANGE),
    ("toFloat64('nan')", "Decimal(9, 2)", RANGE),
    ("toFloat64(1e-7)", "Decimal(18, 8)", '"0.0000001"'),
    ("toFloat64(123456.5)", "Decimal(76, 10)", '"123456.5"'),
    ("toInt64(9999999)", "Decimal(9, 2)", '"9999999"'),
    ("toInt64(10000000)", "Decimal(9, 2)", RANGE),
    ("toInt256('-10000000')", "Decimal(9, 2)", RANGE),
    ("toInt8(-128)", "Decimal(9, 2)", '"-128"'),
    ("toDecimal64('1.23', 4)", "Decimal(9, 2)", '"1.23"'),
    ("toDecimal64('1.234', 4)", "Decimal(9, 2)", RANGE),
    ("toDecimal64('9999999.99', 4)", "Decimal(9, 2)", '"9999999.99"'),
    ("toDecimal64('10000000', 4)", "Decimal(9, 2)", RANGE),
    ("toDecimal64('-10000000', 4)", "Decimal(9, 2)", RANGE),
    ("toDecimal32('1.5', 1)", "Decimal(76, 20)", '"1.5"'),
    ("toDecimal256('1.5', 70)", "Decimal(9, 2)", '"1.5"'),
    ("'1.23'", "Decimal(9, 2)", '"1.23"'),
    ("'1.239'", "Decimal(9, 2)", RANGE),
    ("''", "Decimal(9, 2)", PARSE),
    ("'10000000'", "Decimal(9, 2)", RANGE),
    ("'x'", "Decimal(9, 2)", PARSE),
    ("'1.5'", "Decimal(76, 20)", '"1.5"'),
]

MOMENT_CASES = [
    ("toUInt16(65535)", "Date", '"2149-06-06"'),
    ("toInt32(65536)", "Date", RANGE),
    ("toInt32(-1)", "Date", RANGE),
    ("toInt32(-1)", "Date32", '"1969-12-31"'),
    ("toInt64(4294967299)", "Date32", RANGE),
    ("toDate32('2149-06-06')", "Date", '"2149-06-06"'),
    ("toDate32('2149-06-07')", "Date", RANGE),
    ("toDate32('1969-12-31')", "Date", RANGE),
    ("toDate('2149-06-06')", "Date32", '"2149-06-06"'),
    ("toDate('2106-02-07')", "DateTime", '"2106-02-07 00:00:00"'),
    ("toDate('2106-02-08')", "DateTime", RANGE),
    ("toDate32('1969-12-31')", "DateTime", RANGE),
    ("toDate32('2261-12-31')", "DateTime64(9)", '"2261-12-31 00:00:00.000000000"'),
    ("toDate32('2263-01-01')", "DateTime64(9)", RANGE),
    ("toDate32('9999-12-31')", "DateTime64(3)", '"9999-12-31 00:00:00.000"'),
    ("toDateTime('2026-01-02 00:00:00', 'UTC')", "Date", '"2026-01-02"'),
    ("toDateTime('2026-01-02 00:00:01', 'UTC')", "Date", RANGE),
    ("toDateTime('2026-01-02 00:00:00', 'Asia/Tokyo')", "Date", '"2026-01-02"'),
    ("toDateTime64('2026-01-02 00:00:00.001', 3, 'UTC')", "Date", RANGE),
    ("toDateTime64('2200-01-02 00:00:00', 3, 'UTC')", "Date32", '"2200-01-02"'),
    ("toDateTime64('2200-01-02 00:00:00', 3, 'UTC')", "Date", RANGE),
    ("toDateTime('2026-01-02 03:04:05', 'UTC')", "DateTime64(3)", '"2026-01-02 03:04:05.000"'),
    ("toDateTime64('2026-01-02 03:04:05.000', 3)", "DateTime", '"2026-01-02 03:04:05"'),
    ("toDateTime64('2026-01-02 03:04:05.678', 3)", "DateTime", RANGE),
    ("toDateTime64('2106-02-07 06:28:15.999', 3)", "DateTime", RANGE),
    ("toDateTime64('2106-02-07 06:28:16', 3)", "DateTime", RANGE),
    ("toDateTime64('1969-12-31 23:59:59.9', 1)", "DateTime", RANGE),
    ("toDateTime64('2300-01-01 00:00:00', 3)", "DateTime64(9)", RANGE),
    ("toDateTime64('2262-01-01 00:00:00', 3)", "DateTime64(9)", '"2262-01-01 00:00:00.000000000"'),
    ("toDateTime64('2026-01-02 03:04:05.678000', 6)", "DateTime64(3)", '"2026-01-02 03:04:05.678"'),
    ("toDateTime64('2026-01-02 03:04:05.678912', 6)", "DateTime64(3)", RANGE),
    ("toUInt32(4294967295)", "DateTime", '"2106-02-07 06:28:15"'),
    ("toInt64(4294967296)", "DateTime", RANGE),
    ("toInt64(-5)", "DateTime", RANGE),
    ("toInt64(1767323045)", "DateTime64(3)", '"2026-01-02 03:04:05.000"'),
    ("toInt64(1767323045123)", "DateTime64(3)", RANGE),
    (
        "toUInt256('115792089237316195423570985008687907853269984665640564039457584007913129639935')",
        "DateTime",
        RANGE,
    ),
    ("'2026-01-02T03:04:05.000+02:00'", "DateTime", '"2026-01-02 01:04:05"'),
    ("'2026-01-02T03:04:05.678+02:00'", "DateTime", RANGE),
    ("'2106-02-07 06:28:16'", "DateTime", RANGE),
    ("'2026-02-30 00:00:00'", "DateTime", PARSE),
    ("'1767323045'", "DateTime", '"2026-01-02 03:04:05"'),
    ("'2200-01-01 00:00:00'", "DateTime64(3)", '"2200-01-01 00:00:00.000"'),
    ("'2300-01-01 00:00:00'", "DateTime64(9)", RANGE),
    ("'2026-01-02'", "Date", '"2026-01-02"'),
    ("'2026-02-30'", "Date", RANGE),
    ("'2149-06-07'", "Date", RANGE),
    ("'x'", "Date", RANGE),
    ("toFloat64(5)", "DateTime", PARSE),
    ("toDateTime64('2026-01-02 03:04:05', 3)", "UInt64", PARSE),
]

OTHER_CASES = [
    ("CAST('b', 'Enum8(\\'a\\' = 1, \\'b\\' = 2)')", "Enum8('b' = 1, 'c' = 2)", '"b"'),
    ("CAST('a', 'Enum8(\\'a\\' = 1, \\'b\\' = 2)')", "Enum8('b' = 1, 'c' = 2)", RANGE),
    ("CAST('b', 'Enum8(\\'a\\' = 1, \\'b\\' = 2)')", "String", '"b"'),
    ("CAST('b', 'Enum16(\\'a\\' = 1, \\'b\\' = 300)')", "UInt8", RANGE),
    ("'b'", "Enum8('a' = 1, 'b' = 2)", '"b"'),
    ("'2'", "Enum8('a' = 1, 'b' = 2)", '"b"'),
    ("'c'", "Enum8('a' = 1, 'b' = 2)", RANGE),
    ("toInt32(2)", "Enum8('a' = 1, 'b' = 2)", '"b"'),
    ("toInt32(257)", "Enum8('a' = 1, 'b' = 2)", RANGE),
    ("toInt64(65537)", "Enum16('a' = 1)", RANGE),
    ("'61f0c404-5cb3-11e7-907b-a6006ad3dba0'", "UUID", '"61f0c404-5cb3-11e7-907b-a6006ad3dba0"'),
    ("'61f0c404'", "UUID", PARSE),
    (
        "toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0')",
        "String",
        '"61f0c404-5cb3-11e7-907b-a6006ad3dba0"',
    ),
    ("'1.2.3.4'", "IPv4", '"1.2.3.4"'),
    ("'1.2.3.400'", "IPv4", PARSE),
    ("toUInt32(16909060)", "IPv4", '"1.2.3.4"'),
    ("toInt64(-1)", "IPv4", RANGE),
    ("'::1'", "IPv6", '"::1"'),
    ("toIPv4('1.2.3.4')", "IPv6", '"::ffff:1.2.3.4"'),
    ("CAST(unhex('20010db8000000000000000000000001'), 'FixedString(16)')", "IPv6", '"2001:db8::1"'),
    ("CAST('2001:db8::1', 'FixedString(11)')", "IPv6", '"2001:db8::1"'),
    ("'abc'", "FixedString(3)", '"abc"'),
    ("'abcd'", "FixedString(3)", RANGE),
    ("CAST('ab', 'FixedString(2)')", "FixedString(3)", '"ab\\u0000"'),
    ("CAST('a', 'FixedString(2)')", "String", '"a\\u0000"'),
    ("toInt8(2)", "Bool", RANGE),
    ("toInt8(1)", "Bool", "true"),
    ("'true'", "Bool", "true"),
    ("'7'", "Bool", PARSE),
    ("toInt8(5)", "String", '"5"'),
    ("toFloat64(1.5)", "String", '"1.5"'),
    ("true", "String", '"true"'),
    ("toLowCardinality('x')", "String", '"x"'),
    ("toLowCardinality('x')", "LowCardinality(String)", '"x"'),
    ("'x'", "LowCardinality(String)", '"x"'),
    ("toInt16(300)", "LowCardinality(UInt8)", RANGE),
    ("CAST('x', 'LowCardinality(Nullable(String))')", "LowCardinality(String)", '"x"'),
    ("CAST(NULL, 'LowCardinality(Nullable(String))')", "LowCardinality(String)", NULL),
    ("CAST(NULL, 'LowCardinality(Nullable(String))')", "Nullable(String)", "null"),
    ("CAST(NULL, 'Nullable(String)')", "Nullable(UInt8)", "null"),
    ("CAST('300', 'Nullable(String)')", "Nullable(UInt8)", RANGE),
    ("CAST(NULL, 'Nullable(String)')", "Nullable(Enum8('a' = 1))", "null"),
    ("CAST(NULL, 'Nullable(String)')", "Nullable(UUID)", "null"),
    ("CAST(NULL, 'Nullable(UUID)')", "Nullable(UInt8)", "null"),
    ("toInt16(255)", "Nullable(UInt8)", "255"),
    ("toInt16(256)", "Nullable(UInt8)", RANGE),
    ("toInt16(256)", "SimpleAggregateFunction(max, UInt8)", RANGE),
    ("toInt16(255)", "SimpleAggregateFunction(max, UInt8)", "255"),
]

CONTAINER_CASES = [
    ("[toInt16(1), 255]", "Array(UInt8)", "[1, 255]"),
    ("[toInt16(1), 256]", "Array(UInt8)", RANGE),
    ("CAST([], 'Array(Int16)')", "Array(UInt8)", "[]"),
    ("CAST([1, NULL], 'Array(Nullable(Int16))')", "Array(UInt8)", NULL),
    ("CAST([1, NULL], 'Array(Nullable(Int16))')", "Array(Nullable(UInt8))", "[1, null]"),
    ("[['1'], ['2', 'x']]", "Array(Array(UInt8))", PARSE),
    ("[['1'], ['2', '3']]", "Array(Array(UInt8))", "[[1], [2, 3]]"),
    ("map('k', toInt16(255))", "Map(String, UInt8)", '{"k": 255}'),
    ("map('k', toInt16(256))", "Map(String, UInt8)", RANGE),
    ("map(toInt16(300), 'x')", "Map(UInt8, String)", RANGE),
    ("map('k', ['2026-01-01', '2026-02-30'])", "Map(String, Array(Date))", RANGE),
    ("CAST((256, 'x'), 'Tuple(a Int16, b String)')", "Tuple(a UInt8, b String)", RANGE),
    (
        "CAST((255, 'x'), 'Tuple(b Int16, a String)')",
        "Tuple(a String, b UInt8)",
        '{"a": "x", "b": 255}',
    ),
    (
        "CAST((255, 'x'), 'Tuple(a Int16, z String)')",
        "Tuple(a UInt8, b String)",
        '{"a": 255, "b": ""}',
    ),
    ("(toInt16(255), 'x')", "Tuple(a UInt8, b String)", '{"a": 255, "b": "x"}'),
    ("(toInt16(255), 'x')", "Tuple(UInt8)", PARSE),
    (
        "CAST([(1, 'x')], 'Array(Tuple(a Int16, b String))')",
        "Nested(b String, a UInt8)",
        '[{"b": "x", "a": 1}]',
    ),
    ("CAST([(256, 'x')], 'Array(Tuple(a Int16, b String))')", "Nested(b String, a UInt8)", RANGE),
    ("'[1]'", "Array(UInt8)", PARSE),
    ("[1]", "String", PARSE),
    ("map('k', 1)", "String", PARSE),
    ("(1.5, 2.5)", "Point", "[1.5, 2.5]"),
    ("(1.5, 'x')", "Point", PARSE),
    ("[[(1, 2)], []]", "Polygon", "[[[1, 2]], []]"),
    ("[1.5, 2]", "QBit(Float32, 2)", "[1.5, 2]"),
    ("[1.5]", "QBit(Float32, 2)", RANGE),
    ("[1.5, 1e39]", "QBit(Float32, 2)", RANGE),
    ("['x', 'y']", "QBit(Float32, 2)", PARSE),
    ("CAST('-12:34:56', 'Time64(3)')", "Time", '"-12:34:56"'),
    ("CAST('12:34:56.5', 'Time64(3)')", "Time", RANGE),
    ("CAST('12:34:56.789', 'Time64(6)')", "Time64(3)", '"12:34:56.789"'),
    ("CAST('12:34:56.7891', 'Time64(6)')", "Time64(3)", RANGE),
    ("CAST('12:34:56', 'Time')", "Time64(3)", '"12:34:56.000"'),
    ("toInt64(5)", "Variant(Int64, String)", '"5"'),
    ("CAST(NULL, 'Nullable(Int64)')", "Variant(Int64, String)", "null"),
    ("'5'", "Variant(Int64, String)", '"5"'),
    ("toInt32(5)", "Variant(Int64, String)", '"5"'),
    ("toDate('2026-01-02')", "Dynamic", '"2026-01-02"'),
    ("toInt8(-5)", "IntervalDay", '"-5"'),
    ("toUInt64(9223372036854775808)", "IntervalDay", RANGE),
    ("toFloat64(5)", "IntervalDay", PARSE),
]

CASES = [
    *integer_cases(),
    *FLOAT_CASES,
    *DECIMAL_CASES,
    *MOMENT_CASES,
    *OTHER_CASES,
    *CONTAINER_CASES,
]


def decoder_of(natural: str, target: str, on_null: str = "dead-letter") -> TableDecoder:
    options = {"columns": f"a {natural}"}
    return typed_decoder("RowBinary", Column("a", target), on_null=on_null, options=options)


@cache
def naturals() -> dict[str, str]:
    """The type of each value of the cases."""
    values = sorted({case[0] for case in CASES})
    query = f"SELECT [{', '.join(f'toTypeName({value})' for value in values)}] AS a"
    return dict(zip(values, json.loads(run(query, "JSONEachRow").bytes())["a"], strict=True))


@pytest.mark.parametrize("target", sorted({case[1] for case in CASES}))
def test_values(target: str) -> None:
    """Values of one type stand in one block, twice; what they become does not change."""
    by_type: dict[str, list[tuple[str, str]]] = {}
    for value, its_target, expected in CASES:
        if its_target == target:
            by_type.setdefault(naturals()[value], []).append((value, expected))
    for natural, cases in by_type.items():
        messages = [written("RowBinary", f"{value} AS a") for value, _ in cases]
        decoded = typed_decode(decoder_of(natural, target), messages * 2)
        reasons = {bad.index: bad.reason for bad in decoded.bad}
        stored = iter(json.dumps(row[0], ensure_ascii=False) for row in rows(decoded))
        found = [
            (value, reasons.get(index) or next(stored))
            for index, (value, _) in enumerate(cases * 2)
        ]
        assert found == cases * 2, natural
        assert next(stored, None) is None


@pytest.mark.parametrize(
    ("natural", "message", "target", "expected"),
    [
        ("Enum8('a' = 1)", b"\x05", "Enum8('a' = 1)", RANGE),
        ("Enum8('a' = 1)", b"\x05", "String", RANGE),
        ("Enum8('a' = 1)", b"\x05", "Int8", RANGE),
        ("Nullable(Enum8('a' = 1))", b"\x00\x05", "Nullable(Enum8('a' = 1))", RANGE),
        ("Array(Enum16('a' = 1))", b"\x01\x05\x00", "Array(Enum16('a' = 1))", RANGE),
        ("Bool", b"\x02", "Bool", RANGE),
        ("Bool", b"\x02", "UInt8", RANGE),
        ("Tuple(x Bool)", b"\x02", "Tuple(x Bool)", RANGE),
        ("Decimal(9, 2)", (10**9).to_bytes(4, "little"), "Decimal(9, 2)", RANGE),
        ("Decimal(9, 2)", (10**9 - 1).to_bytes(4, "little"), "Decimal(9, 2)", '"9999999.99"'),
        ("Decimal(76, 2)", (10**76).to_bytes(32, "little"), "Decimal(76, 2)", RANGE),
        ("Date32", (2932897).to_bytes(4, "little"), "Date32", RANGE),
        ("DateTime64(3)", (2**63 - 1).to_bytes(8, "little"), "DateTime64(3)", RANGE),
        (
            "DateTime64(9)",
            (2**63 - 1).to_bytes(8, "little"),
            "DateTime64(9)",
            '"2262-04-11 23:47:16.854775807"',
        ),
        ("Time", (3600000).to_bytes(4, "little"), "Time", RANGE),
        ("Map(String, Bool)", b"\x01\x01k\x02", "Map(String, Bool)", RANGE),
        ("LowCardinality(String)", b"\x01k", "LowCardinality(String)", '"k"'),
    ],
)
def test_bytes_that_are_no_value(natural: str, message: bytes, target: str, expected: str) -> None:
    decoder = typed_decoder("RowBinary", Column("a", target), options={"columns": f"a {natural}"})
    assert typed_outcome(decoder, message) == expected


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        ("CAST(NULL, 'Nullable(Int8)')", "UInt8", "0"),
        ("CAST(NULL, 'Nullable(Int8)')", "Enum8('a' = 1)", '"a"'),
        ("CAST(NULL, 'Nullable(String)')", "Date", '"1970-01-01"'),
        ("CAST(NULL, 'Nullable(String)')", "LowCardinality(String)", '""'),
        ("CAST([1, NULL], 'Array(Nullable(Int8))')", "Array(UInt8)", "[1, 0]"),
        ("CAST([1, 300], 'Array(Nullable(Int16))')", "Array(UInt8)", RANGE),
        ("CAST(NULL, 'Nullable(Int8)')", "Nullable(UInt8)", "null"),
    ],
)
def test_null_as_default(value: str, target: str, expected: str) -> None:
    message = written("RowBinary", f"{value} AS a")
    natural = run(f"SELECT toTypeName({value})", "TSVRaw").bytes().decode().strip()
    assert typed_outcome(decoder_of(natural, target, "default"), message) == expected


def test_absent_columns_and_nulls_take_default_expressions() -> None:
    columns = (
        Column("a", "UInt8"),
        Column("b", "UInt16", "DEFAULT", "a + c + 1"),
        Column("c", "UInt8", "DEFAULT", "7"),
        Column("e", "String", "EPHEMERAL", "'none'"),
        Column("f", "String", "DEFAULT", "concat(e, toString(b))"),
        Column("m", "UInt8", "MATERIALIZED", "a"),
    )
    decoder = typed_decoder(
        "RowBinary", *columns, on_null="default", options={"columns": "a UInt8, b Nullable(Int64)"}
    )
    messages = [b"\x05\x01", b"\x05\x00" + (300).to_bytes(8, "little")]
    assert rows(typed_decode(decoder, messages)) == [
        [5, 13, 7, "none13"],
        [5, 300, 7, "none300"],
    ]
    decoder = typed_decoder("RowBinary", *columns, options={"columns": "e String, a UInt8"})
    assert rows(typed_decode(decoder, [b"\x02hi\x01"])) == [[1, 9, 7, "hi9"]]


@pytest.mark.parametrize("mark", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1e", "\r"])
def test_words_about_a_value_with_any_end_of_a_line(mark: str) -> None:
    """What ends a line for Python does not for the engine, which writes them as they are."""
    decoder = typed_decoder("RowBinary", Column("a", "UInt8"), options={"columns": "a String"})
    codes = "".join(f"\\x{byte:02X}" for byte in f"x{mark}y".encode())
    messages = [written("RowBinary", f"'{text}'") for text in (codes, "7")]
    decoded = typed_decode(decoder, messages)
    assert rows(decoded) == [[7]]
    (bad,) = decoded.bad
    assert bad.reason == "cannot-parse" and bad.error.startswith('"x') and "UInt8" in bad.error
