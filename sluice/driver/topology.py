"""The replicas of a cluster, asked of its servers.

Which shards there are stands in the configuration, since it decides where rows go; where their
replicas are is asked, since that decides nothing but the way. How they let Sluice in stands in the
configuration, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.tls import Tls
from sluice.clickhouse.topology import read_members, read_shard_name
from sluice.config import Configuration, ShardConfiguration
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.topology import Found, ShardsChangedError, difference, recognise, url_of


def login_of(configuration: Configuration) -> ClickHouseAccess:
    """How to reach the servers that the configuration names, password in the clear; no server is
    asked. Shards whose replicas are to be asked have none.

    :raises ConfigurationError: password or token, or a file of certificates, cannot be had.
    """
    clickhouse = configuration.clickhouse
    files = clickhouse.tls
    tls = Tls(files.ca, files.certificate, files.key, files.key_password.reveal())
    urls = [url for shard in clickhouse.shards for url in shard.replicas]
    if clickhouse.cluster is not None:
        urls += clickhouse.cluster.servers
    if any(url.startswith("https:") for url in urls):
        tls.context()
    shown = clickhouse.token or clickhouse.password
    return ClickHouseAccess(
        shards={shard.name: shard.replicas for shard in clickhouse.shards},
        user="" if clickhouse.token else clickhouse.user,
        password=shown.reveal(),
        durability=clickhouse.durability,
        source=shown.source,
        bearer=bool(clickhouse.token),
        tls=tls,
        quorums={shard.name: clickhouse.quorum_of(shard) for shard in clickhouse.shards},
        quorum_timeout_seconds=clickhouse.quorum_timeout_seconds,
        zookeeper=clickhouse.zookeeper,
    )


_THREADS_MAX = 16
_HOW_TO_DECIDE = (
    "Nothing is loaded until somebody has decided: name all of them in [clickhouse] shards (rows "
    'of new ranges are spread over these; see "Changing it" in docs/SHARDS.md), or correct '
    "<remote_servers> on the servers."
)

_T = TypeVar("_T")


def resolved(configuration: Configuration) -> Configuration:
    """The configuration with the replicas of each shard; itself if it has them.

    :raises ConfigurationError: the cluster has other shards than are named, or its servers
        contradict each other.
    :raises TransientError: no server says where the others are, or none of a shard answers.
    """
    if configuration.clickhouse.cluster is None or all(
        shard.replicas for shard in configuration.clickhouse.shards
    ):
        return configuration
    found = look(configuration)
    refuse_difference(configuration, found)
    if found.silent:
        raise TransientError(
            "no server of a shard answers, so nobody knows which shard it is: "
            + "; ".join(", ".join(urls) for urls in found.silent),
            "It is asked again; start one of these servers.",
        )
    return _enough(with_replicas(configuration, found.shards))


def _enough(configuration: Configuration) -> Configuration:
    """:raises ConfigurationError: a shard has fewer replicas than a block has to be on."""
    clickhouse = configuration.clickhouse
    for shard in clickhouse.shards if clickhouse.durability == "quorum" else ():
        wanted = max(2, clickhouse.quorum_of(shard))
        if len(shard.replicas) < wanted:
            raise ConfigurationError(
                f"blocks wait for {wanted} replicas of a shard (durability, quorum), and the shard "
                f"{shard.name} has only {', '.join(shard.replicas)}",
                'Give it more replicas, or write a smaller quorum, or durability = "single" in '
                "[clickhouse]: then one machine's word is enough.",
            )
    return configuration


def with_replicas(
    configuration: Configuration, shards: Mapping[str, tuple[str, ...]]
) -> Configuration:
    """The configuration with these replicas, by the name of the shard; pure."""
    clickhouse = configuration.clickhouse
    named = tuple(ShardConfiguration(each.name, shards[each.name]) for each in clickhouse.shards)
    return replace(configuration, clickhouse=replace(clickhouse, shards=named))


def look(configuration: Configuration) -> Found:
    """The shards of the cluster as its servers say now.

    :raises ConfigurationError: there is no such cluster, or servers contradict each other.
    :raises TransientError: none of `servers` answers.
    """
    clickhouse = configuration.clickhouse
    cluster = clickhouse.cluster
    assert cluster is not None
    access = login_of(configuration)

    def ask(url: str, question: Callable[[Server], _T]) -> _T:
        with access.connect(url) as server:
            server.ping()  # one that is frozen is found out in seconds
            return question(server)

    last: TransientError | None = None
    for url in cluster.servers:
        try:
            members = ask(url, lambda server: read_members(server, cluster.name))
            break
        except TransientError as error:
            last = error
    else:
        assert last is not None
        raise TransientError(
            f"none of [clickhouse.cluster] servers says where the replicas of {cluster.name} are: "
            f"{last.message}",
            last.hint,
        )
    groups: dict[int, list[str]] = {}
    for member in members:
        url = url_of(member, cluster.scheme, cluster.port, cluster.addresses)
        groups.setdefault(member.group, []).append(url)

    def name_of(url: str) -> str | None:
        try:
            return ask(url, lambda server: read_shard_name(server, cluster.shard_macro))
        except TransientError:
            return None

    urls = sorted({url for group in groups.values() for url in group})
    return recognise(groups.values(), dict(zip(urls, in_parallel(name_of, urls), strict=True)))


def refuse_difference(configuration: Configuration, found: Found) -> None:
    """:raises ShardsChangedError: the cluster has other shards than the configuration names."""
    differs = difference((shard.name for shard in configuration.clickhouse.shards), found)
    if differs:
        cluster = configuration.clickhouse.cluster
        name = "" if cluster is None else f" {cluster.name}"
        raise ShardsChangedError(
            f"the shards of the cluster{name} are not those of the configuration: {differs}",
            _HOW_TO_DECIDE,
        )


def in_parallel(question: Callable[[str], _T], urls: Iterable[str]) -> list[_T]:
    """Ask many servers at the same time; the answers are in the order of the URLs."""
    with ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="cluster") as pool:
        return list(pool.map(question, urls))
