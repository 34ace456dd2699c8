"""The exact test of structure, compiled (brackets.c): one look at each byte.

Each message is proven for itself, for 0.06 µs of 130 bytes.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from sluice.core.compiled import library
from sluice.decode.messages.boundaries import Mask, Positions, is_one_row

#: More brackets are open at once than the compiled test follows.
_TOO_DEEP = 2


@cache
def _library() -> ctypes.CDLL:
    found = library(__file__, "_brackets")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.sluice_line_ends.argtypes = [pointer, number, number, pointer]
    found.sluice_check_brackets.argtypes = [pointer, number, pointer, pointer, number, pointer]
    for function in (found.sluice_line_ends, found.sluice_check_brackets):
        function.restype = number
    return found


def address_of(text: bytes | memoryview) -> int:
    """Where the text is, as long as it lives."""
    return np.frombuffer(text, np.uint8).ctypes.data if len(text) else 0


def line_ends(text: bytes | memoryview, messages: int) -> Positions | None:
    """Where each of newline-joined messages ends, exclusive; None if one holds a newline."""
    ends = np.empty(messages, np.int64)
    found = _library().sluice_line_ends(address_of(text), len(text), messages, ends.ctypes.data)
    return ends if found else None


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
    unsound = _library().sluice_check_brackets(
        *(address_of(text), len(begins), begins.ctypes.data, beyond.ctypes.data),
        *(kind[0], verdicts.ctypes.data),
    )
    faults: Mask = verdicts != 0
    if unsound:
        for index in np.flatnonzero(verdicts == _TOO_DEEP).tolist():
            value = bytes(text[int(begins[index]) : int(beyond[index])])
            faults[index] = not is_one_row(value, kind)
    return faults
