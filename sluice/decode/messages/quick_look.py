"""A quick look at messages of text formats for values that the engine may misread, or refuse
although their columns take them, compiled (quick_look.c).

It proves most messages to have none, for a few nanoseconds each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import numpy as np

from sluice.decode.messages.brackets import Positions, as_array
from sluice.machine.compiled import Library

_NONE = np.zeros(0, np.int64)


_LIBRARY = Library(__file__, "_quick_look")

#: Added to a scale: the value is a time of day.
TIME_OF_DAY = 64
#: Of objects, where else an empty text is looked for: items of arrays, values of maps, their keys.
ITEMS, VALUES, MAP_KEYS = 1, 2, 4

#: What is looked for in fields: numbers that are integers but are written with a point or an
#: exponent, booleans in quotes, texts that begin with {, and NaN and Infinity in no quotes.
NUMBERS, BOOLEANS, DOCUMENTS, CONSTANTS = 1, 2, 4, 8


class Spellings:
    """Finds messages of one object each in which a field says what is looked for in it.

    :param of_fields: NUMBERS, BOOLEANS, DOCUMENTS, CONSTANTS or several for each field; 0: nothing.
    :param of_others: for fields that are not among these.
    """

    def __init__(self, of_fields: Mapping[str, int], of_others: int) -> None:
        self._is_needed = any((*of_fields.values(), of_others))
        kinds = np.array([*of_fields.values()], np.int64)
        self._arguments = *_keys(of_fields), len(of_fields), kinds, of_others

    def found(self, text: bytes, ends: Positions) -> Positions:
        """The messages that may have one; no other one does.

        :param text: the messages, with one byte between two of them.
        :param ends: where each ends in it, exclusive.
        """
        if not self._is_needed:
            return _NONE
        verdicts, ends = np.empty(len(ends), np.uint8), np.ascontiguousarray(ends)
        found = _LIBRARY.call("spellings", text, len(ends), ends, *self._arguments, verdicts)
        return np.flatnonzero(verdicts) if found else _NONE


def escaped_names(text: bytes, ends: Positions) -> Positions:
    """The messages in which a name inside of a value is written with a backslash.

    :param text: the messages, with one byte between two of them.
    :param ends: where each ends in it, exclusive.
    """
    verdicts, ends = np.empty(len(ends), np.uint8), np.ascontiguousarray(ends)
    found = _LIBRARY.call("escaped_names", text, len(ends), ends, verdicts)
    return np.flatnonzero(verdicts) if found else _NONE


class QuickLook:
    """Finds the messages of one object each that have to be judged.

    :param scales: the fields that hold dates with a time, with how many digits of a second each
        keeps.
    :param others: other fields; an object must have one of all; None: it may have none.
    :param empties: fields, also those inside of others, that must not say an empty text: the engine
        would take it for 0.
    :param within: where else it must not stand: ITEMS, VALUES, MAP_KEYS or several.
    """

    def __init__(
        self,
        scales: Mapping[str, int],
        others: Iterable[str] | None = None,
        empties: Iterable[str] = (),
        within: int = 0,
    ) -> None:
        fields, empty = [*scales, *(others or ())], list(empties)
        kept = np.array([*scales.values()], np.int64)
        self._arguments = (
            *(*_keys(fields), len(fields), kept, len(scales), others is None),
            *(*_keys(empty), len(empty), within),
        )

    def unclear(self, text: bytes | memoryview, ends: Positions) -> Positions:
        """The messages that may be what is looked for; no other one is.

        :param text: the messages, with one byte between two of them.
        :param ends: where each ends in it, exclusive; contiguous.
        """
        verdicts = np.empty(len(ends), np.uint8)
        messages = as_array(text), len(ends), ends
        found = _LIBRARY.call("unclear", *messages, *self._arguments, verdicts)
        return np.flatnonzero(verdicts) if found else _NONE


def is_odd(name: str) -> bool:
    """Whether a message may write the name of a field in another way than Python's."""
    return "\\" in json.dumps(name, ensure_ascii=False)


def _keys(names: Iterable[str]) -> tuple[bytes, Positions]:
    """Names as JSON writes them, and where each ends."""
    keys = [json.dumps(name, ensure_ascii=False).encode() for name in names]
    return b"".join(keys), np.cumsum([len(key) for key in keys], dtype=np.int64)
