"""The head of a RowBinaryWithNamesAndTypes message."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.decode.messages.format import Natural
from sluice.decode.sequential.row_walk import RowWalk
from sluice.decode.typed.structures import Structure

_COLUMNS_MAX = 10_000
_TEXT_BYTES_MAX = 10_000


class HeadError(Exception):
    """The bytes at the beginning of a message are no head."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the messages that begin with these bytes have in common."""

    text: bytes
    structure: Structure = field(compare=False)
    columns: tuple[Natural, ...] = field(compare=False)
    walk: RowWalk = field(compare=False)


def read_head(message: bytes) -> tuple[bytes, list[str], list[str]]:
    """The bytes of the head, the names and the types.

    :raises HeadError: they are not there.
    """
    count, position = _number(message, 0, _COLUMNS_MAX)
    texts = []
    for _ in range(2 * count):
        length, position = _number(message, position, _TEXT_BYTES_MAX)
        text = message[position : position + length]
        position += length
        if len(text) < length:
            raise HeadError("the message ends within the names and types of its columns")
        try:
            texts.append(text.decode())
        except UnicodeDecodeError:
            raise HeadError("a name or type of a column is not UTF-8") from None
    return message[:position], texts[:count], texts[count:]


def _number(message: bytes, position: int, maximum: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        if position >= len(message):
            raise HeadError("the message ends within the names and types of its columns")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > maximum:
                break
            return value, position
        shift += 7
    raise HeadError("the message does not begin with names and types of columns")
