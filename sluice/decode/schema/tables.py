"""What the walk through a message needs to know of its schema, and what it may find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

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
