"""Avro messages that do not carry their schema: with a registry's header, and single objects.

All messages of one schema are written into one container file in memory, each between two
marks (marks.py), which prove in every row that it is one whole message.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.engine.session import EngineError, declared, literal, run, settings_clause
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import (
    CANNOT_PARSE,
    NULL_IN_COLUMN,
    OUT_OF_RANGE,
    Fault,
    engine_words,
)
from sluice.decode.messages.marks import MARK_BYTES, place_between
from sluice.decode.messages.memory import memory_file
from sluice.decode.messages.views import Indices
from sluice.decode.schema.avro_schema import AvroSchema, parse_avro, split_schemas, with_ticks
from sluice.decode.schema.change_events import with_moments
from sluice.decode.schema.headed import (
    HeadedMessages,
    Layout,
    RegisteredMessages,
    UnsupportedSchemaError,
    required_option,
    target_types,
)
from sluice.decode.schema.named import (
    HEADER_OPTION,
    KEY_SCHEMA_HEADER,
    Found,
    Headers,
    bytes_at_begin,
    sorted_by_schema,
)
from sluice.decode.schema.structure import Code, Positions, Results, between_marks, check_avro
from sluice.producer.wire import varint

#: Of the container files; they are read by nobody else.
_SYNC = b"sluice-container"
_SINGLE_OBJECT_HEADER_BYTES = 10
_ERROR_CHARACTERS_MAX = 300

_WORDS = {
    Code.TRUNCATED: "the message ends before {of}",
    Code.TRAILING: "the message goes on after its last field",
    Code.VARINT: "a number of {of} has too many bytes",
    Code.RANGE: "the value of {of} is out of its type's range",
    Code.BRANCH: "{of} names a branch that its union does not have",
    Code.SYMBOL: "{of} names a symbol that its enum does not have",
    Code.DEPTH: "{of} is nested too deeply",
    Code.COUNT: "the items of {of} are not as many or as long as it says",
    Code.NULL_REFUSED: "null in column {of}",
}
_REASONS = {Code.RANGE: OUT_OF_RANGE, Code.NULL_REFUSED: NULL_IN_COLUMN}


class AvroLayout(Layout):
    """One container file, a block for each piece. Between its marks each message stands with
    its header, a column that nobody asks for.

    :raises UnsupportedSchemaError: the engine cannot read this schema.
    """

    def __init__(self, schema: AvroSchema, header_bytes: int) -> None:
        self.schema = schema
        # Names that the schema does not have, the same ones for the same schema.
        longest = "_" * max(len(column.name) for column in schema.columns)
        first, header, last = (f"_sluice_{part}{longest}" for part in ("head", "header", "tail"))
        mark_type = {"type": "fixed", "name": "sluice_mark", "size": MARK_BYTES}
        header_type = {"type": "fixed", "name": "sluice_header", "size": header_bytes}
        head: list[object] = [{"name": first, "type": mark_type}]
        if header_bytes:
            head.append({"name": header, "type": header_type})
        tail = {"name": last, "type": "sluice_mark"}
        self.head = _container_head([*head, *schema.fields, tail])
        types = _types_of(self.head)
        self._structure = literal(declared(types.items()))
        if schema.marked is not None:
            marked = _types_of(_container_head([*head, *schema.marked, tail]))
            types = {name: with_ticks(type_text) for name, type_text in marked.items()}
        unread = [c.name for c in schema.columns if not c.type and c.name not in types]
        if unread:
            raise UnsupportedSchemaError(f"the engine does not read the Avro field {unread[0]!r}")
        self.columns = tuple(
            replace(column, type=column.type or types[column.name]) for column in schema.columns
        )
        self.place = place_between(first, last)

    def source(self, path: str) -> str:
        """As the port says."""
        return f"file({literal(path)}, Avro, {self._structure})"

    def walk(
        self, text: bytes, begins: Positions, ends: Positions
    ) -> tuple[Results, Collection[str]]:
        """As the port says."""
        return check_avro(text, begins, ends, self.schema.tables), ()

    def fault(self, result: int) -> Fault:
        """As the port says."""
        code, column = Code(result % 256), self.schema.column_of[result // 256]
        words = _WORDS[code].format(of=column or "its first field")
        return Fault(_REASONS.get(code, CANNOT_PARSE), words, column)

    def block(
        self, text: bytes, begins: Positions, bodies: Positions, ends: Positions, place: int
    ) -> list[bytes | memoryview]:
        """A block of the container."""
        places = np.arange(place, place + len(begins), dtype=np.uint32)
        return self.rows_of(text, begins, ends, places)

    def rows_of(
        self, text: bytes, begins: Positions, ends: Positions, places: NDArray[np.uint32]
    ) -> list[bytes | memoryview]:
        """The same, of rows of these places."""
        rows = between_marks(text, begins, ends, places)
        return [_long(len(begins)) + _long(len(rows)), rows, _SYNC]


def _container_head(fields: list[object]) -> bytes:
    text = json.dumps({"type": "record", "name": "sluice_row", "fields": fields}).encode()
    name = b"avro.schema"
    metadata = (_long(1), _long(len(name)), name, _long(len(text)), text, _long(0))
    return b"Obj\x01" + b"".join(metadata) + _SYNC


def _types_of(head: bytes) -> dict[str, str]:
    """What the engine makes of a container's schema: a type for each field."""
    try:
        with memory_file(head) as path:
            source = f"file({literal(path)}, Avro)"
            clause = settings_clause(print_pretty_type_names=0)
            rows = run(f"DESCRIBE TABLE {source} {clause}", "JSONCompactEachRow").bytes().decode()
    except (EngineError, TerminalError) as error:
        said = f"the engine cannot read the Avro schema: {engine_words(error)}"
        raise UnsupportedSchemaError(said[:_ERROR_CHARACTERS_MAX]) from error
    except UnicodeDecodeError as error:
        raise UnsupportedSchemaError("the Avro schema has a name that is no text") from error
    described = (json.loads(line) for line in rows.split("\n") if line)
    return {row[0]: row[1] for row in described}


