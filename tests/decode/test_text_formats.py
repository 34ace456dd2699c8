"""CSV, TSV and JSON arrays: what each message becomes, and the traps of the engine's readers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.engine.session import literal, run
from sluice.decode.messages.memory import memory_file
from tests.decode.support import FIRST_OFFSET, rows
from tests.decode.text_support import ID, TEXT, decode_text, made, text_of, with_lineage
from tests.support.examples import examples

PARSE, ONE, NULL, RANGE = "cannot-parse", "not-one-row", "null-in-column", "out-of-range"
LINES = ("CSV", "TSV")


def one(table_format: str, type_text: str, cell: bytes, **changes: Any) -> Any:
    """What a value becomes in a column of this type, beside another value."""
    separator = b"," if table_format == "CSV" else b"\t"
    text = text_of(table_format, Column("a", type_text), ID, **changes)
    result = made(text, cell + separator + b"7")[0]
    return result if isinstance(result, str) else result[0]


#: type, cell, in CSV, in TSV
CASES = [
    ("UInt8", b"255", 255, 255),
    ("UInt8", b"256", RANGE, RANGE),
    ("UInt8", b"-1", RANGE, RANGE),
    ("UInt8", b"", 0, PARSE),
    ("UInt8", b'"7"', 7, PARSE),
    ("UInt8", b"'7'", 7, PARSE),
    ("UInt8", b"0x10", PARSE, PARSE),
    ("UInt8", b"1e3", PARSE, PARSE),
    ("UInt8", b"1.0", PARSE, PARSE),
    ("UInt8", b"1_0", PARSE, PARSE),
    ("UInt8", b"007", 7, 7),
    ("UInt8", b"+7", 7, 7),
    # ClickHouse takes a lone sign for 0 where it does not check (TSV, decimals); so do we.
    ("UInt8", b"-", PARSE, PARSE),
    ("Decimal(9, 2)", b"-", PARSE, PARSE),
    ("UInt8", b"true", 1, 1),
    ("UInt8", b"\\N", NULL, NULL),
    ("UInt8", b"NULL", PARSE, PARSE),
    ("Nullable(UInt8)", b"\\N", None, None),
    ("Nullable(String)", b"\\N", None, None),
    ("Nullable(String)", b'"\\N"', "\\N", '""'),
    ("Nullable(String)", b'""', "", '""'),
    ("Nullable(String)", b"", None, ""),
    ("UInt64", b"9" * 70, RANGE, RANGE),
    ("UInt64", str(2**64 + 5).encode(), RANGE, RANGE),
    ("Int256", str(2**256 + 5).encode(), RANGE, RANGE),
    ("String", b" a ", " a ", " a "),
    ("String", b'"a""b"', 'a"b', '"a""b"'),
    ("String", b'a"b', 'a"b', 'a"b'),
    ("String", b"'a'", "'a'", "'a'"),
    ("String", b'"a"b', PARSE, '"a"b'),
    ("String", b"a\\tb", "a\\tb", "a\tb"),
    ("String", b"NULL", "NULL", "NULL"),
    ("Bool", b"true", True, True),
    ("Date", b"2026-02-30", RANGE, RANGE),
    ("Date", b"70000", RANGE, RANGE),
    ("DateTime", b"2026-01-02 03:04:05", "2026-01-02 03:04:05", "2026-01-02 03:04:05"),
    ("DateTime", b"2200-01-01 00:00:00", RANGE, RANGE),
    ("Decimal(9, 2)", b"1.239", RANGE, RANGE),
    ("Float64", b"1e400", RANGE, RANGE),
    ("Enum8('a' = 1)", b"b", RANGE, RANGE),
    ("Enum8('a' = 1)", b"257", RANGE, RANGE),
    ("UUID", b"123", PARSE, PARSE),
    ("Array(UInt8)", b'"[1,256]"', RANGE, PARSE),
    ("Array(UInt8)", b'"[1,2]"', [1, 2], PARSE),
]


@pytest.mark.parametrize(("type_text", "cell", "in_csv", "in_tsv"), CASES)
def test_value(type_text: str, cell: bytes, in_csv: Any, in_tsv: Any) -> None:
    assert [one(name, type_text, cell) for name in LINES] == [in_csv, in_tsv]


def test_an_array_in_tsv_needs_no_quotes() -> None:
    assert one("TSV", "Array(String)", b"['a','b\\n']") == ["a", "b\n"]
    assert one("TSV", "Array(UInt8)", b"[1,256]") == RANGE


#: As the engine writes them: a type and SQL that makes values of it, extremes among them.
TYPES = [
    *((f"{u}Int{b}", "") for u in ("", "U") for b in (8, 16, 32, 64, 128, 256)),
    ("Float32", "3.4e38, -1.5, 0"),
    ("Float64", "1.7e308, -2.5, 0"),
    ("Decimal(9, 2)", "'9999999.99', '-1.5'"),
    ("Decimal(38, 10)", "'1.0000000001', '-7'"),
    ("Decimal(76, 20)", "'1.00000000000000000001', '-7'"),
    ("String", "'', 'a\"b', 'a\\nb', 'a\\tb', 'é\\\\', ' x ', '\\'', 'NULL', ',;|'"),
    ("FixedString(3)", "'abc', 'x\\ny'"),
    ("UUID", "'61f0c404-5cb3-11e7-907b-a6006ad3dba0'"),
    ("Date", "'1970-01-01', '2149-06-06'"),
    ("Date32", "'1900-01-01', '2299-12-31'"),
    ("DateTime", "'1970-01-01 00:00:00', '2106-02-07 06:28:15'"),
    ("DateTime64(3)", "'1900-01-01 00:00:00.001', '2299-12-31 23:59:59.999'"),
    ("Bool", "true, false"),
    ("IPv4", "'0.0.0.0', '255.255.255.255'"),
    ("IPv6", "'::', 'ffff::1'"),
    ("Enum8('a' = 1, 'b c' = -2)", "'a', 'b c'"),
    ("LowCardinality(String)", "'', 'a,b'"),
    ("Nullable(String)", "NULL, '', 'x'"),
    ("Nullable(Int64)", "NULL, 5"),
    ("Array(String)", "[], ['a', '\\'\\n', 'q\"']"),
    ("Array(Array(Int8))", "[[1, -128], []]"),
    ("Map(String, UInt8)", "map('a', 255), map()"),
    ("Tuple(a UInt8, b String)", "(1, 'x,y'), (2, 'n\\n')"),
    *(
        (f"Array({inner})", f"[], [{values}]")
        for inner, values in (
            ("Int8", "-128, 0, 127"),
            ("UInt64", "18446744073709551615"),
            ("Int128", "'-170141183460469231731687303715884105728'"),
            ("Int256", f"'-{2**255}', '{2**255 - 1}', 0"),
            ("UInt256", f"'{2**256 - 1}', 0"),
            ("Float64", "1.7e308, -2.5, 0, 1e-300"),
            ("Decimal(9, 2)", "'9999999.99', '-1.5', 0"),
            ("Decimal(18, 18)", "'0.999999999999999999', '-0.1'"),
            ("Decimal(38, 10)", "'1.0000000001', '-7'"),
            ("Decimal(76, 20)", "'1.00000000000000000001', '-7'"),
            ("Nullable(Decimal(76, 0))", f"'{10**76 - 1}', NULL"),
            ("Date", "'1970-01-01', '2149-06-06'"),
            ("DateTime64(3)", "'1900-01-01 00:00:00.001', '2299-12-31 23:59:59.999'"),
            ("Bool", "true, false"),
            ("UUID", "'61f0c404-5cb3-11e7-907b-a6006ad3dba0'"),
            ("IPv6", "'::', 'ffff::1'"),
            ("Enum8('a' = 1, 'b c' = -2)", "'a', 'b c'"),
            ("Tuple(Decimal(9, 2), String)", "('1.25', 'a,b')"),
        )
    ),
    ("Map(String, Decimal(9, 2))", "map('a', '1.25')"),
    ("Map(Int256, Nullable(Int256))", "map(5, NULL)"),
    ("Tuple(a Decimal(9, 2), b Int256, c Array(Decimal(9, 2)))", "('1.25', '-7', [1])"),
]


def values_of(type_text: str, given: str) -> list[str]:
    if given:
        return [f"CAST({value}, {literal(type_text)})" for value in split_values(given)]
    bits = int(type_text.lstrip("UInt"))
    low, high = (0, 2**bits) if type_text[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return [f"CAST('{value}', {literal(type_text)})" for value in (low, 0, high - 1)]


def split_values(given: str) -> list[str]:
    """SQL values, cut at the commas outside brackets and quotes."""
    found, depth, quoted, escaped, current = [], 0, False, False, ""
    for symbol in given:
        if symbol == "'" and not escaped:
            quoted = not quoted
        escaped = symbol == "\\" and not escaped
        if not quoted:
            depth += (symbol in "([") - (symbol in ")]")
        if symbol == "," and not quoted and not depth:
            found.append(current.strip())
            current = ""
        else:
            current += symbol
    return [*found, current.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["JSONCompactEachRow", "CSV", "TSV", "TSKV"])
def test_all_types_as_the_engine_reads_them(table_format: str) -> None:
    """Written by the engine, one message for each row; read by it from the same bytes."""
    for type_text, listed in TYPES:
        values = [
            f"SELECT {value} AS a, {n} AS id"
            for n, value in enumerate(values_of(type_text, listed))
        ]
        union = " UNION ALL ".join(values)
        messages = [run(query, table_format).bytes().rstrip(b"\n") for query in values]
        with memory_file(b"\n".join(messages) + b"\n") as path:
            structure = literal(f"a {type_text}, id UInt64")
            query = f"SELECT * FROM file('{path}', {table_format}, {structure}) SETTINGS "
            query += (
                "max_threads=1, session_timezone='UTC', output_format_json_quote_64bit_integers=1, "
                "output_format_json_quote_decimals=1, output_format_json_quote_denormals=1"
            )
            expected = run(query, "JSONCompactEachRow").bytes().decode().splitlines()
        text = text_of(table_format, Column("a", type_text), ID)
        decoded = decode_text(text, messages)
        assert decoded.bad == (), (type_text, union)
        assert rows(decoded) == [json.loads(line) for line in expected], type_text


TEXTS = st.text(st.sampled_from(list("abé ,;\"'\\\n\r\t{}[]N\u2028\U0001f600#x")), max_size=12)
VALUES = st.lists(st.tuples(st.integers(0, 2**64 - 1), TEXTS), min_size=1, max_size=12)


def csv_line(number: int, text: str) -> str:
    return f'{number},"{text.replace(chr(34), chr(34) * 2)}"'


def tsv_line(number: int, text: str) -> str:
    for symbol, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(symbol, written)
    return f"{number}\t{text}"


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(VALUES, st.sampled_from(["", "\n", "\r\n"]))
def test_any_text_comes_through(values: list[tuple[int, str]], end: str) -> None:
    expected = [[str(number), text] for number, text in values]
    for name, line in (("CSV", csv_line), ("TSV", tsv_line)):
        lines = [line(number, text) for number, text in values]
        single = decode_text(text_of(name), [(one_line + end).encode() for one_line in lines])
        assert rows(single) == expected and not single.bad
        many = decode_text(text_of(name, rows="many"), ["\n".join(lines).encode() + end.encode()])
        assert rows(many) == expected and not many.bad
    arrays = [json.dumps([number, text]) for number, text in values]
    assert (
        rows(decode_text(text_of("JSONCompactEachRow"), [a.encode() for a in arrays])) == expected
    )


@pytest.mark.parametrize("table_format", LINES)
def test_one_line_is_one_row(table_format: str) -> None:
    comma = b"," if table_format == "CSV" else b"\t"
    values = [b"1,a", b"2,b\n", b"3,c\r\n", b"4,d\r", b"", b"\n", b"5,e\n6,f", b"7,g\n\n", b"8"]
    values += [b"9,h,i", b"\xef\xbb\xbf1,k", b"10,l\r\r\n", b"11,m"]
    result = made(text_of(table_format), *(value.replace(b",", comma) for value in values))
    good = [["1", "a"], ["2", "b"], ["3", "c"], ["4", "d"]]
    assert result == [*good, ONE, ONE, ONE, ONE, PARSE, PARSE, PARSE, PARSE, ["11", "m"]]


def test_quoted_newlines_stay_in_their_message() -> None:
    values = [b'1,"a\nb"', b'2,"x', b'3,"c\n4,d"\r\n', b'5,e"\n', b'y"', b'6,"f\n"', b'7,"g"\n8,h']
    expected = [["1", "a\nb"], PARSE, ["3", "c\n4,d"], ["5", 'e"'], PARSE, ["6", "f\n"], ONE]
    assert made(text_of("CSV"), *values) == expected


def test_marks_of_rows_cannot_be_forged() -> None:
    values = [b'1,"a\n1,b"', b'_sluice_mark,"\n2,x"', b'"_sluice_mark"', b'2,"m0\n"', b"3,c"]
    assert made(text_of("CSV"), *values) == [
        ["1", "a\n1,b"],
        PARSE,
        PARSE,
        ["2", "m0\n"],
        ["3", "c"],
    ]


def test_escaped_newlines_of_tsv() -> None:
    values = [b"1\ta\\\nb", b"2\tx\\", b"3\ty\\\\", b"4\tz\\\\\nu", b"5\tb\\n"]
    assert made(text_of("TSV"), *values) == [["1", "a\nb"], PARSE, ["3", "y\\"], ONE, ["5", "b\n"]]


def test_an_open_array_of_tsv_does_not_swallow_the_next_message() -> None:
    text = text_of("TSV", ID, Column("a", "Array(String)"))
    values = [b"1\t['a", b"b']", b"2\t['x']", b"3\t[", b"4\t['y']"]
    assert made(text, *values) == [PARSE, PARSE, ["2", ["x"]], PARSE, ["4", ["y"]]]


def test_bad_rows_cost_no_neighbour() -> None:
    """A value of fixed length is looked for beyond its line; quotes are counted from there."""
    text = text_of("CSV", ID, Column("u", "UUID"), TEXT)
    uuid = b"61f0c404-5cb3-11e7-907b-a6006ad3dba0"
    good = [b'%d,%b,"q"' % (n, uuid) for n in range(300)]
    values = [b for pair in zip(good, [b'1,61f0,"x"'] * 300, strict=True) for b in pair]
    assert made(text, *values)[::2] == [[str(n), uuid.decode(), "q"] for n in range(300)]
    assert set(map(str, made(text, *values)[1::2])) == {PARSE}


def test_arrays_of_json_are_framed_by_their_brackets() -> None:
    values = [b'[1,"]["]', b'[2,"a"', b'"b"]', b"[3]", b'[4,"c"],', b'[5,"d"] [6,"e"]', b'{"id":7}']
    values += [
        b"",
        b' [8,\n"f"] ',
        b'[9,"g",1]',
        b'[10,"h"]]',
        b"[[11]]",
        b'[12,"\xff"]',
        b'[13,"k"]',
    ]
    expected: list[Any] = [["1", "]["], ONE, ONE, PARSE, ONE, ONE, ONE, ONE, ["8", "f"], PARSE]
    assert made(text_of("JSONCompactEachRow"), *values[:10]) == expected
    rest = made(text_of("JSONCompactEachRow"), *values[10:])
    assert rest[:2] == [ONE, PARSE] and rest[3] == ["13", "k"]


def test_names_come_with_the_message() -> None:
    text = with_lineage("CSVWithNames", ID, TEXT, Column("d", "UInt64", "DEFAULT", "id + 1"))
    values = [
        b"id,s\n1,a",
        b's,id\r\n"b\nc",2\r\n',
        b'"id"\n3',
        b"s,x,id\nq,9,4",
        b"id,_offset\n5,1",
    ]
    assert rows(decode_text(text, values)) == [
        ["1", "a", "2", "orders", 3, str(FIRST_OFFSET), 0],
        ["2", "b\nc", "3", "orders", 3, str(FIRST_OFFSET + 2), 0],
        ["3", "", "4", "orders", 3, str(FIRST_OFFSET + 4), 0],
        ["4", "q", "5", "orders", 3, str(FIRST_OFFSET + 6), 0],
        ["5", "", "6", "orders", 3, str(FIRST_OFFSET + 8), 0],
    ]


def test_wrong_names_are_dead_letters() -> None:
    values = [
        b"",
        b"id,s",
        b"zz\n1",
        b"id,id\n1,2",
        b"\xef\xbb\xbfid\n1",
        b"id\n1\n2",
        b"id\nx",
        b"id\n7",
    ]
    expected = [ONE, ONE, "no-column", PARSE, PARSE, ONE, PARSE, ["7", ""]]
    for table_format in ("CSVWithNames", "TSVWithNames"):
        given = [v.replace(b",", b"\t") if table_format[0] == "T" else v for v in values]
        assert made(text_of(table_format), *given) == expected
    refusing = text_of("CSVWithNames", unknown_fields="refuse")
    assert made(refusing, b"id,x\n1,2", b"id\n3") == ["unknown-field", ["3", ""]]


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (b"id=1\ts=a", ["1", "a"]),
        (b"s=a\tid=1\r\n", ["1", "a"]),
        (b"tskv\tid=1\ts=", ["1", ""]),
        (b"s=", ONE),
        (b"s=\\N", NULL),
        (b"id=\ts=a", PARSE),
        (b"id=256\tx=y", ["256", ""]),
        (b"s=a=b\\=c\t\\=s=7", ["0", "a=b=c"]),
        (b"s=a\\tb\\\nc\\\td", ["0", "a\tb\nc\td"]),
        (b"id=1\tid=2", PARSE),
        (b"x=1", "no-column"),
        (b"id=1\ts", PARSE),
        (b"id=1\t", PARSE),
        (b"id=1\\", PARSE),
        (b"\\id=1", PARSE),
        (b"id=-1\ts=a", RANGE),
        (b"\xef\xbb\xbfid=1", PARSE),
        (b"id=1\nid=2", ONE),
        (b"id=1\ns=a", ONE),
        (b"id=1\n\n", PARSE),
        (b"tskv", ONE),
        (b"", ONE),
    ],
)
def test_names_before_each_value(message: bytes, outcome: Any) -> None:
    good = b"id=5\ts=x"
    assert made(text_of("TSKV"), good, message, good) == [["5", "x"], outcome, ["5", "x"]]


def test_rows_of_equal_names_in_a_message() -> None:
    text = text_of("TSKV", rows="many")
    decoded = decode_text(text, [b"s=a\tid=1", b"id=1\nid=2\ts=b", b"s=\ntskv\ts=c\n"])
    assert rows(decoded) == [["1", "a"], ["0", ""], ["0", "c"]]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [(1, ONE)]


def test_blocks_of_several_headers_are_one_sorted_block() -> None:
    text = with_lineage(
        "TSVWithNames", sort=True, sorting_key="s, id", rows="many", partition_key="id % 2"
    )
    values = [b"id\ts\n5\tb\n4\ta", b"s\tid\na\t3", b"id\n9", b"id\ts"]
    decoded = decode_text(text, values)
    found = [[row[0], row[1], int(row[4]), row[5]] for row in rows(decoded)]
    first = FIRST_OFFSET
    assert found == [
        ["9", "", first + 4, 0],
        ["3", "a", first + 2, 0],
        ["4", "a", first, 1],
        ["5", "b", first, 0],
    ]
    assert decoded.offsets.tolist() == [offset for _, _, offset, _ in found]
    assert (decoded.clickhouse_partitions, decoded.messages) == (2, 3)
    assert decoded.empty == (first + 6,)


@pytest.mark.parametrize("text", ["-", "+", ".", "1e", "1.2.3", " ", "'1"])
@pytest.mark.parametrize("table_format", LINES)
def test_a_decimal_is_a_number(table_format: str, text: str) -> None:
    for type_text in ("Decimal(9, 2)", "Nullable(Decimal(18, 4))", "Decimal(40, 2)"):
        assert one(table_format, type_text, text.encode()) == PARSE


def test_blanks_and_single_quotes_are_no_part_of_a_decimal_in_csv() -> None:
    for cell in (b"1.5", b" 1.5 ", b"'1.5'", b'"1.5"'):
        assert one("CSV", "Decimal(9, 2)", cell) == "1.5"


@pytest.mark.parametrize("number", ["--1", "+-1"])
def test_floats_of_two_signs_stop_no_range(number: str) -> None:
    """Near the end of its text the engine reads them by other rules than elsewhere."""
    text = text_of("JSONEachRow", Column("a", "Float64"), TEXT)
    other = b'{"a":1,"s":"' + b"9" * 20 + b'"}'
    bad = b'{"a":%s,"s":"x"}' % number.encode()
    for values in ([bad], [bad, other], [other, bad], [bad, b"{", other, bad] + [other] * 50):
        found = made(text, *values)
        assert [found[i] for i, v in enumerate(values) if v == bad] == [PARSE] * values.count(bad)
        assert [v for v in found if isinstance(v, list)] == [[1, "9" * 20]] * values.count(other)


def test_words_about_a_value_of_two_lines_are_one_line() -> None:
    text = text_of("CSV", Column("a", "UInt8"), TEXT)
    decoded = decode_text(text, [b'"1\n2",x'])
    assert [bad.error.count("\n") for bad in decoded.bad] == [0]


@pytest.mark.parametrize("types", [["Int64"], ["Int64", "Int8"]])
def test_no_value_of_a_json_array_is_missing(types: list[str]) -> None:
    """The engine would make 0 of it, also of no value at all."""
    columns = [Column(f"c{place}", type_text) for place, type_text in enumerate(types)]
    text = text_of("JSONCompactEachRow", *columns)
    broken = [b"[]", b" [ ] ", b"[,]", b"[1,]", b"[,1]", b"[1, ,2]", b"[1 , ]"]
    whole = b"[1]" if len(types) == 1 else b"[1, 2]"
    outcomes = made(text, whole, *broken, whole)
    assert outcomes[1:-1] == ["not-one-row"] * len(broken)
    assert outcomes[0] == outcomes[-1] == (["1"] if len(types) == 1 else ["1", 2])


def test_rows_with_a_missing_value_among_many() -> None:
    text = text_of("JSONEachRow", ID, rows="many")
    assert made(text, b'{"id":1}{"id":}', b'[{"id":2},{"id":,"x":1}]', b'{"id": 3}') == [
        *("not-one-object", "not-one-object"),
        ["3"],
    ]
