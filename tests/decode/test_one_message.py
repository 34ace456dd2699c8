"""One message that is made on purpose, or by an odd program: it costs no neighbour, no partition
and no hours, and what it says is what is loaded, whatever stands beside it."""

from __future__ import annotations

import io
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Mapped
from sluice.decode.engine.dates import problem, says_year, without_year
from sluice.decode.engine.session import literal, run
from sluice.decode.schema.avro_files import AvroFiles
from sluice.decode.text.misread import exact_number
from sluice.decode.typed.decoder import TypedDecoder
from sluice.decode.typed.structures import normalised
from sluice.decode.values.json_schema import _compared
from sluice.producer import SQLBatchRequest
from sluice.producer.wire import varint
from tests.decode.avro_support import decode as decode_avro
from tests.decode.support import decode, rows, table
from tests.decode.text_support import decode_text, decoder_of, made, text_of

PARSE, RANGE = "cannot-parse", "out-of-range"
ID, TEXT = Column("id", "UInt64"), Column("s", "String")
#: What takes milliseconds; before, it took minutes, hours or days.
SECONDS_MAX = 20.0


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SECONDS_MAX


# Names that are not ASCII

FLOAT, WHOLE = Column("höhe", "Float64"), Column("größe", "Int64")


@pytest.mark.parametrize("beside", [[], [b'{"n":"x"}'], [b'{"n":1.0}']])
def test_a_column_whose_name_is_not_ascii_is_one(beside: list[bytes]) -> None:
    """Also where the message is written anew for another field, or beside one that is bad."""
    text = text_of("JSONEachRow", FLOAT, Column("n", "Int32"), WHOLE)
    values = ['{"höhe":NaN,"n":1.0}', '{"höhe":NaN,"n":1}', '{"größe":1.0}', '{"größe":"x"}']
    found = made(text, *(value.encode() for value in values), *beside)
    assert found[:4] == [["nan", 1, "0"], ["nan", 1, "0"], [0, 0, "1"], PARSE]


def test_what_was_tried_first_before_changes_no_row() -> None:
    """A repeat on another worker has to make the same bytes (R8)."""
    tuples = Column("t", "Tuple(a Int32, b Bool)")
    text = text_of("JSONEachRow", FLOAT, tuples, Column("n", "Int32"))
    value = '{"höhe":NaN,"t":{"a":1.0,"b":true}}'.encode()
    fresh, warned = decoder_of(text), decoder_of(text)
    decode(warned, [b'{"n":"x"}'])
    assert decode(fresh, [value]).native == decode(warned, [value]).native


def test_elements_whose_names_are_not_ascii() -> None:
    text = text_of("JSONEachRow", Column("t", "Tuple(`größe` Int32, b Bool)"))
    value = '{"t":{"größe":1e2,"b":"true"},"x":NaN}'.encode()
    assert made(text, value) == [[{"größe": 100, "b": True}]]


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("format_name", ["JSONEachRow", "JSONCompactEachRow"])
def test_names_inside_of_values_are_what_they_say(format_name: str, is_ascii: bool) -> None:
    """Python's json, and others', write what is not ASCII as escapes."""
    columns = (
        ID,
        Column("t", "Tuple(`größe` Int32, b Int32)"),
        Column("n.größe", "Array(Int32)"),
        Column("n.v", "Array(Int32)"),
        Column("ä", "Int32"),
        Column("an", "Array(Tuple(`é` String))"),
        TEXT,
    )
    value: dict[str, Any] = {"id": 1, "t": {"größe": 5, "b": 1}, "ä": 9, "an": [{"é": "x"}]}
    value |= {"s": 'a "\\größe": \n'}
    value |= {"n": [{"größe": 7, "v": 8}]}
    row: Any = value
    if format_name == "JSONCompactEachRow":
        value |= {"n.größe": [7], "n.v": [8]}
        row = [value[column.name] for column in columns]
    text = text_of(format_name, *columns)
    message = json.dumps(row, ensure_ascii=is_ascii).encode()
    expected = ["1", {"größe": 5, "b": 1}, [7], [8], 9, [{"é": "x"}], value["s"]]
    assert made(text, message, message.replace(b'"b"', b'"\\u0062"')) == [expected] * 2


def test_names_inside_of_values_beside_a_message_that_is_bad() -> None:
    text = text_of("JSONEachRow", ID, Column("t", "Tuple(`ä` Int32)"), rows="many")
    value, bad = b'[{"id":1,"t":{"\\u00e4":5}}]', b'{"id":2}{"id":"x"}'
    for values in ([value], [value, bad], [bad, value]):
        assert rows(decode_text(text, values)) == [["1", {"ä": 5}]]


