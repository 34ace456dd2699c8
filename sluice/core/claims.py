"""Claims: which message made the row of a key (R20). Pure, and in arrays: a block has 250,000 keys.

A key is 16 bytes, the hash of a row's deduplication key. Its owner is 28 bytes: the place in Kafka
of the row that has it. A claim says who owns a key, and until when.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError

KEY_BYTES = 16
#: Topic id (8), who loads it (4), partition (4), offset (8), row (4), big-endian.
OWNER = np.dtype(
    [("topic", "S8"), ("loader", ">u4"), ("partition", ">u4"), ("offset", ">u8"), ("row", ">u4")]
)
OWNER_BYTES = OWNER.itemsize
#: To a range in doubt the claims of a table are one more window: they hold for so many seconds, and
#: are worth something in one run of their store. They stand in a record as a shard of this name,
#: which no shard can have.
CLAIMS = "@claims"
#: Owns the keys of rows that nobody knows the message of.
NOBODY = bytes(OWNER_BYTES)

Keys = NDArray[np.uint8]
Owners = NDArray[np.uint8]

WhatOfDuplicates = Literal["drop", "dead-letter"]
OnNullKey = Literal["dead-letter", "row"]

_WORDS = re.compile(r"\w+")
#: A range in doubt is repeated for no longer than this; claims are kept so much longer than they
#: hold. So what a repeat is told of them is what the first attempt was told.
REPEATED_SECONDS_MAX = 86_400


class Column(Protocol):
    """A column of a table, as in a load spec."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...


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


def loader_number(pipeline: str, connector: str, entry: str) -> int:
    """Who makes a row of a message: where two do, as two pipelines that read one topic into one
    table, the message owns the key for one of them."""
    return zlib.crc32(f"{pipeline}/{connector}/{entry}".encode())


def key_space(deduplicate: Deduplicate, columns: Iterable[Column]) -> str:
    """Within which keys are compared: those of one scope that are made of the same columns, of the
    same types. Part of each key, so that a key that is made otherwise is another one.

    :param columns: of the table.
    """
    words = {word for item in deduplicate.key for word in (item, *_WORDS.findall(item))}
    used = sorted((column.name, column.type) for column in columns if column.name in words)
    digest = hashlib.sha256(json.dumps([deduplicate.key, used]).encode()).hexdigest()[:12]
    return f"{deduplicate.scope}/{digest}"


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
