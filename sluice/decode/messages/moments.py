"""A quick look at messages of text formats for values that the engine may misread, compiled
(moments.c).

It proves most messages to have none, for a few nanoseconds each.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np

from sluice.core.compiled import library
from sluice.decode.messages.brackets import Positions

_NONE = np.zeros(0, np.int64)


@cache
def _library() -> ctypes.CDLL:
    found = library(__file__, "_moments")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    text = (pointer, number, pointer)
    arguments = {
        "sluice_unclear_fields": (pointer, pointer, number, pointer, number, number, pointer),
        "sluice_unclear_empties": (pointer, pointer, number, number, pointer),
    }
    for name, more in arguments.items():
        function = getattr(found, name)
        function.argtypes, function.restype = [*text, *more], number
    return found


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
    """Names of an object's fields, and a compiled look at them.

    :param look: the name of the function.
    """

    def __init__(self, look: str, names: Sequence[str]) -> None:
        self._look = look
        keys = [json.dumps(name, ensure_ascii=False).encode() for name in names]
        self._names = b"".join(keys)
        self._ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
        self._ends_at = self._ends.ctypes.data
        #: A name that a message may write in another way than Python's, also with escapes.
        self._is_odd = any(b"\\" in key for key in keys)
        self._more: tuple[object, ...] = (len(keys),)

    def unclear(self, text: bytes | int, ends: Positions) -> Positions:
        """See `QuickLook`."""
        if self._is_odd:
            return np.arange(len(ends))
        verdicts = np.empty(len(ends), np.uint8)
        found = getattr(_library(), self._look)(
            *(text, len(ends), ends.ctypes.data, self._names, self._ends_at),
            *(*self._more, verdicts.ctypes.data),
        )
        return np.flatnonzero(verdicts) if found else _NONE


class MomentFields(_Fields):
    """The fields of objects that hold dates with a time; and those of which an object has one.

    :param scales: by name, how many digits of a second each of the first keeps.
    :param others: names of the second, besides; None: an object may have none.
    """

    def __init__(self, scales: Mapping[str, int], others: Iterable[str] | None = None) -> None:
        super().__init__("sluice_unclear_fields", [*scales, *(others or ())])
        self._scales = np.array([*scales.values()], np.int64)
        self._more += self._scales.ctypes.data, len(scales), others is None


class EmptyFields(_Fields):
    """Where an object must not say an empty text: the engine would take it for 0.

    :param names: of fields, also of those inside of others.
    :param within: where else: ITEMS, VALUES, MAP_KEYS or several.
    """

    def __init__(self, names: Sequence[str], within: int = 0) -> None:
        super().__init__("sluice_unclear_empties", names)
        self._more += (within,)
