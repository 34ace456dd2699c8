"""The token: the identity of a block (rule 7)."""

from __future__ import annotations

import re

from sluice.core.ranges import Range

NAME_PATTERN = re.compile(r"^[A-Za-z0-9_.-]{1,48}$")


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
) -> str:
    """Name the block that a range becomes in one table of one shard.

    Every part that could tell two blocks apart is in it: a re-created topic has another
    id, two entries with one target have other names (C12), a rewind another generation,
    a probe's rest its digest. No part can contain the separator.
    """
    source = block_range.source
    token = (
        f"{pipeline}/{generation}/{connector}/{topic_id}/{source.topic}/{source.partition}/"
        f"{entry}+{target}/{shard}/{block_range.begin}-{block_range.end}"
    )
    return f"{token}/{rest}" if rest else token
