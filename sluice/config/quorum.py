"""How many replicas have to have a block, as `[clickhouse]` says it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.config.findings import RefusedError
from sluice.config.model import Durability, Quorum, QuorumConfiguration, ShardConfiguration
from sluice.config.section import Section
from sluice.config.values import a_duration, a_text, an_integer, shown

#: An insert ends after 30 s; the server's own word on the quorum has to come before that.
TIMEOUT_MIN_SECONDS, TIMEOUT_MAX_SECONDS = 1.0, 25.0
REPLICAS_MIN, REPLICAS_MAX = 2, 100

_ENSEMBLE = re.compile(
    r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
    r"(?:,(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})*"
    r"(?:/[A-Za-z0-9._-]+)*",
    re.ASCII,
)


def read_quorum(
    section: Section, durability: Durability, shards: Sequence[ShardConfiguration]
) -> QuorumConfiguration:
    """`quorum`, `quorum_timeout` and `zookeeper`. They mean nothing with durability = "single"
    and are refused there: whoever writes them believes that they do.

    :param shards: no shard must have fewer replicas than the quorum.
    """
    if durability == "single":
        for key in ("quorum", "quorum_timeout", "zookeeper"):
            if section.has(key):
                section.refuse(
                    key,
                    'has no meaning with durability = "single"; take it out, or write '
                    'durability = "quorum"',
                )
        return QuorumConfiguration()
    found = QuorumConfiguration(
        replicas=section.optional("quorum", _a_quorum, 2),
        timeout_seconds=section.optional(
            "quorum_timeout",
            a_duration(TIMEOUT_MIN_SECONDS, TIMEOUT_MAX_SECONDS),
            TIMEOUT_MAX_SECONDS,
        ),
        zookeeper=section.optional("zookeeper", _an_ensemble, ""),
    )
    for shard in shards:
        # A lone replica has a finding of its own.
        if 1 < len(shard.replicas) < found.of(shard):
            section.refuse(
                "quorum",
                f"waits for {found.replicas} replicas, and the shard {shard.name} names "
                f'{len(shard.replicas)}; name its others, or write at most that, or "auto"',
            )
    return found


def _a_quorum(value: object) -> Quorum:
    """A number of replicas, or "auto"."""
    if isinstance(value, str):
        if value == "auto":
            return "auto"
        raise RefusedError(f'{shown(value)} is not possible; use a number of replicas, or "auto"')
    if value == 1 and not isinstance(value, bool):
        raise RefusedError('1 is no quorum; write durability = "single" instead')
    return an_integer(REPLICAS_MIN, REPLICAS_MAX)(value)


def _an_ensemble(value: object) -> str:
    """Servers of ZooKeeper, and the path below which its nodes are made."""
    text = a_text(value)
    if not _ENSEMBLE.fullmatch(text):
        raise RefusedError(
            f"{shown(value)} is no ZooKeeper; write host:port, several separated by commas, and "
            'a path behind them if need be, like "one:2181,two:2181/loaders"'
        )
    return text
