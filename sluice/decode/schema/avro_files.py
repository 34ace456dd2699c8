"""Avro's container files: each message is a whole file, with its schema and any number of rows.

A file is taken apart here, its rows are walked through, and those of all messages of one
schema are written into one container in memory: each row between two marks that name its
message. So small files cost no query each, and no row is two messages' or half a row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from sluice.core.load_spec import TableSpec
from sluice.decode.engine.native import read_varint
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, TypedFormat
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.messages.views import Indices
from sluice.decode.schema.avro import AvroLayout, schema_of
from sluice.decode.schema.headed import UnsupportedSchemaError
from sluice.decode.schema.structure import split_avro

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
#: What the blocks of one message may become.
_UNPACKED_BYTES_MAX = 1 << 28
#: Rows without bytes are limited by themselves, and so are all: each stands between two marks.
_ROWS_WITHOUT_BYTES_MAX = 4096
_ROWS_MAX = 1 << 24
_LAYOUTS_MAX = 256


_TOO_SHORT = "the Avro file ends too early"


class _FileError(Exception):
    """What is wrong with a container file."""


class _File:
    """A container file, read up to its first block.

    :raises _FileError: it does not begin like one.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0
        if not raw.startswith(_MAGIC):
            raise _FileError("the message is not an Avro file")
        self._take(len(_MAGIC))
        metadata: dict[bytes, bytes] = {}
        while count := self._long():
            if count < 0:
                count, _ = -count, self._long()
            for _ in range(min(count, len(raw))):
                key = self._take(self._long())
                metadata[key] = self._take(self._long())
        try:
            self.schema = metadata[b"avro.schema"].decode()
            self._codec = metadata.get(b"avro.codec", b"null").decode()
        except (KeyError, UnicodeDecodeError):
            raise _FileError("the Avro file has no schema") from None
        self._sync = self._take(_SYNC_BYTES)

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Rows and unpacked bytes of each block.

        :raises _FileError: they are not what they should be.
        """
        left, empty_left, rows_left = _UNPACKED_BYTES_MAX, _ROWS_WITHOUT_BYTES_MAX, _ROWS_MAX
        while self._at < len(self._raw):
            rows, size = self._long(), self._long()
            data = self._unpacked(self._take(size), left)
            empty_left -= max(0, rows - len(data))
            rows_left -= rows
            if rows < 0 or empty_left < 0:
                raise _FileError("a block of the Avro file has not as many rows as it says")
            if rows_left < 0:
                raise _FileError(f"the Avro file has over {_ROWS_MAX:,} rows")
            if self._take(_SYNC_BYTES) != self._sync:
                raise _FileError("a block of the Avro file does not end where it says")
            left -= len(data)
            yield rows, data

    def _take(self, length: int) -> bytes:
        if length < 0 or length > len(self._raw) - self._at:
            raise _FileError(_TOO_SHORT)
        self._at += length
        return self._raw[self._at - length : self._at]

    def _long(self) -> int:
        try:
            raw, self._at = read_varint(self._raw, self._at)
        except IndexError:
            raise _FileError(_TOO_SHORT) from None
        except ValueError:
            raise _FileError("a number in the Avro file has too many bytes") from None
        return (raw >> 1) ^ -(raw & 1)

    def _unpacked(self, data: bytes, most: int) -> bytes:
        if self._codec == "null":
            return data
        if self._codec != "deflate":
            said = f"codec {self._codec} of the Avro file is not known; use null or deflate"
            raise _FileError(said)
        unpacking = zlib.decompressobj(-15)
        try:
            found = unpacking.decompress(data, most + 1)
        except zlib.error as error:
            raise _FileError(f"a block of the Avro file cannot be unpacked: {error}") from None
        if len(found) > most:
            raise _FileError(f"the Avro file has over {_UNPACKED_BYTES_MAX >> 20} MiB unpacked")
        # Some writers leave a part of zlib's checksum behind the data.
        if not unpacking.eof:
            raise _FileError("a block of the Avro file cannot be unpacked: it is not whole")
        return found


class AvroFiles(TypedFormat):
    """Such messages, of which every row of a group was walked through. It has no options."""

    def __init__(self, table: TableSpec) -> None:
        @lru_cache(_LAYOUTS_MAX)
        def layout(schema: str) -> AvroLayout | Fault:
            try:
                return AvroLayout(schema_of(schema, [], table), 0)
            except UnsupportedSchemaError as error:
                return _fault(error)

        self._layout = layout

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """As the port says; schemas in the order in which messages first have them."""
        by_schema: dict[str, list[int]] = {}
        unreadable: dict[int, Fault] = {}
        for index, raw in buffer.items(indices):
            try:
                schema = _File(raw).schema
            except _FileError as error:
                unreadable[index] = _fault(error)
            else:
                by_schema.setdefault(schema, []).append(index)
        for schema, messages in by_schema.items():
            layout = self._layout(schema)
            if isinstance(layout, Fault):
                unreadable |= dict.fromkeys(messages, layout)
            else:
                yield from _group(buffer, np.array(messages, np.int64), layout)
        if unreadable:
            yield Group.without_messages(unreadable)


def _group(buffer: MessageBuffer, messages: Indices, layout: AvroLayout) -> Iterator[Group]:
    faults: dict[int, Fault] = {}
    sound: list[int] = []
    with MemoryFile("avro-files") as file:
        file.append(layout.head)
        for index, raw in buffer.items(messages):
            rows = _rows(raw, layout, len(sound))
            if isinstance(rows, Fault):
                faults[index] = rows
                continue
            sound.append(index)
            for part in rows:
                file.append(part)
        source, found = layout.source(file.path), np.array(sound, np.int64)
        yield Group(source, layout.columns, found, layout.place, single=False, unreadable=faults)


def _rows(raw: bytes, layout: AvroLayout, place: int) -> list[bytes | memoryview] | Fault:
    """The message's rows as blocks of the container."""
    parts: list[bytes | memoryview] = []
    try:
        for count, data in _File(raw).blocks():
            result, ends = split_avro(data, count, layout.schema.tables)
            if result:
                return layout.fault(result)
            if count:
                begins = np.concatenate(([0], ends[:-1])).astype(np.int64)
                places = np.full(count, place, np.uint32)
                parts += layout.rows_of(data, begins, ends, places)
    except _FileError as error:
        return _fault(error)
    return parts


def _fault(error: Exception) -> Fault:
    return Fault(CANNOT_PARSE, str(error))
