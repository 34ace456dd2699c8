"""Whether a message is what its schema says, byte by byte: Protobuf's wire format, Avro's bodies.

The engine takes some messages that are not: a length where a number should be, the third
branch of a union of two. So each message is walked through before the engine sees it, and
those that are sound are written behind each other. Both are compiled (structure.c).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sluice.decode.messages.marks import MARK_BYTES, secret
from sluice.machine.compiled import Library

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
    TWICE = 15


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
_LIBRARY = Library(__file__, "_structure")


def check_avro(text: bytes, begins: Positions, ends: Positions, tables: AvroTables) -> Results:
    """Walk through Avro bodies, each from its begin to its end."""
    results = np.zeros(len(begins), np.int64)
    known = tables.nodes, tables.children
    _LIBRARY.call("check_avro", text, len(begins), begins, ends, *known, results)
    return results


def split_avro(text: bytes, rows: int, tables: AvroTables) -> tuple[int, Positions]:
    """Where each of so many rows ends that stand behind each other.

    :returns: 0, or a code and 256 times the node at fault; and the ends.
    """
    ends = np.zeros(rows, np.int64)
    known = tables.nodes, tables.children
    return _LIBRARY.call("split_avro", text, 0, len(text), rows, *known, ends), ends


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
    known, refuses = (tables.types, tables.fields, tables.enums), ctypes.c_int32(refuses_unknown)
    count = _LIBRARY.call(
        *("check_protobuf", text, len(begins), begins, ends, *known),
        *(refuses, results, unknown, _UNKNOWN_MAX),
    )
    return results, [(place >> 32, place & 0xFFFFFFFF) for place in unknown[:count].tolist()]


def with_lengths(text: bytes, begins: Positions, ends: Positions) -> memoryview:
    """These parts of a text behind each other, each behind its length as a varint."""
    out = np.empty(int((ends - begins).sum()) + 10 * len(begins), np.uint8)
    return out.data[: _LIBRARY.call("write_lengths", text, len(begins), begins, ends, out)]


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
    written = _LIBRARY.call(
        *("write_marks", text, len(begins), begins, ends, known, len(known)),
        *(of_rows, owners, owner_size, out),
    )
    return out.data[:written]
