"""How each replica is doing, asked of the replicas themselves. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.clickhouse.topology import read_condition
from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.core.health import Condition, judged
from sluice.core.replicas import host_matches
from sluice.driver.specs import access_of
from sluice.driver.topology import in_parallel, resolved


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica, the worst of the tables that go to its shard.

    :param data_center: "" where none is configured for its host.
    :param why: it is tried last; "" if it takes its turn.
    :param delay_seconds: behind the other replicas; None, as all that follows, if it is away.
    :param queue: entries that it still has to replicate.
    :param active: of `total` replicas; None without a Replicated table.
    """

    shard: str
    replica: str
    data_center: str
    why: str
    delay_seconds: int | None
    queue: int | None
    active: int | None
    total: int | None


def read_replicas(configuration: Configuration) -> list[ReplicaStatus]:
    """All replicas of all shards, by the shard's name.

    :raises SluiceError: the replicas are to be asked of servers that do not answer, or that
        contradict the configuration.
    """
    configuration = resolved(configuration)
    clickhouse = configuration.clickhouse
    of = {url: shard.name for shard in clickhouse.shards for url in shard.replicas}
    found = in_parallel(lambda url: _read(configuration, of[url], url), of)
    return sorted(found, key=lambda status: status.shard)


def _read(configuration: Configuration, shard: str, url: str) -> ReplicaStatus:
    access = access_of(configuration)
    tables = [
        (table.database, table.table)
        for table in configuration.tables
        if shard in configuration.shards_of(table)
    ]
    condition: Condition | None = None
    why = ""
    try:
        with access.connect(url) as server:
            server.ping()
            condition = read_condition(server, tables, counts=True)
    except SluiceError as error:
        why = str(error)
    return ReplicaStatus(
        shard=shard,
        replica=url,
        data_center=data_center_of(configuration, url),
        why=why or judged(None, condition, configuration.clickhouse.limits).why,
        delay_seconds=None if condition is None else condition.delay_seconds,
        queue=None if condition is None else condition.queue,
        active=None if condition is None else condition.active,
        total=None if condition is None else condition.total,
    )


def data_center_of(configuration: Configuration, url: str) -> str:
    """The data center that a replica's host is configured for; "" if there is none."""
    for name, patterns in configuration.clickhouse.data_centers.items():
        if any(host_matches(url, pattern) for pattern in patterns):
            return name
    return ""
