"""How servers let Sluice in: who it is, its password or token, and what https needs."""

from __future__ import annotations

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.tls import Tls
from sluice.config import Configuration


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
