"""A quick look at messages of text formats for values that the engine may misread, compiled
(moments.c).

It proves most messages to have none, for a few nanoseconds each.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np

from sluice.core.compiled import library
from sluice.decode.messages.boundaries import Positions

#: So many of a message are looked at.
_FIELDS_MAX = 64
_NONE = np.zeros(0, np.int64)


@cache
def _library() -> ctypes.CDLL:
    found = library(__file__, "_moments")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    text = (pointer, number, pointer)
    arguments = {
        "sluice_unclear_values": (number, number, number, *(pointer,) * 3, number, pointer),
        "sluice_unclear_empties": (number, pointer, pointer, number, number, pointer),
        "sluice_unfilled": (pointer, pointer, number, pointer),
    }
    for name, more in arguments.items():
        function = getattr(found, name)
        function.argtypes, function.restype = [*text, *more], number
    return found


#: What is looked for in a value of a line: dates, numbers in brackets, empty texts; ALL: it is
#: always unclear.
DATES, NUMBERS, ALL, EMPTIES = 1, 2, 4, 8
#: What stands behind them in the place of a value.
LOOK_BITS = 4
#: Added to a scale: the value is a time of day.
TIME_OF_DAY = 64
#: Of objects, where else an empty text is looked for: items of arrays, values of maps, their keys.
ITEMS, VALUES, MAP_KEYS = 1, 2, 4


class QuickLook(Protocol):
    """Finds the messages that have to be judged."""

    def unclear(self, text: bytes | int, ends: Positions) -> Positions:
        """The messages that may be what is looked for; no other one is.

        :param text: the messages, with one byte between two of them; a number: where they are in
            memory.
        :param ends: where each ends in it, exclusive; contiguous.
        """
        ...


class _Fields:
    """Names of an object's fields as JSON writes them, or places of values; and a compiled look at
    them.

    :param look: the name of the function.
    """

    def __init__(self, look: str, fields: Sequence[str] | Sequence[int]) -> None:
        self._look = look
        keys = [json.dumps(f, ensure_ascii=False).encode() for f in fields if isinstance(f, str)]
        self._names = b"".join(keys)
        places = np.cumsum([len(key) for key in keys]) if keys else list(map(int, fields))
        self._numbers = np.array(places, np.int64)
        self._numbers_at = self._numbers.ctypes.data
        #: A name that a message may write in another way than Python's, also with escapes.
        self._is_odd = any(b"\\" in key for key in keys)
        self._before: tuple[object, ...] = ()
        self._behind: tuple[object, ...] = ()

    def unclear(self, text: bytes | int, ends: Positions) -> Positions:
        """See `QuickLook`."""
        if self._is_odd:
            return np.arange(len(ends))
        verdicts = np.empty(len(ends), np.uint8)
        found = getattr(_library(), self._look)(
            *(text, len(ends), ends.ctypes.data, *self._before, self._names, self._numbers_at),
            *(*self._behind, verdicts.ctypes.data),
        )
        return np.flatnonzero(verdicts) if found else _NONE


class MomentFields(_Fields):
    """Where dates with a time, and numbers of lines, stand in messages.

    :param kind: "{" for JSON objects, "[" for JSON arrays, else what separates values of a line.
    :param fields: the names of an object's fields, or the places of values, ascending; of lines
        shifted by LOOK_BITS, plus what is looked for there.
    :param scales: of each, how many digits of a second it keeps.
    :param has_quotes: a value of a line may stand in double quotes, which are doubled in it.
    :param signs: also look for values of a line that are a sign, or begin with two.
    """

    def __init__(
        self,
        kind: str,
        fields: Sequence[str] | Sequence[int],
        scales: Sequence[int],
        has_quotes: bool = False,
        signs: bool = False,
    ) -> None:
        super().__init__("sluice_unclear_values", fields)
        self._scales = np.array(scales, np.int64)
        self._before = ord(kind), has_quotes, signs
        self._behind = self._scales.ctypes.data, len(fields)
        self._is_odd |= kind == "{" and len(fields) > _FIELDS_MAX


class EmptyFields(_Fields):
    """Where JSON must not say an empty text: the engine would take it for 0.

    :param kind: "{" for objects, "[" for arrays.
    :param fields: the names of fields, also of those inside of others; or the places of values.
    :param within: of objects, where else: ITEMS, VALUES, MAP_KEYS or several.
    """

    def __init__(self, kind: str, fields: Sequence[str] | Sequence[int], within: int = 0) -> None:
        super().__init__("sluice_unclear_empties", fields)
        self._before, self._behind = (ord(kind),), (len(fields), within)


class FilledFields(_Fields):
    """The names of which a JSON object has one at least."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__("sluice_unfilled", names)
        self._behind = (len(names),)
