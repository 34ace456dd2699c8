"""The formats that a table entry may name, and the options of each. Pure facts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A format by its name, ClickHouse's where it has one.

    :param options: that it knows. Where `schema` is one, so is `schema:PATH`: the text of a file
        that it imports as PATH.
    :param required: those of them that it cannot do without.
    :param needs_registry: whether messages name their schema in a registry.
    """

    name: str
    options: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    needs_registry: bool = False


#: What each option says; for messages about a wrong one.
OPTIONS = {
    "columns": "the columns of a message in its order",
    "delimiter": "the character between two values",
    "null": "the text that stands for null",
    "schema": "the schema's text",
    "message": "the name of the message type",
    "descriptors": "a FileDescriptorSet in base64, in place of the schema",
    "schema_hash": "the hash that messages must carry",
    "schema_id": "where messages name their schema: in the value, or in a header",
    "validate": "whether each message is compared with its schema",
    "delimited": "whether each message stands behind its length",
    "lenient": "whether 1.0 is an integer, and a quoted boolean a boolean",
}

#: What the options may say that have a choice.
CHOICES = {
    "schema_id": ("value", "header"),
    "validate": ("false", "true"),
    "delimited": ("false", "true"),
    "lenient": ("false", "true"),
}

_FORMATS = (
    Format("JSONEachRow", ("lenient",)),
    Format("JSONCompactEachRow", ("columns",)),
    Format("JSONConfluent", ("lenient", "schema_id", "validate")),
    Format("CSV", ("columns", "delimiter", "null")),
    Format("CSVWithNames", ("delimiter", "null")),
    Format("TSV", ("columns", "null")),
    Format("TSVWithNames", ("null",)),
    Format("TSKV", ("null",)),
    Format("AvroConfluent", ("schema_id",), needs_registry=True),
    Format("AvroSingleObject", ("schema",), ("schema",)),
    Format("Avro"),
    Format("Protobuf", ("schema", "descriptors", "message", "delimited"), ("message",)),
    Format("ProtobufConfluent", ("message", "schema_id"), needs_registry=True),
    Format("MsgPack", ("columns",)),
    Format("RowBinary", ("columns",)),
    Format("RowBinaryWithNamesAndTypes"),
    Format("Native"),
    Format("Parquet"),
    Format("ORC"),
    Format("Arrow"),
    Format("ArrowStream"),
    Format("SQLBatchRequest", ("schema_hash",)),
)

#: Those whose messages may be in an envelope of Debezium or Kafka Connect.
ENVELOPED = ("JSONEachRow", "JSONConfluent", "AvroConfluent", "AvroSingleObject")

#: Names the registry in a text; no option of the file.
REGISTRY_OPTION = "registry"

#: By name.
FORMATS = {one.name: one for one in _FORMATS}


def needs_registry(format_name: str, options: Iterable[tuple[str, str]]) -> bool:
    """Whether messages cannot be read without their schemas in a registry."""
    return FORMATS[format_name].needs_registry or ("validate", "true") in options
