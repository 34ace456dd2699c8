"""Where each partition stands, as Kafka has it. Never fences, never writes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.staging import (
    Marker,
    StagingTable,
    read_markers,
    staging_prefix,
    staging_tables,
)
from sluice.clickhouse.topology import read_condition
from sluice.config import Configuration, ConnectorConfiguration, TableConfiguration
from sluice.core.decided import Frozen, closed_shards, holding
from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.core.ranges import TopicPartition
from sluice.core.replicas import Condition, host_matches, judged
from sluice.driver.specs import access_of
from sluice.driver.topology import in_parallel, resolved
from sluice.machine.clock import now_ms
from sluice.ops.driver_decisions import read_decided
from sluice.ops.partitions import ConnectorReader, PartitionFacts

_logger = logging.getLogger("sluice.status")

#: "foreign": an offset without a valid record of ours. "lost": the ledger has a record, the
#: group has no offset. "open transaction": a transaction hangs; the record before it is shown.
State = Literal["settled", "in doubt", "foreign", "lost", "open transaction"]


@dataclass(frozen=True, slots=True)
class IntentStatus:
    """A record. Kind, begin and end are None for a foreign offset that the ledger does not
    know either; else they are the ledger's for states "foreign" and "lost"."""

    kind: str | None
    begin: int | None
    end: int | None
    state: State


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    :param committed: the group's offset, whoever committed it; None if there is none.
    :param intent: None where nothing was ever recorded.
    :param stable_end: last stable offset, exclusive; None: no leader tells it.
    :param shards: that its rows go to as configured: a range is settled when all of them have it.
    :param lag: offsets from the settled position to the last stable offset, holes included; None
        where that or the settled position is not known. Without any record, what the log holds.
    :param frozen: what a person has frozen that it belongs to, in words: nothing of it is loaded.
    :param frozen_replicas: the same of replicas that get no blocks, of all shards.
    """

    connector: str
    topic: str
    partition: int
    committed: int | None
    intent: IntentStatus | None
    stable_end: int | None
    lag: int | None
    batch: int | None
    owner: str | None
    shards: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    frozen_replicas: tuple[str, ...] = ()


def read_status(configuration: Configuration) -> list[PartitionStatus]:
    """All partitions of all connectors that answer, sorted.

    A connector that does not answer is logged and left out, since the others still run.

    :raises SluiceError: no connector answers.
    """
    statuses: list[PartitionStatus] = []
    failures: list[SluiceError] = []
    for connector in configuration.connectors:
        try:
            statuses += _of_connector(configuration, connector)
        except SluiceError as error:
            failures.append(error)
            _logger.error("connector %s: %s. Try: %s", connector.name, error, error.hint)
    if failures and len(failures) == len(configuration.connectors):
        raise failures[0]
    return statuses


def _of_connector(
    configuration: Configuration, connector: ConnectorConfiguration
) -> list[PartitionStatus]:
    reader = ConnectorReader(configuration, connector.name)
    topics = reader.partitions()
    sources = [
        TopicPartition(topic, number)
        for topic, (_, count) in sorted(topics.items())
        for number in range(count)
    ]
    ids = {topic: topics[topic][0] for topic in topics}
    facts = reader.facts(sources, ids, None, partial=True)
    hanging = [str(item.source) for item in facts if item.is_open]
    if hanging:
        _logger.warning(
            "a transaction on group %s is open for longer than a driver's takes: %s. What was "
            "committed before it is shown. Its owner hangs, or was killed; then the broker ends "
            "it when its time-out has passed.",
            reader.group,
            ", ".join(hanging),
        )
    standing = read_decided(configuration, connector.name).frozen
    replicas = tuple(each.line() for each in standing if each.hosts)
    closed = closed_shards(standing, {s.name: s.replicas for s in configuration.clickhouse.shards})
    statuses = []
    for item in facts:
        entries = [table.name for table in configuration.tables_of(item.source.topic)]
        shards = configuration.shards_of(*configuration.tables_of(item.source.topic))
        places = frozenset[Frozen]().union(*(closed.get(shard, ()) for shard in shards))
        frozen = tuple(each.line() for each in holding(standing, entries, places))
        told = replace(status_of(connector.name, item), shards=shards, frozen=frozen)
        statuses.append(replace(told, frozen_replicas=replicas))
    return statuses


def status_of(connector: str, facts: PartitionFacts) -> PartitionStatus:
    """What is shown of one partition."""
    record = facts.record or facts.last
    state = _state(facts)
    intent: IntentStatus | None = None
    if record is not None:
        intent = IntentStatus(record.kind.word, record.begin, record.end, state)
    elif facts.found is not None or facts.recorded is not None:
        intent = IntentStatus(None, None, None, state)
    lag: int | None = None
    is_told = min(facts.log_begin, facts.stable_end) >= 0
    if is_told and record is not None:
        lag = max(0, facts.stable_end - record.begin)
    elif is_told and intent is None:
        lag = facts.stable_end - facts.log_begin
    return PartitionStatus(
        connector=connector,
        topic=facts.source.topic,
        partition=facts.source.partition,
        committed=None if facts.found is None else facts.found.offset,
        intent=intent,
        stable_end=facts.stable_end if is_told else None,
        lag=lag,
        batch=None if record is None else record.batch,
        owner=None if record is None else record.owner,
    )


def _state(facts: PartitionFacts) -> State:
    if facts.is_open:
        return "open transaction"
    if facts.record is not None:
        return "in doubt" if facts.record.in_doubt else "settled"
    return "lost" if facts.found is None else "foreign"


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
    tables = configuration.targets_on(shard, configuration.tables)
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


@dataclass(frozen=True, slots=True)
class Leftover:
    """A staging table whose attempt's lease has been over for one lease more.

    :param table: its name; `target`: where its rows go.
    :param is_stored: it is a stored block, with rows that may have to be moved yet; else a marker.
    :param of: topic, partition and offsets, where a marker says it.
    """

    shard: str
    replica: str
    target: str
    table: str
    is_stored: bool
    of: str

    def line(self) -> str:
        """For people."""
        what = "stored block" if self.is_stored else "marker"
        of = f" of {self.of}" if self.of else ""
        where = f"{self.table}{of}, for {self.target} on {self.replica}"
        return f"left over: {what} {where}; the driver drops it, do not drop it by hand"


def read_leftovers(configuration: Configuration, at_ms: int | None = None) -> list[Leftover]:
    """Of all staged entries, on all servers that answer; one that does not is logged."""
    staged = [table for table in configuration.tables if table.delivery == "staged"]
    if not staged:
        return []
    access = access_of(configuration)
    at_ms = now_ms() if at_ms is None else at_ms
    lease_ms = int(configuration.batch.lease_seconds * 1000)
    found: list[Leftover] = []
    for table in staged:
        for shard in configuration.shards_of(table):
            for url in access.shards[shard]:
                try:
                    found += _at(access, table, shard, url, at_ms - lease_ms)
                except SluiceError as error:
                    _logger.error("staging tables on %s: %s. Try: %s", url, error, error.hint)
    return found


def _at(
    access: ClickHouseAccess, table: TableConfiguration, shard: str, url: str, then_ms: int
) -> Iterator[Leftover]:
    with access.connect(url) as server:
        tables = staging_tables(server, table.database, staging_prefix(table.table))
        markers = read_markers(server, table.database, {each.marker for each in tables})
    for each in tables:
        marker = markers.get(each.marker)
        if has_expired(_deadline_ms(each, marker), then_ms):
            name = f"{table.database}.{each.name}"
            yield Leftover(shard, url, table.target, name, bool(each.attempt), _of(marker))


def _deadline_ms(table: StagingTable, marker: Marker | None) -> int:
    if table.claim is not None:
        return int(table.claim.by[:8], 16) * 1000
    if table.attempt:
        return table.deadline_ms
    return 0 if marker is None else marker.deadline_ms


def _of(marker: Marker | None) -> str:
    if marker is None:
        return ""
    return f"{marker.topic}[{marker.partition}] [{marker.begin}, {marker.end})"
