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

import ctypes
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sluice.core.compiled import library

JSON_WHITESPACE = b" \t\r\n"

#: What a row is: its brackets.
OBJECTS, ARRAYS = b"{}", b"[]"

Mask = NDArray[np.bool_]
Positions = NDArray[np.int64]


@cache
def _library() -> ctypes.CDLL:
    found = library(__file__, "_brackets")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.sluice_line_ends.argtypes = [pointer, number, number, pointer]
    messages = (pointer, number, pointer, pointer, number)
    found.sluice_check_brackets.argtypes = [*messages, pointer]
    found.sluice_split_rows.argtypes = [*messages, *(pointer,) * 4]
    found.sluice_has_digits.argtypes = [pointer, number, number]
    for name in ("line_ends", "check_brackets", "split_rows", "has_digits"):
        getattr(found, f"sluice_{name}").restype = number
    return found


def address_of(text: bytes | memoryview) -> int:
    """Where the text is, as long as it lives."""
    return np.frombuffer(text, np.uint8).ctypes.data if len(text) else 0


def line_ends(text: bytes | memoryview, messages: int) -> Positions | None:
    """Where each of newline-joined messages ends, exclusive; None if one holds a newline."""
    ends = np.empty(messages, np.int64)
    found = _library().sluice_line_ends(address_of(text), len(text), messages, ends.ctypes.data)
    return ends if found else None


def has_digits(text: bytes | memoryview, length: int) -> bool:
    """Whether so many digits follow each other somewhere."""
    return bool(_library().sluice_has_digits(address_of(text), len(text), length))


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
    _library().sluice_check_brackets(
        *(address_of(text), len(begins), begins.ctypes.data, beyond.ctypes.data),
        *(kind[0], verdicts.ctypes.data),
    )
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
    rows = _library().sluice_split_rows(
        *(address_of(text), len(begins), begins.ctypes.data, beyond.ctypes.data, kind[0]),
        *(one.ctypes.data for one in places),
        faults.ctypes.data,
    )
    row_begins, row_ends, owners = (one[:rows] for one in places)
    return row_begins, row_ends, owners, faults.view(np.bool_)
