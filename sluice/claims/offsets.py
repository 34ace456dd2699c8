"""Offsets of duplicates, of which a range has thousands, as they stand in the ledger."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.core.rests import INTERVALS_MAX, bits_of, written_bits


def written_offsets(offsets: NDArray[np.uint64]) -> Any:
    """Offsets in the form of `core.rests`.

    :param offsets: ascending, each once.
    """
    if not len(offsets):
        return []
    first, breaks = int(offsets[0]), np.flatnonzero(np.diff(offsets) > 1)
    if len(breaks) < INTERVALS_MAX:
        begins = offsets[np.concatenate(([0], breaks + 1))].tolist()
        ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))].tolist()
        return [[begin, end + 1] for begin, end in zip(begins, ends, strict=True)]
    is_there = np.zeros(int(offsets[-1]) - first + 1, np.bool_)
    is_there[(offsets - np.uint64(first)).astype(np.int64)] = True
    return written_bits(first, np.packbits(is_there, bitorder="little").tobytes())


def read_offsets(value: Any) -> NDArray[np.uint64]:
    """What was written, ascending."""
    if not isinstance(value, dict):
        some = [np.arange(int(begin), int(end), dtype=np.uint64) for begin, end in value]
        return np.concatenate(some) if some else np.zeros(0, np.uint64)
    first, bits = bits_of(value)
    found = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return np.flatnonzero(found).astype(np.uint64) + np.uint64(first)
