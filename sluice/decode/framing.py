"""How the messages of a text format stand behind each other, and what is proven of each.

A buffer joins messages with newlines. What may be joined so that the engine's rows are the
messages differs by format; what is not sound is set aside before the engine sees it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sluice.decode.boundaries import Mask, Positions, flat_ends, structure_faults


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

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        """The cheap test of newline-joined messages: where each ends, exclusive, if all of
        them are sound provided that the engine makes as many rows; None if it cannot tell."""
        ...

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        """The exact test: True for each message that must not be joined."""
        ...


class _JsonObjects:
    """Each message is one JSON object."""

    name = "json-objects"
    inspects_digits = True

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        return flat_ends(chunk, messages)

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        return structure_faults(chunk, starts, ends)


class _Bytes:
    """Nothing is known, and nothing is joined for the engine: the decoder takes messages singly
    or frames them anew."""

    name = "bytes"
    inspects_digits = False

    def flat_ends(self, chunk: bytes, messages: int) -> Positions | None:
        return None

    def faults(self, chunk: bytes, starts: Positions, ends: Positions) -> Mask:
        return np.zeros(len(starts), np.bool_)


JSON_OBJECTS: Framing = _JsonObjects()
BYTES: Framing = _Bytes()
