"""Messages of several rows, taken apart before they are decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.framing import Framing

Indices = NDArray[np.int64]

#: Of one message of text. Compressed, a message of 64 KiB could have thirty million, and each takes
#: some 200 bytes while it is taken apart.
ROWS_MAX = 1 << 20
TOO_MANY_ROWS = Fault(CANNOT_PARSE, f"the message has over {ROWS_MAX:,} rows")


def numbers_within(messages: Indices) -> NDArray[np.uint32]:
    """Of each row within its message, from 0.

    :param messages: of each row; the rows of one follow each other, and messages ascend.
    """
    first = np.searchsorted(messages, messages, side="left")
    return (np.arange(len(messages)) - first).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of a buffer's messages.

    :param rows: each row as if it were a message; whoever asked closes it.
    :param message_of: for each row, the index of its message; ascending.
    :param faults: messages that cannot be taken apart, by index; none of their rows is here.
    :param bad_rows: rows that cannot be read, by number.
    """

    rows: MessageBuffer
    message_of: Indices
    faults: dict[int, Fault]
    bad_rows: dict[int, Fault]

    @property
    def numbers(self) -> NDArray[np.uint32]:
        """Of each row within its message, from 0."""
        return numbers_within(self.message_of)

    def with_neighbours(self, rows: Indices) -> Indices:
        """All rows of the messages that these rows belong to, ascending."""
        chosen: Indices = np.flatnonzero(np.isin(self.message_of, self.message_of[rows]))
        return chosen


@dataclass(frozen=True, slots=True)
class PieceRows:
    """The rows of a piece.

    :param text: a newline behind each.
    :param ends: of each, exclusive.
    :param owners: the message of each, within the piece.
    :param faults: messages that cannot be taken apart, by their places in the piece.
    :param bad_rows: rows that cannot be read, by number.
    """

    text: bytes
    ends: Indices
    owners: Indices
    faults: dict[int, Fault]
    bad_rows: dict[int, Fault] = field(default_factory=dict)


def split_pieces(
    buffer: MessageBuffer, framing: Framing, rows_of: Callable[[Piece], PieceRows]
) -> Split:
    """The rows of a buffer, a piece at a time.

    :param framing: of the rows.
    """
    rows = MessageBuffer(framing)
    owners: list[Indices] = [np.zeros(0, np.int64)]
    faults: dict[int, Fault] = {}
    bad_rows: dict[int, Fault] = {}
    offsets = buffer.offsets
    for piece in buffer.pieces(np.arange(buffer.messages)):
        found = rows_of(piece)
        faults |= {piece.first + place: fault for place, fault in found.faults.items()}
        if len(found.owners):
            owner = found.owners + piece.first
            bad_rows |= {rows.messages + row: fault for row, fault in found.bad_rows.items()}
            may_be_long = not (buffer.framing.inspects_digits and buffer.short_numbers)
            rows.add_text(memoryview(found.text), offsets[owner], found.ends, may_be_long)
            owners.append(owner)
    return Split(rows, np.concatenate(owners), faults, bad_rows)


#: Takes the messages of a buffer apart; what it cannot take apart is a fault. None: each
#: message is one row as it stands.
RowSplitter = Callable[[MessageBuffer], Split | None]
