"""The schemas of Avro and Protobuf that the tests of ClickHouse's sink for Kafka Connect use: their
values load as they are, or the refusal is in words.

Facts of its tests, written anew: github.com/ClickHouse/clickhouse-kafka-connect, src/testFixtures.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from google.protobuf import json_format

from sluice.core.load_spec import Column, Mapped
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.connect_support import made
from tests.decode.protobuf_support import message_class
from tests.decode.support import table

AT = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
AT_TEXT = "2023-11-14 22:13:20"
U = "550e8400-e29b-41d4-a716-446655440001"
DURATION = b"123456789123"


@dataclass(frozen=True)
class Field:
    """A field of a record beside its id.

    :param kind: its schema in Avro, its declaration in Protobuf.
    :param type: of its column.
    :param values: in the library's own form; `loads`: what a row shows, or why there is none; as
        the values if left out.
    :param types: messages of Protobuf that `kind` names.
    """

    name: str
    kind: Any
    type: str
    values: list[Any]
    loads: list[Any] | None = None
    types: str = ""


def logical(base: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def inner(name: str, /, **fields: Any) -> dict[str, Any]:
    return record(*fields.items(), name=name)


ITEM = inner("Item", name="string", qty="int")
LEVELS = inner(
    "L1",
    name="string",
    level2=inner("L2", value="int", level3=inner("L3", tag="string")),
)
DECIMAL = logical("bytes", "decimal", precision=10, scale=2)
DECIMAL_FIXED = logical("fixed", "decimal", name="dec", size=8, precision=18, scale=4)
STRING_BYTES = ["null", "string", "bytes"]
MIXED = "Variant(Int32, String)"
A, B = inner("TypeA", label="string"), inner("TypeB", count="int")

AVRO = (
    *(
        Field(name, name, kind, values)
        for name, kind, values in (
            ("string", "String", ["Alice", ""]),
            ("int", "Int32", [1, -(2**31)]),
            ("float", "Float32", [1.5]),
            ("double", "Float64", [99.99, 0.01]),
            ("boolean", "Bool", [True, False]),
        )
    ),
    Field("long", "long", "Int64", [1000, 2**63 - 1], ["1000", str(2**63 - 1)]),
    Field("bytes", "bytes", "String", [b"\0", b"ab"], ["\0", "ab"]),
    Field(
        "tags",
        {"type": "array", "items": ["null", "string"]},
        "Array(Nullable(String))",
        [["a", None, "b"], [None, None], []],
    ),
    Field("day", logical("int", "date"), "Date", [dt.date(2022, 1, 8)], ["2022-01-08"]),
    Field("amount", DECIMAL, "Decimal(10, 2)", [Decimal("1.00"), Decimal("3.21")], ["1", "3.21"]),
    Field("fixed", DECIMAL_FIXED, "Decimal(18, 4)", [Decimal("0.0100")], ["0.01"]),
    Field(
        "duration",
        logical("fixed", "duration", name="d", size=12),
        "String",
        [DURATION],
        [DURATION.decode()],
    ),
    Field(
        "items",
        {"type": "array", "items": ITEM},
        "Array(Tuple(name String, qty Int32))",
        [[{"name": "a", "qty": 1}, {"name": "b", "qty": 2}], []],
    ),
    Field(
        "level1",
        LEVELS,
        "Tuple(name String, level2 Tuple(value Int32, level3 Tuple(tag String)))",
        [{"name": "a", "level2": {"value": 1, "level3": {"tag": "x"}}}],
    ),
    Field(
        "metadata",
        {"type": "map", "values": inner("Meta", score="int", label="string")},
        "Map(String, Tuple(score Int32, label String))",
        [{"key1": {"score": 10, "label": "a"}, "key2": {"score": 1, "label": "b"}}, {}],
    ),
    Field(
        "details",
        inner("Details", name=["null", "string"], age=["null", "int"]),
        "Tuple(name Nullable(String), age Nullable(Int32))",
        [{"name": "Alice", "age": None}, {"name": None, "age": 30}, {"name": None, "age": None}],
    ),
    Field(
        "event",
        inner("Event", name="string", occurred=["null", logical("long", "timestamp-millis")]),
        "Tuple(name String, occurred Nullable(DateTime64(3, 'UTC')))",
        [{"name": "login", "occurred": AT}, {"name": "view", "occurred": None}],
        [{"name": "login", "occurred": f"{AT_TEXT}.000"}, {"name": "view", "occurred": None}],
    ),
    Field("millis", logical("long", "timestamp-millis"), "DateTime64(3)", [AT], [f"{AT_TEXT}.000"]),
    Field(
        "micros", logical("long", "timestamp-micros"), "DateTime64(6)", [AT], [f"{AT_TEXT}.000000"]
    ),
    Field(
        "maybe",
        ["null", logical("long", "timestamp-millis")],
        "Nullable(DateTime64(3))",
        [AT, None],
        [f"{AT_TEXT}.000", None],
    ),
    Field("time", logical("int", "time-millis"), "Int32", [dt.time(1)], [3_600_000]),
    Field("time_us", logical("long", "time-micros"), "Int64", [dt.time(1)], ["3600000000"]),
    Field(
        "time_of_day", logical("int", "time-millis"), "Time64(3)", [dt.time(1)], ["01:00:00.000"]
    ),
    Field("null_int", ["null", "int"], "Nullable(Int32)", [100, None]),
    Field("null_long", ["null", "long"], "Nullable(Int64)", [5, None], ["5", None]),
    Field("null_string", ["null", "string"], "Nullable(String)", ["Alice", None]),
    Field("uuid", logical("string", "uuid"), "UUID", [UUID(U)], [U]),
    Field("mixed", ["null", "string", "int"], MIXED, ["hello", None, 42]),
    Field("mixed_too", ["string", "int"], MIXED, ["hello", 42, 0]),
    Field(
        "three",
        ["null", "string", "int", "boolean"],
        "Variant(Bool, Int32, String)",
        [True, 1, "x"],
    ),
    # Both branches are the engine's String.
    Field(
        "content", STRING_BYTES, "Nullable(String)", ["hello", None, b"\1"], ["hello", None, "\1"]
    ),
    Field("union_in_text", ["string", "int"], "String", ["x", 5], ["x", "5"]),
    Field(
        "payload",
        [A, B],
        "Variant(Tuple(count Int32), Tuple(label String))",
        [{"label": "foo"}, {"count": 42}],
    ),
)

#: Of Protobuf, values as its JSON writes them.
PROTOBUF = (
    *(
        Field(name, name, kind, values)
        for name, kind, values in (
            ("string", "String", ["Alice"]),
            ("int32", "Int32", [1, -5]),
            ("float", "Float32", [1.5]),
            ("double", "Float64", [99.99]),
            ("bool", "Bool", [True, False]),
            ("uint32", "UInt32", [2**32 - 1]),
        )
    ),
    *(
        Field(
            f"wrapped_{kind.lower()}", f"google.protobuf.{name}Value", f"Nullable({kind})", values
        )
        for name, kind, values in (
            ("Int32", "Int32", [100, None]),
            ("UInt32", "UInt32", [10, None]),
            ("Float", "Float32", [1.5, None]),
            ("Double", "Float64", [11.11, None]),
            ("Bool", "Bool", [True, None]),
            ("String", "String", ["alpha", None, ""]),
        )
    ),
    Field("wrapped64", "google.protobuf.Int64Value", "Nullable(Int64)", [5, None], ["5", None]),
    Field("wrapped_u64", "google.protobuf.UInt64Value", "Nullable(UInt64)", [5, None], ["5", None]),
    Field("wrapped_bytes", "google.protobuf.BytesValue", "Nullable(String)", ["AQ=="], ["\1"]),
    Field("raw", "bytes", "String", ["AQ=="], ["\1"]),
    Field("long", "int64", "Int64", [1000], ["1000"]),
    Field(
        "tags",
        "repeated google.protobuf.StringValue",
        "Array(Nullable(String))",
        [["a", "b"], []],
    ),
    Field("day", "int32", "Date", [19000], ["2022-01-08"]),
    Field(
        "duration",
        "google.protobuf.Duration",
        "Tuple(seconds Int64, nanos Int32)",
        ["1.500s"],
        [{"seconds": "1", "nanos": 500_000_000}],
    ),
    Field(
        "items",
        "repeated Item",
        "Array(Tuple(name String, qty Int32))",
        [[{"name": "a", "qty": 1}, {"name": "b", "qty": 2}], []],
        types="message Item { string name = 1; int32 qty = 2; }",
    ),
    Field(
        "level1",
        "L1",
        "Tuple(name String, level2 Tuple(value Int32, level3 Tuple(tag String)))",
        [{"name": "a", "level2": {"value": 1, "level3": {"tag": "x"}}}],
        types="""message L3 { string tag = 1; } message L2 { int32 value = 1; L3 level3 = 2; }
        message L1 { string name = 1; L2 level2 = 2; }""",
    ),
    Field(
        "metadata",
        "map<string, Meta>",
        "Map(String, Tuple(score Int32, label String))",
        [{"key1": {"score": 10, "label": "a"}}, {}],
        types="message Meta { int32 score = 1; string label = 2; }",
    ),
    Field(
        "details",
        "Details",
        "Tuple(name Nullable(String), age Nullable(Int32))",
        [{"name": "Alice"}, {"age": 25}, {}],
        [{"name": "Alice", "age": None}, {"name": None, "age": 25}, {"name": None, "age": None}],
        "message Details { optional string name = 1; optional int32 age = 2; }",
    ),
    Field(
        "event",
        "Event",
        "Tuple(name String, occurred_at Nullable(DateTime64(3, 'UTC')))",
        [{"name": "login", "occurred_at": "2023-11-14T22:13:20Z"}, {"name": "logout"}],
        [
            {"name": "login", "occurred_at": f"{AT_TEXT}.000"},
            {"name": "logout", "occurred_at": None},
        ],
        "message Event { string name = 1; google.protobuf.Timestamp occurred_at = 2; }",
    ),
    Field(
        "created",
        "google.protobuf.Timestamp",
        "DateTime64(3)",
        ["2023-11-14T22:13:20Z"],
        [f"{AT_TEXT}.000"],
    ),
    Field(
        "created_us",
        "google.protobuf.Timestamp",
        "Nullable(DateTime64(6))",
        ["2023-11-14T22:13:20.000001Z", None],
        [f"{AT_TEXT}.000001", None],
    ),
    Field("time_of_day", "int64", "Int64", [3_600_000_000], ["3600000000"]),
    Field("maybe", "optional int32", "Nullable(Int32)", [100, None]),
    Field("maybe_long", "optional int64", "Nullable(Int64)", [100, None], ["100", None]),
    Field("maybe_name", "optional string", "Nullable(String)", ["Alice", None]),
    Field("uuid", "string", "UUID", [U]),
    Field(
        "deep",
        "repeated Deep",
        "Array(Tuple(l1 String, l2 Tuple(d Float64, l3 Tuple(i Int32, s String)), n Int32))",
        [[{"l1": "a", "l2": {"d": 1.1, "l3": {"i": 10, "s": "z"}}, "n": 100}], []],
        types="""message Third { int32 i = 1; string s = 2; }
        message Two { double d = 1; Third l3 = 2; }
        message Deep { string l1 = 1; Two l2 = 2; int32 n = 3; }""",
    ),
    Field(
        "with_array",
        "repeated Tagged",
        "Array(Tuple(id Int32, tags Array(String)))",
        [[{"id": 1, "tags": ["t1", "t2"]}, {"id": 2, "tags": []}], []],
        types="message Tagged { int32 id = 1; repeated string tags = 2; }",
    ),
    Field(
        "with_arrays",
        "repeated Outer",
        "Array(Tuple(l Int64, t Tuple(a Array(Tuple(v Int32)), name String), tags Array(String)))",
        [[{"l": 1000, "t": {"a": [{"v": 10}, {"v": 20}], "name": "foo"}, "tags": ["x"]}]],
        [[{"l": "1000", "t": {"a": [{"v": 10}, {"v": 20}], "name": "foo"}, "tags": ["x"]}]],
        """message V { int32 v = 1; } message Mid { repeated V a = 1; string name = 2; }
        message Outer { int64 l = 1; Mid t = 2; repeated string tags = 3; }""",
    ),
    Field(
        "with_map",
        "repeated Mapped",
        "Array(Tuple(id Int32, attributes Map(String, String)))",
        [[{"id": 100, "attributes": {"k1": "v1"}}, {"id": 200, "attributes": {}}], []],
        types="message Mapped { int32 id = 1; map<string, string> attributes = 2; }",
    ),
    Field(
        "either",
        "Two2",
        "Nullable(Tuple(label String))",
        [{"label": "foo"}, None],
        types="message Two2 { string label = 1; }",
    ),
    # A type that contains itself, of which the column wants no more than it has.
    Field(
        "address",
        "Address",
        "Tuple(city String)",
        [{"city": "Ulm", "alt": {"city": "Jena"}}],
        [{"city": "Ulm"}],
        "message Address { string city = 1; Address alt = 2; }",
    ),
    Field(
        "addresses",
        "Addresses",
        "Tuple(city String, alt Tuple(city String))",
        [{"city": "Ulm", "alt": {"city": "Jena"}}],
        ["cannot-parse"],
        "message Addresses { string city = 1; Addresses alt = 2; }",
    ),
    Field(
        "user",
        "User",
        "JSON",
        [{"email": "a@b"}],
        ["cannot-parse"],
        "message User { string email = 1; }",
    ),
)


def rows_of(one: Field) -> list[Any]:
    """What becomes of each message: a row with its id, or the code of its refusal."""
    refused = ("cannot-parse", "out-of-range")
    shown = one.values if one.loads is None else one.loads
    return [f"{s} {one.name}" if s in refused else [n, s] for n, s in enumerate(shown)]


@pytest.mark.parametrize("one", AVRO, ids=lambda one: one.name)
def test_fields_of_avro(one: Field) -> None:
    schema = record(("id", "int"), (one.name, one.kind), name="test.Row")
    number = SCHEMAS.add(schema)
    values = [
        framed(number, body(schema, {"id": n, one.name: v})) for n, v in enumerate(one.values)
    ]
    columns = (Column("id", "Int32"), Column(one.name, one.type))
    text = table(*columns, format="AvroConfluent", options=(("registry", URL),))
    assert made(text, values) == rows_of(one)


@pytest.mark.parametrize("one", PROTOBUF, ids=lambda one: one.name)
def test_fields_of_protobuf(one: Field) -> None:
    named = ("timestamp", "duration", "wrappers")
    imports = "".join(f'import "google/protobuf/{name}.proto";\n' for name in named)
    fields = f"int32 id = 1; {one.kind} {one.name} = 2;"
    text = f'syntax = "proto3";\n{imports}{one.types}\nmessage Row {{ {fields} }}'
    row = message_class(text)
    values = [
        json_format.ParseDict({"id": n, one.name: v}, row()).SerializeToString()
        for n, v in enumerate(one.values)
    ]
    columns = (Column("id", "Int32"), Column(one.name, one.type))
    options = (("message", "Row"), ("schema", text))
    assert made(table(*columns, format="Protobuf", options=options), values) == rows_of(one)


def test_a_oneof_fills_a_column_for_each_of_its_fields() -> None:
    schema = """syntax = "proto3"; message Row { int32 id = 1;
      oneof mixed { string mixed_string = 2; int32 mixed_int = 3; } }"""
    row = message_class(schema)
    some = [{"mixed_string": "hello"}, {}, {"mixed_int": 42}, {"mixed_int": 0}]
    values = [row(id=n, **one).SerializeToString() for n, one in enumerate(some)]
    columns = (
        Column("id", "Int32"),
        Column("mixed_string", "Nullable(String)"),
        Column("mixed_int", "Nullable(Int32)"),
    )
    options = (("message", "Row"), ("schema", schema))
    expected = [[n, one.get("mixed_string"), one.get("mixed_int")] for n, one in enumerate(some)]
    assert made(table(*columns, format="Protobuf", options=options), values) == expected


def test_messages_of_google_inside_of_others_are_read_by_a_mapping() -> None:
    """Only as fields of the message itself do they fill columns of what they mean."""
    schema = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
      import "google/protobuf/wrappers.proto";
      message Event { string name = 1; google.protobuf.Timestamp at = 2; }
      message Row { int32 id = 1; Event event = 2; repeated google.protobuf.StringValue tags = 3; }
      """
    event = {"name": "login", "at": {"seconds": int(AT.timestamp()), "nanos": 5_000_000}}
    values = [
        message_class(schema)(id=1, event=event, tags=[{"value": "a"}, {}]).SerializeToString()
    ]
    moment = "fromUnixTimestamp64Milli(event.at.seconds * 1000 + intDiv(event.at.nanos, 1000000))"
    made_of = f"CAST(tuple(event.name, {moment}), 'Tuple(name String, at DateTime64(3))')"
    text = table(
        Column("id", "Int32"),
        Column("event", "Tuple(name String, at DateTime64(3))"),
        Column("tags", "Array(String)"),
        format="Protobuf",
        options=(("message", "Row"), ("schema", schema)),
        mapping=(
            Mapped("event", "sql", made_of),
            Mapped("tags", "sql", "arrayMap(tag -> tag.value, tags)"),
        ),
        fields=(
            ("event", "Tuple(name String, at Tuple(seconds Int64, nanos Int32))"),
            ("tags", "Array(Tuple(value String))"),
        ),
    )
    assert made(text, values) == [[1, {"name": "login", "at": f"{AT_TEXT}.005"}, ["a", ""]]]
