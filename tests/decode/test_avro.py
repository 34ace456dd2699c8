"""Avro with a registry's header, and single objects: values, boundaries, hostile neighbours."""

from __future__ import annotations

import json
import struct
import uuid
from typing import Any

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.messages.decoded import Decoded
from sluice.decode.schema.avro import AvroSingleObject, fingerprint
from sluice.decode.schema.avro_schema import parse_avro
from sluice.decode.schema.headed import UnsupportedSchemaError
from sluice.decode.typed.decoder import TypedDecoder
from tests.decode.avro_support import (
    SCHEMAS,
    body,
    confluent,
    decode,
    framed,
    record,
)
from tests.decode.support import FIRST_OFFSET, rows, table


def bad(decoded: Decoded) -> list[tuple[int, str, str]]:
    return [(one.index, one.reason, one.column) for one in decoded.bad]


ORDER = record(
    ("id", "long"), ("name", ["null", "string"]), ("tags", {"type": "array", "items": "string"})
)
ORDERS = SCHEMAS.add(ORDER)
COLUMNS = (
    Column("id", "UInt64"),
    Column("name", "Nullable(String)"),
    Column("tags", "Array(String)"),
)


def order(number: int) -> bytes:
    name = None if number % 3 == 0 else f"n{number}"
    return framed(ORDERS, body(ORDER, {"id": number, "name": name, "tags": ["t"] * (number % 4)}))


@pytest.fixture(scope="module")
def orders() -> TypedDecoder:
    """A text that says which schemas there are: all of this module's."""
    return confluent(*COLUMNS, schemas=tuple(range(1000, 2000)))


def test_messages_become_rows_in_their_order(orders: TypedDecoder) -> None:
    decoded = decode(orders, [order(number) for number in range(1200)])
    assert decoded.bad == ()
    assert [row[0] for row in rows(decoded)] == [str(number) for number in range(1200)]
    assert rows(decoded)[4] == ["4", "n4", []]
    assert decoded.offsets.tolist() == [FIRST_OFFSET + 2 * number for number in range(1200)]


def test_schemas_of_one_range_keep_the_order() -> None:
    wider = record(("name", "string"), ("id", "int"), ("extra", "double"))
    other = SCHEMAS.add(wider)
    decoder = confluent(*COLUMNS)
    values = [
        order(number)
        if number % 3
        else framed(other, body(wider, {"name": "w", "id": number, "extra": 1.5}))
        for number in range(100)
    ]
    decoded = decode(decoder, values)
    assert decoded.bad == ()
    assert [int(row[0]) for row in rows(decoded)] == list(range(100))
    assert rows(decoded)[3] == ["3", "w", []]


HOSTILE = {
    b"": "cannot-parse",
    b"\0": "cannot-parse",
    struct.pack(">BI", 0, ORDERS): "cannot-parse",
    b"\x01" + order(1)[1:]: "cannot-parse",
    order(1) + b"\0": "cannot-parse",
    order(1)[:-1]: "cannot-parse",
    order(1) + order(2)[5:]: "cannot-parse",
    framed(999_999, b"\0\0\0"): "unknown-schema",
    framed(ORDERS, b"\x01" + order(1)[6:]): "out-of-range",
    framed(ORDERS, b"\x02\x04\x00"): "cannot-parse",
    framed(ORDERS, b"\x02\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"): "cannot-parse",
    framed(ORDERS, b"\x02\x00" + b"\xfe\xff\xff\xff\x0f"): "cannot-parse",
    framed(ORDERS, b"\x80" * 11): "cannot-parse",
    framed(ORDERS, b"\x02\x02\xff\xff\xff\xff\x0f"): "cannot-parse",
    b'{"id":1}\n{"id":2}': "cannot-parse",
}


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_message_costs_no_neighbour(orders: TypedDecoder, value: bytes) -> None:
    for places in ((0,), (99,), (40, 41), range(0, 100, 2)):
        values = [value if n in places else order(n) for n in range(100)]
        decoded = decode(orders, values)
        reason = HOSTILE[value]
        assert [(one.index, one.reason) for one in decoded.bad] == [(n, reason) for n in places]
        assert [int(row[0]) for row in rows(decoded)] == [n for n in range(100) if n not in places]


def test_a_message_of_ten_megabytes(orders: TypedDecoder) -> None:
    large = framed(ORDERS, body(ORDER, {"id": 7, "name": "x" * 10_000_000, "tags": ["t"] * 99_999}))
    decoded = decode(orders, [order(1), large, large[:-1], order(2)])
    assert [one.index for one in decoded.bad] == [2]
    found = rows(decoded)
    assert [row[0] for row in found] == ["1", "7", "2"]
    assert (len(found[1][1]), len(found[1][2])) == (10_000_000, 99_999)


