"""The exact test of structure, compiled (brackets.c): one look at each byte.

It costs less than counting (`boundaries.flat_ends`), and each message is proven for itself. Where
there was no C compiler, numpy has the same verdicts.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np

from sluice.decode.messages.boundaries import Mask, Positions, structure_faults

#: More brackets are open at once than the compiled test follows.
_TOO_DEEP = 2


@cache
def _library() -> ctypes.CDLL | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_brackets{suffix}")
        if path.exists():
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                return None
            pointer, number = ctypes.c_void_p, ctypes.c_int64
            library.sluice_line_ends.argtypes = [ctypes.c_char_p, number, number, pointer]
            library.sluice_check_brackets.argtypes = [
                *(ctypes.c_char_p, number, pointer, pointer, number, pointer)
            ]
            for function in (library.sluice_line_ends, library.sluice_check_brackets):
                function.restype = number
            return library
    return None


def is_compiled() -> bool:
    """Whether these functions can be called."""
    return _library() is not None


def line_ends(chunk: bytes, messages: int) -> Positions | None:
    """Where each of newline-joined messages ends, exclusive; None if one holds a newline."""
    library = _library()
    assert library is not None, "ask is_compiled"
    ends = np.empty(messages, np.int64)
    found = library.sluice_line_ends(chunk, len(chunk), messages, ends.ctypes.data)
    return ends if found else None


def bracket_faults(chunk: bytes, starts: Positions, ends: Positions, kind: bytes) -> Mask:
    """`structure_faults`, the same verdicts."""
    library = _library()
    assert library is not None, "ask is_compiled"
    begins, beyond = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    verdicts = np.empty(len(begins), np.uint8)
    unsound = library.sluice_check_brackets(
        *(chunk, len(begins), begins.ctypes.data, beyond.ctypes.data, kind[0], verdicts.ctypes.data)
    )
    faults: Mask = verdicts != 0
    if unsound and (deep := np.flatnonzero(verdicts == _TOO_DEEP)).size:
        for index in deep.tolist():
            value = chunk[int(begins[index]) : int(beyond[index])]
            size = np.array([len(value)], np.int64)
            faults[index] = structure_faults(value, np.zeros(1, np.int64), size, kind)[0]
    return faults
