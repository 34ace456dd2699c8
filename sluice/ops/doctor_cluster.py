"""What `doctor` asks about the cluster as a whole: which servers it has, and whether all say so."""

from __future__ import annotations

from sluice.clickhouse.topology import read_members
from sluice.config import ClusterConfiguration, Configuration
from sluice.core.errors import SluiceError, TransientError
from sluice.driver.login import login_of
from sluice.driver.specs import access_of
from sluice.driver.topology import resolved
from sluice.ops.doctor_findings import Examination, Finding


def look_at_cluster(configuration: Configuration) -> tuple[Configuration | None, list[Finding]]:
    """The configuration with the replicas of each shard, and what was found on the way to them.

    :returns: None for the configuration if the replicas are not known, or not to be trusted.
    """
    cluster = configuration.clickhouse.cluster
    if cluster is None:
        return configuration, _look_at_preference(configuration)
    found = Examination(f"[clickhouse] cluster {cluster.name}")
    try:
        configuration = resolved(configuration)
    except TransientError as error:
        found.failed("cluster", error)
        return None, found.findings
    except SluiceError as error:
        found.error("cluster", error.message, error.hint)
        return None, found.findings
    _compare_servers(found, configuration, cluster)
    shards = configuration.clickhouse.shards
    replicas = sum(len(shard.replicas) for shard in shards)
    found.ok("cluster", f"{replicas} replicas in {len(shards)} shards, as they are named")
    return configuration, found.findings + _look_at_preference(configuration)


def _compare_servers(
    found: Examination, configuration: Configuration, cluster: ClusterConfiguration
) -> None:
    """Each of the servers that may be asked says the same, and answers."""
    access = login_of(configuration)
    said: dict[str, frozenset[frozenset[str]]] = {}
    for url in cluster.servers:
        try:
            with access.connect(url) as server:
                server.ping()
                groups: dict[int, set[str]] = {}
                for member in read_members(server, cluster.name):
                    groups.setdefault(member.group, set()).add(member.key)
            said[url] = frozenset(frozenset(keys) for keys in groups.values())
        except SluiceError as error:
            found.warning(
                "cluster", f"{url} cannot be asked for the replicas: {error.message}", error.hint
            )
    if len(set(said.values())) > 1:
        shown = "; ".join(
            f"{url}: {' | '.join(sorted(', '.join(sorted(keys)) for keys in groups))}"
            for url, groups in said.items()
        )
        found.warning(
            "cluster",
            f"servers describe the cluster {cluster.name} differently, and the first that answers "
            f"is believed: {shown}",
            "Give all servers the same <remote_servers>.",
        )


def _look_at_preference(configuration: Configuration) -> list[Finding]:
    """A shard without any replica in a data center that is preferred has no preference."""
    found = Examination("[clickhouse] data_centers")
    for connector in configuration.connectors:
        access = access_of(configuration, connector.name)
        prefer = connector.prefer or configuration.clickhouse.prefer
        lacking = [
            shard
            for shard, urls in access.shards.items()
            if not access.preferred.intersection(urls)
        ]
        if prefer and lacking:
            found.warning(
                "data-center",
                f"connector {connector.name} prefers {prefer}, where no replica of "
                f"{', '.join(sorted(lacking))} is",
                "Correct the hosts of [clickhouse] data_centers, if there should be one.",
            )
    return found.findings