def test_a_message_cannot_hold_a_mark(orders: TypedDecoder) -> None:
    """Marks are not known outside; even a true one inside a string moves nothing."""
    from sluice.decode.messages.marks import secret

    def mark(place: int) -> bytes:
        return secret() + place.to_bytes(4, "little")

    schema = record(
        ("id", "long"), ("name", "bytes"), ("tags", {"type": "array", "items": "string"})
    )
    number = SCHEMAS.add(schema)
    forged = [
        framed(number, body(schema, {"id": n, "name": mark(n) + mark(n + 1), "tags": []}))
        for n in range(5)
    ]
    decoded = decode(orders, forged)
    assert [int(row[0]) for row in rows(decoded)] == list(range(5))


UUID = uuid.UUID("61f0c404-5cb3-11e7-907b-a6006ad3dba0")
UUID_FIXED = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("kind", "raw", "target", "expected"),
    [
        ("int", body("int", -1), "UInt8", "out-of-range"),
        ("long", body("long", 300), "UInt8", "out-of-range"),
        ("long", body("long", 255), "UInt8", 255),
        ("double", body("double", 1e300), "Float32", "out-of-range"),
        ("int", b"\x80\x80\x80\x80\x10", "Int64", "out-of-range"),
        ("boolean", b"\x02", "Bool", "out-of-range"),
        (["null", "int"], b"\x04", "Nullable(Int32)", "cannot-parse"),
        (["null", "int"], b"\x01", "Nullable(Int32)", "cannot-parse"),
        (["null", "int"], b"\0", "Int32", "null-in-column"),
        (["null", {"type": "array", "items": "int"}], b"\0", "Array(Int32)", "null-in-column"),
        ({"type": "int", "logicalType": "date"}, body("int", 70000), "Date32", "2161-08-27"),
        ({"type": "int", "logicalType": "date"}, body("int", -1), "Date32", "1969-12-31"),
        ({"type": "int", "logicalType": "date"}, body("int", -1), "Date", "out-of-range"),
        ({"type": "int", "logicalType": "date"}, body("int", 2**31 - 1), "Date32", "out-of-range"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            body("long", 1_767_323_045_123),
            "DateTime64(3)",
            "2026-01-02 03:04:05.123",
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            body("long", 2**62),
            "DateTime64(6)",
            "out-of-range",
        ),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            body("long", 1_767_323_045_123_456_789),
            "DateTime64(9)",
            "2026-01-02 03:04:05.123456789",
        ),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", "String", "B"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x04", "String", "cannot-parse"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01", "String", "cannot-parse"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x04\x7f\xff",
            "Decimal(9, 2)",
            "out-of-range",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\x04\xd8\xf1",
            "Decimal(9, 2)",
            "-99.99",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            b"\0",
            "Decimal(9, 2)",
            "out-of-range",
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            body("string", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
            "UUID",
            "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
        ),
        ({"type": "string", "logicalType": "uuid"}, body("string", "abc"), "UUID", "cannot-parse"),
        (UUID_FIXED, UUID.bytes, "UUID", str(UUID)),
        (["null", UUID_FIXED], b"\x02" + UUID.bytes, "Nullable(UUID)", str(UUID)),
        (["null", UUID_FIXED], b"\0", "Nullable(UUID)", None),
        (["null", UUID_FIXED], b"\0", "UUID", "null-in-column"),
        ({"type": UUID_FIXED}, UUID.bytes, "UUID", str(UUID)),
        ({**UUID_FIXED, "logicalType": "other"}, UUID.bytes, "UUID", "cannot-parse"),
        (UUID_FIXED, b"0123456789abcdef", "String", "0123456789abcdef"),
        ("null", b"", "Nullable(Int8)", None),
        ({"type": "map", "values": "int"}, b"\x02\x02k\x06\x00", "Map(String, Int8)", {"k": 3}),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x0f\0", "Int8", "cannot-parse"),
    ],
)
def test_values_are_strict(kind: Any, raw: bytes, target: str, expected: Any) -> None:
    number = SCHEMAS.add(record(("a", kind), ("z", "int")))
    decoder = confluent(Column("a", target), Column("z", "Int32"))
    good = SCHEMAS.add(record(("a", "null"), ("z", "int")))
    decoded = decode(decoder, [framed(number, raw + b"\x0e"), framed(good, b"\x02")])
    if decoded.bad and decoded.bad[0].index == 0:
        assert decoded.bad[0].reason == expected
        assert decoded.bad[0].column in ("a", "z", "")
    else:
        assert rows(decoded)[0] == [expected, 7]


def test_null_becomes_the_default_where_it_may() -> None:
    number = SCHEMAS.add(
        record(("a", ["null", {"type": "array", "items": "int"}]), ("b", ["null", "int"]))
    )
    decoder = confluent(Column("a", "Array(Int32)"), Column("b", "Int32"), on_null="default")
    assert rows(decode(decoder, [framed(number, b"\0\0")])) == [[[], 0]]


