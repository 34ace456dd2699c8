"""Whether a message is what its schema says, byte by byte: Protobuf's wire format, Avro's bodies.

The engine takes some messages that are not: a length where a number should be, the third
branch of a union of two. So each message is walked through before the engine sees it, and
those that are sound are written behind each other. Both are compiled (structure.c).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sluice.core.compiled import address, library
from sluice.decode.messages.marks import MARK_BYTES, secret

Table = NDArray[np.int32]
Positions = NDArray[np.int64]
#: For each message 0, or a code and 256 times where it is at fault.
Results = NDArray[np.int64]


class Code(IntEnum):
    """What is wrong with a message."""

    FINE = 0
    TRUNCATED = 1
    TRAILING = 2
    VARINT = 3
    RANGE = 4
    BRANCH = 5
    SYMBOL = 6
    WIRE = 7
    TAG = 8
    ONEOF = 9
    DEPTH = 10
    UNKNOWN = 11
    COUNT = 12
    NULL_REFUSED = 13
    REFUSED = 14


class AvroKind(IntEnum):
    """Nodes of an Avro schema; a and b as structure.c says."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FIXED = 4
    BYTES = 5
    ENUM = 6
    ARRAY = 7
    MAP = 8
    UNION = 9
    RECORD = 10
    REFUSED_NULL = 11


class ProtobufKind(IntEnum):
    """How a Protobuf field stands on the wire."""

    VARINT = 0
    UNSIGNED = 1
    SIGNED = 2
    BOOL = 3
    ENUM = 4
    FIXED64 = 5
    FIXED32 = 6
    BYTES = 7
    MESSAGE = 8
    REFUSED = 9


@dataclass(frozen=True, slots=True)
class AvroTables:
    """A schema: rows of (kind, a, b), the first of them the message; children by position."""

    nodes: Table
    children: Table


@dataclass(frozen=True, slots=True)
class ProtobufTables:
    """Message types, the first of them the message.

    :param types: rows of (first field, fields).
    :param fields: rows of (number, kind, is repeated, oneof or 0, reference, count), sorted by
        number within a type. A reference is a type, or the first of the sorted numbers of
        an enum.
    """

    types: Table
    fields: Table
    enums: Table


_NOBODY = np.empty((0, 0), np.uint8)


@cache
def _library() -> ctypes.CDLL:
    found = library(__file__, "_structure")
    counting = found.sluice_split_avro, found.sluice_check_protobuf
    for function in (*counting, found.sluice_write_lengths, found.sluice_write_marks):
        function.restype = ctypes.c_int64
    return found


def check_avro(text: bytes, begins: Positions, ends: Positions, tables: AvroTables) -> Results:
    """Walk through Avro bodies, each from its begin to its end."""
    results = np.zeros(len(begins), np.int64)
    _library().sluice_check_avro(
        ctypes.c_char_p(text),
        ctypes.c_int64(len(begins)),
        *map(address, (begins, ends, tables.nodes, tables.children, results)),
    )
    return results


def split_avro(text: bytes, rows: int, tables: AvroTables) -> tuple[int, Positions]:
    """Where each of so many rows ends that stand behind each other.

    :returns: 0, or a code and 256 times the node at fault; and the ends.
    """
    ends = np.zeros(rows, np.int64)
    result = _library().sluice_split_avro(
        ctypes.c_char_p(text),
        ctypes.c_int64(0),
        ctypes.c_int64(len(text)),
        ctypes.c_int64(rows),
        *map(address, (tables.nodes, tables.children, ends)),
    )
    return int(result), ends


#: So many fields that a schema does not have are told of some messages.
_UNKNOWN_MAX = 64


def check_protobuf(
    text: bytes, begins: Positions, ends: Positions, tables: ProtobufTables, refuses_unknown: bool
) -> tuple[Results, list[tuple[int, int]]]:
    """Walk through Protobuf messages, each from its begin to its end.

    :returns: also fields of sound messages that the types do not have, each once: the message's own
        field that it is, or stands in, and its number.
    """
    results, unknown = np.zeros(len(begins), np.int64), np.zeros(_UNKNOWN_MAX, np.int64)
    count = _library().sluice_check_protobuf(
        ctypes.c_char_p(text),
        ctypes.c_int64(len(begins)),
        *map(address, (begins, ends, tables.types, tables.fields, tables.enums)),
        ctypes.c_int32(refuses_unknown),
        *map(address, (results, unknown)),
        ctypes.c_int64(_UNKNOWN_MAX),
    )
    return results, [(place >> 32, place & 0xFFFFFFFF) for place in unknown[:count].tolist()]


def with_lengths(text: bytes, begins: Positions, ends: Positions) -> memoryview:
    """These parts of a text behind each other, each behind its length as a varint."""
    out = np.empty(int((ends - begins).sum()) + 10 * len(begins), np.uint8)
    written = _library().sluice_write_lengths(
        ctypes.c_char_p(text),
        ctypes.c_int64(len(begins)),
        *map(address, (begins, ends, out)),
    )
    return out.data[:written]


def between_marks(
    text: bytes,
    begins: Positions,
    ends: Positions,
    places: NDArray[np.uint32],
    before: bytes = b"",
    owners: NDArray[np.uint8] = _NOBODY,
) -> memoryview:
    """These parts of a text behind each other, each between two marks.

    :param places: of each; see marks.py.
    :param before: what the format wants in front of a mark.
    :param owners: a line of bytes for each, which stand behind its first mark.
    """
    known, owner_size = before + secret(), owners.shape[1]
    of_rows = np.ascontiguousarray(places, "<u4")
    around = 2 * (len(before) + MARK_BYTES) + owner_size
    out = np.empty(int((ends - begins).sum()) + around * len(begins), np.uint8)
    written = _library().sluice_write_marks(
        ctypes.c_char_p(text),
        ctypes.c_int64(len(begins)),
        *map(address, (begins, ends)),
        ctypes.c_char_p(known),
        ctypes.c_int64(len(known)),
        *map(address, (of_rows, owners)),
        ctypes.c_int64(owner_size),
        address(out),
    )
    return out.data[:written]