def test_a_text_of_an_object_stays_as_it_is() -> None:
    """Whatever other columns the table has."""
    text = text_of("JSONEachRow", TEXT, Column("t", "Tuple(a Int32)"))
    value = b'{"s":{"\\u00e9":1,"a\\/b":2},"t":{"\\u0061":1}}'
    assert made(text, value) == [['{"\\u00e9":1,"a\\/b":2}', {"a": 1}]]


def test_a_path_through_names_that_are_not_ascii() -> None:
    mapping = (Mapped("s", "path", "adresse.straße"),)
    text = text_of("JSONEachRow", ID, TEXT, mapping=mapping)
    value = json.dumps({"id": 1, "adresse": {"straße": "Ulm"}}).encode()
    assert made(text, value) == [["1", "Ulm"]]


def test_names_that_are_none() -> None:
    text = text_of("JSONEachRow", ID, Column("t", "Tuple(a Int32)"))
    for name in (b"\\ud800", b"\\u00", b'a\\"b', b"\\x"):
        (found,) = made(text, b'{"id":1,"t":{"%b":2,"a":3}}' % name)
        assert found in (["1", {"a": 3}], PARSE)


def test_a_value_that_debezium_does_not_have() -> None:
    text = text_of("JSONEachRow", ID, Column("größe", "String"), envelope="debezium")
    after = '{"id":1,"größe":"__debezium_unavailable_value"}'
    assert made(text, f'{{"op":"u","after":{after}}}'.encode()) == ["unavailable-value"]


# Time


@pytest.mark.parametrize("count", [9, 40, 300_000])
def test_words_of_a_date_without_end(count: int) -> None:
    text = text_of("JSONEachRow", ID, Column("at", "DateTime64(3)"))
    with soon():
        assert problem("mon" * count, 3) != ""
        assert made(text, b'{"id":1,"at":"%s"}' % (b"mon" * count)) == [PARSE]


@pytest.mark.parametrize("text", ["mon " * 20, "x" * 30, "1 " * 40, "satmonjan 5 10:30 " * 3])
@pytest.mark.parametrize("year", ["", " 2026-01-02 10:00:00", " 5 Jan 2026"])
def test_a_long_text_of_a_date_is_judged_as_sql_judges_it(text: str, year: str) -> None:
    (lacks,) = run(f"SELECT {without_year(literal(text + year))}", "TSV").bytes().split()
    assert says_year(text + year) is not bool(int(lacks))


@pytest.mark.parametrize(
    "value",
    [
        b'"' + b'\\"' * 300_000,
        b'"' + b'\\"' * 300_000 + b"\\",
        b'{"zz":' + b"0" * 600_000 + b"x}",
        b'{"id":' + b"1" * 600_000 + b"x}",
        b'{"s":"' + b"\\\\" * 300_000,
        b'{"t":{"\\u0061":1},"x":"' + b'\\"' * 300_000,
        b'{"t":{"\\u0061":1},"id":01x,"x":"' + b'\\"' * 300_000 + b'"}',
    ],
    ids=["quotes", "and a backslash", "zeros", "ones", "backslashes", "escapes", "no JSON"],
)
@pytest.mark.parametrize("type_text", ["UInt64", "Variant(Decimal(9, 2), String)"])
def test_a_message_of_a_megabyte_that_is_none(value: bytes, type_text: str) -> None:
    text = text_of("JSONEachRow", Column("id", type_text), TEXT, Column("t", "Tuple(a Int32)"))
    with soon():
        assert len(decode_text(text, [value, b'{"id":1,"s":"a"}']).bad) == 1


def test_a_number_of_a_million_digits() -> None:
    with soon():
        assert exact_number("1" * 1_000_000 + "x") is None
        assert exact_number("1" * 1_000_000) == (1_000_000, 0)


@pytest.mark.parametrize(
    ("format_name", "value"),
    [
        ("CSVWithNames", b",".join([b"id"] * 200_000) + b"\n1"),
        ("CSVWithNames", b'"' + b"\n" * 1_000_000),
        ("TSKV", b"id=1\ts=a\n" * 100_000),
    ],
    ids=["names", "lines", "rows"],
)
def test_a_head_of_a_megabyte(format_name: str, value: bytes) -> None:
    text = text_of(format_name, ID, TEXT, rows="many")
    with soon():
        decoded = decode_text(text, [value])
    assert decoded.rows == (100_000 if format_name == "TSKV" else 0)
    assert len(decoded.bad) == (format_name != "TSKV")


