"""Schemas that change from message to message, written by the serializers of others through a
registry, and compared value by value."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluice.core.load_spec import Column, Mapped, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from sluice.decode.schema.registry import RegisteredSchema, provide
from sluice.kafka.registry import RegistryAccess, RegistryClient
from tests.decode.connect_support import shown
from tests.decode.protobuf_support import message_class
from tests.decode.support import fill, rows, table

#: Of a field: a name of `SCALARS`, `"enum A B"`, one of these with `?` (it may be null), a list (an
#: array of), or a dictionary (a record). A field `"new < old"` is `new`, which was called `old`.
Version = dict[str, Any]

COLUMNS = {
    "id": "UInt64",
    "amount": "Float64",
    "pieces": "Int64 DEFAULT 7",
    "note": "Nullable(String)",
    "state": "LowCardinality(String)",
    "customer": "Tuple(name String, city Nullable(String), age Int64)",
    "lines": "Array(Tuple(sku String, n Int64))",
    "price": "Nullable(Decimal(18, 4))",
    "at": "DateTime64(6, 'UTC')",
    "buyer": "String",
    "labels": "Map(String, Int64)",
}
VERSIONS: tuple[Version, ...] = (
    {
        "id": "int",
        "amount": "int",
        "note": "text",
        "state": "enum NEW PAID",
        "customer": {"name": "text"},
        "at": "millis",
        "buyer": "text",
    },
    # Fields are added, one may be null now, numbers become wider, the enum has another symbol.
    {
        "id": "long",
        "amount": "long",
        "pieces": "int",
        "note": "text?",
        "state": "enum NEW PAID SENT",
        "customer": {"name": "text", "city": "text?"},
        "lines": [{"sku": "text", "n": "int"}],
        "at": "millis",
        "buyer": "text",
    },
    # In another order, with another name; inside, too.
    {
        "at": "micros",
        "client < buyer": "text",
        "lines": [{"n": "long", "more": "text", "sku": "text"}],
        "customer": {"age": "int", "city": "text?", "name": "text"},
        "state": "enum SENT NEW BACK PAID",
        "price": "price?",
        "note": "text?",
        "pieces": "long",
        "amount": "double",
        "id": "long",
    },
    # What was there is gone; fields that the table does not have.
    {
        "id": "long",
        "state": "enum NEW",
        "labels": "labels",
        "unknown": {"deep": ["text"]},
        "amount": "double",
        "at": "micros",
        "client < buyer": "text",
        "customer": {"city": "text", "age": "long", "name": "text"},
        "price": "price",
    },
)
TEXTS = ("", "a", "Zoë \U0001f600", 'quo"te\\', "line\nbreak", "x" * 50, "2026-01-02", "null")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _moment(chance: random.Random, step: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=chance.randrange(2**51) // step * step)


SCALARS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda chance: chance.randrange(2**31),
    "long": lambda chance: chance.randrange(2**53),
    "double": lambda chance: chance.randrange(2**53) / 2**20,
    "text": lambda chance: chance.choice(TEXTS),
    "millis": lambda chance: _moment(chance, 1000),
    "micros": lambda chance: _moment(chance, 1),
    "price": lambda chance: Decimal(chance.randrange(-(10**12), 10**12)).scaleb(-4),
    "labels": lambda chance: {chance.choice(TEXTS): chance.randrange(2**62) for _ in range(2)},
}


def any_value(kind: Any, chance: random.Random) -> Any:
    if isinstance(kind, list):
        return [any_value(kind[0], chance) for _ in range(chance.randrange(3))]
    if isinstance(kind, dict):
        return {name.split(" < ")[0]: any_value(one, chance) for name, one in kind.items()}
    if kind.endswith("?"):
        return None if chance.random() < 0.3 else any_value(kind[:-1], chance)
    if kind.startswith("enum "):
        return chance.choice(kind.split()[1:])
    return SCALARS[kind](chance)


def expected_row(version: Version, value: dict[str, Any]) -> list[Any]:
    """By the names alone: what a version does not have is the column's default."""
    absent = {
        "id": 0,
        "amount": 0,
        "pieces": 7,
        "lines": [],
        "labels": {},
        "buyer": "",
        "state": "",
    }
    row = []
    for name, type_text in COLUMNS.items():
        field = next((one for one in version if name in one.split(" < ")), None)
        found = absent.get(name) if field is None else value[field.split(" < ")[0]]
        if name == "customer":
            found = {"name": "", "city": None, "age": 0} | found
        if name == "price" and found is not None:
            found = f"{found.normalize():f}"
        if name == "at":
            found = f"{found:%Y-%m-%d %H:%M:%S.%f}"
        row.append(shown(found, type_text.removesuffix(" DEFAULT 7")))
    return row


