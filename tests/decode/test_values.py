"""Every type against values that are valid, at the edge, just beyond, null, absent, wrong (H16).

A case reads `field text -> what it becomes`: the stored value as JSON, or the reason why
the message is set aside. ABSENT is a message without the field.
"""

from __future__ import annotations

from functools import cache

import pytest

from sluice.core.load_spec import Column
from sluice.decode.text.decoder import Decoder
from tests.decode.support import decode, outcome, rows, table

ABSENT = "ABSENT"
RANGE, NULL, PARSE = "out-of-range", "null-in-column", "cannot-parse"
BROKEN = "not-one-object"

INTEGER_CASES = [
    ('"7"', "{7}"),
    ("true", "{1}"),
    ("1.5", PARSE),
    ('"x"', PARSE),
    ("[1]", PARSE),
    ("{}", PARSE),
    ("null", NULL),
    (ABSENT, "{0}"),
    ("9" * 61, RANGE),
    ("9" * 77, RANGE),
    ("9" * 500, RANGE),
    # 2 to the power of 256, and of 64, plus 5: what a reader that wraps takes for 5.
    (str(2**256 + 5), RANGE),
    (str(2**512 + 5), RANGE),
]


def integer_cases() -> list[tuple[str, str, str]]:
    cases = []
    for bits in (8, 16, 32, 64, 128):
        for name, low, high in (
            (f"UInt{bits}", 0, 2**bits - 1),
            (f"Int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        ):
            quote = '"{}"' if bits >= 64 else "{}"
            cases += [(name, str(edge), quote.format(edge)) for edge in (low, high)]
            cases += [
                (name, str(beyond), RANGE)
                for beyond in (low - 1, high + 1, 2**64 + 5)
                if not low <= beyond <= high
            ]
            for field, result in INTEGER_CASES:
                fits = result.startswith("{")
                cases.append((name, field, quote.format(result[1:-1]) if fits else result))
    for name, low, high in (("UInt256", 0, 2**256 - 1), ("Int256", -(2**255), 2**255 - 1)):
        cases += [(name, str(edge), f'"{edge}"') for edge in (low, high)]
        cases += [(name, str(beyond), RANGE) for beyond in (low - 1, high + 1, 2**300)]
        cases += [(name, "007", '"7"'), (name, "null", NULL), (name, ABSENT, '"0"')]
    return cases


CASES = [
    *integer_cases(),
    ("Float32", "3.4e38", "3.4e+38"),
    ("Float32", "1e39", RANGE),
    ("Float32", "null", NULL),
    ("Float64", "1e39", "1e+39"),
    ("Float64", "1e309", RANGE),
    ("Float64", '"1.5"', "1.5"),
    # The nearest float, not one beside it.
    ("Float64", "0.1234567890123456789", "0.12345678901234568"),
    ("Float64", "9007199254740993.0", "9007199254740992"),
    ("Float64", "9007199254740993.1", "9007199254740994"),
    ("Float64", "1e23", "1e+23"),
    ("Float64", "2.2250738585072011e-308", "2.225073858507201e-308"),
    ("Float64", '"nan"', '"nan"'),
    ("Float64", '"x"', PARSE),
    ("Float64", "null", NULL),
    ("Float64", ABSENT, "0"),
    ("Decimal(9, 2)", "1.23", '"1.23"'),
    ("Decimal(9, 2)", "1.230", '"1.23"'),
    ("Decimal(9, 2)", "1.239", RANGE),
    ("Decimal(9, 2)", "1e-3", RANGE),
    ("Decimal(9, 2)", "9999999.99", '"9999999.99"'),
    ("Decimal(9, 2)", "10000000", RANGE),
    ("Decimal(9, 2)", "1." + "0" * 70 + "1", RANGE),
    ("Decimal(9, 2)", "null", NULL),
    ("Decimal(18, 2)", "-9999999999999999.99", '"-9999999999999999.99"'),
    ("Decimal(18, 2)", "1e16", RANGE),
    ("Decimal(38, 10)", "1.00000000001", RANGE),
    ("Decimal(76, 20)", "1." + "0" * 20 + "1", RANGE),
    ("Decimal(76, 20)", "1.5", '"1.5"'),
    ("Decimal(76, 20)", ABSENT, '"0"'),
    # The engine's own reader takes all of these for numbers, most of them for 0.
    *[
        (type_text, field, PARSE)
        for type_text in ("Decimal(9, 2)", "Decimal(40, 2)", "Nullable(Decimal(9, 2))")
        for text in ("-", "+", ".", "-.", "1e", "e5", "1.2.3", "..1", "1.1.1.25", "x")
        for field in (f'"{text}"', text)
    ],
    ("Decimal(9, 2)", "", BROKEN),
    ("Int64", "", BROKEN),
    ("Int64", "\t ", BROKEN),
    ("Int64", ' ,"b":1', BROKEN),
    ("Array(Int8)", "[,]", BROKEN),
    ("Array(Int8)", "[1, ,2]", BROKEN),
    ("Array(Int8)", "[1,]", BROKEN),
    ("Array(Int8)", "[ ,1]", BROKEN),
    ("Array(Int8)", "[ ]", "[]"),
    ("Array(Time)", "[,]", BROKEN),
    ("Map(String, Int64)", '{"a":}', BROKEN),
    ("Map(String, Int64)", '{"a":1,,"b":2}', PARSE),
    ("Map(String, Int64)", "{ }", "{}"),
    ("Tuple(Int8, Int8)", "[1,]", BROKEN),
    ("Tuple(Int8, Int8)", "[,1]", BROKEN),
    ("Tuple(a Int8, b Int8)", '{"a":,"b":1}', BROKEN),
    ("String", '"a:,b,}[,"', '"a:,b,}[,"'),
    ("Decimal(9, 2)", '""', PARSE),
    ("Decimal(9, 2)", '"-0.10"', '"-0.1"'),
    ("Decimal(9, 2)", "1.5e2", '"150"'),
    ("Decimal(9, 2)", "true", PARSE),
    ("Decimal(2, 2)", "0.25", '"0.25"'),
    ("Decimal(2, 2)", "1", RANGE),
    ("Array(Decimal(9, 2))", "[1,-]", PARSE),
    ("Time", "3599998", '"999:59:58"'),
    ("Time", "3600000", RANGE),
    ("Time", "-3600000", RANGE),
    ("Time", '"1000:00:00"', PARSE),
    ("Time64(3)", '"999:59:58.5"', '"999:59:58.500"'),
    ("Time64(3)", "3600000000", RANGE),
    ("Nullable(Time)", "3600000", RANGE),
    ("Date", '"2149-06-06"', '"2149-06-06"'),
    ("Date", '"2149-06-07"', RANGE),
    ("Date", '"1969-12-31"', RANGE),
    ("Date", '"2026-02-30"', RANGE),
    ("Date", '"20260102"', '"2026-01-02"'),
    ("Date", "65535", '"2149-06-06"'),
    # A local time that is left out, and the first of two; rows are shown in UTC.
    ("DateTime('Europe/Berlin')", '"2026-03-29 02:30:00"', '"2026-03-29 00:30:00"'),
    ("DateTime('Europe/Berlin')", '"2026-10-25 02:30:00"', '"2026-10-25 00:30:00"'),
    ("DateTime('Europe/Berlin')", '"2026-10-25T02:30:00+01:00"', '"2026-10-25 01:30:00"'),
    # Fewer than seven characters are days since 1970, in quotes too, and no year.
    ("Date", '"20454"', '"2026-01-01"'),
    ("Date", '"2026"', '"1975-07-20"'),
    ("Date", '"202612"', RANGE),
    ("Date32", '"202612"', '"2524-09-25"'),
    ("Date", "65536", RANGE),
    ("Date", "4294967299", RANGE),
    ("Date", '"2026-01-02 03:04:05"', RANGE),
    ("Date", "null", NULL),
    ("Date", ABSENT, '"1970-01-01"'),
    ("Date32", '"9999-12-31"', '"9999-12-31"'),
    ("Date32", "4294967299", RANGE),
    ("Date32", "-1", '"1969-12-31"'),
    ("Date32", ABSENT, '"1970-01-01"'),
    ("DateTime", '"2106-02-07 06:28:15"', '"2106-02-07 06:28:15"'),
    ("DateTime", '"2106-02-07 06:28:16"', RANGE),
    ("DateTime", '"1969-12-31 23:59:59"', RANGE),
    ("DateTime", '"2026-01-02T03:04:05+02:00"', '"2026-01-02 01:04:05"'),
    ("DateTime", '"2026-01-02T03:04:05.678+02:00"', RANGE),
    ("DateTime", '"2026-01-02T03:04:05.000+02:00"', '"2026-01-02 01:04:05"'),
    ("DateTime", "1767323045", '"2026-01-02 03:04:05"'),
    ("DateTime", "1767323045123", RANGE),
    ("DateTime", str(2**64 + 5), RANGE),
    ("DateTime", "-5", RANGE),
    ("DateTime", '"2026-02-30 00:00:00"', PARSE),
    ("DateTime", '""', PARSE),
    ("DateTime", "null", NULL),
    ("DateTime", ABSENT, '"1970-01-01 00:00:00"'),
    ("DateTime64(3)", '"2026-01-02T03:04:05.678Z"', '"2026-01-02 03:04:05.678"'),
    ("DateTime64(3)", '"2200-01-01 00:00:00"', '"2200-01-01 00:00:00.000"'),
    ("DateTime64(3)", "1767323045123", RANGE),
    ("DateTime64(3)", "-9999999999999", RANGE),
    ("DateTime64(3)", str(2**64 + 5), RANGE),
    ("DateTime64(9)", '"2262-04-12 00:00:00"', RANGE),
    ("DateTime64(3)", "null", NULL),
    ("Enum8('a' = 1, 'b' = 2)", '"b"', '"b"'),
    ("Enum8('a' = 1, 'b' = 2)", "2", '"b"'),
    ("Enum8('a' = 1, 'b' = 2)", '"c"', RANGE),
    ("Enum8('a' = 1, 'b' = 2)", "257", RANGE),
    ("Enum8('a' = 1, 'b' = 2)", "null", NULL),
    ("Enum16('a,b' = -1, 'c\\'d{0}' = 2)", '"c\'d{0}"', '"c\'d{0}"'),
    ("Enum16('a' = 1)", "65537", RANGE),
    ("Enum16('a' = 1)", ABSENT, '"a"'),
    ("FixedString(3)", '"abc"', '"abc"'),
    ("FixedString(3)", '"abcd"', RANGE),
    ("FixedString(3)", "5", PARSE),
    ("UUID", '"61f0c404-5cb3-11e7-907b-a6006ad3dba0"', '"61f0c404-5cb3-11e7-907b-a6006ad3dba0"'),
    ("UUID", '"61f0c404"', PARSE),
    ("UUID", '"g1f0c404-5cb3-11e7-907b-a6006ad3dba0"', PARSE),
    ("UUID", '"61f0c404-5cb3-11e7-907b-a6006ad3dbag"', PARSE),
    ("UUID", "5", PARSE),
    ("UUID", "null", NULL),
    ("IPv4", '"1.2.3.4"', '"1.2.3.4"'),
    ("IPv4", '"1.2.3.400"', PARSE),
    ("IPv6", '"::1"', '"::1"'),
    ("IPv6", '"x"', PARSE),
    ("Bool", "true", "true"),
    ("Bool", "2", PARSE),
    ("Bool", "null", NULL),
    ("String", "5", '"5"'),
    ("String", '{"x": [1]}', '"{\\"x\\": [1]}"'),
    ("String", '"{[\\""', '"{[\\""'),
    ("String", '"\\ud800"', PARSE),
    ("String", "null", NULL),
    ("String", ABSENT, '""'),
    ("LowCardinality(String)", '"x"', '"x"'),
    ("LowCardinality(String)", "null", NULL),
    ("LowCardinality(Nullable(String))", "null", "null"),
    ("LowCardinality(UInt8)", "256", RANGE),
    ("LowCardinality(Date)", "70000", RANGE),
    ("Nullable(UInt8)", "256", RANGE),
    ("Nullable(UInt8)", "null", "null"),
    ("Nullable(UInt8)", ABSENT, "null"),
    ("Nullable(Date)", "70000", RANGE),
    ("Nullable(Date)", "null", "null"),
    ("Nullable(Float64)", "1e400", RANGE),
    ("Nullable(Decimal(9, 2))", "1.239", RANGE),
    ("Nullable(Enum8('a' = 1))", "257", RANGE),
    ("Nullable(DateTime64(3))", "1767323045123", RANGE),
    ("Array(UInt8)", "[1,255]", "[1, 255]"),
    ("Array(UInt8)", "[1,256]", RANGE),
    ("Array(UInt8)", "[1,null]", NULL),
    ("Array(UInt8)", "null", NULL),
    ("Array(UInt8)", "5", PARSE),
    ("Array(UInt8)", ABSENT, "[]"),
    ("Array(Nullable(UInt8))", "[1,null]", "[1, null]"),
    ("Array(Array(Date))", '[["2026-01-02"],["2026-01-03",70000]]', RANGE),
    ("Array(Array(Date))", '[["2026-01-02"],[]]', '[["2026-01-02"], []]'),
    ("Array(Decimal(9, 2))", "[1.5,1.239]", RANGE),
    ("Array(Enum8('a' = 1))", '["a",257]', RANGE),
    ("Map(String, UInt8)", '{"k":255}', '{"k": 255}'),
    ("Map(String, UInt8)", '{"k":256}', RANGE),
    ("Map(String, UInt8)", '{"k":null}', NULL),
    ("Map(UInt8, String)", '{"300":"x"}', RANGE),
    ("Map(String, Array(Date))", '{"k":["2026-01-01",70000]}', RANGE),
    ("Map(String, Array(Date))", '{"k":["2026-01-01"]}', '{"k": ["2026-01-01"]}'),
    ("Tuple(x UInt8, y String)", '{"x":255}', '{"x": 255, "y": ""}'),
    ("Tuple(x UInt8, y String)", '{"x":256,"y":"q"}', RANGE),
    ("Tuple(x UInt8, y String)", '{"x":null,"y":"q"}', PARSE),
    ("Tuple(x UInt8, y String)", "null", NULL),
    ("Tuple(UInt8, String)", '[300,"s"]', RANGE),
    ("Tuple(x Date, e Enum8('a' = 1))", '{"x":70000}', RANGE),
    ("Tuple(x Date, e Enum8('a' = 1))", '{"e":257}', RANGE),
    ("Tuple(x Date, e Enum8('a' = 1))", "{}", '{"x": "1970-01-01", "e": "a"}'),
    ("Tuple(f Float64, d Decimal(9, 2))", '{"f":1e999}', RANGE),
    ("Tuple(f Float64, d Decimal(9, 2))", '{"d":1.239}', RANGE),
    ("Nested(x UInt8, y Date)", '[{"x":1,"y":"2026-01-01"}]', '[{"x": 1, "y": "2026-01-01"}]'),
    ("Nested(x UInt8, y Date)", '[{"x":300}]', RANGE),
    ("JSON", '{"b":[1,{"c":2}]}', '{"b": ["1", {"c": "2"}]}'),
    ("JSON", "5", PARSE),
    ("JSON(b UInt8)", '{"b":300}', PARSE),
    ("Variant(UInt8, String)", "300", '"300"'),
    ("Dynamic", "300", '"300"'),
    ("SimpleAggregateFunction(max, UInt8)", "256", RANGE),
    ("SimpleAggregateFunction(max, UInt8)", "255", "255"),
]


@cache
def decoder_of(type_text: str, on_null: str = "dead-letter") -> Decoder:
    # A message that fills no column at all is bad, so there is one more.
    columns = Column("a", type_text), Column("other", "Nullable(UInt8)")
    return Decoder(table(*columns, on_null=on_null))


def message(field: str) -> str:
    return '{"other":null}' if field == ABSENT else f'{{"a":{field}}}'


@pytest.mark.parametrize(
    ("type_text", "field", "expected"), CASES, ids=[f"{t}-{f[:40]}" for t, f, _ in CASES]
)
def test_value(type_text: str, field: str, expected: str) -> None:
    assert outcome(decoder_of(type_text), message(field)) == expected


@pytest.mark.parametrize("type_text", sorted({case[0] for case in CASES}))
def test_values_of_a_type_in_one_block(type_text: str) -> None:
    """The verdicts do not change when good and bad values stand in one block."""
    cases = [(message(f).encode(), e) for t, f, e in CASES if t == type_text]
    decoded = decode(decoder_of(type_text), [value for value, _ in cases] * 3)
    reasons = {RANGE, NULL, PARSE, BROKEN}
    expected_bad = [i for i, (_, e) in enumerate(cases * 3) if e in reasons]
    assert [bad.index for bad in decoded.bad] == expected_bad
    assert [bad.reason for bad in decoded.bad] == [(cases * 3)[i][1] for i in expected_bad]
    assert decoded.rows == 3 * len(cases) - len(expected_bad)


@pytest.mark.parametrize(
    ("type_text", "field", "expected"),
    [
        ("UInt8", "null", "0"),
        ("UInt8", "256", RANGE),
        ("Date", "null", '"1970-01-01"'),
        ("Date", "70000", RANGE),
        ("Enum8('a' = 1)", "null", '"a"'),
        ("Enum8('a' = 1)", "257", RANGE),
        ("String", "null", '""'),
        ("Array(UInt8)", "null", "[]"),
        ("Array(UInt8)", "[1,null]", "[1, 0]"),
        ("Array(UInt8)", "[1,256]", RANGE),
        ("Nullable(UInt8)", "null", "null"),
        ("Decimal(9, 2)", "1.239", RANGE),
        ("Tuple(x UInt8)", '{"x":null}', '{"x": 0}'),
        ("Dynamic", "null", "null"),
    ],
)
def test_null_as_default(type_text: str, field: str, expected: str) -> None:
    assert outcome(decoder_of(type_text, "default"), message(field)) == expected


def test_null_as_default_takes_the_columns_expression() -> None:
    decoder = Decoder(
        table(Column("a", "UInt8"), Column("b", "UInt16", "DEFAULT", "a + 1"), on_null="default")
    )
    assert rows(decode(decoder, [b'{"a":255,"b":null}', b'{"a":null}'])) == [[255, 256], [0, 1]]