@pytest.mark.parametrize(
    ("format_name", "value", "good"),
    [
        ("JSONEachRow", b"{}" * 2_000_000, b'{"id":1,"s":"a"}'),
        ("JSONCompactEachRow", b'[1,"a"]' * 1_100_000, b'[1,"a"]'),
        ("CSV", b"1\n" * 1_100_000, b"1,a"),
        ("TSV", b"1\ta\n" * 1_100_000, b"1\ta"),
    ],
)
def test_a_message_of_millions_of_rows(format_name: str, value: bytes, good: bytes) -> None:
    text = text_of(format_name, ID, TEXT, rows="many")
    with soon():
        decoded = decode_text(text, [good, value, good])
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [(1, PARSE)]
    assert "over 1,048,576 rows" in decoded.bad[0].error
    assert rows(decoded) == [["1", "a"]] * 2


# Exceptions of Python


@pytest.mark.parametrize("depth", [90, 200, 480, 600, 900, 1000])
def test_a_value_that_is_deep(depth: int) -> None:
    for name in ("id", "zz"):
        value = b'{"%b":%b%b,"s":"a"}' % (name.encode(), b"[" * depth, b"]" * depth)
        found = made(text_of("JSONEachRow", ID, TEXT), value, b'{"id":1,"s":"a"}')
        assert found[1] == ["1", "a"]
        assert found[0] == (PARSE if name == "id" else ["0", "a"]) or depth > 480


@pytest.mark.parametrize("number", ["1e9999999999999999999", "1e-9999999999999999999"])
def test_an_exponent_that_nothing_holds(number: str) -> None:
    text = text_of("JSONEachRow", ID, Column("at", "DateTime64(3)"))
    neighbour = b'{"id":1,"at":1767225600000000000}'
    value = b'{"id":2,"at":%s}' % number.encode()
    for beside in ([], [neighbour]):
        (found, *_) = made(text, value, *beside)
        assert found in (
            (PARSE, RANGE) if number[2] != "-" else (["2", "1970-01-01 00:00:00.000"], PARSE)
        )


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e400", "1" + "0" * 400])
def test_a_number_that_a_schema_cannot_divide(value: str) -> None:
    from jsonschema.validators import Draft7Validator

    validator = Draft7Validator({"properties": {"p": {"multipleOf": 0.01}}})
    fault = _compared(validator, json.loads(f'{{"p":{value}}}'), "schema 7")
    assert fault is not None and "schema 7" in fault.error


@pytest.mark.parametrize("wrong", [{"minimum": "5"}, {"pattern": "("}])
def test_a_schema_that_is_none_inside(wrong: dict[str, Any]) -> None:
    from jsonschema.validators import Draft7Validator

    validator = Draft7Validator({"properties": {"p": wrong}})
    for document in ({"p": 1}, {"p": "x"}):
        fault = _compared(validator, document, "schema 7")
        assert fault is None or fault.reason in (PARSE, "breaks-schema")


def avro_named(name: str) -> bytes:
    """A file whose schema has a field of this name."""
    fields = [{"name": "id", "type": "long"}, {"name": "other", "type": "long"}]
    schema, stream = {"type": "record", "name": "r", "fields": fields}, io.BytesIO()
    fastavro.writer(stream, schema, [{"id": 1, "other": 2}])
    raw = stream.getvalue()
    begin = raw.index(b'"other"')
    schema_begin = raw.index(b"{")
    schema_end = raw.index(b"]}", begin) + 2
    named = raw[schema_begin:schema_end].replace(b'"other"', json.dumps(name).encode())
    before = varint((schema_end - schema_begin) << 1)
    assert raw[schema_begin - len(before) : schema_begin] == before
    head = raw[: schema_begin - len(before)]
    return head + varint(len(named) << 1) + named + raw[schema_end:]


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_a_name_that_the_engine_reads_as_another_one(name: str) -> None:
    facts = table(ID, format="Avro", rows="many")
    decoder = TypedDecoder(facts, AvroFiles(facts))
    decoded = decode_avro(decoder, [avro_named(name), avro_named("other")])
    assert [bad.reason for bad in decoded.bad] == [PARSE]
    assert rows(decoded) == [["1"]]


# Rows that nobody may miss, and types that nobody may name


