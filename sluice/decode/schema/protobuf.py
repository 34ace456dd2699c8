"""Protobuf messages: each is one message of a type, with a registry's header or without.

All messages of one type are written behind each other, each behind its length, so where one
ends is never the message's to say. Every message is walked through before (structure.py): the
engine takes a length for a number, and 2^32 + 1 for an enum's 1.

An absent field is what Protobuf says it is: the default of its type (or proto2's own). Where
absence differs from the default (`optional`, oneof) and the column is nullable, it is null.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import TableSpec
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.engine.native import read_varint
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import stored_type
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, OUT_OF_RANGE, UNKNOWN_FIELD, Fault
from sluice.decode.messages.format import PLACE_IS_ROW_NUMBER
from sluice.decode.messages.framing import looks_like
from sluice.decode.messages.views import Indices
from sluice.decode.schema.headed import (
    HeadedMessages,
    Layout,
    RegisteredMessages,
    UnsupportedSchemaError,
    required_option,
    target_types,
)
from sluice.decode.schema.named import Found, Headers
from sluice.decode.schema.protobuf_schema import (
    MAIN_FILE,
    ProtobufFiles,
    ProtobufMessage,
    any_of,
    compile_files,
    filling,
    left_out,
    of_oneof,
    read_descriptors,
)
from sluice.decode.schema.structure import Code, Positions, Results, check_protobuf, with_lengths

#: In the options of a table: a file that the schema imports, by its import path.
IMPORT_PREFIX = "schema:"
#: A type's place in a file as 32 bits: its depth, then the numbers.
_DEPTH_BITS, _NUMBER_BITS, _DEPTH_MAX = 3, 29, 7

_WORDS = {
    Code.TRUNCATED: "the message ends inside {of}",
    Code.VARINT: "a number of {of} has too many bytes",
    Code.RANGE: "the value of {of} is out of its type's range",
    Code.SYMBOL: "{of} has a number that its enum does not have",
    Code.WIRE: "{of} stands there as another type than the schema's",
    Code.TAG: "{of} is a group, or no field at all",
    Code.ONEOF: "{of} stands beside another field of its oneof",
    Code.DEPTH: "{of} is nested too deeply",
    Code.UNKNOWN: "the table has no column for {of}, or not for all of it",
    Code.TWICE: "{of}, or a field in it, stands there twice",
    Code.REFUSED: "{of} cannot be read: its type contains itself, or has no fields",
}
_REASONS = {
    Code.RANGE: OUT_OF_RANGE,
    Code.SYMBOL: OUT_OF_RANGE,
    Code.UNKNOWN: UNKNOWN_FIELD,
}

#: Of several types, a schema is compiled once.
_SCHEMAS_MAX = 256
_lock = threading.Lock()
_folder: Path | None = None
_folder_of = 0


def _schema_file(text: str) -> Path:
    """A file with this text, as long as the process lives. The engine keeps what it read of a
    path, so a path is named after its content.

    :raises TransientError: it cannot be written.
    """
    global _folder, _folder_of
    with _lock:
        try:
            # What cares for temporary files may have taken the folder away.
            if _folder is None or _folder_of != os.getpid() or not _folder.is_dir():
                _folder, _folder_of = Path(tempfile.mkdtemp(prefix="sluice-protobuf-")), os.getpid()
                atexit.register(shutil.rmtree, _folder, ignore_errors=True)
            path = _folder / f"{hashlib.sha256(text.encode()).hexdigest()}.proto"
            if not path.exists():
                # Half a file must not be taken for one.
                part = path.with_suffix(".part")
                part.write_text(text)
                part.replace(path)
        except OSError as error:
            raise TransientError(
                f"the Protobuf schema cannot be written for the engine: {error}",
                "Look at the machine's room for temporary files.",
            ) from error
        return path


class ProtobufLayout(Layout):
    """Lengths and messages.

    :param table: says which columns take null, and whether unknown fields are refused.
    """

    place = PLACE_IS_ROW_NUMBER

    def __init__(self, message: ProtobufMessage, table: TableSpec) -> None:
        self._message = message
        self._refuses_unknown = table.unknown_fields == "refuse"
        self._path = _schema_file(message.engine_schema())
        self.settings: Mapping[str, object] = {
            "format_schema_source": "'file'",
            "format_schema": literal(str(self._path)),
            "format_schema_message_name": "'T0'",
        }
        targets = target_types(table)
        parts, columns = [], []
        oneofs = {name: fields for name, fields in message.oneofs.items() if name in targets}
        of_oneofs = {field.name for fields in oneofs.values() for field in fields}
        wanted = message.columns
        if self._refuses_unknown:
            names = targets.keys() | of_oneofs
            wanted = tuple(column for column in wanted if column.name in names)
        if not wanted:
            raise UnsupportedSchemaError(f"the table has no column of message type {message.name}")
        for column in wanted:
            target = targets.get(column.name)
            if column.name in of_oneofs:
                parts.append(f"{column.source} Nullable({stored_type(column.type)})")
                columns += [] if target is None else [of_oneof(column, target)]
                continue
            columns.append(filling(column, target))
            parts.append(f"{column.source} {stored_type(columns[-1].type)}")
        columns += [any_of(name, fields) for name, fields in oneofs.items()]
        if not self._refuses_unknown:
            types = {column.name: column.type for column in columns}
            self.ignored = {
                name
                for column in wanted
                if column.name in types
                for name in left_out(column.type, types[column.name], column.name)
            }
        self._structure = literal(", ".join(parts))
        self.columns = tuple(columns)
        # A field without a column is unknown where a message has it, not before.
        targets = dict.fromkeys(of_oneofs, "Dynamic") | targets
        self._tables = message.tables_for(targets, self._refuses_unknown)

    def source(self, path: str) -> str:
        """As the port says."""
        return f"file({literal(path)}, Protobuf, {self._structure})"

    def walk(
        self, text: bytes, begins: Positions, ends: Positions
    ) -> tuple[Results, Collection[str]]:
        """As the port says."""
        given = text, begins, ends, self._tables, self._refuses_unknown
        results, unknown = check_protobuf(*given)
        return results, {self._shown(own, number) for own, number in unknown}

    def _shown(self, own: int, number: int) -> str:
        """A field that no type has, by its number: it has no name here."""
        within = self._message.field_names.get(own, "")
        return f"field {number} of {within}" if within else f"field {number}"

    def fault(self, result: int) -> Fault:
        """As the port says."""
        code, number = Code(result % 256), result // 256
        column = self._message.field_names.get(number, "")
        of = column or (f"field {number}" if number else "its first field")
        words = _WORDS[code].format(of=of)
        return Fault(_REASONS.get(code, CANNOT_PARSE), words, column)

    def block(
        self, text: bytes, begins: Positions, bodies: Positions, ends: Positions, place: int
    ) -> list[bytes | memoryview]:
        """Each body behind its length."""
        return [with_lengths(text, bodies, ends)]


class Protobuf(HeadedMessages):
    """Each value is one message of the option `message`.

    The type is in the option `schema` (a .proto text; imported files as `schema:PATH`) or in
    `descriptors` (a FileDescriptorSet in base64).

    :raises TerminalError: the options do not name a type that can be read.
    """

    def __init__(self, table: TableSpec) -> None:
        options = dict(table.options)
        name = required_option(table, "message")
        try:
            if options.get("descriptors"):
                descriptors = read_descriptors(options["descriptors"])
            else:
                text = required_option(table, "schema")
                imports = {
                    key.removeprefix(IMPORT_PREFIX): value
                    for key, value in options.items()
                    if key.startswith(IMPORT_PREFIX)
                }
                descriptors = compile_files({**imports, MAIN_FILE: text}, MAIN_FILE)
            message = ProtobufFiles(descriptors).named(name)
            self._only = ProtobufLayout(message, table)
        except UnsupportedSchemaError as error:
            raise TerminalError(
                f"table {table.target}: {error}",
                "Correct the options schema and message of the entry.",
            ) from error

    def found(self, buffer: MessageBuffer, indices: Indices) -> list[Found]:
        """All messages are of one type."""
        return [Found(0, [indices], [np.zeros(len(indices), np.int64)])] if len(indices) else []

    def layout(self, key: int) -> Layout | Fault:
        """As the base says."""
        return self._only

    def remark(self, value: bytes) -> str:
        """As the port says."""
        like = looks_like(value)
        if like:
            return f"it begins like {like}"
        try:
            length, begin = read_varint(memoryview(value), 0)
        except (IndexError, ValueError):
            return ""
        is_delimited = length == len(value) - begin
        return 'it may stand behind its length, delimited = "true" says so' if is_delimited else ""

    def known(self) -> Layout | None:
        """As the port says."""
        return self._only


class ProtobufConfluent(RegisteredMessages):
    """A zero byte, the schema's number in four bytes, the type's place in it, the message; or the
    message alone, and a GUID and the place in a header.

    With the option `message`, messages of other types are bad.

    :raises TerminalError: the options are not complete.
    """

    kind = "PROTOBUF"

    def __init__(self, table: TableSpec) -> None:
        super().__init__(table)
        self._wanted = dict(table.options).get("message", "")
        self.no_header = Fault(CANNOT_PARSE, f"{self.no_header.error}, and a type's place in it")

    def headers(self, piece: Piece) -> Headers:
        """As the base says."""
        headers = super().headers(piece)
        begins, ends = piece.bounds
        symbols = np.frombuffer(piece.text, np.uint8)
        there, keys, lengths = headers.are_there, headers.keys, headers.lengths
        # Behind the last message stands a newline, so there is a byte behind each header.
        following = symbols[np.minimum(begins + lengths, len(symbols) - 1)]
        has_more = ends - begins > lengths
        there &= has_more
        is_first = there & (following == 0)
        lengths = lengths + is_first
        for at in np.flatnonzero(there & ~is_first).tolist():
            begin, end = int(begins[at]) + int(lengths[at]), int(ends[at])
            found = read_place(piece.text, begin, end)
            packed = None if found is None else _packed(found[0])
            if found is None or packed is None:
                there[at] = False
                continue
            keys[at] |= np.uint64(packed << 32)
            lengths[at] = found[1] - int(begins[at])
        return Headers(there, keys, lengths)

    def make_layout(self, schema: RegisteredSchema, key: int) -> Layout | Fault:
        """As the base says."""
        message = compiled_schema(schema).at(MAIN_FILE, _unpacked(self.names.place(key)))
        if self._wanted and not f".{message.name}".endswith(f".{self._wanted}"):
            said = f"the message is of type {message.name}, not {self._wanted}"
            return Fault(CANNOT_PARSE, said)
        return ProtobufLayout(message, self.table)

    def place_in_header(self, rest: bytes) -> int | None:
        """As the base says."""
        found = read_place(rest, 0, len(rest))
        return None if found is None or found[1] < len(rest) else _packed(found[0])


@lru_cache(_SCHEMAS_MAX)
def compiled_schema(schema: RegisteredSchema) -> ProtobufFiles:
    """The message types of a registered schema; its own file is MAIN_FILE.

    :raises UnsupportedSchemaError: it cannot be used.
    """
    files = {**dict(schema.references), MAIN_FILE: schema.text}
    return ProtobufFiles(compile_files(files, MAIN_FILE))


def _packed(path: tuple[int, ...]) -> int | None:
    """The place of a type as one number, 0 for the first type; None if it has no room."""
    if path == (0,):
        return 0
    if len(path) > _DEPTH_MAX:
        return None
    bits, packed = _NUMBER_BITS // len(path), 0
    for number in reversed(path):
        if number >> bits:
            return None
        packed = packed << bits | number
    return packed << _DEPTH_BITS | len(path)


def _unpacked(packed: int) -> tuple[int, ...]:
    """The inverse of `_packed`."""
    if not packed:
        return (0,)
    depth, rest = packed & 7, packed >> _DEPTH_BITS
    bits = _NUMBER_BITS // depth
    return tuple(rest >> bits * place & (1 << bits) - 1 for place in range(depth))


def read_place(text: bytes, at: int, end: int) -> tuple[tuple[int, ...], int] | None:
    """The place of a type: a count and as many numbers; and where the message begins.

    :returns: None: the bytes are no such place.
    """
    view, wanted = memoryview(text)[:end], 1
    numbers: list[int] = []
    while len(numbers) < wanted:
        try:
            raw, at = read_varint(view, at, 5)
        except (IndexError, ValueError):
            return None
        number = (raw >> 1) ^ -(raw & 1)
        if number < 0:
            return None
        numbers.append(number)
        if len(numbers) == 1:
            # No numbers at all mean the first type.
            if number > _DEPTH_MAX:
                return None
            wanted = 1 + number
    return tuple(numbers[1:]) or (0,), at