# Each format: the schema of a version, and how a value is given to its serializer.


def avro_of(kind: Any, name: str = "Row") -> Any:
    if isinstance(kind, list):
        return {"type": "array", "items": avro_of(kind[0], name)}
    if isinstance(kind, dict):
        fields = []
        for field, one in kind.items():
            now, _, before = field.partition(" < ")
            aliases = {"aliases": [before]} if before else {}
            fields.append({"name": now, "type": avro_of(one, f"{name}_{now}"), **aliases})
        return {"type": "record", "name": name, "fields": fields}
    if kind.endswith("?"):
        return ["null", avro_of(kind[:-1], name)]
    if kind.startswith("enum "):
        return {"type": "enum", "name": f"{name}_enum", "symbols": kind.split()[1:]}
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 4}
    return {
        "text": "string",
        "millis": {"type": "long", "logicalType": "timestamp-millis"},
        "micros": {"type": "long", "logicalType": "timestamp-micros"},
        "price": decimal,
        "labels": {"type": "map", "values": "long"},
    }.get(kind, kind)


def proto_of(version: Version) -> str:
    """A .proto text. The numbers of fields follow their order, so they change, too."""
    types: list[str] = []

    def message(name: str, fields: dict[str, Any]) -> str:
        lines = [
            f"  {declared(one, f'{name}_{field}')} {field.split(' < ')[0]} = {number};"
            for number, (field, one) in enumerate(fields.items(), 1)
        ]
        return "\n".join([f"message {name} {{", *lines, "}"])

    def declared(kind: Any, name: str) -> str:
        name = name.split(" < ", maxsplit=1)[0]
        if isinstance(kind, list):
            return f"repeated {declared(kind[0], name)}"
        if isinstance(kind, dict):
            types.append(message(name, kind))
            return name
        if kind.startswith("enum "):
            symbols = [f"  {one} = {number};" for number, one in enumerate(kind.split()[1:])]
            types.append("\n".join([f"enum {name} {{", *symbols, "}"]))
            return name
        known = {"int": "int32", "long": "int64", "text": "string", "price": "string"}
        known |= {"labels": "map<string, int64>"}
        known |= dict.fromkeys(("millis", "micros"), "google.protobuf.Timestamp")
        bare = kind.removesuffix("?")
        return "optional " * kind.endswith("?") + known.get(bare, bare)

    row = message("Row", version)
    head = 'syntax = "proto3";\npackage shop;\nimport "google/protobuf/timestamp.proto";'
    return "\n".join([head, row, *types])