@pytest.mark.parametrize(
    "value",
    [
        b'id,x"y\n1,a"b\n2,c\n3,d',
        b'id,x"y\n1,a"b',
        b'id,x"y\n1,a',
        b"id,s\r1,a\n2,b",
        b'id,"s\n1,a\n2,b',
        b'id,"s"x\n1,a\n2,b',
        b'id,"a\nb\n1,a\n2,"b',
    ],
)
@pytest.mark.parametrize("how_many", ["one", "many"])
def test_a_line_of_names_takes_no_rows_for_names(value: bytes, how_many: str) -> None:
    text = text_of("CSVWithNames", ID, TEXT, rows=how_many)
    decoded = decode_text(text, [value, b"id,s\n7,g"])
    assert [bad.index for bad in decoded.bad] == [0]
    assert rows(decoded) == [["7", "g"]]


def test_a_name_of_several_lines_is_one() -> None:
    text = text_of("CSVWithNames", ID, Column("a\nb", "String"), rows="many")
    assert made(text, b'id,"a\nb"\n1,x') == [["1", "x"]]
    assert decode_text(text, [b'id,"a\nb"']).rows == 0


def test_a_name_says_no_type() -> None:
    hidden = "x\tAggregateFunction(groupBitmap, UInt32)\t"
    assert normalised(((hidden, "UInt8"), ("b", "Int8"))) == ((hidden, "UInt8"), ("b", "Int8"))
    with pytest.raises(TerminalError):
        normalised((("x", "AggregateFunction(groupBitmap, UInt32)"),))


def test_more_shapes_than_a_process_may_have_files() -> None:
    """As of writers who name only the columns that they have."""
    names = [f"c{number}" for number in range(9)]
    columns = (ID, *(Column(name, "Nullable(Int64)") for name in names))
    text = table(*columns, format="SQLBatchRequest", rows="many")
    values = []
    for shape in range(400):
        some = [name for bit, name in enumerate(names) if shape >> bit & 1]
        marks = ", ".join("?" * (1 + len(some)))
        statement = f"INSERT INTO t ({', '.join(['id', *some])}) VALUES ({marks})"
        row = [shape, *[1] * len(some)]
        values.append(SQLBatchRequest(table="t", sql=statement, rows=[row]).encode())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (files + 60, before[1]))
    try:
        decoded = decode_text(text, values)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not decoded.bad
    assert [int(row[0]) for row in rows(decoded)] == list(range(400))


# Values that would be others

TIME_WRAPS = ["2147483648", "4294967301", str(2**63), str(2**64 + 5), "9" * 5000, "1e10", "1e300"]


@pytest.mark.parametrize("value", TIME_WRAPS)
@pytest.mark.parametrize(
    ("type_text", "shown"),
    [
        ("Time", "{}"),
        ("Nullable(Time)", "{}"),
        ("Array(Time)", "[1,{}]"),
        ("Tuple(x Time)", '{{"x":{}}}'),
        ("Tuple(x Time, at DateTime)", '{{"x":{},"at":"2026-01-02 03:04:05"}}'),
        ("Time64(0)", "{}"),
        ("Time64(3)", "{}"),
        ("Time64(9)", "{}"),
        ("Map(String, Time)", '{{"a":{}}}'),
    ],
)
def test_a_number_in_a_time_of_day_does_not_wrap(value: str, type_text: str, shown: str) -> None:
    text = text_of("JSONEachRow", ID, Column("t", type_text))
    if type_text in ("Time64(3)", "Time64(9)") and value in ("2147483648", "4294967301", "1e10"):
        return  # it counts the last digits
    for sign in ("", "-"):
        message = f'{{"id":1,"t":{shown.format(sign + value)}}}'.encode()
        (found,) = made(text, message)
        assert found in (PARSE, RANGE)


def test_times_of_day_that_are_some() -> None:
    text = text_of("JSONEachRow", ID, Column("t", "Time"), Column("u", "Time64(3)"))
    message = b'{"id":1,"t":3599,"u":"12:34:56.789"}'
    assert made(text, message) == [["1", "00:59:59", "12:34:56.789"]]


@pytest.mark.parametrize(
    "types",
    [
        "Int64, DateTime",
        "Int64, DateTime64(3)",
        "Int8, DateTime64(3), Decimal(9, 2)",
        "UInt8, DateTime",
    ],
)
@pytest.mark.parametrize("value", ['"1.5"', '"12.30"', '"0.10"', "1.5"])
def test_what_no_type_of_a_variant_takes_is_no_day_of_this_year(types: str, value: str) -> None:
    text = text_of("JSONEachRow", ID, Column("v", f"Variant({types})"))
    (found,) = made(text, b'{"id":1,"v":%b}' % value.encode())
    if isinstance(found, list):  # as the Decimal that it is
        assert float(found[1]) == float(value.strip('"'))
    else:
        assert found in (PARSE, RANGE)


