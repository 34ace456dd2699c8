"""What `doctor` asks of servers taken together: enough of them, all alike, the servers that the
cluster says it has, and an insert lock where they take one quorum insert at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.system import nodes_made
from sluice.clickhouse.topology import read_members
from sluice.config import ClusterConfiguration, Configuration, TableConfiguration
from sluice.core.errors import SluiceError
from sluice.core.replicas import ReplicaLimits, judged
from sluice.driver.specs import access_of
from sluice.driver.topology import login_of, resolved
from sluice.ops.doctor_clickhouse import ReplicaLook
from sluice.ops.doctor_findings import Examination, Finding


def check_contact(looks: Sequence[ReplicaLook], quorum_of: Callable[[str], int]) -> list[Finding]:
    """Servers that take no blocks now: an error where the others of the shard are not enough.

    Blocks go to the servers of a shard in turn, and past those that take none.

    :param quorum_of: how many servers of a shard have to have a block.
    """
    findings: list[Finding] = []
    for look in looks:
        why = _why_none(look)
        if why is None:
            continue
        others = [other for other in looks if other.shard == look.shard]
        ready = sum(1 for other in others if _why_none(other) is None)
        what, hint = why
        found = Examination(look.where)
        if ready < quorum_of(look.shard):
            found.error("clickhouse", what, hint)
        else:
            found.warning("clickhouse", f"{what}; blocks go to the other servers meanwhile", hint)
        findings += found.findings
    return findings


def _why_none(look: ReplicaLook) -> tuple[str, str] | None:
    """Why a server takes no blocks now, and what to do; None if it does."""
    if look.away is not None:
        return f"cannot be reached: {look.away.message}", look.away.hint
    frozen = [facts.target for facts in look.tables.values() if facts.is_readonly]
    if frozen:
        return (
            f"{', '.join(frozen)} is read-only: it has no session with ZooKeeper or Keeper",
            "Restore it (system.replicas, SYSTEM RESTART REPLICA).",
        )
    return None


def check_health(look: ReplicaLook, limits: ReplicaLimits) -> list[Finding]:
    """A server that answers, and is better left alone for now."""
    if look.condition is None or look.condition.is_readonly:
        return []  # `check_contact` tells of that
    health = judged(None, look.condition, limits)
    found = Examination(look.where)
    if health.is_behind:
        found.warning(
            "replica-health",
            f"{health.why}: blocks go to it last",
            "Look why its replication queue does not empty (system.replication_queue, "
            "last_exception), or raise the limit in [clickhouse].",
        )
    found.ok(
        "replica-health",
        f"{look.condition.delay_seconds} s behind, {look.condition.queue} entries in its queue",
    )
    return found.findings


def check_differences(looks: Sequence[ReplicaLook]) -> list[Finding]:
    """Whatever decides rows is the same on all servers; replicas are of one table (H15)."""
    findings = _check_zones(looks) + _check_versions(looks)
    for name in sorted({name for look in looks for name in look.tables}):
        found = Examination(".".join(name))
        tables = [(look.shard, look.tables[name]) for look in looks if name in look.tables]
        for other in tables[1:]:
            _compare(found, tables[0][1], other[1])
        for shard in sorted({shard for shard, _ in tables}):
            replicas = [facts for other, facts in tables if other == shard]
            _check_paths(found, replicas)
            _check_windows(found, replicas)
            _check_views(found, replicas)
        if len(tables) > 1:
            shards = len({shard for shard, _ in tables})
            among = f" in {shards} shards" if shards > 1 else ""
            found.ok("same-table", f"{len(tables)} servers{among} describe it alike")
        findings += found.findings
    return findings


def check_apart(
    configuration: Configuration,
    access: ClickHouseAccess,
    entries: Iterable[TableConfiguration],
    looks: Sequence[ReplicaLook],
) -> list[Finding]:
    """The shards of an entry have tables of their own. Where two of them are one table, each row is
    in both: a probe and `sluice audit` find all of them doubled, and who deletes them in one shard
    has none."""
    findings: list[Finding] = []
    wanted = ((each.database, each.table, configuration.shards_of(each)) for each in entries)
    for database, table, shards in dict.fromkeys(wanted):
        found, name = Examination(f"{database}.{table}"), (database, table)
        tables = [
            (look.shard, look.url, look.tables[name])
            for look in looks
            if look.shard in shards and name in look.tables
        ]
        found.attempt("shards", partial(_require_apart, found, access, tables))
        findings += found.findings
    return findings


_Placed = tuple[str, str, TableFacts]


def _require_apart(found: Examination, access: ClickHouseAccess, tables: Sequence[_Placed]) -> None:
    seen: dict[str, str] = {}
    for known_by, shard, why in _known_by(access, tables):
        first = seen.setdefault(known_by, shard)
        if first != shard:
            found.error(
                "shards",
                f"is one table in the shards {first} and {shard}, since {why}: each of its rows is "
                "in both, so that a probe and `sluice audit` find all of them doubled",
                "Delete no row for it. Give each shard a table of its own, with {shard} in its "
                "zookeeper_path, or let the entry name only one of these shards.",
            )
            return


def _known_by(
    access: ClickHouseAccess, tables: Sequence[_Placed]
) -> Iterator[tuple[str, str, str]]:
    """What no two tables have, which shard has it, and that in words. ZooKeeper is asked only where
    two shards have one path: each may have an ensemble of its own."""
    of_path: dict[str, dict[str, str]] = {}
    for shard, url, facts in tables:
        yield url, shard, f"both name {url}"
        if facts.replicated and not facts.zookeeper_name:
            of_path.setdefault(facts.zookeeper_path, {}).setdefault(shard, url)
    for path, of_shard in of_path.items():
        for shard, url in of_shard.items() if len(of_shard) > 1 else ():
            with access.connect(url) as server:
                made = nodes_made(server, f"{path}/replicas")
            if made:
                why = f"both have the zookeeper_path {path} in one ZooKeeper"
                yield f"{path} {made}", shard, why


def _check_zones(looks: Iterable[ReplicaLook]) -> list[Finding]:
    zones = {
        look.url: look.capabilities.time_zone for look in looks if look.capabilities is not None
    }
    if len(set(zones.values())) < 2:
        return []
    found = Examination("[clickhouse] shards")
    found.error(
        "time-zone",
        f"servers have different time zones: {', '.join(f'{u}: {z}' for u, z in zones.items())}",
        "Set the same <timezone> on all servers: DateTime strings mean it.",
    )
    return found.findings


def _compare(found: Examination, known: TableFacts, other: TableFacts) -> None:
    for what, left, right in (
        ("columns", known.columns, other.columns),
        ("partition key", known.partition_key, other.partition_key),
        ("sorting key", known.sorting_key, other.sorting_key),
    ):
        if left != right:
            found.error(
                "same-table",
                f"has another {what} on {other.url} than on {known.url}",
                "Give the table the same definition on all servers.",
            )


def _check_versions(looks: Iterable[ReplicaLook]) -> list[Finding]:
    """By what a server knows a block again differs between versions, tokens or not."""
    versions: dict[str, dict[str, str]] = {}
    for look in looks:
        if look.capabilities is not None:
            versions.setdefault(look.shard, {})[look.url] = look.capabilities.version_text
    findings: list[Finding] = []
    for shard, by_url in versions.items():
        if len(set(by_url.values())) > 1:
            found = Examination(f"shard {shard}")
            found.warning(
                "version",
                "servers of one shard have different versions, which may not know each other's "
                f"blocks: {', '.join(f'{url}: {version}' for url, version in by_url.items())}",
                "Bring all of them to one version; a block in doubt at one is not offered to one "
                "of another version by the same task.",
            )
            findings += found.findings
    return findings


def _check_windows(found: Examination, replicas: Sequence[TableFacts]) -> None:
    """The window of a Replicated table is cleared by whichever server leads, by its setting."""
    windows = {facts.url: (facts.window_blocks, facts.window_seconds) for facts in replicas}
    if len(set(windows.values())) > 1:
        shown = ", ".join(
            f"{url}: {blocks} blocks for {seconds} s" for url, (blocks, seconds) in windows.items()
        )
        found.warning(
            "window",
            f"servers of one shard keep different deduplication windows: {shown}; the narrowest "
            "one counts",
            "Give the table the same settings on all servers of the shard.",
        )


def _check_views(found: Examination, replicas: Sequence[TableFacts]) -> None:
    """Some servers (24.8 and others, by their source) name a view by its UUID in what they know of
    its blocks."""
    uuids: dict[str, dict[str, str]] = {}
    for facts in replicas:
        for dependent in facts.all_dependents():
            if dependent.target.replicated and dependent.uuid.strip("0-"):
                uuids.setdefault(dependent.view, {})[facts.url] = dependent.uuid
    for view, by_url in uuids.items():
        if len(set(by_url.values())) > 1:
            shown = ", ".join(f"{url}: {uuid}" for url, uuid in by_url.items())
            found.warning(
                "views",
                f"{view} has another UUID on each server of a shard ({shown}): a block in doubt at "
                "one of them may be stored once more behind it by another one",
                "Make the view with ON CLUSTER, or with CREATE MATERIALIZED VIEW … UUID, alike on "
                "all servers.",
            )


def _check_paths(found: Examination, replicas: Sequence[TableFacts]) -> None:
    paths = sorted({facts.zookeeper_path for facts in replicas if facts.replicated})
    if len(paths) > 1:
        found.error(
            "same-table",
            f"servers of one shard hold replicas of different tables: {', '.join(paths)}",
            "Name only servers whose replicas share one zookeeper_path in a shard.",
        )


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
    except SluiceError as error:
        found.refused("cluster", error)
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
        prefer = configuration.preferred_by(connector.name)
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


_PATIENCE_SECONDS = 5.0


def check_insert_locks(access: ClickHouseAccess, looks: Sequence[ReplicaLook]) -> list[Finding]:
    """Whether loaders queue where they should. Asks ZooKeeper only where that matters."""
    found = Examination("[clickhouse] zookeeper")
    serial = sorted(
        {
            f"{look.shard} ({look.capabilities.version_text})"
            for look in looks
            if look.capabilities is not None
            and not look.capabilities.parallel_quorums
            and access.quorum_of(look.shard) > 1
        }
    )
    if serial and not access.zookeeper:
        found.warning(
            "insert-lock",
            f"servers of shard {', '.join(serial)} refuse an insert into a table while another "
            "waits for its quorum (286). 40 blocks of 8 Kafka partitions were refused 9 to 17 "
            "times, and loaders with insert locks loaded 16 to 75 % faster [measured]",
            'zookeeper = "host:port" in [clickhouse]: loaders queue there for the insert lock; '
            "or a "
            "server from 20.10 on",
        )
    elif serial:
        _check_lock(found, access)
    elif access.zookeeper:
        found.ok("insert-lock", "not needed: all servers wait for quorums side by side")
    return found.findings


def _check_lock(found: Examination, access: ClickHouseAccess) -> None:
    from sluice.locks.zookeeper import ZooKeeperLocks

    try:
        with closing(ZooKeeperLocks(access.zookeeper)) as locks:
            lock = locks.acquire("sluice doctor", _PATIENCE_SECONDS)
            lock.announce(0.0)
            lock.release(is_over=True)
    except SluiceError as error:
        found.warning(
            "insert-lock", f"loaders cannot take insert locks: {error.message}", error.hint
        )
    found.ok("insert-lock", "loaders can take insert locks")
