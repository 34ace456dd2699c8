"""Keys and owners of a block, in arrays: it has 250,000 of them; and offsets of duplicates, as they
stand in the ledger: a range has thousands."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.core.claims import OWNER_BYTES
from sluice.core.errors import TerminalError
from sluice.core.rests import INTERVALS_MAX, bits_of, written_bits

#: Topic id, who loads it (`core.claims.loader_number`), partition, offset, row; big-endian.
OWNER = np.dtype(
    [("topic", "S8"), ("loader", ">u4"), ("partition", ">u4"), ("offset", ">u8"), ("row", ">u4")]
)
assert OWNER.itemsize == OWNER_BYTES
#: Owns the keys of rows that nobody knows the message of.
NOBODY = bytes(OWNER_BYTES)

#: A line of KEY_BYTES, or OWNER_BYTES, for each row.
Keys = NDArray[np.uint8]
Owners = NDArray[np.uint8]


def topic_bytes(topic_id: str) -> bytes:
    """The 8 bytes of a short topic id (`core.topics.short_topic_id`).

    :raises TerminalError: it is none.
    """
    try:
        raw = base64.urlsafe_b64decode(topic_id + "=" * (-len(topic_id) % 4))
    except ValueError:
        raw = b""
    if len(raw) != 8:
        raise TerminalError(f"{topic_id!r} is no topic id", "This is a bug: report it.")
    return raw


def topic_text(raw: bytes) -> str:
    """The short topic id of its 8 bytes."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def owners_of(
    topic_ids: Sequence[str],
    partitions: Sequence[int],
    numbers: NDArray[np.int64] | int,
    loader: int,
    offsets: NDArray[np.uint64],
    rows: NDArray[np.uint32],
) -> Owners:
    """The owners that rows are, one line of OWNER_BYTES for each row.

    :param topic_ids: of each partition that the rows may be of; `partitions`: their numbers.
    :param numbers: which of them each row is of.
    :param loader: see `loader_number`.
    :param rows: the number of each row within its message.
    """
    found = np.zeros(len(offsets), OWNER)
    lines = found.view(np.uint8).reshape(-1, OWNER_BYTES)
    topics = np.frombuffer(b"".join(map(topic_bytes, topic_ids)), np.uint8).reshape(-1, 8)
    # Not by the field: it is text to numpy, which cuts its trailing zeros.
    lines[:, :8] = topics[numbers]
    found["loader"] = loader
    found["partition"] = np.array(partitions, np.uint32)[numbers]
    found["offset"] = offsets
    found["row"] = rows
    return lines


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
