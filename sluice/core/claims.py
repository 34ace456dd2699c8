"""Claims: which message made the row of a key (R20). Pure, and in arrays: a block has 250,000 keys.

A key is 16 bytes, the hash of a row's deduplication key. Its owner is 28 bytes: the place in Kafka
of the row that has it. A claim says who owns a key, and until when.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError

KEY_BYTES = 16
#: Topic id (8), CRC-32 of the table entry (4), partition (4), offset (8), row (4), big-endian.
OWNER = np.dtype(
    [("topic", "S8"), ("entry", ">u4"), ("partition", ">u4"), ("offset", ">u8"), ("row", ">u4")]
)
OWNER_BYTES = OWNER.itemsize
#: The name under which the run of the store stands among the servers of a record. No shard can
#: have it.
RUN_OF_CLAIMS = "@claims"
#: Owns the keys of rows that nobody knows the message of.
NOBODY = bytes(OWNER_BYTES)

Keys = NDArray[np.uint8]
Owners = NDArray[np.uint8]

WhatOfDuplicates = Literal["drop", "dead-letter"]
OnNullKey = Literal["dead-letter", "row"]


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """How a table entry knows an event again.

    :param key: columns of the block, or one expression over them in ClickHouse SQL.
    :param window_seconds: so long after the first one an event with the same key makes no row.
    :param scope: keys of one scope are compared; tables that share none never see each other's.
    :param duplicates: what becomes of their messages.
    :param on_null: what becomes of a message without a part of its key: "row": it is loaded, and
        never a duplicate.
    """

    key: tuple[str, ...]
    window_seconds: int
    scope: str
    duplicates: WhatOfDuplicates = "drop"
    on_null: OnNullKey = "dead-letter"


def topic_bytes(topic_id: str) -> bytes:
    """The 8 bytes of a short topic id (`kafka.log.short_topic_id`).

    :raises TerminalError: it is none.
    """
    try:
        raw = base64.urlsafe_b64decode(topic_id + "=" * (-len(topic_id) % 4))
    except ValueError:
        raw = b""
    if len(raw) != 8:
        raise TerminalError(f"{topic_id!r} is no topic id", "This is a bug: report it.")
    return raw


def owners_of(
    topic_id: str,
    entry: str,
    partition: int,
    offsets: NDArray[np.uint64],
    rows: NDArray[np.uint32],
) -> Owners:
    """The owners that rows of one partition are, one line of OWNER_BYTES for each row.

    :param rows: the number of each row within its message.
    """
    found = np.zeros(len(offsets), OWNER)
    lines = found.view(np.uint8).reshape(-1, OWNER_BYTES)
    # Not by the field: numpy cuts trailing zeros of text, and refuses none.
    lines[:, :8] = np.frombuffer(topic_bytes(topic_id), np.uint8)
    found["entry"] = zlib.crc32(entry.encode())
    found["partition"] = partition
    found["offset"] = offsets
    found["row"] = rows
    return lines
