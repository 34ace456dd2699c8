"""Reads where the shards and their replicas are, from [clickhouse]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from sluice.config.findings import RefusedError, suggest
from sluice.config.model import ClusterConfiguration, ShardConfiguration
from sluice.config.section import Section
from sluice.config.values import (
    NAME,
    a_duration,
    a_name,
    a_replica_url,
    a_text,
    an_integer,
    shown,
)
from sluice.core.health import ReplicaLimits
from sluice.core.replicas import host_matches

_NOT_A_NAME = "is not a name; use 1 to 48 characters of A-Z a-z 0-9 _ . -"
_OF_CLUSTERS = ("servers", "http_port", "addresses", "shard_macro")
_DELAY_MIN_SECONDS, _DELAY_MAX_SECONDS = 1.0, 7 * 86_400.0
_QUEUE_MAX = 1_000_000_000


def read_shards(section: Section) -> tuple[ShardConfiguration, ...]:
    """`shards = { s1 = ["http://a:8123", "http://b:8123"] }`: replicas by the shard's name."""
    for key in _OF_CLUSTERS:
        if section.has(key):
            section.refuse(key, "says nothing without the name of a `cluster`; leave it out")
    if not section.has("shards"):
        section.refuse("shards", 'is missing; write it like { s1 = ["http://localhost:8123"] }')
        return ()
    shards_section = section.table("shards")
    names = shards_section.keys()
    if not names:
        section.refuse("shards", "must not be empty")
    shards = []
    for name in names:
        if not NAME.fullmatch(name):
            shards_section.refuse(name, _NOT_A_NAME)
        replicas = shards_section.required_list(name, a_replica_url)
        shards.append(ShardConfiguration(name, replicas))
    return tuple(shards)


def read_shard_names(section: Section) -> tuple[ShardConfiguration, ...]:
    """`shards = ["s1", "s2"]`: the shards of a cluster, whose replicas its servers know.

    They are named here although the servers know them, too: which shards there are decides where
    rows go, and that must never change by itself.
    """
    if not section.has("shards"):
        section.refuse(
            "shards",
            'is missing: name the shards of the cluster, as in ["s1", "s2"]; on each of its '
            "servers, SELECT substitution FROM system.macros WHERE macro = 'shard' says which",
        )
        return ()
    return tuple(ShardConfiguration(n, ()) for n in section.required_list("shards", a_name))


def read_cluster(section: Section) -> ClusterConfiguration | None:
    """`cluster = "prod"` with `servers = [...]`; None where the file has the replicas."""
    if not section.has("cluster"):
        return None
    servers = section.required_list("servers", a_replica_url)
    first = urlsplit(servers[0]) if servers else urlsplit("http://localhost:8123")
    addresses: dict[str, str] = {}
    written = section.table("addresses")
    for where in written.keys():  # noqa: SIM118 (a section, which marks its keys as known)
        host, _, port = where.rpartition(":")
        if not host or not port.isdecimal():
            written.refuse(where, "is not host:port as in system.clusters")
        addresses[where] = written.required(where, a_replica_url, "")
    return ClusterConfiguration(
        name=section.required("cluster", a_text, ""),
        servers=servers,
        scheme=first.scheme,
        http_port=section.optional("http_port", an_integer(1, 65535), first.port or 8123),
        addresses=addresses,
        shard_macro=section.optional("shard_macro", a_text, "shard"),
    )


def read_data_centers(
    section: Section, shards: Sequence[ShardConfiguration]
) -> dict[str, tuple[str, ...]]:
    """`data_centers = { east = ["*.east.example.com"] }`: hosts by data center.

    Where the file has the replicas, each of them is in one data center at most, and no pattern is
    without any: a mistake in one would move the load without a word.
    """
    written = section.table("data_centers")
    found = {name: written.required_list(name, _a_host_pattern) for name in written.keys()}  # noqa: SIM118
    urls = [url for shard in shards for url in shard.replicas]
    for name, patterns in found.items():
        for pattern in patterns:
            if urls and not any(host_matches(url, pattern) for url in urls):
                written.refuse(name, f"{shown(pattern)} is the host of no replica in `shards`")
    for url in urls:
        of = [n for n, patterns in found.items() if any(host_matches(url, p) for p in patterns)]
        if len(of) > 1:
            written.refuse(of[1], f"{url} is in {of[0]}, too; a replica has one data center")
    return found


def _a_host_pattern(value: object) -> str:
    """`host` or `host:port`, where * stands for anything."""
    text = a_text(value)
    if "/" in text:
        raise RefusedError(f"{shown(value)} is no host; write it like east-*.example.com")
    return text


def read_preference(section: Section, data_centers: Mapping[str, tuple[str, ...]]) -> str:
    """`prefer = "east"`; "" if it is left out."""
    preferred = section.optional("prefer", a_text, "")
    if preferred and preferred not in data_centers:
        known = (
            suggest(preferred, data_centers)
            if data_centers
            else 'name its hosts in [clickhouse]: data_centers = { east = ["*.east.example.com"] }'
        )
        section.refuse("prefer", f'no data center is named "{preferred}"; {known}')
    return preferred


def read_limits(section: Section) -> ReplicaLimits:
    """`max_replica_delay` and `max_replica_queue`."""
    usual = ReplicaLimits()
    a_delay = a_duration(_DELAY_MIN_SECONDS, _DELAY_MAX_SECONDS)
    return ReplicaLimits(
        section.optional("max_replica_delay", a_delay, usual.delay_seconds),
        section.optional("max_replica_queue", an_integer(1, _QUEUE_MAX), usual.queue),
    )