def for_protobuf(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: for_protobuf(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [for_protobuf(one) for one in value]
    if isinstance(value, dt.datetime):
        passed = value - EPOCH
        seconds = passed.days * 86400 + passed.seconds
        return {"seconds": seconds, "nanos": passed.microseconds * 1000}
    return str(value) if isinstance(value, Decimal) else value


def json_schema_of(kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        return {"type": "array", "items": json_schema_of(kind[0])}
    if isinstance(kind, dict):
        fields = {field.split(" < ")[0]: json_schema_of(one) for field, one in kind.items()}
        return {"title": "Row", "type": "object", "properties": fields, "required": list(fields)}
    if kind.endswith("?"):
        return {"oneOf": [{"type": "null"}, json_schema_of(kind[:-1])]}
    if kind.startswith("enum "):
        return {"type": "string", "enum": kind.split()[1:]}
    known = {"int": "integer", "long": "integer", "double": "number", "labels": "object"}
    return {"type": known.get(kind, "string")}


def for_json(value: Any, _: Any = None) -> Any:
    if isinstance(value, dict):
        return {name: for_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [for_json(one) for one in value]
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


Serializer = Callable[[dict[str, Any]], bytes]


def serializers(format_name: str, client: SchemaRegistryClient) -> list[Serializer]:
    """Confluent's serializer of each version."""
    return [_serializer(format_name, client, version) for version in VERSIONS]


def _serializer(format_name: str, client: SchemaRegistryClient, version: Version) -> Serializer:
    context = SerializationContext(f"evolving-{format_name}", MessageField.VALUE)
    if format_name == "AvroConfluent":
        written = AvroSerializer(client, json.dumps(avro_of(version)))
        return lambda value: written(value, context)
    if format_name == "JSONConfluent":
        written = JSONSerializer(json.dumps(json_schema_of(version)), client, for_json)
        return lambda value: written(value, context)
    row = message_class(proto_of(version), "shop.Row")
    written = ProtobufSerializer(row, client, {"use.deprecated.format": False})
    return lambda value: written(row(**for_protobuf(value)), context)


class InMemory:
    """What Confluent's registry in memory knows."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self.client = client

    def schema(self, number: int) -> RegisteredSchema | None:
        found = self.client.get_schema(number)
        return RegisteredSchema(found.schema_type, found.schema_str)


def entry(format_name: str, url: str) -> TableSpec:
    columns = []
    for name, type_text in COLUMNS.items():
        kind, has_default, default = type_text.partition(" DEFAULT ")
        columns.append(Column(name, kind, "DEFAULT" if has_default else "", default))
    changes: dict[str, Any] = {}
    if format_name != "AvroConfluent":
        # Avro says how a field was called before.
        named = (("buyer", "Nullable(String)"), ("client", "Nullable(String)"))
        changes = {"mapping": (Mapped("buyer", "sql", "coalesce(client, buyer, '')"),)}
        changes["fields"] = named
    return table(*columns, format=format_name, options=(("registry", url),), **changes)


@pytest.mark.parametrize("format_name", ["AvroConfluent", "ProtobufConfluent", "JSONConfluent"])
@pytest.mark.parametrize(
    ("count", "is_real"),
    [(5_000, False), pytest.param(100_000, True, marks=pytest.mark.long)],
)
def test_versions_of_a_schema_interleaved(
    format_name: str, count: int, is_real: bool, request: pytest.FixtureRequest
) -> None:
    """The large one with a real registry, the small one with Confluent's in memory."""
    url = request.getfixturevalue("registry").url if is_real else f"mock://{format_name}"
    client = SchemaRegistryClient.new_client({"url": url})
    provide(url, RegistryClient(RegistryAccess(url)) if is_real else InMemory(client))
    write = serializers(format_name, client)
    text = entry(format_name, url)
    decoder = make_decoder(text)
    chance = random.Random(f"{format_name} {count}")
    for _ in range(0, count, 5_000):
        messages, expected = [], []
        for _ in range(5_000):
            number = chance.randrange(len(VERSIONS))
            value = any_value(VERSIONS[number], chance)
            messages.append(write[number](value))
            expected.append(expected_row(VERSIONS[number], value))
        with MessageBuffer(framing_of(text)) as buffer:
            decoded = decoder.decode(fill(buffer, messages), alone("orders", 3))
        assert not decoded.bad, decoded.bad[:3]
        found = rows(decoded)
        if found != expected:
            pairs = zip(found, expected, strict=True)
            differences = [pair for pair in pairs if pair[0] != pair[1]]
            pytest.fail(f"{len(differences)} rows differ, the first: {differences[:3]}")
