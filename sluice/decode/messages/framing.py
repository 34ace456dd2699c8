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
    flat_ends,
    structure_faults,
)
from sluice.decode.messages.brackets import bracket_faults, is_compiled
from sluice.decode.messages.fault import NOT_ONE_OBJECT, NOT_ONE_ROW, Fault
from sluice.decode.messages.shapes import object_faults, plain_objects

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ERROR_CHARACTERS_MAX = 300


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

    @property
    def is_quick(self) -> bool:
        """Whether `faults` costs no more than the cheap tests, which are not worth a try then."""
        ...

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        """The cheap test of newline-joined messages: where each ends, exclusive, if all of
        them are sound provided that the engine makes as many rows; None if it cannot tell."""
        ...

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        """The exact test: True for each message that must not be joined."""
        ...

    def plain(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        """A quick test: True only for messages that `faults` lets pass."""
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

    @property
    def is_quick(self) -> bool:
        return is_compiled()

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        return flat_ends(chunk, messages, self.kind)

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        if is_compiled():
            return bracket_faults(chunk, starts, ends, self.kind)
        if self.kind == OBJECTS:
            return object_faults(chunk, starts, ends)
        return structure_faults(chunk, starts, ends, self.kind)

    def plain(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        if self.kind == OBJECTS:
            return plain_objects(chunk, starts, ends)
        return np.zeros(len(starts), np.bool_)

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
        return Fault(reason, what[:_ERROR_CHARACTERS_MAX])


class _Lines:
    """Each message is one line, as far as can be told without its format: no newline, nothing
    at its end that may be part of a line's end, nothing at its start that the engine takes for
    part of the file. Messages that are not are looked at more closely by who reads them
    (`split_lines`)."""

    name = "lines"
    inspects_digits = True
    is_quick = False

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        symbols = np.frombuffer(chunk, np.uint8)
        newlines = np.flatnonzero(symbols == ord("\n"))
        if len(newlines) != messages - 1:
            return None
        ends = np.append(newlines, len(chunk))
        starts = np.concatenate(([0], newlines + 1))
        return None if self.faults(chunk, starts, ends).any() else ends

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        # Behind the last message stands nothing: a byte that means nothing here.
        symbols = np.frombuffer(chunk + b" ", np.uint8)
        last, first = symbols[ends - 1], symbols[starts]
        faults: Mask = (starts == ends) | (last == ord("\r")) | (last == ord("\\"))
        faults |= first == BYTE_ORDER_MARK[0]
        newlines = np.flatnonzero(symbols == ord("\n"))
        if len(newlines) >= len(starts):
            inside = np.searchsorted(newlines, ends) - np.searchsorted(newlines, starts)
            faults |= inside > 0
        return faults

    def plain(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        return ~self.faults(chunk, starts, ends)

    def explain(self, value: bytes) -> Fault:
        return Fault(NOT_ONE_ROW, "the message is not one line")


class _Rows:
    """Each "message" is a row that a splitter made; `faults` names those with a newline in it.
    They are not at fault, but their boundaries have to be proven by other means."""

    name = "rows"
    inspects_digits = True
    is_quick = False

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        symbols = np.frombuffer(chunk, np.uint8)
        newlines = np.flatnonzero(symbols == ord("\n"))
        return np.append(newlines, len(chunk)) if len(newlines) == messages - 1 else None

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        symbols = np.frombuffer(chunk, np.uint8)
        newlines = np.flatnonzero(symbols == ord("\n"))
        return np.searchsorted(newlines, ends) > np.searchsorted(newlines, starts)

    def plain(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        return ~self.faults(chunk, starts, ends)

    def explain(self, value: bytes) -> Fault:
        raise AssertionError("a newline in a row is no fault")


class _Bytes:
    """Nothing is known, and nothing is joined for the engine: the decoder takes messages singly
    or frames them anew."""

    name = "bytes"
    inspects_digits = False
    is_quick = False

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        return None

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        return np.zeros(len(starts), np.bool_)

    def plain(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        return np.ones(len(starts), np.bool_)

    def explain(self, value: bytes) -> Fault:
        raise AssertionError("no message is at fault for its bytes alone")


JSON_OBJECTS: Framing = _Json("json-objects", OBJECTS)
JSON_ARRAYS: Framing = _Json("json-arrays", ARRAYS)
LINES: Framing = _Lines()
ROWS: Framing = _Rows()
BYTES: Framing = _Bytes()
