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

`flat_ends` proves it for a whole chunk by counting: every message starts with its only `{`, ends
with `}`, and holds no newline and no `[`. Opening a row consumes a `{` outside a string; n rows
from n braces mean that every row opens at the start of a message and ends before the next
one, at a `}` that nothing but a separator may follow, so at the last byte of its message.
There is no bracket for a lenient reader to skip over: what the engine accepts is one object
in the sense of 1. Braces or brackets inside strings only make this test say "perhaps not".

Invalid UTF-8 is no fault: String holds bytes in ClickHouse, and all structure is ASCII.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

JSON_WHITESPACE = b" \t\r\n"

#: What a row is: its brackets.
OBJECTS, ARRAYS = b"{}", b"[]"

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]


def flat_ends(chunk: bytes, messages: int, kind: bytes = OBJECTS) -> Positions | None:
    """The cheap test of newline-joined messages.

    :param kind: OBJECTS or ARRAYS, what a row is.
    :returns: where each message ends, exclusive, if each is provably one row provided
        that the engine makes n rows of them; None if this test cannot tell.
    """
    opening, closing = kind[:1], kind[1:]
    other = b"[" if kind == OBJECTS else b"{"
    if other in chunk or not chunk.startswith(opening) or not chunk.endswith(closing):
        return None
    symbols = np.frombuffer(chunk, np.uint8)
    newlines = np.flatnonzero(symbols == ord("\n"))
    if len(newlines) != messages - 1 or np.count_nonzero(symbols == kind[0]) != messages:
        return None
    if may_miss(symbols, *MISSING_IN[kind]).any():
        return None
    if kind == ARRAYS and has_two_signs(symbols).any():
        return None
    starts_well = bool((symbols[newlines + 1] == kind[0]).all())
    ends_well = bool((symbols[newlines - 1] == kind[1]).all())
    return np.append(newlines, len(chunk)) if starts_well and ends_well else None


def may_miss(symbols: NDArray[np.uint8], awaits: bytes = b":,[", ends: bytes = b",}]") -> Mask:
    """True where a value may be missing, with at most one space in its place, or more spaces
    follow. Also in texts that look like it.

    :param awaits: what a value should follow, and `ends` what it should stand before.
    """
    padded = np.concatenate((symbols, np.frombuffer(b"xx", np.uint8)))
    close = _is_one_of(padded[1:], ends)
    spaces = padded[1:] <= ord(" ")
    found = _is_one_of(symbols, awaits)
    found &= close[:-1] | (spaces[:-1] & (close[1:] | spaces[1:]))
    return found


def has_two_signs(symbols: NDArray[np.uint8]) -> Mask:
    """True for each sign that another one stands behind."""
    signs = _is_one_of(symbols, b"+-")
    signs[:-1] &= signs[1:]
    signs[-1:] = False
    return signs


def _is_one_of(symbols: NDArray[np.uint8], these: bytes) -> Mask:
    found: Mask = symbols == these[0]
    for symbol in these[1:]:
        found |= symbols == symbol
    return found


#: Where a value is missing in flat messages: what it should follow, and stand before.
MISSING_IN = {OBJECTS: (b":", b",}"), ARRAYS: (b",[", b",]")}
_SYMBOL = re.compile(rb'"(?:[^"\\]|\\.)*"|[^ \t\r\n]', re.DOTALL)
_TWO_SIGNS = re.compile(rb"[-+][-+]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_EMPTY_ARRAY = re.compile(rb"[ \t\r\n]*\[[ \t\r\n]*\][ \t\r\n]*")


def misses_value(value: bytes, kind: bytes) -> bool:
    """Of a message whose strings are sound: whether a value is missing in it behind a colon or in
    an array. In other places where one is, the engine finds it. In an array also whether a number
    has two signs: the engine reads it, but only near the end of its file."""
    if kind == ARRAYS and (
        _EMPTY_ARRAY.fullmatch(value) or _TWO_SIGNS.search(_STRING.sub(b'""', value))
    ):
        return True
    opened: list[bytes] = []
    before = b""
    for symbol in _SYMBOL.findall(value):
        if symbol in b",}]" and (
            before == b":"
            or (before == b"," and opened[-1:] == [b"["])
            or (before == b"[" and symbol == b",")
        ):
            return True
        if symbol in b"[{":
            opened.append(symbol)
        elif symbol in b"]}":
            opened = opened[:-1]
        before = symbol
    return False


def _missing(chunk: bytes, starts: Positions, ends: Positions, faults: Mask, kind: bytes) -> Mask:
    """Messages with a value missing; those that are at fault anyway are not looked at."""
    found = faults.copy()
    symbols = np.frombuffer(chunk, np.uint8)
    suspect = may_miss(symbols)
    if kind == ARRAYS:
        suspect |= has_two_signs(symbols)
    places = np.flatnonzero(suspect)
    owners = np.unique(np.searchsorted(starts, places, side="right") - 1)
    for index in owners[~faults[owners]].tolist():
        found[index] = misses_value(chunk[int(starts[index]) : int(ends[index])], kind)
    return found


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


def structure_faults(
    chunk: bytes, starts: Positions, ends: Positions, kind: bytes = OBJECTS
) -> Mask:
    """The exact test of structure, for all messages of a chunk at once.

    :param chunk: the messages; a newline between two of them.
    :param starts: where each message begins, ascending.
    :param ends: where it ends, exclusive.
    :param kind: OBJECTS or ARRAYS, what a row is.
    :returns: True for each message that is not one of these.
    """
    outline = outline_of(chunk, starts, ends)
    counts = outline.counts
    faults, positions = outline.faults, outline.positions
    faults |= counts == 0
    if not len(positions):
        return faults
    beyond = np.cumsum(counts)
    first = np.minimum(beyond - counts, len(positions) - 1)
    last = np.maximum(beyond - 1, 0)
    opening, depth = outline.depths()
    is_last = np.zeros(len(positions), np.bool_)
    is_last[last[counts != 0]] = True
    faults[outline.owners[(depth == 0) != is_last]] = True
    faults[outline.owners[depth < 0]] = True
    faults |= ~_encloses(chunk, starts, ends, positions[first], positions[last])
    faults |= outline.symbols[first] != kind[0]
    outline.blame_crossed(opening, depth)
    return _missing(chunk, starts, ends, faults, kind)


def outline_of(chunk: bytes, starts: Positions, ends: Positions) -> Outline:
    """Take messages apart into strings and brackets; parameters as of `structure_faults`."""
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


def _encloses(chunk: bytes, starts: Any, ends: Any, first: Any, last: Any) -> Mask:
    """Whether first and last bracket are the message but for JSON whitespace around."""
    sound: Mask = (first == starts) & (last == ends - 1)
    for index in np.flatnonzero(~sound):
        begin, end = int(starts[index]), int(ends[index])
        opens, closes = int(first[index]), int(last[index])
        sound[index] = (
            begin <= opens <= closes < end
            and not chunk[begin:opens].strip(JSON_WHITESPACE)
            and not chunk[closes + 1 : end].strip(JSON_WHITESPACE)
        )
    return sound
