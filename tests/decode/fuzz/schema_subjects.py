"""Good messages of the formats that have a schema: Avro and Protobuf."""

from __future__ import annotations

import io
import json
import random
import struct
from decimal import Decimal
from typing import Any

import fastavro

from sluice.core.load_spec import Column
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.schema.avro import fingerprint
from tests.decode.avro_support import SCHEMAS, URL, framed, record
from tests.decode.fuzz.subject import Subject, fuzzed_table
from tests.decode.protobuf_support import COLUMNS as PROTOBUF_COLUMNS
from tests.decode.protobuf_support import SCHEMA as PROTOBUF_SCHEMA
from tests.decode.protobuf_support import Order

#: Of schemas in the registry: the same in every process, whatever ran before.
_AVRO_NUMBER, _PROTOBUF_NUMBER = 501, 502

_AVRO = record(
    ("id", "long"),
    ("n", ["null", "int"]),
    ("s", "string"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}),
    (
        "list",
        {"type": "array", "items": record(("x", ["null", "double"]), ("b", "boolean"), name="I")},
    ),
    ("m", {"type": "map", "values": "long"}),
    ("f", {"type": "fixed", "name": "F", "size": 3}),
    ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
)
_AVRO_COLUMNS = (
    Column("id", "UInt64"),
    Column("n", "Nullable(Int32)"),
    Column("s", "String"),
    Column("e", "Enum8('A' = 1, 'B' = 2, 'C' = 3)"),
    Column("list", "Array(Tuple(x Nullable(Float64), b Bool))"),
    Column("m", "Map(String, Int16)"),
    Column("f", "FixedString(3)"),
    Column("d", "Decimal(9, 2)"),
    Column("at", "DateTime64(3)"),
)


def _avro_value(chance: random.Random) -> dict[str, Any]:
    number = chance.randrange(300)
    return {
        "id": chance.choice((number, 2**62 + number)),
        "n": None if number % 2 else number,
        "s": "é\n" * (number % 5),
        "e": "ABC"[number % 3],
        "list": [{"x": 1.5, "b": True}, {"x": None, "b": False}][: number % 3],
        "m": {"k": number} if number % 4 else {},
        "f": b"abc",
        "d": Decimal(number) / 4,
        "at": number * 10**9,
    }


_PARSED = fastavro.parse_schema(_AVRO)


def _avro_body(chance: random.Random) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _PARSED, _avro_value(chance))
    return stream.getvalue()


def _avro_confluent() -> tuple[Subject, ...]:
    number = _AVRO_NUMBER
    SCHEMAS.texts[number] = RegisteredSchema("AVRO", json.dumps(_AVRO))
    text = fuzzed_table(
        "AvroConfluent", _AVRO_COLUMNS, options=(("registry", URL),), schemas=(number,)
    )
    return (Subject(text, lambda chance: framed(number, _avro_body(chance))),)


def _avro_single_object() -> tuple[Subject, ...]:
    schema = json.dumps(_AVRO)
    text = fuzzed_table("AvroSingleObject", _AVRO_COLUMNS, options=(("schema", schema),))
    head = b"\xc3\x01" + struct.pack("<Q", fingerprint(schema))
    return (Subject(text, lambda chance: head + _avro_body(chance)),)


def _avro_files() -> tuple[Subject, ...]:
    text = fuzzed_table("Avro", _AVRO_COLUMNS, rows="many")

    def one(chance: random.Random) -> bytes:
        stream = io.BytesIO()
        lines = [_avro_value(chance) for _ in range(chance.choice((0, 1, 3)))]
        codec = chance.choice(("null", "deflate"))
        marker = chance.randbytes(16)
        fastavro.writer(stream, _PARSED, lines, codec=codec, sync_marker=marker)
        return stream.getvalue()

    return (Subject(text, one, by_file=True),)


def _order(chance: random.Random) -> bytes:
    number = chance.randrange(300)
    item = {"count": -number, "tags": ["a", "é"], "color": 5}
    order = Order(
        id=chance.choice((number, 2**64 - 1 - number)),
        name="text" * (number % 5),
        color=chance.choice((0, 1, 5, -3)),
        nums=range(number % 4),
        items=[item] * (number % 3),
        counts={"k": number, "": -5} if number % 2 else {},
        d=number / 7,
        f=0.5,
        b=bool(number % 2),
        raw=b"\0\n\xff"[: number % 4],
        f32=number,
        f64=2**63,
        s64=-number,
        z32=-number,
        colors=[1, 5][: number % 3],
        doubles=[1.5] * (number % 3),
    )
    if number % 2:
        order.opt = number
        order.text = "x"
        order.wrapped.value = "w"
    raw: bytes = order.SerializeToString(deterministic=True)
    return raw


def _protobuf() -> tuple[Subject, ...]:
    options = (("message", "Order"), ("schema", PROTOBUF_SCHEMA))
    return (Subject(fuzzed_table("Protobuf", PROTOBUF_COLUMNS, options=options), _order),)


def _protobuf_confluent() -> tuple[Subject, ...]:
    number = _PROTOBUF_NUMBER
    SCHEMAS.texts[number] = RegisteredSchema("PROTOBUF", PROTOBUF_SCHEMA)
    text = fuzzed_table(
        "ProtobufConfluent", PROTOBUF_COLUMNS, options=(("registry", URL),), schemas=(number,)
    )
    # The second type of the file: one index, 1.
    return (Subject(text, lambda chance: framed(number, b"\x02\x02" + _order(chance))),)


SCHEMA_SUBJECTS = {
    "AvroConfluent": _avro_confluent,
    "AvroSingleObject": _avro_single_object,
    "Avro": _avro_files,
    "Protobuf": _protobuf,
    "ProtobufConfluent": _protobuf_confluent,
}
