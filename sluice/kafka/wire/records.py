"""Whole messages, as the compiled parser holds those that are wanted."""

from __future__ import annotations

import struct

from sluice.core.ranges import TopicPartition
from sluice.kafka.headers import UNREADABLE_NAME, Headers
from sluice.kafka.originals import Original
from sluice.kafka.wire.messages import Cursor

_TIMESTAMP = struct.Struct("=q")


def read_original(source: TopicPartition, offset: int, held: memoryview) -> Original:
    """A message from its timestamp, and what its record has from the key's length on.

    :raises BrokenAnswerError: its headers are none.
    """
    cursor = Cursor(held, _TIMESTAMP.size)
    key, value = _bytes(cursor, held), _bytes(cursor, held)
    headers: Headers = []
    for _ in range(_number(cursor)):
        name = _bytes(cursor, held) or b""
        headers.append((_name(name), _bytes(cursor, held)))
    (at_ms,) = _TIMESTAMP.unpack_from(held)
    return Original(source, offset, at_ms if at_ms >= 0 else None, key, value, headers)


def _number(cursor: Cursor) -> int:
    """Signed; small ones of either sign are short."""
    value = cursor.varint()
    return value >> 1 ^ -(value & 1)


def _bytes(cursor: Cursor, held: memoryview) -> bytes | None:
    length = _number(cursor)
    if length < 0:
        return None
    begin = cursor.skip(length)
    return bytes(held[begin : cursor.at])


def _name(name: bytes) -> str:
    """As the other reader tells it."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return UNREADABLE_NAME
