"""How the offsets that a probe found missing stand in the ledger.

Where rows are spread over shards by a key, and one shard lacks its block, every few offsets one
is missing: as intervals, a large range's would be longer than the ledger takes. So many are
written as bits: 0.17 bytes for each offset of the range, whatever is missing.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.core.ranges import Interval, normalize

#: As intervals up to here, for people to read.
INTERVALS_MAX = 1000


def written(intervals: Sequence[Interval]) -> Any:
    """The offsets as JSON."""
    if len(intervals) <= INTERVALS_MAX:
        return [list(interval) for interval in intervals]
    joined = normalize(intervals)
    first, last = joined[0][0], joined[-1][1]
    bits = bytearray((last - first + 7) // 8)
    for begin, end in joined:
        for offset in range(begin - first, end - first):
            bits[offset >> 3] |= 1 << (offset & 7)
    return written_bits(first, bytes(bits))


def written_bits(first: int, bits: bytes) -> Any:
    """Offsets as bits, the lowest of each byte first.

    :param first: which offset the first bit is.
    """
    return {"begin": first, "bits": base64.b64encode(zlib.compress(bits)).decode()}


def bits_of(value: Mapping[str, Any]) -> tuple[int, bytes]:
    """Which offset the first bit is, and the bits."""
    return int(value["begin"]), zlib.decompress(base64.b64decode(value["bits"]))


def count(value: Any) -> int:
    """How many offsets were written."""
    return sum(end - begin for begin, end in read(value))


def read(value: Any) -> tuple[Interval, ...]:
    """What was written."""
    if not isinstance(value, dict):
        return tuple((int(begin), int(end)) for begin, end in value)
    first, bits = bits_of(value)
    found: list[Interval] = []
    begin: int | None = None
    for place in range(8 * len(bits) + 1):
        is_set = place < 8 * len(bits) and bits[place >> 3] >> (place & 7) & 1
        if is_set and begin is None:
            begin = place
        elif not is_set and begin is not None:
            found.append((first + begin, first + place))
            begin = None
    return tuple(found)


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