def _long(value: int) -> bytes:
    """Avro's variable length, zigzag; for values that are not negative."""
    return varint(value << 1)


def schema_of(text: str, references: list[str], table: TableSpec) -> AvroSchema:
    """A writer's schema as the messages of an entry are read. A key that is no record is the field
    that the entry reads of it, if that is one.

    :raises UnsupportedSchemaError: it cannot be used, or is none.
    """
    if table.envelope:
        try:
            text, references = with_moments(text), [with_moments(one) for one in references]
        except (ValueError, RecursionError) as error:
            raise UnsupportedSchemaError(f"the Avro schema cannot be read: {error!r}") from error
    is_of_keys = (HEADER_OPTION, KEY_SCHEMA_HEADER) in table.options
    only = table.columns[0].name if is_of_keys and len(table.columns) == 1 else ""
    return parse_avro(text, references, refused_nulls(table), target_types(table), only)


def refused_nulls(table: TableSpec) -> frozenset[str]:
    """Columns where null instead of an array or map is a fault."""
    if table.on_null != "dead-letter":
        return frozenset()
    return frozenset(column.name for column in table.columns)


class AvroConfluent(RegisteredMessages):
    """A zero byte, the number of the schema in four bytes, the body; or the body alone, and a GUID
    in a header.

    :raises TerminalError: the options are not complete.
    """

    kind = "AVRO"

    def make_layout(self, schema: RegisteredSchema, key: int) -> Layout | Fault:
        """As the base says."""
        references = [text for _, text in schema.references]
        parsed = schema_of(schema.text, references, self.table)
        return AvroLayout(parsed, self.names.header_bytes(key))


class AvroSingleObject(HeadedMessages):
    """Two magic bytes, the fingerprint of the schema in eight, the body.

    :raises TerminalError: the option `schema` does not hold Avro schemas.
    """

    no_header = Fault(CANNOT_PARSE, "the message does not begin with C3 01 and a fingerprint")

    def __init__(self, table: TableSpec) -> None:
        try:
            texts = split_schemas(required_option(table, "schema"))
            by_key = {fingerprint(own): own for own in texts}
        except UnsupportedSchemaError as error:
            raise TerminalError(
                f"table {table.target}: {error}",
                "Give the Avro schemas of the messages as the option schema.",
            ) from error
        self._layouts = {
            key: _configured(key, own, [other for other in texts if other != own], table)
            for key, own in by_key.items()
        }

    def found(self, buffer: MessageBuffer, indices: Indices) -> list[Found]:
        """As the base says."""
        return sorted_by_schema(buffer, indices, self._headers)

    @staticmethod
    def _headers(piece: Piece) -> Headers:
        is_long, symbols = bytes_at_begin(piece, _SINGLE_OBJECT_HEADER_BYTES)
        is_magic = (symbols[:, 0] == 0xC3) & (symbols[:, 1] == 0x01)
        # The fingerprint stands there with its lowest byte first.
        numbers = np.ascontiguousarray(symbols[:, 2:]).view("<u8")[:, 0].astype(np.uint64)
        lengths = np.full(len(numbers), _SINGLE_OBJECT_HEADER_BYTES, np.int64)
        return Headers(is_long & is_magic, numbers, lengths)

    def layout(self, key: int) -> Layout | Fault:
        """As the base says."""
        nothing = Fault(CANNOT_PARSE, f"there is no {_SHOWN.format(key)}")
        return self._layouts.get(key, nothing)

    def known(self) -> Layout | None:
        """As the base says."""
        layouts = [one for one in self._layouts.values() if isinstance(one, Layout)]
        return layouts[0] if len(self._layouts) == len(layouts) == 1 else None


_SHOWN = "configured schema of fingerprint {:016x}"


def _configured(key: int, text: str, others: list[str], table: TableSpec) -> Layout | Fault:
    try:
        return AvroLayout(schema_of(text, others, table), _SINGLE_OBJECT_HEADER_BYTES)
    except UnsupportedSchemaError as error:
        return Fault(CANNOT_PARSE, f"{_SHOWN.format(key)}: {error}")


def fingerprint(schema: str) -> int:
    """CRC-64-AVRO of the schema's canonical form.

    :raises UnsupportedSchemaError: it has none.
    """
    from fastavro.schema import fingerprint as digest
    from fastavro.schema import to_parsing_canonical_form

    try:
        form = to_parsing_canonical_form(json.loads(schema))
        number = str(digest(form, "CRC-64-AVRO"))
    except Exception as error:  # whatever the library thinks of a text from outside
        raise UnsupportedSchemaError(f"the Avro schema cannot be read: {error!r}") from error
    return int.from_bytes(bytes.fromhex(number), "little")
