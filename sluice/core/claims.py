"""Claims: which message made the row of a key (R20). Pure.

A key is 16 bytes, the hash of a row's deduplication key. Its owner is 28 bytes: the place in Kafka
of the row that has it. A claim says who owns a key, and until when.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

KEY_BYTES = 16
#: Of an owner, see `claims.owners`.
OWNER_BYTES = 28
#: To a range in doubt the claims of a table are one more window: they hold for so many seconds, and
#: are worth something in one run of their store. They stand in a record as a shard of this name,
#: which no shard can have.
CLAIMS = "@claims"
WhatOfDuplicates = Literal["drop", "dead-letter", "topic"]
OnNullKey = Literal["dead-letter", "row"]

_WORDS = re.compile(r"\w+")
_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'")
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
    :param duplicates: what becomes of their messages: "dead-letter" and "topic": a copy goes to the
        dead-letter topic, or to that of duplicates.
    :param on_null: what becomes of a message without a part of its key: "row": it is loaded, and
        never a duplicate.
    """

    key: tuple[str, ...]
    window_seconds: int
    scope: str
    duplicates: WhatOfDuplicates = "drop"
    on_null: OnNullKey = "dead-letter"


def loader_number(pipeline: str, connector: str, entry: str) -> int:
    """Who makes a row of a message: where two do, as two pipelines that read one topic into one
    table, the message owns the key for one of them."""
    return zlib.crc32(f"{pipeline}/{connector}/{entry}".encode())


def key_space(deduplicate: Deduplicate, columns: Iterable[Column]) -> str:
    """Within which keys are compared: those of one scope that are made of the same columns, of the
    same types. Part of each key, so that a key that is made otherwise is another one.

    :param columns: of the table.
    """
    texts = [_TEXT.sub("", item) for item in deduplicate.key]
    words = {word for text in texts for word in _WORDS.findall(text)} | set(deduplicate.key)
    used = sorted((column.name, column.type) for column in columns if column.name in words)
    digest = hashlib.sha256(json.dumps([deduplicate.key, used]).encode()).hexdigest()[:12]
    return f"{deduplicate.scope}/{digest}"
