"""Columns for messages that name a schema of a registry: what their schemas say.

What `envelope` of a table entry takes out of a message, a sample's messages are without here, so
that columns are made of the row's fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sluice.core.errors import TerminalError
from sluice.core.load_spec import LINEAGE_TYPES
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.engine.session import declared
from sluice.decode.engine.types import TypeNode, meant_type, parse_type
from sluice.decode.schema.avro import AvroLayout
from sluice.decode.schema.avro_schema import parse_avro
from sluice.decode.schema.headed import UnsupportedSchemaError
from sluice.decode.schema.named import REGISTRY_HEADER_BYTES
from sluice.decode.schema.protobuf import compiled_schema, read_place
from sluice.decode.schema.protobuf_schema import MAIN_FILE, table_type
from sluice.decode.schema.registry import SchemaSource
from sluice.ops.init_formats import SHARE, Recognised, number_of, recognise
from sluice.ops.init_types import SampledColumn, is_a_name

#: What Debezium says of an event, as columns ask for it; tells deletions.
OPERATION = "__op"

_EVENT = frozenset(("before", "after", "op"))
_CONNECT = frozenset(("schema", "payload"))


def opened(found: Recognised) -> Recognised:
    """The same without the envelope that most of the objects are, if they are any; what is in none
    is unreadable."""
    if found.rows != "one" or not found.records:
        return found
    payloads = [_payload(record) for record in found.records]
    events = [each for each in payloads if each is not None and each.keys() >= _EVENT]
    rows = [row for event in events if (row := _row(event)) is not None]
    if rows and len(events) >= SHARE * len(payloads):
        unreadable = found.unreadable + len(payloads) - len(events)
        return replace(found, envelope="debezium", records=rows, unreadable=unreadable)
    wrapped = sum(record.keys() == _CONNECT for record in found.records)
    if wrapped >= SHARE * len(payloads):
        inside = [payload for payload in payloads if payload is not None]
        unreadable = found.unreadable + len(payloads) - len(inside)
        return replace(found, envelope="connect", records=inside, unreadable=unreadable)
    return found


def opened_types(types: Mapping[str, str]) -> dict[str, str] | None:
    """Types of an event's row, by what its schema says of the fields of an event; None: it is no
    event. A field that a deletion does not tell may be null."""
    if not types.keys() >= _EVENT:
        return None
    row = parse_type(types["after"]).bare()
    if row.name != "Tuple" or not all(name for name, _ in row.elements()):
        return None
    return {name: nullable(kind) for name, kind in row.elements()} | {OPERATION: "String"}


def _payload(record: dict[str, Any]) -> dict[str, Any] | None:
    """What is in Connect's envelope, or the object where there is none; None: nothing."""
    if record.keys() != _CONNECT:
        return record
    payload = record["payload"]
    return payload if isinstance(payload, dict) else None


def _row(event: dict[str, Any]) -> dict[str, Any] | None:
    """As the decoder takes it: of a deletion what was there before, without what is null."""
    row = event["after"]
    if row is None and isinstance(event["before"], dict):
        row = {name: value for name, value in event["before"].items() if value is not None}
    return {**row, OPERATION: event["op"]} if isinstance(row, dict) else None


def nullable(kind: TypeNode) -> str:
    """The type with null, if there can be one; of a record its elements."""
    if kind.name == "Tuple":
        return f"Tuple({declared((name, nullable(part)) for name, part in kind.elements())})"
    takes_none = kind.name in ("Nullable", "LowCardinality", "Array", "Map", "Variant")
    return kind.text if takes_none else f"Nullable({kind.text})"


_FORMATS = {"AVRO": "AvroConfluent", "PROTOBUF": "ProtobufConfluent"}
_BY_HAND = "Write the configuration by hand: `sluice init` gives an example."


def recognise_schemas(
    topic: str, numbers: Mapping[int, int], values: Sequence[bytes], registry: SchemaSource
) -> tuple[Recognised, list[SampledColumn]]:
    """The format of messages with a registry's header, and a column for each field; of JSON no
    columns but records, whose values say more than their schema.

    A field that several schemas have gets the type that it has in the schema of most messages.

    :param numbers: how many messages name each schema.
    :raises TerminalError: the registry does not know a schema, they are of several kinds, or of
        one that cannot be loaded; it refuses to answer.
    :raises TransientError: the registry does not answer.
    """
    schemas: dict[int, RegisteredSchema] = {}
    for number in sorted(numbers, key=lambda number: (-numbers[number], number)):
        found = registry.schema(number)
        if found is None:
            raise TerminalError(
                f"topic {topic}: {numbers[number]} messages of the sample name schema {number}, "
                "which the registry does not know",
                "Name the registry that the messages' producer uses.",
            )
        schemas[number] = found
    kinds = sorted({schema.kind for schema in schemas.values()})
    if kinds == ["JSON"]:
        bodies = [value[REGISTRY_HEADER_BYTES:] for value in values if number_of(value) is not None]
        json = recognise(topic, bodies)
        if json.records:
            unreadable = json.unreadable + len(values) - len(bodies)
            return replace(json, format="JSONConfluent", unreadable=unreadable), []
    if len(kinds) > 1 or kinds[0] not in _FORMATS:
        raise TerminalError(
            f"topic {topic}: its schemas are of kind {' and '.join(kinds)}; a topic is loaded "
            "whose schemas are all AVRO, or all PROTOBUF, or JSON of objects",
            _BY_HAND,
        )
    types: dict[str, str] = {}
    try:
        for number, schema in schemas.items():
            named = [value for value in values if number_of(value) == number]
            for name, text in _types(schema, named).items():
                types.setdefault(name, text)
    except UnsupportedSchemaError as error:
        raise TerminalError(f"topic {topic}: schema {number}: {error}", _BY_HAND) from error
    row = opened_types(types) if kinds == ["AVRO"] else None
    columns = [
        SampledColumn(name, text, len(values), len(values), text.startswith("Nullable("))
        for name, text in (row or types).items()
        if is_a_name(name) and name not in LINEAGE_TYPES
    ]
    return Recognised(_FORMATS[kinds[0]], envelope="debezium" if row else ""), columns


def _types(schema: RegisteredSchema, values: Sequence[bytes]) -> dict[str, str]:
    """Types of the fields by name, for a table.

    :param values: the messages of this schema.
    """
    if schema.kind == "AVRO":
        parsed = parse_avro(schema.text, [text for _, text in schema.references])
        columns = AvroLayout(parsed, REGISTRY_HEADER_BYTES).columns
        return {one.name: _for_table(parse_type(meant_type(one.type))) for one in columns}
    files = compiled_schema(schema)
    types: dict[str, str] = {}
    places = Counter(read_place(value, REGISTRY_HEADER_BYTES, len(value)) for value in values)
    for place, _ in places.most_common():
        if place is not None:
            for field in files.at(MAIN_FILE, place[0]).columns:
                types.setdefault(field.name, _for_table(parse_type(table_type(field))))
    return types


def _for_table(node: TypeNode) -> str:
    """A table has no column that is a tuple or null, but as an experiment: its elements are."""
    if node.name == "Nullable" and node.inner().name == "Tuple":
        return nullable(parse_type(_for_table(node.inner())))
    if node.name == "Tuple":
        return f"Tuple({declared((name, _for_table(part)) for name, part in node.elements())})"
    if node.name in ("Array", "Map"):
        return f"{node.name}({', '.join(map(_for_table, node.parts()))})"
    return node.text
