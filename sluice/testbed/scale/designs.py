"""The designs that docs/SCALE.md compares."""

from __future__ import annotations

from dataclasses import replace

from sluice.testbed.scale.model import Design

_LARGE = Design(
    name="one table, every key over all shards, 1 s",
    topics=500,
    partitions=10_000,
    entries=1,
    brokers=10,
    rows_per_second=1_000_000,
    row_bytes=200,
    replicas=4,
    shards_of_entry=2_050,
    max_delay_seconds=1,
)
_OWN = replace(_LARGE, entries=500, shards_of_entry=1)

#: 2,050 shards of 4 replicas, 500 topics, a million rows a second.
LARGE: tuple[Design, ...] = (
    _LARGE,
    replace(
        _LARGE,
        name="8 tables, each by key over 256 shards, 60 s",
        entries=8,
        shards_of_entry=256,
        max_delay_seconds=60,
    ),
    replace(
        _OWN,
        name="a table for each topic, by key over 4 shards, 60 s",
        shards_of_entry=4,
        max_delay_seconds=60,
    ),
    replace(
        _OWN,
        name="a table and a shard for each topic, 30 s, two ensembles",
        max_delay_seconds=30,
        ensembles=2,
    ),
    replace(
        _OWN,
        name="a table for 10 topics, by key over 4 shards, 60 s",
        entries=50,
        shards_of_entry=4,
        max_delay_seconds=60,
    ),
    replace(
        _LARGE,
        name="a topic of one partition, with a table, for each shard, 30 s",
        topics=2_050,
        partitions=2_050,
        entries=2_050,
        shards_of_entry=1,
        max_delay_seconds=30,
    ),
)

_MANY = Design(
    name="max_partitions = 1, by key over 8 shards, 60 s",
    topics=100,
    partitions=10_000,
    entries=100,
    brokers=3,
    rows_per_second=100_000,
    row_bytes=200,
    replicas=2,
    shards_of_entry=8,
    max_delay_seconds=60,
    max_partitions=1,
)
_BUNDLED = replace(_MANY, max_partitions=1_000)

#: 10,000 partitions with little in each: 100 topics, 100,000 rows a second, 8 shards of 2 replicas.
MANY: tuple[Design, ...] = (
    _MANY,
    replace(
        _BUNDLED, name="a table for each topic, by key over 8 shards, 1 s", max_delay_seconds=1
    ),
    replace(_BUNDLED, name="the same, 30 s", max_delay_seconds=30),
    replace(
        _BUNDLED,
        name="a table and a shard for each topic, 10 s",
        shards_of_entry=1,
        max_delay_seconds=10,
    ),
    replace(
        _BUNDLED,
        name="one table for all, by key over 8 shards, 10 s",
        entries=1,
        max_delay_seconds=10,
    ),
    replace(
        _BUNDLED,
        name="the same, max_partitions = 4000",
        entries=1,
        max_partitions=4_000,
        max_delay_seconds=10,
    ),
)
