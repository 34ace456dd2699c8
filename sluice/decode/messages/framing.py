"""How the messages of a text format stand behind each other, and what is proven of each.

A buffer joins messages with newlines. What may be joined so that the engine's rows are the
messages differs by format; what is not sound is set aside before the engine sees it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sluice.decode.messages.boundaries import (
    ARRAYS,
    JSON_WHITESPACE,
    OBJECTS,
    Mask,
    Positions,
)
from sluice.decode.messages.brackets import bracket_faults
from sluice.decode.messages.fault import NOT_ONE_OBJECT, NOT_ONE_ROW, Fault

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Framing(Protocol):
    """The tests of a format. All of them are functions of each message alone."""

    @property
    def name(self) -> str:
        """Of the tests; buffers of equal names hold the same."""
        ...

    @property
    def inspects_digits(self) -> bool:
        """Whether numbers are written as text, so that too long ones have to be found."""
        ...

    def faults(self, chunk: bytes | memoryview, starts: Positions, ends: Positions) -> Mask:
        """True for each message that must not be joined."""
        ...

    def explain(self, value: bytes) -> Fault:
        """What is wrong with a message that `faults` names."""
        ...


@dataclass(frozen=True, slots=True)
class _Json:
    """Each message is one JSON object, or one array: see `boundaries`.

    :param kind: OBJECTS or ARRAYS.
    """

    name: str
    kind: bytes
    inspects_digits: bool = True

    def faults(self, chunk: bytes | memoryview, starts: Positions, ends: Positions) -> Mask:
        return bracket_faults(chunk, starts, ends, self.kind)

    def explain(self, value: bytes) -> Fault:
        reason = NOT_ONE_OBJECT if self.kind == OBJECTS else NOT_ONE_ROW
        noun = "JSON object" if self.kind == OBJECTS else "JSON array"
        opening = self.kind[:1].decode()
        text = value.strip(JSON_WHITESPACE)
        if not text:
            what = "the message is empty"
        elif text.startswith(BYTE_ORDER_MARK):
            what = "the message starts with a byte order mark"
        elif text.startswith(b"[") and self.kind == OBJECTS:
            what = "the message is an array"
        elif text.startswith(b"{") and self.kind == ARRAYS:
            what = "the message is an object"
        elif text.startswith(b"[") and text[1:].strip(JSON_WHITESPACE) == b"]":
            what = "the array is empty"
        elif not text.startswith(self.kind[:1]):
            what = f"the message does not start with {opening}"
        else:
            try:
                json.loads(text)
                what = f"the message is not one {noun}"
            except (ValueError, RecursionError) as error:
                what = f"the message is not one {noun}: {error}"
        return Fault(reason, what)


class _Lines:
    """Each message is one line, as far as can be told without its format: no newline, nothing
    at its end that may be part of a line's end, nothing at its start that the engine takes for
    part of the file. Messages that are not are looked at more closely by who reads them
    (`split_lines`)."""

    name = "lines"
    inspects_digits = True

    def faults(self, chunk: bytes | memoryview, starts: Positions, ends: Positions) -> Mask:
        # Behind the last message stands a byte that means nothing here.
        symbols = np.append(np.frombuffer(chunk, np.uint8), np.uint8(ord(" ")))
        last, first = symbols[ends - 1], symbols[starts]
        faults: Mask = (starts == ends) | (last == ord("\r")) | (last == ord("\\"))
        faults |= first == BYTE_ORDER_MARK[0]
        newlines = np.flatnonzero(symbols == ord("\n"))
        if len(newlines) >= len(starts):
            inside = np.searchsorted(newlines, ends) - np.searchsorted(newlines, starts)
            faults |= inside > 0
        return faults

    def explain(self, value: bytes) -> Fault:
        return Fault(NOT_ONE_ROW, "the message is not one line")


class _Rows:
    """Each "message" is a row that a splitter made; `faults` names those with a newline in it.
    They are not at fault, but their boundaries have to be proven by other means."""

    name = "rows"
    inspects_digits = True

    def faults(self, chunk: bytes | memoryview, starts: Positions, ends: Positions) -> Mask:
        symbols = np.frombuffer(chunk, np.uint8)
        newlines = np.flatnonzero(symbols == ord("\n"))
        return np.searchsorted(newlines, ends) > np.searchsorted(newlines, starts)

    def explain(self, value: bytes) -> Fault:
        raise AssertionError("a newline in a row is no fault")


class _Bytes:
    """Nothing is known, and nothing is joined for the engine: the decoder takes messages singly
    or frames them anew."""

    name = "bytes"
    inspects_digits = False

    def faults(self, chunk: bytes | memoryview, starts: Positions, ends: Positions) -> Mask:
        return np.zeros(len(starts), np.bool_)

    def explain(self, value: bytes) -> Fault:
        raise AssertionError("no message is at fault for its bytes alone")


JSON_OBJECTS: Framing = _Json("json-objects", OBJECTS)
JSON_ARRAYS: Framing = _Json("json-arrays", ARRAYS)
LINES: Framing = _Lines()
ROWS: Framing = _Rows()
BYTES: Framing = _Bytes()
