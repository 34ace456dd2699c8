"""The formats that a table entry may name, and the options of each: what those of the text formats
say, and which values make sense. Pure.
"""

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
    :param is_text: whether its rows are read like JSON objects, and its options say what those of
        text do.
    :param is_positional: whether nothing but their order tells the values of a message apart.
    """

    name: str
    options: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    needs_registry: bool = False
    is_text: bool = False
    is_positional: bool = False


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
}

#: What may be given in place of an option; both together are refused.
INSTEAD = {"schema": "descriptors"}

#: What the options may say that have a choice.
CHOICES = {
    "schema_id": ("value", "header"),
    "validate": ("false", "true"),
    "delimited": ("false", "true"),
}

_FORMATS = (
    Format("JSONEachRow", is_text=True),
    Format("JSONCompactEachRow", ("columns",), is_text=True, is_positional=True),
    Format("JSONConfluent", ("schema_id", "validate")),
    Format("CSV", ("columns", "delimiter", "null"), is_text=True, is_positional=True),
    Format("CSVWithNames", ("delimiter", "null"), is_text=True),
    Format("TSV", ("columns", "null"), is_text=True, is_positional=True),
    Format("TSVWithNames", ("null",), is_text=True),
    Format("TSKV", ("null",), is_text=True),
    Format("LineAsString", ("columns",), is_text=True),
    Format("AvroConfluent", ("schema_id",), needs_registry=True),
    Format("AvroSingleObject", ("schema",), ("schema",)),
    Format("Avro"),
    Format("Protobuf", ("schema", "descriptors", "message", "delimited"), ("message", "schema")),
    Format("ProtobufConfluent", ("message", "schema_id"), needs_registry=True),
    Format("MsgPack", ("columns",), is_positional=True),
    Format("RowBinary", ("columns",), is_positional=True),
    Format("RowBinaryWithNamesAndTypes"),
    Format("Native"),
    Format("Parquet"),
    Format("ORC"),
    Format("Arrow"),
    Format("ArrowStream"),
    Format("RawBLOB", ("columns",)),
    Format("SQLBatchRequest", ("schema_hash",)),
)

#: Those whose messages may name their table: RawBLOB takes whatever a message is, and the schema of
#: Protobuf may be that of the envelope, or a part of it.
NAMES_TABLE = ("SQLBatchRequest", "RawBLOB", "Protobuf")

#: Those whose messages may be in an envelope of Debezium or Kafka Connect.
ENVELOPED = ("JSONEachRow", "JSONConfluent", "AvroConfluent", "AvroSingleObject")
#: Of these, those in which the envelope is text.
ENVELOPED_JSON = ("JSONEachRow", "JSONConfluent")

#: Names the registry in a text; no option of the file.
REGISTRY_OPTION = "registry"

#: By name.
FORMATS = {one.name: one for one in _FORMATS}
TEXT_FORMATS = tuple(one.name for one in _FORMATS if one.is_text)


def needs_registry(format_name: str, options: Iterable[tuple[str, str]]) -> bool:
    """Whether messages cannot be read without their schemas in a registry."""
    return FORMATS[format_name].needs_registry or ("validate", "true") in options


#: In `columns`, for a value of the message that no column takes.
SKIPPED = "-"

#: Part of values, or of the format itself.
_NO_DELIMITERS = frozenset("\"'\\\r\n.+-_:")
_NULL_MAX = 32


def column_names(value: str) -> tuple[str, ...]:
    """The names in an option `columns`: separated by commas, in backquotes if need be.

    :raises ValueError: with a sentence about what is wrong.
    """
    names: list[str] = []
    rest = value
    while True:
        rest = rest.lstrip()
        if rest.startswith("`"):
            end = rest.find("`", 1)
            if end < 0:
                raise ValueError("a backquote is not closed")
            name, rest = rest[1:end], rest[end + 1 :].lstrip()
            if rest and not rest.startswith(","):
                raise ValueError(f"between {name!r} and the next column stands no comma")
            rest = rest[1:] if rest else ""
            more = bool(rest.strip())
        else:
            name, comma, rest = rest.partition(",")
            name, more = name.strip(), bool(comma)
            if any(symbol.isspace() for symbol in name):
                raise ValueError(
                    f"{name!r} is not a column's name; types are the table's, so only names stand "
                    "here, separated by commas (a name with a space in backquotes)"
                )
        if not name:
            raise ValueError("a name is missing; names are separated by commas")
        names.append(name)
        if not more:
            break
    doubled = sorted({name for name in names if name != SKIPPED and names.count(name) > 1})
    if doubled:
        raise ValueError(f"column {doubled[0]} stands there twice")
    return tuple(names)


def delimiter_of(value: str) -> str:
    """The character that an option `delimiter` names.

    :raises ValueError: with a sentence about what is wrong.
    """
    if len(value) != 1 or not value.isascii():
        raise ValueError(f"{value!r} is not one ASCII character")
    if value in _NO_DELIMITERS or value.isalnum() or value == "\0":
        raise ValueError(
            f"{value!r} cannot separate values: it is part of them; use , ; | or a tab"
        )
    return value


def null_text(value: str) -> str:
    """The text that an option `null` names.

    :raises ValueError: with a sentence about what is wrong.
    """
    if not value or len(value) > _NULL_MAX:
        raise ValueError(f"{value!r} is not a text of 1 to {_NULL_MAX} characters")
    if not value.isascii() or not value.isprintable() or "'" in value or '"' in value:
        raise ValueError(f"{value!r} must be printable ASCII without quotes")
    return value


def check_option(format_name: str, name: str, value: str) -> None:
    """Whether an option of a format makes sense; its name is known to be one.

    :raises ValueError: with a sentence about what is wrong.
    """
    choices = CHOICES.get(name, (value,))
    if value not in choices:
        raise ValueError(f"{value!r} is not possible; use {' or '.join(map(repr, choices))}")
    if format_name not in TEXT_FORMATS:
        return
    if name == "columns":
        column_names(value)
    elif name == "delimiter":
        delimiter_of(value)
    elif name == "null" and delimiter_like(value):
        raise ValueError(f"{value!r} would be cut: it contains a separator")
    elif name == "null":
        null_text(value)


def delimiter_like(value: str) -> bool:
    """Whether a text for null contains what separates values."""
    return any(symbol in value for symbol in ",;|\t\n\r")


def first_problem(format_name: str, options: Iterable[tuple[str, str]]) -> str:
    """What is wrong with the options of a text format, "" if nothing is."""
    for name, value in options:
        try:
            check_option(format_name, name, value)
        except ValueError as error:
            return f"option {name}: {error}"
    return ""
