"""Values of several types: unions of Avro, oneofs of Protobuf, documents as text; into Variant,
Dynamic and JSON, and into columns of one type."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.load_spec import Column
from sluice.decode.engine.conversions import member_for
from sluice.decode.engine.types import parse_type
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.connect_support import made
from tests.decode.protobuf_support import message_class
from tests.decode.support import table


def one_column(message: Any) -> Any:
    return message[0] if isinstance(message, list) else message


def avro(kind: Any, values: list[Any], type_text: str, **more: Any) -> list[Any]:
    schema = record(("a", kind))
    number = SCHEMAS.add(schema)
    text = table(
        Column("a", type_text), format="AvroConfluent", options=(("registry", URL),), **more
    )
    raw = [framed(number, body(schema, {"a": value})) for value in values]
    return [one_column(one) for one in made(text, raw)]


POINT = {
    "type": "record",
    "name": "shop.Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "string"]}],
}
COUNT = {"type": "record", "name": "shop.Count", "fields": [{"name": "n", "type": "int"}]}
UNION = ["null", {"type": "array", "items": "int"}, "int", "string", POINT, COUNT]
SAID = [
    None,
    [1, 2],
    5,
    "s",
    ("shop.Point", {"x": 1, "y": "a"}),
    ("shop.Count", {"n": 3}),
]
KINDS = "Array(Int32), Int32, String, Tuple(n Int32), Tuple(x Int32, y Nullable(String))"
BAD, NULL = "cannot-parse a", "null-in-column a"


@pytest.mark.parametrize(
    ("type_text", "becomes"),
    [
        (f"Variant({KINDS})", [None, [1, 2], 5, "s", {"x": 1, "y": "a"}, {"n": 3}]),
        ("Dynamic", [None, [1, 2], 5, "s", {"x": 1, "y": "a"}, {"n": 3}]),
        (
            "Variant(Array(Int64), String, Tuple(x Int64, y Nullable(String)), UInt8)",
            [None, ["1", "2"], 5, "s", {"x": "1", "y": "a"}, BAD],
        ),
        ("Variant(Int64, String)", [None, BAD, "5", "s", BAD, BAD]),
        ("String", [NULL, BAD, "5", "s", BAD, BAD]),
        ("Nullable(String)", [None, BAD, "5", "s", BAD, BAD]),
        ("Int16", [NULL, BAD, 5, BAD, BAD, BAD]),
        ("Array(String)", [NULL, ["1", "2"], BAD, BAD, BAD, BAD]),
        ("Tuple(x Int8, y String)", [NULL, BAD, BAD, BAD, {"x": 1, "y": "a"}, BAD]),
    ],
)
def test_a_union_of_avro(type_text: str, becomes: list[Any]) -> None:
    assert avro(UNION, SAID, type_text) == becomes


def test_a_union_that_is_null_is_the_default_where_it_may() -> None:
    assert avro(UNION, [None, "s"], "String", on_null="default") == ["", "s"]


def test_values_of_one_type_become_one_of_several() -> None:
    assert avro("int", [5, 500], "Variant(String, UInt8)") == [5, "out-of-range a"]
    assert avro(["null", "int"], [5, None], "Variant(Int64, String)") == ["5", None]
    assert avro("float", [0.5], "Variant(Float64, String)") == [0.5]
    assert avro("boolean", [True], "Variant(Int64, String)") == [BAD]
    nullable = "Variant(Int8, Tuple(x Int64, y Nullable(String)))"
    assert avro(["null", POINT], [None, {"x": 1, "y": None}], nullable) == [
        None,
        {"x": "1", "y": None},
    ]


@pytest.mark.parametrize(
    ("members", "natural", "chosen"),
    [
        ("Int128, Int32, Int64", "Int16", "Int32"),
        ("Int8, UInt16", "Int64", "UInt16"),
        ("Float32, String", "Float64", None),
        ("Decimal(18, 4), String", "Decimal(9, 2)", "Decimal(18, 4)"),
        ("Decimal(9, 4), String", "Decimal(9, 2)", None),
        ("DateTime64(3), String", "DateTime", "DateTime64(3)"),
        ("DateTime64(3), String", "DateTime64(6)", None),
        ("Date32, String", "Date", "Date32"),
        ("String, UInt8", "Enum8('a' = 1)", "String"),
        ("Array(Int64), Array(String)", "Array(Int32)", "Array(Int64)"),
        ("Array(Nullable(Int64)), Int8", "Array(Nullable(Int32))", "Array(Nullable(Int64))"),
        ("Array(Int64), Int8", "Array(Nullable(Int32))", None),
        ("Map(String, Int64), Int8", "Map(String, Int32)", "Map(String, Int64)"),
        ("Tuple(b Int64, a String), Int8", "Tuple(a String, b Int32)", "Tuple(b Int64, a String)"),
        ("Tuple(b Int64), Int8", "Tuple(a String, b Int32)", None),
        ("LowCardinality(String), Int8", "String", "LowCardinality(String)"),
        ("Int64, String", "Nullable(Int64)", "Int64"),
    ],
)
def test_which_type_of_a_variant_takes_a_value(
    members: str, natural: str, chosen: str | None
) -> None:
    found = member_for(parse_type(f"Variant({members})"), parse_type(natural))
    assert (found and found.text) == chosen


PROTO = """syntax = "proto3";
message Part { int32 a = 1; string b = 2; }
message Row {
  int32 id = 1;
  oneof said { string text = 2; int64 number = 3; Part part = 4; double share = 5; }
  oneof name { string first = 6; string last = 7; }
  string document = 8;
}"""
Row: Any = message_class(PROTO)


def protobuf(messages: list[Any], columns: dict[str, str], **more: Any) -> list[Any]:
    named = (Column(name, kind) for name, kind in columns.items())
    options = (("message", "Row"), ("schema", PROTO))
    text = table(*named, format="Protobuf", options=options, **more)
    return made(text, [message.SerializeToString() for message in messages])


MESSAGES = [
    Row(id=1, text=""),
    Row(id=2, number=5),
    Row(id=3, part={"a": 1, "b": "z"}),
    Row(id=4, share=0.5, last="x"),
    Row(id=5),
]


@pytest.mark.parametrize(
    ("type_text", "becomes"),
    [
        ("Dynamic", ["", "5", {"a": 1, "b": "z"}, 0.5, None]),
        (
            "Variant(Float64, Int64, String, Tuple(a Int32, b String))",
            ["", "5", {"a": 1, "b": "z"}, 0.5, None],
        ),
        ("Nullable(String)", ["", "5", "cannot-parse said", "0.5", None]),
    ],
)
def test_a_oneof_fills_a_column_of_its_name(type_text: str, becomes: list[Any]) -> None:
    columns = {"id": "Int32", "said": type_text, "name": "Nullable(String)"}
    found = protobuf(MESSAGES, columns)
    assert [one if isinstance(one, str) else one[1] for one in found] == becomes
    assert [one[2] for one in found if isinstance(one, list)][-2:] == ["x", None]
    if type_text == "Dynamic":
        assert protobuf(MESSAGES, columns, unknown_fields="refuse") == found


def test_a_oneof_and_its_fields_are_columns_at_once() -> None:
    columns = {"said": "Dynamic", "text": "String", "number": "Nullable(Int64)"}
    assert protobuf(MESSAGES[:2], columns) == [["", "", None], ["5", "", "5"]]


DOCUMENTS = ['{"k":{"n":[1,2]},"s":"2026-02-30"}', "{}", "[1]", "x", '{"k":', '{"k":1,"k":2}']
PARSED: list[Any] = [{"k": {"n": ["1", "2"]}, "s": "2026-02-30"}, {}]


def test_a_text_of_json_fills_a_json_column() -> None:
    for type_text in ("JSON", "Nullable(JSON)", "JSON(max_dynamic_paths=4)"):
        assert avro("string", DOCUMENTS, type_text) == PARSED + [BAD] * 4
    assert avro(["null", "string"], [None, DOCUMENTS[0]], "Nullable(JSON)") == [None, PARSED[0]]
    found = protobuf([Row(document=one) for one in DOCUMENTS[:3]], {"document": "JSON"})
    assert found == [[PARSED[0]], [{}], "cannot-parse document"]


def test_paths_with_types_of_their_own_take_no_text() -> None:
    # The engine would take 0 of "" there, and cut what is too long.
    assert avro("string", ['{"k":""}'], "JSON(k Int32)") == [BAD]


def test_in_json_a_text_of_an_object_is_this_object() -> None:
    values = [
        b'{"a":"{\\"k\\":\\"\\u00e9\\"}"}',
        '{"a":"{\\"k\\":\\"é\\"}"}'.encode(),
        b'{"a":{"k":1}}',
        b'{"a":"x"}',
        b'{"a":"[1]"}',
    ]
    text = table(Column("a", "JSON"))
    assert made(text, values) == [[{"k": "é"}], [{"k": "é"}], [{"k": "1"}], BAD, BAD]
    dated = table(Column("a", "JSON(d DateTime)"))
    assert made(dated, [b'{"a":"{\\"d\\":\\"12\\"}"}', b'{"a":"{\\"d\\":12}"}'])[0] == BAD


def test_null_fills_a_dynamic() -> None:
    columns = (Column("d", "Dynamic"), Column("l", "Array(Dynamic)"), Column("n", "Array(Int8)"))
    values = [
        b'{"d":null,"l":[null,1,"x"],"n":[1]}',
        b'{"d":1,"n":null}',
        b'{"d":null,"l":null}',
        b'{"d":2,"n":[null]}',
    ]
    expected = [[None, [None, "1", "x"], [1]], "null-in-column n", "null-in-column l"]
    assert made(table(*columns), values) == [*expected, "null-in-column n"]
    assert made(table(*columns), values[:1]) == expected[:1]
    text = table(Column("d", "Dynamic"), Column("i", "Int8"), format="CSV")
    assert made(text, [b"\\N,1", b"5,2"]) == [[None, 1], ["5", 2]]