@pytest.mark.parametrize("value", ["12", '"12"', "-7"])
def test_a_number_of_a_variant(value: str) -> None:
    text = text_of("JSONEachRow", ID, Column("v", "Variant(Int64, DateTime)"))
    (found,) = made(text, b'{"id":1,"v":%b}' % value.encode())
    assert str(found[1]) == value.strip('"')


@pytest.mark.parametrize(
    ("types", "value", "expected"),
    [
        ("Int64, Float64", "1.5", 1.5),
        ("Int64, Float64", "-2.25", -2.25),
        ("Int64, String", '"1.5"', "1.5"),
        ("Int64, Decimal(9, 2)", "1.5", "1.5"),
        ("Bool, Int64", "5", "5"),
        ("Bool, String", '"007"', "007"),
        ("Time, UInt64", "123456789", "123456789"),
        ("String, Time64(3)", '"123456789012345"', "123456789012345"),
        ("Array(Float64), Array(Int8)", "[1.5]", [1.5]),
    ],
)
def test_what_one_type_of_a_variant_takes(types: str, value: str, expected: Any) -> None:
    text = text_of("JSONEachRow", ID, Column("v", f"Variant({types})"))
    assert made(text, b'{"id":1,"v":%b}' % value.encode()) == [["1", expected]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("a", "1.5"),
        ("a", '"1.5"'),
        ("a", "-0.5"),
        ("a", "1e-1"),
        ("ar", "[1.5]"),
        ("b", "2"),
        ("t", "4294967301"),
        ("i", "1e30"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "[{}]", '{{"x":{}}}'])
def test_paths_of_a_json_type_cut_nothing(field: str, value: str, around: str) -> None:
    kind = "JSON(a Int8, u UInt64, ar Array(Int8), b Bool, t Time, i Int256)"
    types = {"{}": kind, "[{}]": f"Array({kind})", '{{"x":{}}}': f"Tuple(x {kind})"}
    text = text_of("JSONEachRow", ID, Column("j", types[around]))
    inner = f'{{"{field}":{value}}}'
    (found,) = made(text, f'{{"id":1,"j":{around.format(inner)}}}'.encode())
    assert found in (PARSE, RANGE)


def test_paths_of_a_json_type_that_are_fine() -> None:
    text = text_of("JSONEachRow", ID, Column("j", "JSON(a Int8, b Bool, i Int256)"))
    (found,) = made(text, b'{"id":1,"j":{"a":-7,"b":1,"i":12}}')
    assert found[1] == {"a": -7, "b": True, "i": "12"}


@pytest.mark.parametrize(
    "value", ["1e15", "1e18", "1000000000000000.0", "9007199254740992.0", "1234567890123456.0"]
)
def test_integers_of_paths_that_are_written_as_floats(value: str) -> None:
    text = text_of("JSONEachRow", ID, Column("j", "JSON(u UInt64, b Bool)"))
    (found,) = made(text, b'{"id":1,"j":{"u":%b,"b":1.0}}' % value.encode())
    assert found[1] == {"u": str(int(float(value))), "b": True}


@pytest.mark.parametrize(
    "value", ["1" + "0" * 31 + "e9", "34028235699999999999999999999999999999e1"]
)
@pytest.mark.parametrize("beside", [[], [b'{"id":"x"}']])
def test_a_float_of_many_digits_and_a_small_exponent(value: str, beside: list[bytes]) -> None:
    text = text_of("JSONEachRow", ID, Column("f", "Float32"))
    assert made(text, b'{"id":1,"f":%b}' % value.encode(), *beside)[0] == RANGE


def test_words_and_signs_in_arrays_of_csv() -> None:
    text = text_of("CSV", ID, Column("f", "Array(Nullable(Float64))"))
    assert made(text, b'1,"[nan,NULL,1,NaN,inf]"') == [["1", ["nan", None, 1, "nan", "inf"]]]
    wide = text_of("JSONEachRow", ID, Column("i", "Int256"))
    assert made(wide, b'{"id":1,"i":-0}', b'{"id":1,"i":-5}') == [["1", "0"], ["1", "-5"]]
