"""A quick look at messages of text formats for dates without a year, compiled (moments.c); at lines
also for numbers that are none.

It proves most messages to have none, for a few nanoseconds each. Where there was no C compiler it
proves nothing.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np

from sluice.decode.messages.boundaries import Positions

#: So many of a message are looked at.
_FIELDS_MAX = 64
_NONE = np.zeros(0, np.int64)


@cache
def _library() -> ctypes.CDLL | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_moments{suffix}")
        if path.exists():
            try:
                library = ctypes.CDLL(str(path))
            except OSError:
                return None
            pointer, number = ctypes.c_void_p, ctypes.c_int64
            library.sluice_unclear_moments.argtypes = [
                *(pointer, number, pointer, number, number, number),
                *(pointer, pointer, number, pointer),
            ]
            library.sluice_unclear_moments.restype = number
            return library
    return None


#: What is looked for in a value of a line: dates, numbers in brackets; ALL: it is always unclear.
DATES, NUMBERS, ALL = 1, 2, 4


class MomentFields:
    """Where dates with a time, and numbers of lines, stand in messages.

    :param kind: "{" for JSON objects, "[" for JSON arrays, else what separates values of a line.
    :param fields: the names of an object's fields, or the places of values; of lines times 8 plus
        what is looked for there.
    :param has_quotes: a value of a line may stand in double quotes, which are doubled in it.
    :param signs: also look for values of a line that are a sign, or begin with two.
    """

    def __init__(
        self,
        kind: str,
        fields: Sequence[str] | Sequence[int],
        has_quotes: bool = False,
        signs: bool = False,
    ) -> None:
        self._kind, self._has_quotes, self._signs = ord(kind), has_quotes, signs
        keys = [json.dumps(f, ensure_ascii=False).encode() for f in fields if isinstance(f, str)]
        self._names = b"".join(keys)
        numbers = np.cumsum([len(key) for key in keys]) if keys else sorted(map(int, fields))
        self._numbers = np.array(numbers, np.int64)
        self._numbers_at = self._numbers.ctypes.data
        #: A name that a message may write in another way than Python's, also with escapes.
        self._is_odd = any(b"\\" in key for key in keys) or len(numbers) > _FIELDS_MAX

    def unclear(self, text: bytes | int, ends: Positions) -> Positions:
        """The messages that may hold a date without a year; no other one does.

        :param text: the messages, with one byte between two of them; a number: where they are in
            memory.
        :param ends: where each ends in it, exclusive; contiguous.
        """
        library, count = _library(), len(self._numbers)
        if library is None or self._is_odd:
            return np.arange(len(ends))
        verdicts = np.empty(len(ends), np.uint8)
        found = library.sluice_unclear_moments(
            *(text, len(ends), ends.ctypes.data, self._kind, self._has_quotes, self._signs),
            *(self._names, self._numbers_at, count, verdicts.ctypes.data),
        )
        return np.flatnonzero(verdicts) if found else _NONE
