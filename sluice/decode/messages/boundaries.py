"""Where one message ends: the proof that row i of a block is message i (H17).

A message is accepted if, and only if,
  1. its structure is one object: after JSON whitespace a `{`, its matching `}` as the last
     byte before JSON whitespace, brackets properly nested, strings closed, no backslash
     outside strings, no raw newline inside one, and no value missing behind a colon, or in an
     array (the engine reads 0 there); and
  2. the engine reads that text as one row.
Both are functions of the message alone, so its neighbours cannot change the verdict.

Why joining messages of that structure with newlines is safe: every reader of the engine,
the lenient ones included (`readJSONObjectPossiblyInvalid` counts only its own kind of
bracket, skipped fields may lack commas), consumes text in which brackets nest and strings
close, so it ends where the structure ends. Even quotes alone are not enough, and neither are
rows = messages: `{"a":1,"n":{"q":{}`, `{"b":2}}}` and `{"a":2}{"a":3}` end outside strings and
give three rows, the first of which is made of two messages.

JSONCompactEachRow has the same argument with `[` and `]` in place of `{` and `}`: one array is
one row. It is not empty: of `[]` the engine makes a row of one 0.

Invalid UTF-8 is no fault: String holds bytes in ClickHouse, and all structure is ASCII.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

JSON_WHITESPACE = b" \t\r\n"

#: What a row is: its brackets.
OBJECTS, ARRAYS = b"{}", b"[]"

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]


#: A string, two signs, whitespace, a bracket, colon or comma, other text, a sign. No backslash, and
#: no newline in a string.
_TOKEN = re.compile(
    rb'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|[-+]{2}|[ \t\r\n]+|[{}\[\],:]'
    rb'|[^"\\{}\[\],: \t\r\n+-]+|[-+]'
)


def is_one_row(value: bytes, kind: bytes) -> bool:
    """Whether a message has the structure of one row, looked at one symbol after the other: for
    messages with more open brackets than the compiled test follows.

    :param kind: OBJECTS or ARRAYS, what a row is.
    """
    text = value.strip(JSON_WHITESPACE)
    if not text.startswith(kind[:1]):
        return False
    opened: list[bytes] = []
    at, before = 0, b""
    while found := _TOKEN.match(text, at):
        at, symbol = found.end(), found[0]
        if symbol[0] in JSON_WHITESPACE:
            continue
        if symbol in _CLOSES and _misses(before, symbol, opened):
            return False
        if kind == ARRAYS:
            # The engine reads a number of two signs, but only near the end of its file.
            is_empty = symbol == b"]" and before == b"[" and len(opened) == 1
            if is_empty or symbol in _TWO_SIGNS:
                return False
        before = symbol
        if symbol in (b"{", b"["):
            opened.append(symbol)
        elif symbol in (b"}", b"]"):
            if opened.pop() + symbol not in (OBJECTS, ARRAYS):
                return False
            if not opened:
                return at == len(text)
    return False


_CLOSES = (b",", b"}", b"]")
_TWO_SIGNS = (b"--", b"-+", b"+-", b"++")


def _misses(before: bytes, symbol: bytes, opened: list[bytes]) -> bool:
    """Whether a value is missing behind a colon or in an array. In other places where one is, the
    engine finds it."""
    if before == b":":
        return True
    if before == b"," and opened[-1] == b"[":
        return True
    return before == b"[" and symbol == b","


@dataclass(frozen=True, slots=True)
class Outline:
    """The brackets outside strings of some messages.

    :param faults: True for each message whose strings are not sound; to be added to.
    :param positions: of the brackets, `symbols` and `owners` (messages) along with them.
    """

    faults: Mask
    positions: Positions
    symbols: NDArray[np.uint8]
    owners: Positions

    @property
    def counts(self) -> Positions:
        """Of brackets, for each message."""
        return np.bincount(self.owners, minlength=len(self.faults))

    def depths(self) -> tuple[Mask, Positions]:
        """Which brackets open, and how many of the message are open after each."""
        counts = self.counts
        first = np.minimum(np.cumsum(counts) - counts, len(self.positions) - 1)
        opening = (self.symbols == ord("{")) | (self.symbols == ord("["))
        depths = np.concatenate(([0], np.cumsum(np.where(opening, 1, -1))))
        return opening, depths[1:] - depths[first][self.owners]

    def blame_crossed(self, opening: Mask, depth: Positions) -> None:
        """Add messages in which a bracket is closed by one of the other kind.

        Those whose depths go below zero, or do not end there, are faults already.
        """
        # The n-th bracket of a level opens, the next of that level closes it: same kind?
        level = np.where(opening, depth, depth + 1)
        symbols, owners = self.symbols, self.owners
        sound = ~self.faults[owners]
        if not sound.all():
            level, symbols, owners = level[sound], symbols[sound], owners[sound]
        if len(level):
            order = np.argsort(owners * (int(level.max()) + 1) + level, kind="stable")
            opened, closed = symbols[order[::2]], symbols[order[1::2]]
            # "{" and "}", "[" and "]" are two apart in ASCII.
            self.faults[owners[order[::2]][closed - opened != 2]] = True


def outline_of(chunk: bytes, starts: Positions, ends: Positions) -> Outline:
    """Take messages apart into strings and brackets; each from its start to its
    end, exclusive; a newline stands between two of them."""
    visible = np.frombuffer(_without_escapes(chunk), np.uint8)
    marks = np.flatnonzero(_is_mark(visible))
    symbols = visible[marks]
    first, beyond = np.searchsorted(marks, starts), np.searchsorted(marks, ends)
    quotes = symbols == ord('"')
    # Only the parity is used, so bytes that wrap at 256 are enough, and quick.
    quotes_seen = np.zeros(len(marks) + 1, np.uint8)
    np.cumsum(quotes, dtype=np.uint8, out=quotes_seen[1:])
    quotes_seen &= 1
    inside = (quotes_seen[1:] ^ np.repeat(quotes_seen[first], beyond - first)).view(np.bool_)
    faults: Mask = quotes_seen[beyond] != quotes_seen[first]

    def blame(positions: Positions, where_inside: bool) -> None:
        """Messages with one of these bytes inside a string, or outside."""
        owner = np.searchsorted(starts, positions, side="right") - 1
        seen = np.searchsorted(marks, positions)
        is_inside = quotes_seen[seen] != quotes_seen[first[owner]]
        faults[owner[(is_inside == where_inside) & (positions < ends[owner])]] = True

    if b"\\" in chunk:
        blame(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\\")), False)
    newlines = visible == ord("\n")
    if np.count_nonzero(newlines) >= len(starts):
        blame(np.flatnonzero(newlines), True)
    brackets = np.flatnonzero(~(quotes | inside))
    owners = np.searchsorted(first, brackets, side="right") - 1
    return Outline(faults, marks[brackets], symbols[brackets], owners)


def _is_mark(visible: NDArray[np.uint8]) -> Mask:
    """Quotes and brackets."""
    mask: Mask = visible == ord('"')
    for bracket in b"{}[]":
        mask |= visible == bracket
    return mask


def _without_escapes(chunk: bytes) -> bytes:
    """The same length, without quotes that do not delimit: pairs of backslashes go first, left
    to right, so what is left before a quote escapes it."""
    if b"\\" not in chunk:
        return chunk
    return chunk.replace(b"\\\\", b"\x01\x01").replace(b'\\"', b"\x01\x01")
