"""The designs that docs/SCALE.md compares."""

from __future__ import annotations

from dataclasses import replace

from sluice.testbed.scale.model import Design

_LARGE = Design(
    name="A",
    topics=500,
    partitions=10_000,
    rows_per_second=1_000_000,
    row_bytes=200,
    shards=2_050,
    replicas=4,
    shards_of_range=2_050,
    max_messages=250_000,
    max_delay_seconds=1,
)

#: 2,050 shards of 4 replicas, 500 topics, a million rows a second.
LARGE: tuple[Design, ...] = (
    replace(_LARGE, name="every key over all shards, 1 s"),
    replace(_LARGE, name="by key over 4 shards of a topic's own, 1 s", shards_of_range=4),
    replace(_LARGE, name="the same, 30 s", shards_of_range=4, max_delay_seconds=30),
    replace(_LARGE, name="a shard for each topic, 30 s", shards_of_range=1, max_delay_seconds=30),
    replace(
        _LARGE,
        name="a shard for each topic, 4 partitions each, 10 s",
        shards_of_range=1,
        partitions=2_000,
        max_delay_seconds=10,
        ensembles=2,
    ),
    replace(
        _LARGE,
        name="a topic of one partition for each shard, 30 s",
        topics=2_050,
        partitions=2_050,
        shards_of_range=1,
        max_delay_seconds=30,
    ),
)

_MANY = Design(
    name="B",
    topics=100,
    partitions=10_000,
    rows_per_second=100_000,
    row_bytes=200,
    shards=8,
    replicas=2,
    shards_of_range=8,
    max_messages=250_000,
    max_delay_seconds=1,
)

#: 10,000 partitions with little in each: 100 topics, 100,000 rows a second, 8 shards of 2 replicas.
MANY: tuple[Design, ...] = (
    replace(_MANY, name="by key over 8 shards, 1 s"),
    replace(_MANY, name="the same, 60 s", max_delay_seconds=60),
    replace(_MANY, name="a shard for each topic, 60 s", shards_of_range=1, max_delay_seconds=60),
    replace(
        _MANY,
        name="the same, 10 partitions each, 30 s",
        shards_of_range=1,
        partitions=1_000,
        max_delay_seconds=30,
    ),
)
