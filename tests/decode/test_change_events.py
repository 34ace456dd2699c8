"""Envelopes of Debezium and Kafka Connect, in JSON with and without schema, and in Avro."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from sluice.core.load_spec import Column, Mapped, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from tests.decode.avro_support import SCHEMAS, URL, body, framed
from tests.decode.support import fill, rows, table

COLUMNS = (
    Column("id", "UInt64"),
    Column("name", "Nullable(String)"),
    Column("price", "Decimal(9, 2)"),
    Column("op", "String"),
    Column("gone", "UInt8"),
)
MAPPING = (Mapped("gone", "field", "__deleted"), Mapped("op", "field", "__op"))
UNAVAILABLE = "__debezium_unavailable_value"


def debezium(*columns: Column, **changes: Any) -> TableSpec:
    facts = {"envelope": "debezium", "mapping": MAPPING} | changes
    return table(*(columns or COLUMNS), **facts)


def decode(text: TableSpec, values: list[bytes]) -> Decoded:
    with MessageBuffer(framing_of(text)) as buffer:
        return make_decoder(text).decode(fill(buffer, values), alone("orders", 3))


def event(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "ts_ms": 5, **more}


def said(decoded: Decoded) -> list[tuple[int, str, str]]:
    return [(one.index, one.reason, one.error) for one in decoded.bad]


def row(number: int, name: Any = "n", price: Any = 1.25) -> dict[str, Any]:
    return {"id": number, "name": name, "price": price}


EVENTS: tuple[tuple[dict[str, Any], list[Any] | str], ...] = (
    (event("c", None, row(1)), ["1", "n", "1.25", "c", 0]),
    (event("r", None, row(2, None)), ["2", None, "1.25", "r", 0]),
    (event("u", row(1), row(1, "m")), ["1", "m", "1.25", "u", 0]),
    (event("d", row(3), None), ["3", "n", "1.25", "d", 1]),
    # PostgreSQL keeps only the key of a deleted row.
    (event("d", row(4, None, None), None), ["4", None, "0", "d", 1]),
    (event("u", row(1), row(1, "m", None)), "null-in-column"),
    (event("t", None, None), "no-row"),
    (event("d", None, None), "no-row"),
    (event("c", row(1), None), "no-row"),
    (event("u", None, row(5, UNAVAILABLE)), "unavailable-value"),
)


def avro_schema() -> dict[str, Any]:
    value = {
        "type": "record",
        "name": "Value",
        "namespace": "dc1.shop.orders",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
            {"name": "price", "type": ["null", "double"], "default": None},
        ],
    }
    fields = [
        {"name": "before", "type": ["null", value], "default": None},
        {"name": "after", "type": ["null", "dc1.shop.orders.Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "dc1.shop.orders",
        "fields": fields,
        "connect.name": "dc1.shop.orders.Envelope",
    }


def as_json(some: dict[str, Any]) -> bytes:
    return json.dumps(some).encode()


def with_schema(some: dict[str, Any]) -> bytes:
    return json.dumps({"schema": {"type": "struct", "fields": []}, "payload": some}).encode()


@pytest.mark.parametrize("written", ["json", "schema", "avro"])
def test_events_of_debezium_become_rows(written: str) -> None:
    if written == "avro":
        schema = avro_schema()
        number = SCHEMAS.add(schema)
        values = [framed(number, body(schema, some)) for some, _ in EVENTS]
        text = debezium(format="AvroConfluent", options=(("registry", URL),))
    else:
        write = as_json if written == "json" else with_schema
        values = [write(some) for some, _ in EVENTS]
        text = debezium()
    decoded = decode(text, values)
    expected = [outcome for _, outcome in EVENTS]
    assert rows(decoded) == [one for one in expected if isinstance(one, list)]
    assert [(index, reason) for index, reason, _ in said(decoded)] == [
        (index, one) for index, one in enumerate(expected) if isinstance(one, str)
    ]
    words = {index: error for index, _, error in said(decoded)}
    assert words[6] == 'the change event makes no row: its op is "t"'
    assert words[7] == 'the change event makes no row: its op is "d", and before is null'
    assert "REPLICA IDENTITY FULL" in words[9]


@pytest.mark.parametrize("is_avro", [False, True])
def test_the_moment_of_an_event_is_in_milliseconds(is_avro: bool) -> None:
    some = event("c", None, row(1))
    facts: dict[str, Any] = {"mapping": (Mapped("told", "field", "__ts_ms"),), "timestamps": "us"}
    value = as_json(some)
    if is_avro:
        schema = avro_schema()
        value = framed(SCHEMAS.add(schema), body(schema, some))
        facts |= {"format": "AvroConfluent", "options": (("registry", URL),)}
    told = Column("told", "DateTime64(3, 'UTC')")
    decoded = decode(debezium(Column("id", "UInt64"), told, **facts), [value])
    assert rows(decoded) == [["1", "1970-01-01 00:00:00.005"]]


@pytest.mark.parametrize("is_avro", [False, True])
def test_a_deletion_that_no_column_tells_is_a_dead_letter(is_avro: bool) -> None:
    some = [event("c", None, row(1)), event("d", row(1), None)]
    schema = avro_schema()
    text = debezium(Column("id", "UInt64"), mapping=())
    values = list(map(as_json, some))
    if is_avro:
        number = SCHEMAS.add(schema)
        values = [framed(number, body(schema, one)) for one in some]
        text = debezium(
            Column("id", "UInt64"),
            mapping=(),
            format="AvroConfluent",
            options=(("registry", URL),),
        )
    decoded = decode(text, values)
    assert rows(decoded) == [["1"]]
    ((index, reason, error),) = said(decoded)
    assert (index, reason) == (1, "no-row") and "no column of the entry tells" in error


@pytest.mark.parametrize("is_avro", [False, True])
def test_only_fields_of_the_row_are_unknown(is_avro: bool) -> None:
    schema = avro_schema()
    some = [event("c", None, row(1)), event("u", row(1), row(2))]
    known = {"mapping": (), "unknown_fields": "refuse"}
    values = list(map(as_json, some))
    if is_avro:
        number = SCHEMAS.add(schema)
        values = [framed(number, body(schema, one)) for one in some]
        known |= {"format": "AvroConfluent", "options": (("registry", URL),)}
    columns = (Column("id", "UInt64"), Column("name", "Nullable(String)"))
    price = Column("price", "Float64")
    assert rows(decode(debezium(*columns, price, **known), values)) == [
        ["1", "n", 1.25],
        ["2", "n", 1.25],
    ]
    refused = decode(debezium(*columns, **known), values)
    assert [bad.reason for bad in refused.bad] == ["unknown-field"] * 2


def test_what_is_no_change_event_is_said() -> None:
    values = [
        b'{"id":1}',
        b'{"op":"c","after":[1]}',
        b'{"op":"c","after":{"id":1}',
        b'{"op":"c","op":"c"}',
        b'{"schema":null,"payload":null}',
        b'{"schema":null,"payload":5}',
        b"\x1f\x8b\x08",
        b"",
        b'{"op":"c","after":{"id":1}} x',
    ]
    decoded = decode(debezium(Column("id", "UInt64"), mapping=()), values)
    assert [reason for _, reason, _ in said(decoded)] == [
        *("cannot-parse", "cannot-parse", "not-one-object", "not-one-object", "no-row"),
        *("cannot-parse", "not-one-object", "not-one-object", "not-one-object"),
    ]
    words = [error for _, _, error in said(decoded)]
    assert words[0] == "the message is no change event of Debezium: it has no op"
    assert words[3] == "the message is not one JSON object: the field op is there twice"


def test_values_stand_in_the_row_as_they_stand_in_the_event() -> None:
    columns = (
        Column("n", "UInt256"),
        Column("d", "Decimal(38, 20)"),
        Column("s", "String"),
        Column("lsn", "UInt64"),
        Column("at", "Int64"),
    )
    mapping = (Mapped("lsn", "path", "__source.lsn"), Mapped("at", "field", "__ts_ms"))
    value = (
        b'{"before":null, "after" : {"n":1%s , "d":0.10000000000000000001,'
        b'"s":"\xff\\u00e9\xc3\xa9"},'
        b'"op":"c","ts_ms":1767225600123,"source":{"lsn":18446744073709551615,"x":{}}}'
        % (b"0" * 70)
    )
    decoded = decode(debezium(*columns, mapping=mapping), [value])
    ((n, d, s, lsn, at),) = rows(decoded)
    assert (n, d) == ("1" + "0" * 70, "0.10000000000000000001")
    assert s == "\ufffdéé" and (lsn, at) == ("18446744073709551615", "1767225600123")


CONNECT_FIELDS = [
    {"field": "ms", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
    {"field": "us", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
    {
        "field": "price",
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
    },
    {"field": "raw", "type": "int64", "name": "io.debezium.time.Timestamp"},
    {"field": "né", "type": "int64", "name": "io.debezium.time.Timestamp"},
]
CONNECT_COLUMNS = (
    Column("ms", "Nullable(DateTime64(3, 'UTC'))"),
    Column("us", "DateTime64(6, 'UTC')"),
    Column("day", "Date32"),
    Column("price", "Decimal(9, 2)"),
    Column("raw", "Int64"),
    Column("né", "DateTime('UTC')"),
)


def packed(number: int) -> str:
    return base64.b64encode(number.to_bytes(3, "big", signed=True)).decode()


@pytest.mark.parametrize("envelope", ["connect", "debezium"])
def test_the_schema_says_what_numbers_and_bytes_mean(envelope: str) -> None:
    good = {"ms": 1767225600123, "us": -1, "day": -1, "price": packed(-125), "raw": 7, "né": 0}
    null = good | {"ms": None, "price": packed(125), "us": 5}
    late = good | {"né": 1}  # a thousandth of a second
    fields: Any = CONNECT_FIELDS
    wrapped = [good, null, late]
    if envelope == "debezium":
        fields = [{"field": "after", "type": "struct", "fields": fields}]
        wrapped = [event("c", None, one) for one in wrapped]
    schema = {"type": "struct", "fields": fields}
    values = [json.dumps({"schema": schema, "payload": one}).encode() for one in wrapped]
    decoded = decode(table(*CONNECT_COLUMNS, envelope=envelope), values)
    one = ["1969-12-31 23:59:59.999999", "1969-12-31", "-1.25", "7", "1970-01-01 00:00:00"]
    other = ["1970-01-01 00:00:00.000005", "1969-12-31", "1.25", "7", "1970-01-01 00:00:00"]
    assert rows(decoded) == [["2026-01-01 00:00:00.123", *one], [None, *other]]
    assert [(index, reason) for index, reason, _ in said(decoded)] == [(2, "out-of-range")]


def test_connect_without_schema_is_the_message() -> None:
    text = table(Column("id", "UInt8"), envelope="connect")
    values = [b'{"id":1}', b'{"schema":null,"payload":{"id":2}}', b'{"payload":{"id":3},"x":1}']
    decoded = decode(text, [*values, b'{"schema":1,"payload":null}'])
    assert rows(decoded) == [[1], [2]]
    assert [(index, reason) for index, reason, _ in said(decoded)] == [
        (2, "no-column"),
        (3, "no-row"),
    ]


def test_connects_names_make_moments_of_numbers_in_avro() -> None:
    kinds = {"us": ("long", "MicroTimestamp"), "day": ("int", "Date")}
    fields = [
        {"name": name, "type": {"type": kind, "connect.name": f"io.debezium.time.{of}"}}
        for name, (kind, of) in kinds.items()
    ]
    schema = {"type": "record", "name": "V", "fields": fields}
    number = SCHEMAS.add(schema)
    text = table(
        Column("us", "DateTime64(6, 'UTC')"),
        Column("day", "Date32"),
        envelope="connect",
        format="AvroConfluent",
        options=(("registry", URL),),
    )
    decoded = decode(text, [framed(number, body(schema, {"us": -1, "day": -1}))])
    assert rows(decoded) == [["1969-12-31 23:59:59.999999", "1969-12-31"]]
