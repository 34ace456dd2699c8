"""How the messages of a text format stand behind each other, and what is proven of each.

A buffer joins messages with newlines. What may be joined so that the engine's rows are the
messages differs by format; what is not sound is set aside before the engine sees it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from sluice.decode.messages.brackets import (
    ARRAYS,
    JSON_WHITESPACE,
    OBJECTS,
    Mask,
    Positions,
    bracket_faults,
)
from sluice.decode.messages.fault import NOT_ONE_OBJECT, NOT_ONE_ROW, Fault
from sluice.decode.messages.first_bytes import begins_like

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Framing:
    """The tests of a format. All of them are functions of each message alone.

    :param name: of the tests; buffers of equal names hold the same.
    :param kind: what each message is, OBJECTS or ARRAYS of `brackets`. Empty: nothing is known, and
        nothing is joined for the engine: the decoder takes messages singly or frames them anew.
    """

    name: str
    kind: bytes = b""

    @property
    def inspects_digits(self) -> bool:
        """Whether numbers are written as text, so that too long ones have to be found."""
        return bool(self.kind)

    def faults(self, chunk: bytes | memoryview, starts: Positions, ends: Positions) -> Mask:
        """True for each message that must not be joined."""
        if not self.kind:
            return np.zeros(len(starts), np.bool_)
        return bracket_faults(chunk, starts, ends, self.kind)

    def explain(self, value: bytes) -> Fault:
        """What is wrong with a message that `faults` names."""
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
        elif begins_like(value):
            what = f"the message is not one {noun}: it begins like {begins_like(value)}"
        elif not text.startswith(self.kind[:1]):
            what = f"the message does not start with {opening}"
        else:
            try:
                json.loads(text)
                what = f"the message is not one {noun}"
            except RecursionError:
                what = f"the message is not one {noun}: it is nested too deeply"
            except ValueError as error:
                what = f"the message is not one {noun}: {error}"
        return Fault(reason, what)


JSON_OBJECTS = Framing("json-objects", OBJECTS)
JSON_ARRAYS = Framing("json-arrays", ARRAYS)
BYTES = Framing("bytes")
