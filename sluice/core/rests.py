"""How the offsets that a probe found missing stand in the ledger.

Where rows are spread over shards by a key, and one shard lacks its block, every few offsets one
is missing: as intervals, a large range's would be longer than the ledger takes. So many are
written as bits: 0.17 bytes for each offset of the range, whatever is missing.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.core.ranges import Interval, normalize

#: As intervals up to here, for people to read.
INTERVALS_MAX = 1000


def written(intervals: Sequence[Interval]) -> Any:
    """The offsets as JSON."""
    if len(intervals) <= INTERVALS_MAX:
        return [list(interval) for interval in intervals]
    joined = normalize(intervals)
    first, last = joined[0][0], joined[-1][1]
    is_set = np.zeros(last - first, np.bool_)
    for begin, end in joined:
        is_set[begin - first : end - first] = True
    return _as_bits(first, is_set)


def written_offsets(offsets: NDArray[np.uint64]) -> Any:
    """The same of single offsets.

    :param offsets: ascending, each once.
    """
    if not len(offsets):
        return []
    first = int(offsets[0])
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    if len(breaks) < INTERVALS_MAX:
        begins = offsets[np.concatenate(([0], breaks + 1))]
        ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))]
        return [[begin, end + 1] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    is_set = np.zeros(int(offsets[-1]) - first + 1, np.bool_)
    is_set[(offsets - np.uint64(first)).astype(np.int64)] = True
    return _as_bits(first, is_set)


def _as_bits(first: int, is_set: NDArray[np.bool_]) -> dict[str, Any]:
    bits = np.packbits(is_set, bitorder="little").tobytes()
    return {"begin": first, "bits": base64.b64encode(zlib.compress(bits)).decode()}


def count(value: Any) -> int:
    """How many offsets were written."""
    return sum(end - begin for begin, end in read(value))


def read(value: Any) -> tuple[Interval, ...]:
    """What was written."""
    if not isinstance(value, dict):
        return tuple((int(begin), int(end)) for begin, end in value)
    bits = np.frombuffer(zlib.decompress(base64.b64decode(value["bits"])), np.uint8)
    is_set = np.unpackbits(bits, bitorder="little").view(np.int8)
    edges = np.diff(is_set, prepend=np.int8(0), append=np.int8(0))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    first = int(value["begin"])
    pairs = zip((begins + first).tolist(), (ends + first).tolist(), strict=True)
    return tuple(pairs)


#: Rows of messages of several rows: an offset, the first of its rows, and behind the last one.
StoredRows = tuple[tuple[int, int, int], ...]


def written_rows(rows: StoredRows) -> str:
    """Rows as text. Each offset counts from the one before it, so that messages of equally many
    rows, one after the other, take next to nothing."""
    before, steps = 0, []
    for offset, first, beyond in rows:
        steps.append((offset - before, first, beyond))
        before = offset
    text = json.dumps(steps, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(text)).decode()


def read_rows(text: str) -> StoredRows:
    """What was written."""
    found, offset = [], 0
    for step, first, beyond in json.loads(zlib.decompress(base64.b64decode(text))):
        offset += step
        found.append((offset, first, beyond))
    return tuple(found)
