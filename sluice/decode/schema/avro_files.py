"""Avro's container files: each message is a whole file, with its schema and any number of rows.

A file is taken apart here, its rows are walked through, and those of all messages of one
schema are written into one container in memory: each row between two marks that name its
message. So small files cost no query each, and no row is two messages' or half a row.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sluice.core.text import TableText
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group
from sluice.decode.messages.marked import Indices, write_at
from sluice.decode.schema.avro import AvroLayout, refused_nulls
from sluice.decode.schema.avro_schema import parse_avro
from sluice.decode.schema.headed import ERROR_CHARACTERS_MAX, UnsupportedSchemaError
from sluice.decode.schema.structure import split_avro

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
#: What the blocks of one message may become.
_UNPACKED_BYTES_MAX = 1 << 28
#: Rows without bytes are limited by themselves.
_ROWS_WITHOUT_BYTES_MAX = 4096
_LAYOUTS_MAX = 256


class _FileError(Exception):
    """What is wrong with a container file."""


@dataclass(slots=True)
class _Reading:
    """A place in a file."""

    raw: bytes
    at: int = 0

    def take(self, length: int) -> bytes:
        if length < 0 or length > len(self.raw) - self.at:
            raise _FileError("the Avro file ends too early")
        self.at += length
        return self.raw[self.at - length : self.at]

    def long(self) -> int:
        result = shift = 0
        while shift < 70:
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7
        raise _FileError("a number in the Avro file has too many bytes")


@dataclass(frozen=True, slots=True)
class _Head:
    """The beginning of a file: its schema, its codec, its sync marker, where its blocks begin."""

    schema: str
    codec: str
    sync: bytes
    at: int


def _head(raw: bytes) -> _Head:
    reading = _Reading(raw)
    if not raw.startswith(_MAGIC):
        raise _FileError("the message is not an Avro file")
    reading.take(len(_MAGIC))
    metadata: dict[bytes, bytes] = {}
    while count := reading.long():
        if count < 0:
            count, _ = -count, reading.long()
        for _ in range(min(count, len(raw))):
            key = reading.take(reading.long())
            metadata[key] = reading.take(reading.long())
    try:
        schema = metadata[b"avro.schema"].decode()
        codec = metadata.get(b"avro.codec", b"null").decode()
    except (KeyError, UnicodeDecodeError):
        raise _FileError("the Avro file has no schema") from None
    return _Head(schema, codec, reading.take(_SYNC_BYTES), reading.at)


def _blocks(raw: bytes, head: _Head) -> Iterator[tuple[int, bytes]]:
    """Rows and unpacked bytes of each block."""
    reading, left = _Reading(raw, head.at), _UNPACKED_BYTES_MAX
    while reading.at < len(raw):
        rows, size = reading.long(), reading.long()
        data = _unpacked(reading.take(size), head.codec, left)
        if rows < 0 or rows > len(data) + _ROWS_WITHOUT_BYTES_MAX:
            raise _FileError("a block of the Avro file has not as many rows as it says")
        if reading.take(_SYNC_BYTES) != head.sync:
            raise _FileError("a block of the Avro file does not end where it says")
        left -= len(data)
        yield rows, data


def _unpacked(data: bytes, codec: str, most: int) -> bytes:
    too_much = _FileError(f"the Avro file has over {_UNPACKED_BYTES_MAX >> 20} MiB unpacked")
    if codec == "null":
        return data
    if codec == "deflate":
        unpacking = zlib.decompressobj(-15)
        try:
            found = unpacking.decompress(data, most + 1)
        except zlib.error as error:
            raise _FileError(f"a block of the Avro file cannot be unpacked: {error}") from None
        if len(found) > most:
            raise too_much
        # Some writers leave a part of zlib's checksum behind the data.
        if not unpacking.eof:
            raise _FileError("a block of the Avro file cannot be unpacked: it is not whole")
        return found
    raise _FileError(f"codec {codec} of the Avro file is not known; use null or deflate")


class AvroFiles:
    """A TypedFormat of such messages. It has no options."""

    def __init__(self, table: TableText) -> None:
        self._refused_nulls = refused_nulls(table)
        self._layouts: dict[str, AvroLayout | Fault] = {}

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """As the port says; schemas in the order in which messages first have them."""
        by_schema: dict[str, list[int]] = {}
        unreadable: dict[int, Fault] = {}
        for index, raw in zip(indices.tolist(), buffer.iterate(indices), strict=True):
            try:
                by_schema.setdefault(_head(raw).schema, []).append(index)
            except _FileError as error:
                unreadable[index] = _fault(str(error))
        for schema, messages in by_schema.items():
            layout = self._layout(schema)
            if isinstance(layout, Fault):
                unreadable |= dict.fromkeys(messages, layout)
                continue
            yield from self._group(buffer, np.array(messages, np.int64), layout, unreadable)
            unreadable = {}
        if unreadable:
            yield Group("", (), np.zeros(0, np.int64), "", False, unreadable=unreadable)

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """None: every row of a group was walked through."""
        return {}

    def _layout(self, schema: str) -> AvroLayout | Fault:
        layout = self._layouts.get(schema)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            try:
                layout = AvroLayout(parse_avro(schema, (), self._refused_nulls), 0)
            except UnsupportedSchemaError as error:
                layout = _fault(str(error))
            self._layouts[schema] = layout
        return layout

    def _group(
        self,
        buffer: MessageBuffer,
        messages: Indices,
        layout: AvroLayout,
        unreadable: dict[int, Fault],
    ) -> Iterator[Group]:
        faults = dict(unreadable)
        sound: list[int] = []
        file = os.memfd_create("sluice-avro-files", os.MFD_CLOEXEC)
        try:
            end = write_at(file, layout.head, 0)
            for index, raw in zip(messages.tolist(), buffer.iterate(messages), strict=True):
                rows = _rows(raw, layout, len(sound))
                if isinstance(rows, Fault):
                    faults[index] = rows
                    continue
                sound.append(index)
                for part in rows:
                    end += write_at(file, part, end)
            yield Group(
                layout.source(f"/proc/self/fd/{file}"),
                layout.columns,
                np.array(sound, np.int64),
                layout.place,
                single=False,
                unreadable=faults,
            )
        finally:
            os.close(file)


def _rows(raw: bytes, layout: AvroLayout, place: int) -> list[bytes | memoryview] | Fault:
    """The message's rows as blocks of the container."""
    parts: list[bytes | memoryview] = []
    try:
        for count, data in _blocks(raw, _head(raw)):
            result, ends = split_avro(data, count, layout.schema.tables)
            if result:
                return layout.fault(result)
            if count:
                begins = np.concatenate(([0], ends[:-1])).astype(np.int64)
                parts += layout.rows_of(data, begins, ends, place, 0)
    except _FileError as error:
        return _fault(str(error))
    return parts


def _fault(words: str) -> Fault:
    return Fault(CANNOT_PARSE, words[:ERROR_CHARACTERS_MAX])
