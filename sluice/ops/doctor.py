"""`doctor`: everything that would break the promise, before the first range.

Connectors and servers are examined each by itself and at the same time, so that one that
is away costs seconds and hides nothing of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.schema import TableFacts
from sluice.config import Configuration, ConnectorConfiguration, TableConfiguration
from sluice.core.errors import SluiceError
from sluice.core.topics import matches
from sluice.decode.version import decoder_version
from sluice.driver.specs import access_of, build_spec, tables_of_connector
from sluice.kafka.wire.native import library
from sluice.ops.doctor_claims import check_deduplicated, look_at_store
from sluice.ops.doctor_clickhouse import ReplicaLook, look_at_replica
from sluice.ops.doctor_decode import Key, look_at_decoding
from sluice.ops.doctor_findings import Examination, Finding, refusal
from sluice.ops.doctor_front import check_same_servers
from sluice.ops.doctor_kafka import look_at_kafka
from sluice.ops.doctor_shards import (
    check_apart,
    check_contact,
    check_differences,
    check_health,
    check_insert_locks,
    look_at_cluster,
)
from sluice.ops.doctor_spark import look_at_spark
from sluice.ops.doctor_tables import (
    TableNeeds,
    check_delivery,
    check_dynamic,
    check_entry,
    check_shared,
    check_staged,
    check_table,
    propose_staged,
)
from sluice.ops.grants import clickhouse_rights

__all__ = ["Finding", "examine", "refusal"]

_THREADS_MAX = 16
#: The first tasks of a fresh Spark start their workers and load the engine first.
_LEASE_SECONDS_WANTED = 10.0


def examine(configuration: Configuration, connector: str | None = None) -> list[Finding]:
    """Examine a pipeline; takes seconds, also when something does not answer.

    Nothing is changed: the inserts that are tried hold no row.

    :param connector: only this one and its tables; None examines all, and this machine.
    :raises ConfigurationError: there is no connector of this name.
    """
    connectors = configuration.connectors
    if connector is not None:
        connectors = (configuration.connector(connector),)
    entries = _entries(configuration, connectors)
    names = {
        shard.name: sorted(configuration.targets_on(shard.name, entries))
        for shard in configuration.clickhouse.shards
    }
    past = past_windows(configuration)
    with_replicas, of_cluster = look_at_cluster(configuration)
    access = None if with_replicas is None else access_of(with_replicas)
    rights = partial(clickhouse_rights, configuration, only=entries)
    with ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="doctor") as pool:
        clusters = [pool.submit(look_at_kafka, configuration, each) for each in connectors]
        servers = [
            pool.submit(look_at_replica, access, shard, url, names[shard], past, rights)
            for shard, urls in (access.shards.items() if access is not None else ())
            if access is not None and names[shard]  # nothing goes to the others
            for url in urls
        ]
    kafka = {each.name: future.result() for each, future in zip(connectors, clusters, strict=True)}
    looks = [future.result() for future in servers]
    seen = {name: look.partitions for name, look in kafka.items()}
    partitions = _partitions_by_target(entries, connectors, seen)
    topics = {topic for partitions in seen.values() for topic in partitions}
    findings = look_at_spark(configuration) if connector is None else []
    findings += _look_at_lease(configuration)
    findings += [finding for each in connectors for finding in _look_at_reader(each)]
    findings += [finding for look in kafka.values() for finding in look.findings]
    findings += _look_at_patterns(entries, seen)
    findings += of_cluster
    if access is not None:
        findings += _look_at_servers(configuration, access, looks, entries, partitions, topics)
    findings += look_at_store(configuration, entries, access)
    findings += check_differences(looks)
    findings += check_same_servers([(look.shard, look.url, look.front) for look in looks])
    findings += _look_at_decoding(configuration, connectors, looks)
    return findings


def _look_at_servers(
    configuration: Configuration,
    access: ClickHouseAccess,
    looks: Sequence[ReplicaLook],
    entries: Sequence[TableConfiguration],
    partitions: Mapping[str, int],
    topics: Collection[str],
) -> list[Finding]:
    findings = check_contact(looks, access.quorum_of)
    for look in looks:
        findings += look.findings
        findings += _look_at_tables(configuration, look, access, entries, partitions, topics)
        findings += check_health(look, configuration.clickhouse.limits)
    findings += check_apart(configuration, access, entries, looks)
    return findings + check_insert_locks(access, looks)


def _look_at_reader(connector: ConnectorConfiguration) -> list[Finding]:
    """Here; executors on other machines say the same when they read their first range."""
    found = Examination(f"connector {connector.name}")
    reader = connector.known_reader()
    if reader == "native":
        try:
            library()
        except SluiceError as error:
            found.error("reader", error.message, error.hint)
    why = connector.beyond_native()
    if reader == "native" and why:
        found.warning(
            "reader",
            f'the reader "native" passes {", ".join(why)} over: it reads from leaders only',
            'reader = "librdkafka" reads from the nearest replica; or leave it out',
        )
    found.ok("reader", f"{reader}, for {', '.join(why)}" if why else reader)
    return found.findings


def _look_at_lease(configuration: Configuration) -> list[Finding]:
    found = Examination("[batch] lease")
    seconds = configuration.batch.lease_seconds
    if seconds < _LEASE_SECONDS_WANTED:
        found.warning(
            "lease",
            f"the lease of {seconds:g} s may end before the first tasks of a fresh Spark come to "
            "insert, since their workers start and load the engine first: nothing is lost, but "
            "ranges are sent again, and again after each restart",
            f'lease = "{_LEASE_SECONDS_WANTED:g}s" in [batch] or longer; the default is "10m"',
        )
    found.ok("lease", f"{seconds:g} s")
    return found.findings


def _entries(
    configuration: Configuration, connectors: Sequence[ConnectorConfiguration]
) -> list[TableConfiguration]:
    """Every table entry that a topic of these connectors goes to, once."""
    names = {
        table.name
        for connector in connectors
        for table in tables_of_connector(configuration, connector.name)
    }
    return [table for table in configuration.tables if table.name in names]


def past_windows(configuration: Configuration) -> set[tuple[str, str]]:
    """Tables, (database, table), whose blocks are all sent past their windows (R22)."""
    by_delivery: dict[str, set[tuple[str, str]]] = {}
    for entry in configuration.tables:
        by_delivery.setdefault(entry.delivery, set()).add((entry.database, entry.table))
    return by_delivery.get("replacing", set()) - by_delivery.get("block", set())


def _partitions_by_target(
    entries: Sequence[TableConfiguration],
    connectors: Sequence[ConnectorConfiguration],
    seen: Mapping[str, Mapping[str, int]],
) -> dict[str, int]:
    """How many Kafka partitions load into each table; those that were seen."""
    partitions: dict[str, int] = {}
    for entry in entries:
        for connector in connectors:
            for topic, count in seen[connector.name].items():
                if not entry.takes(topic):
                    continue
                partitions[entry.target] = partitions.get(entry.target, 0) + count
    return partitions


def _look_at_patterns(
    entries: Sequence[TableConfiguration], seen: Mapping[str, Mapping[str, int]]
) -> list[Finding]:
    """Entries whose expression takes nothing; a connector that nobody saw is told of already."""
    topics = {topic for partitions in seen.values() for topic in partitions}
    findings: list[Finding] = []
    for entry in entries if topics else ():
        if entry.topic_pattern and not any(matches(entry.topic_pattern, t) for t in topics):
            found = Examination(f"table entry {entry.name}")
            found.warning(
                "topic-pattern",
                f'no topic that is loaded matches topic_pattern = "{entry.topic_pattern}" yet',
                "Look for a mistake in it, or create the topics; whole names must match.",
            )
            findings += found.findings
    return findings


def _look_at_tables(
    configuration: Configuration,
    look: ReplicaLook,
    access: ClickHouseAccess,
    entries: Sequence[TableConfiguration],
    partitions: Mapping[str, int],
    topics: Collection[str],
) -> list[Finding]:
    if look.capabilities is None:
        return []
    clickhouse = configuration.clickhouse
    findings: list[Finding] = []
    for name, facts in look.tables.items():
        found = Examination(f"{facts.target} on {look.url}")
        needs = TableNeeds(
            partitions=partitions.get(facts.target, 0),
            lease_seconds=configuration.batch.lease_seconds,
            durability=clickhouse.durability,
            urls=access.shards[look.shard],
            quorum=access.quorum_of(look.shard),
            is_majority=clickhouse.quorum == "auto",
            window=name not in past_windows(configuration),
            members_max=configuration.fleet.members_max if configuration.fleet else 0,
        )
        own = [entry for entry in entries if (entry.database, entry.table) == name]
        is_staged = bool(own) and all(entry.delivery == "staged" for entry in own)
        check_table(found, facts, look.capabilities, needs, is_staged=is_staged)
        loaders = _loaders(configuration, facts.target, topics)
        check_shared(found, facts, look.capabilities, loaders)
        for entry in own:
            if entry.delivery == "staged":
                check_staged(found, facts, look.capabilities, entry)
            else:
                check_entry(found, facts, look.capabilities, entry)
                check_delivery(found, facts, configuration, entry)
            check_dynamic(found, facts, entry)
            check_deduplicated(found, facts, entry)
        propose_staged(found, facts, look.capabilities, own)
        findings += found.findings
    return findings


def _loaders(
    configuration: Configuration, target: str, topics: Collection[str]
) -> list[tuple[str, TableConfiguration, str]]:
    """Who loads a table, and from which topics: those that are named, and those that were seen.
    All connectors of the file, whichever are looked at."""
    return [
        (connector.name, entry, topic)
        for connector in configuration.connectors
        for topic in sorted({*connector.topics, *topics})
        if configuration.reads(connector.name, topic)
        for entry in configuration.tables_of(topic)
        if entry.target == target
    ]


def _look_at_decoding(
    configuration: Configuration,
    connectors: Sequence[ConnectorConfiguration],
    looks: Sequence[ReplicaLook],
) -> list[Finding]:
    """Texts and partition keys by the first server that knows each table."""
    facts: dict[str, TableFacts] = {}
    zone = ""
    for look in looks:
        for table in look.tables.values():
            facts.setdefault(table.target, table)
        if look.capabilities is not None and not zone:
            zone = look.capabilities.time_zone
    specs = [
        spec
        for connector in connectors
        if (spec := _spec(configuration, connector.name, facts, zone)) is not None
    ]
    is_hashed = any(look.capabilities and not look.capabilities.tokens for look in looks)
    past, keys = past_windows(configuration), {}
    for table in facts.values():
        is_known = is_hashed and (table.database, table.table) not in past
        keys[table.target] = Key(table.target, table.partition_key, table.columns, is_known)
        for dependent in table.all_dependents():
            target = dependent.target
            keys.setdefault(
                target.target,
                Key(
                    f"{target.target} (written by the view {dependent.view})",
                    target.partition_key,
                    target.columns,
                    is_hashed,
                ),
            )
    return look_at_decoding(specs, keys.values())


def _spec(
    configuration: Configuration, connector: str, facts: Mapping[str, TableFacts], zone: str
) -> str | None:
    """The canonical load spec; None where a table is missing or its lineage is, which is found
    elsewhere."""
    tables = tables_of_connector(configuration, connector)
    if any(table.target not in facts for table in tables):
        return None
    by_entry = {table.name: facts[table.target] for table in tables}
    try:
        spec = build_spec(configuration, connector, by_entry, zone, decoder_version())
    except SluiceError:
        return None
    return spec.canonical()
