"""The token: the identity of a block (R7)."""

from __future__ import annotations

import hashlib
import re

from sluice.core.ranges import Range

#: Of the names that a token is made of: none holds what stands between two of them.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,48}")


def block_token(
    *,
    pipeline: str,
    generation: int,
    connector: str,
    topic_id: str,
    block_range: Range,
    entry: str,
    target: str,
    shard: str,
    rest: str = "",
    bundle: str = "",
) -> str:
    """Name the block that a range, or a bundle of ranges, becomes in one table of one shard.

    Every part that could tell two blocks apart is in it: a re-created topic has another
    id, two entries with one target have other names (H18), a rewind another generation,
    a probe's rest its digest. Of a bundle, its name stands for all that its members are
    (`core.bundles`). No part can contain the separator.
    """
    if bundle:
        return f"{pipeline}/bundle/{connector}/{bundle}/{entry}+{target}/{shard}"
    source = block_range.source
    token = (
        f"{pipeline}/{generation}/{connector}/{topic_id}/{source.topic}/{source.partition}/"
        f"{entry}+{target}/{shard}/{block_range.begin}-{block_range.end}"
    )
    return f"{token}/{rest}" if rest else token


def is_of_rest(token: str) -> bool:
    """Whether a block is what a probe found missing of a range, and not all of it."""
    return token.count("/") == 9


def row_source(*, pipeline: str, connector: str, topic_id: str, entry: str, generation: int) -> str:
    """Who loads a row, as its lineage column `_source` says.

    Two pipelines, connectors, Kafka clusters, table entries, topics of one name after each other,
    and what was loaded before and after a rewind never have the same one. With `_topic`,
    `_partition`, `_offset` and `_row` it names one row. No part can contain the separator.
    """
    return f"{pipeline}/{connector}/{topic_id}/{entry}/{generation}"


def source_number(source: str) -> int:
    """A row's source where `_source` is a UInt64: the first 64 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "big")