def test_named_types_and_references() -> None:
    money = record(("cents", "long"), name="shop.money.Money")
    line = record(("price", "shop.money.Money"), ("again", "shop.money.Money"), name="shop.Line")
    number = SCHEMAS.add(line, money)
    decoder = confluent(
        Column("price", "Tuple(cents Int32)"), Column("again", "Tuple(cents Int32)")
    )
    assert rows(decode(decoder, [framed(number, b"\x02\x04")])) == [[{"cents": 1}, {"cents": 2}]]


def test_fields_inside_go_by_aliases_that_their_elements_have() -> None:
    fields = [
        {"name": "sum", "type": "int", "aliases": ["total", "amount"]},
        {"name": "k", "type": "string"},
    ]
    line = {"type": "record", "name": "Line", "fields": fields}
    schema = record(
        ("t", ["null", line]),
        ("l", {"type": "array", "items": "shop.Line"}),
        ("m", {"type": "map", "values": "shop.Line"}),
        ("n", {"type": "array", "items": "shop.Line"}),
    )
    one = {"sum": 5, "k": "x"}
    number = SCHEMAS.add(schema)
    message = framed(number, body(schema, {"t": one, "l": [one], "m": {"q": one}, "n": [one]}))
    decoder = confluent(
        Column("t", "Tuple(k String, amount Int64)"),
        Column("l", "Array(Tuple(sum Int32, total Nullable(Int8), k String))"),
        Column("m", "Map(String, Tuple(total UInt8, k String))"),
        Column("n.amount", "Array(Int32)"),
        Column("n.k", "Array(String)"),
        unknown_fields="refuse",
    )
    assert rows(decode(decoder, [message])) == [
        [
            {"k": "x", "amount": "5"},
            [{"sum": 5, "total": None, "k": "x"}],
            {"q": {"total": 5, "k": "x"}},
            [5],
            ["x"],
        ]
    ]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("string", "a string, not a record"),
        (["null", ORDER], "a union, not a record"),
        (record(("next", ["null", "shop.Order"])), "contains itself"),
        (record(("a", "no.such.Type")), "unknown type no.such.Type"),
        (record(), "has no fields"),
        (record(("a", "int"), ("a", "int")), "two fields of one name"),
        ({"type": "record"}, "cannot be read"),
        (7, "not a record"),
    ],
)
def test_schemas_that_cannot_be_used_are_said(
    orders: TypedDecoder, schema: Any, words: str
) -> None:
    number = SCHEMAS.add(schema)
    decoded = decode(orders, [order(1), framed(number, b"\0\0\0"), order(2)])
    assert bad(decoded) == [(1, "cannot-parse", "")]
    assert words in decoded.bad[0].error and str(number) in decoded.bad[0].error
    with pytest.raises(UnsupportedSchemaError):
        parse_avro(json.dumps(schema))


def test_a_schema_of_another_kind() -> None:
    SCHEMAS.texts[5] = RegisteredSchema("PROTOBUF", "")
    decoded = decode(confluent(*COLUMNS), [framed(5, b"\0")])
    assert "PROTOBUF, not AVRO" in decoded.bad[0].error


# ---- Single objects ----


def test_the_fingerprint_is_the_specification_s() -> None:
    # From the specification's own test cases.
    assert fingerprint('"int"') == 0x7275D51A3F395C8F
    assert fingerprint('"string"') == 0x8F014872634503C7


def single(schema: Any, value: Any) -> bytes:
    head = b"\xc3\x01" + fingerprint(json.dumps(schema)).to_bytes(8, "little")
    return head + body(schema, value)


def test_single_objects_of_two_schemas() -> None:
    second = record(("id", "int"), name="shop.Second")
    text = f"{json.dumps(ORDER)}\n{json.dumps(second)}"
    facts = table(*COLUMNS, format="AvroSingleObject", options=(("schema", text),))
    decoder = TypedDecoder(facts, AvroSingleObject(facts))
    strange = single(record(("id", "int"), name="shop.Third"), {"id": 1})
    values = [
        single(ORDER, {"id": 1, "name": "x", "tags": []}),
        single(second, {"id": 2}),
        strange,
        b"\xc3\x02" + strange[2:],
        b"\xc3\x01",
        single(second, {"id": 3}) + b"x",
        single(second, {"id": 4}),
    ]
    decoded = decode(decoder, values)
    assert [int(row[0]) for row in rows(decoded)] == [1, 2, 4]
    assert [one.index for one in decoded.bad] == [2, 3, 4, 5]
    assert "fingerprint" in decoded.bad[0].error


@pytest.mark.parametrize("text", ["", "{", '{"type":"rec"}', "[7]"])
def test_texts_that_are_no_schemas_are_refused_at_once(text: str) -> None:
    facts = table(*COLUMNS, format="AvroSingleObject", options=(("schema", text),))
    with pytest.raises(TerminalError):
        AvroSingleObject(facts)
