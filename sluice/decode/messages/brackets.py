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

The test is compiled (brackets.c): one look at each byte, 0.06 µs for 130 bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.machine.compiled import Library

JSON_WHITESPACE = b" \t\r\n"

#: What a row is: its brackets.
OBJECTS, ARRAYS = b"{}", b"[]"

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]


_LIBRARY = Library(__file__, "_brackets")


def as_array(text: bytes | memoryview) -> NDArray[np.uint8]:
    """The same bytes, as compiled parts take them."""
    return np.frombuffer(text, np.uint8)


def line_ends(text: bytes | memoryview, messages: int) -> Positions | None:
    """Where each of newline-joined messages ends, exclusive; None if one holds a newline."""
    ends = np.empty(messages, np.int64)
    return ends if _LIBRARY.call("line_ends", as_array(text), len(text), messages, ends) else None


def has_digits(text: bytes | memoryview, length: int) -> bool:
    """Whether so many digits follow each other somewhere."""
    return bool(_LIBRARY.call("has_digits", as_array(text), len(text), length))


def bracket_faults(
    text: bytes | memoryview, starts: Positions, ends: Positions, kind: bytes
) -> Mask:
    """The exact test of structure, for all messages of a text at once.

    :param text: the messages; one byte between two of them.
    :param starts: where each message begins, ascending.
    :param ends: where it ends, exclusive.
    :param kind: OBJECTS or ARRAYS, what a row is.
    :returns: True for each message that is not one of these.
    """
    begins, beyond = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    verdicts = np.empty(len(begins), np.uint8)
    messages = len(begins), begins, beyond
    _LIBRARY.call("check_brackets", as_array(text), *messages, kind[0], verdicts)
    return verdicts.view(np.bool_)


def rows_in(
    text: bytes, starts: Positions, ends: Positions, kind: bytes
) -> tuple[Positions, Positions, Positions, Mask]:
    """The rows of messages of several: whitespace and at most one comma stand between two; objects
    may also stand in one array, with one comma between two.

    :param starts, ends, kind: as in `bracket_faults`.
    :returns: where each row begins and ends, exclusive, and its message; and True for each message
        that is something else.
    """
    begins, beyond = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    places = [np.empty(len(text) // 2 + 1, np.int64) for _ in range(3)]
    faults = np.empty(len(begins), np.uint8)
    messages = len(begins), begins, beyond
    rows = _LIBRARY.call("split_rows", text, *messages, kind[0], *places, faults)
    row_begins, row_ends, owners = (one[:rows] for one in places)
    return row_begins, row_ends, owners, faults.view(np.bool_)
