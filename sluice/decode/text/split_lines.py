"""Messages of CSV and TSV, taken apart into lines that are one row each.

A newline ends a row unless it is quoted (CSV) or behind a backslash (TSV). One newline, CR LF
or CR at the end of a message belongs to the end of its last row, so does a CR before each
newline. A byte order mark at a message's start, and a further CR at a row's end, are refused:
the engine treats them differently in the first line of a file and in others.

What comes out are rows without a newline, except for quoted ones; each of those is said by the
buffer's `faults` (framing ROWS), and whoever decodes them proves the boundaries by marks. A
newline behind a backslash of TSV is written `\\n`, which means the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.decode.messages.boundaries import Mask, Positions
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, NOT_ONE_ROW, Fault
from sluice.decode.messages.framing import BYTE_ORDER_MARK, LINES, ROWS
from sluice.decode.messages.marked import Piece
from sluice.decode.messages.splitting import PieceRows, Split, split_pieces

NEWLINE, RETURN, QUOTE, BACKSLASH = b'\n\r"\\'

_EMPTY = Fault(NOT_ONE_ROW, "the message is empty")
_MARKED = Fault(CANNOT_PARSE, "the message starts with a byte order mark")
_OPEN = Fault(CANNOT_PARSE, "a quoted value is not closed")
_ESCAPED_END = Fault(CANNOT_PARSE, "a row ends with a backslash that escapes nothing")
_RETURNS = Fault(CANNOT_PARSE, "a row ends with more than one carriage return")


@dataclass(frozen=True, slots=True)
class LineSplitter:
    """Takes the messages of a buffer apart.

    :param delimiter: between two values.
    :param quoted: quotes may hold newlines (CSV); else backslashes do (TSV).
    :param many: a message may have any number of rows but none; else exactly one.
    :param drops: bad rows are dropped, so that it has to be known of each message whether it
        is bad itself.
    """

    delimiter: bytes
    quoted: bool
    many: bool
    drops: bool = False

    def __call__(self, buffer: MessageBuffer) -> Split | None:
        if not self.drops and not buffer.faults and buffer.framing is LINES:
            return None
        return split_pieces(buffer, ROWS, self._lines)

    def _lines(self, piece: Piece) -> PieceRows:
        symbols = np.frombuffer(bytearray(piece.text), np.uint8)
        begins = np.concatenate(([0], piece.ends[:-1]))
        faults: dict[int, Fault] = {}
        newlines = np.flatnonzero(symbols == NEWLINE)
        if self.quoted:
            newlines = newlines[row_ends(piece, newlines, self.delimiter, faults)]
        else:
            newlines = _unescaped(symbols, piece, newlines, faults)
        return self._finished(symbols, piece, begins, newlines, faults)

    def _finished(
        self,
        symbols: NDArray[np.uint8],
        piece: Piece,
        begins: Positions,
        newlines: Positions,
        faults: dict[int, Fault],
    ) -> PieceRows:
        """The rows that end at these newlines, with what is no part of them left out.

        :param newlines: at least the last byte of each message.
        """
        ends, count = piece.ends, len(piece.ends)
        owners = np.searchsorted(ends, newlines, side="right")
        row_begins = np.concatenate(([0], newlines[:-1] + 1))
        has_return = (newlines > row_begins) & (symbols[newlines - 1] == RETURN)
        row_ends = newlines - has_return
        is_empty = row_ends == row_begins
        # What follows the last newline of a message is a row only if there is something.
        is_tail = is_empty & (newlines == ends[owners] - 1)
        is_tail &= (begins[owners] != row_begins) & ~has_return
        blank = np.zeros(count, np.bool_)
        blank[owners] = True
        blank[owners[~is_empty]] = False
        rows_of = np.bincount(owners[~is_tail], minlength=count)
        for index in np.flatnonzero(blank).tolist():
            faults.setdefault(index, _EMPTY)
        twice = (row_ends > row_begins) & (symbols[row_ends - 1] == RETURN)
        for index in owners[twice].tolist():
            faults.setdefault(index, _RETURNS)
        for index in np.flatnonzero(symbols[begins] == BYTE_ORDER_MARK[0]).tolist():
            begin = int(begins[index])
            if piece.text[begin : begin + 3] == BYTE_ORDER_MARK:
                faults.setdefault(index, _MARKED)
        if not self.many:
            for index in np.flatnonzero(rows_of != 1).tolist():
                said = f"the message has {rows_of[index]} rows"
                faults.setdefault(index, Fault(NOT_ONE_ROW, said))
        left_out = np.zeros(count, np.bool_)
        left_out[list(faults)] = True
        kept = ~is_tail & ~left_out[owners]
        # A row's bytes and its newline; a return before that is dropped.
        change = np.zeros(len(symbols) + 1, np.int8)
        change[row_begins[kept]] += 1
        change[row_ends[kept]] -= 1
        wanted = np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)
        wanted[newlines[kept]] = True
        text = symbols[wanted].tobytes()
        lengths = (row_ends - row_begins)[kept] + 1
        return PieceRows(text, np.cumsum(lengths) - 1, owners[kept], faults)


def row_ends(piece: Piece, newlines: Positions, delimiter: bytes, faults: dict[int, Fault]) -> Mask:
    """Which newlines of CSV are not quoted.

    :param newlines: of the piece, all of them.
    :param faults: where messages with an open quote are put.
    """
    outside: Mask = np.ones(len(newlines), np.bool_)
    symbols = np.frombuffer(piece.text, np.uint8)
    quotes = np.flatnonzero(symbols == QUOTE)
    if not len(quotes):
        return outside
    ends = piece.ends
    begins = np.concatenate(([0], ends[:-1]))
    owners = np.searchsorted(ends, quotes, side="right")
    first = np.searchsorted(quotes, begins)
    opening = (np.arange(len(quotes)) - first[owners]) % 2 == 0
    # What stands before an opening quote, and behind a closing one, if it is well written.
    at_begin = quotes == begins[owners]
    before = symbols[np.maximum(quotes - 1, 0)]
    after = symbols[quotes + 1]
    separator = delimiter[0]
    previous = np.concatenate(([-2], quotes[:-1])) == quotes - 1
    starts_well = at_begin | (before == separator) | (before == NEWLINE) | previous
    ends_well = (after == separator) | (after == NEWLINE) | (after == RETURN) | (after == QUOTE)
    odd = np.bincount(owners, minlength=len(ends)) % 2 == 1
    odd[owners[~np.where(opening, starts_well, ends_well)]] = True
    newline_owners = np.searchsorted(ends, newlines, side="right")
    seen = np.searchsorted(quotes, newlines) - first[newline_owners]
    outside = np.equal(seen % 2, 0)
    for index in np.flatnonzero(odd).tolist():
        begin, end = int(begins[index]), int(ends[index])
        found = _scan(piece.text[begin : end - 1], delimiter)
        if found is None:
            faults[index] = _OPEN
            found = []
        mine = newline_owners == index
        outside[mine] = np.isin(newlines[mine], np.array([*found, end - 1 - begin]) + begin)
    return outside


def _unescaped(
    symbols: NDArray[np.uint8], piece: Piece, newlines: Positions, faults: dict[int, Fault]
) -> Positions:
    """The newlines that no backslash escapes; the others become the letter n."""
    if b"\\" not in piece.text:
        return newlines
    behind = newlines[(newlines > 0) & (symbols[newlines - 1] == BACKSLASH)]
    # An odd number of backslashes before it; few newlines have any.
    plain = np.flatnonzero(symbols != BACKSLASH)
    run_begins = plain[np.searchsorted(plain, behind) - 1] + 1
    run_begins[np.searchsorted(plain, behind) == 0] = 0
    escaped = behind[(behind - run_begins) % 2 == 1]
    last = piece.ends - 1
    at_end = np.isin(escaped, last)
    for index in np.searchsorted(last, escaped[at_end]).tolist():
        faults[index] = _ESCAPED_END
    escaped = escaped[~at_end]
    symbols[escaped] = ord("n")
    return newlines[~np.isin(newlines, escaped)]


def _scan(text: bytes, delimiter: bytes) -> list[int] | None:
    """The newlines of one CSV text that end a row, as its values are read one after another;
    None: a quote is not closed."""
    found: list[int] = []
    unquoted = re.compile(rb"[^\n" + re.escape(delimiter) + rb"]*")
    at = 0
    while at < len(text):
        if text[at] == QUOTE:
            closing = _QUOTED.match(text, at)
            if closing is None:
                return None
            at = closing.end()
        rest = unquoted.match(text, at)
        at = rest.end() if rest else at
        if at < len(text) and text[at] == NEWLINE:
            found.append(at)
        at += 1
    return found


_QUOTED = re.compile(rb'"(?:[^"]|"")*+"')
