"""The audit: every message of the topics against every row of the tables.

Exact: each offset of each partition is looked for in the table's lineage columns and in the
dead letters. Bounded: one chunk of offsets is in memory at a time. Safe beside a running
pipeline: what is settled is read first, dead letters and tables after it, so that whatever
happens meanwhile can only add what was not demanded yet.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import numpy as np

from sluice.config.model import Configuration, ConnectorConfiguration, TableConfiguration
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.ranges import Interval, TopicPartition
from sluice.spark.probing import NEEDED_LINEAGE
from sluice.spark.texts import access_of, lineage_columns, tables_of_connector
from sluice.verify.audit_chunk import EXAMPLES_MAX, Chunk, Counts, Held, Tally, counts_of, flags_of
from sluice.verify.audit_source import Letters, PartitionLog, SourceReader
from sluice.verify.audit_tables import TableReader

_logger = logging.getLogger("sluice.audit")

#: Offsets in memory at once: about 30 bytes each.
CHUNK_OFFSETS = 1_000_000

_END_ROUNDS = 5


@dataclass(slots=True)
class TableAudit:
    """One partition's rows in one table.

    :param entries: the table entries that load into it.
    :param unjudged: rows of offsets below the log's begin: nobody can tell any more.
    :param missing_at: the first intervals of offsets; likewise the others.
    """

    entries: tuple[str, ...]
    target: str
    loaded: int
    dead_lettered: int
    missing: int
    doubled: int
    foreign: int
    unjudged: int
    not_yet_loaded: int
    given_up: int
    missing_at: list[Interval] = field(default_factory=list)
    doubled_at: list[Interval] = field(default_factory=list)
    foreign_at: list[Interval] = field(default_factory=list)


@dataclass(slots=True)
class PartitionAudit:
    """One partition.

    :param settled: everything below is settled; None if the pipeline never began here.
    """

    connector: str
    topic: str
    partition: int
    log_begin: int
    stable_end: int
    settled: int | None
    produced: int
    skipped: int
    tables: list[TableAudit] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The sums, and where they come from.

    :param produced: messages in the logs, tombstones included.
    :param loaded: rows of these messages, each once.
    :param dead_lettered: dead letters of these messages, each once for a table entry.
    :param skipped: tombstones.
    :param missing: settled messages with neither row nor dead letter.
    :param doubled: rows and dead letters beyond the first of a message and entry.
    :param foreign: rows and dead letters of offsets that the logs do not hold.
    :param unaudited: entries that cannot be looked at: their rows carry no offset.
    """

    produced: int
    loaded: int
    dead_lettered: int
    skipped: int
    missing: int
    doubled: int
    foreign: int
    partitions: tuple[PartitionAudit, ...]
    unaudited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Group:
    """The entries that load one topic into one table."""

    entries: tuple[str, ...]
    reader: TableReader


def audit(configuration: Configuration, chunk_offsets: int = CHUNK_OFFSETS) -> AuditReport:
    """Compare all topics with all tables. Changes nothing.

    :param chunk_offsets: offsets that are compared at a time.
    :raises ConfigurationError: no entry's rows carry their offset, or two connectors' rows
        cannot be told apart.
    :raises TransientError: a server does not answer, or messages expire while it runs.
    """
    refuse_ambiguous(configuration)
    partitions: list[PartitionAudit] = []
    unaudited: set[str] = set()
    with ExitStack() as stack:
        readers = _open_tables(configuration, stack, unaudited)
        for connector in configuration.connectors:
            source = stack.enter_context(closing(SourceReader(configuration, connector)))
            groups = _groups(configuration, connector, readers, unaudited)
            partitions += _Auditor(connector.name, source, groups, chunk_offsets).run()
    tables = [table for partition in partitions for table in partition.tables]
    return AuditReport(
        produced=sum(partition.produced for partition in partitions),
        loaded=sum(table.loaded for table in tables),
        dead_lettered=sum(table.dead_lettered for table in tables),
        skipped=sum(partition.skipped for partition in partitions),
        missing=sum(table.missing for table in tables),
        doubled=sum(table.doubled for table in tables),
        foreign=sum(table.foreign for table in tables),
        partitions=tuple(partitions),
        unaudited=tuple(sorted(unaudited)),
    )


def refuse_ambiguous(configuration: Configuration) -> None:
    """An audit, and a probe as well, would take the rows of one connector for another's.

    :raises ConfigurationError: rows of two connectors carry the same lineage.
    """
    loaders: dict[tuple[str, str], str] = {}
    for connector in configuration.connectors:
        for table in tables_of_connector(configuration, connector.name):
            if table.lineage is False:
                continue
            for topic in sorted(set(table.topics) & set(connector.topics)):
                other = loaders.setdefault((topic, table.target), connector.name)
                if other != connector.name:
                    raise ConfigurationError(
                        f"connectors {other} and {connector.name} both load a topic {topic} into "
                        f"{table.target}: their rows carry the same lineage",
                        "Give each connector a table of its own, or a topic of another name.",
                    )


def _open_tables(
    configuration: Configuration, stack: ExitStack, unaudited: set[str]
) -> dict[str, TableReader]:
    """A reader for each table whose rows carry their offset."""
    access = access_of(configuration)
    readers: dict[str, TableReader] = {}
    for entry in configuration.tables:
        if entry.target not in readers:
            reader = TableReader(access, entry.database, entry.table)
            readers[entry.target] = stack.enter_context(closing(reader))
        if not _carries_offsets(entry, readers[entry.target]):
            unaudited.add(entry.name)
            _logger.warning("table entry %s is not audited: its rows carry no offset", entry.name)
    if len(unaudited) == len(configuration.tables):
        raise ConfigurationError(
            "nothing can be audited: no table entry's rows carry topic, partition and offset",
            "Set lineage = true in [[table]]; `sluice doctor` shows the columns to add.",
        )
    return readers


def _carries_offsets(entry: TableConfiguration, reader: TableReader) -> bool:
    try:
        return set(lineage_columns(entry, reader.facts)) >= NEEDED_LINEAGE
    except SluiceError:
        return False


def _groups(
    configuration: Configuration,
    connector: ConnectorConfiguration,
    readers: dict[str, TableReader],
    unaudited: set[str],
) -> dict[str, list[_Group]]:
    """By topic. Entries that load the same topic into the same table are judged together."""
    found: dict[str, list[_Group]] = {}
    for topic in connector.topics:
        by_target: dict[str, list[str]] = {}
        for entry in configuration.tables_of(topic):
            by_target.setdefault(entry.target, []).append(entry.name)
        found[topic] = [
            _Group(tuple(names), readers[target])
            for target, names in sorted(by_target.items())
            if not unaudited.intersection(names)
        ]
    return found


class _Auditor:
    """Audits one connector."""

    def __init__(
        self,
        connector: str,
        source: SourceReader,
        groups: dict[str, list[_Group]],
        chunk_offsets: int,
    ) -> None:
        self._connector = connector
        self._source = source
        self._groups = groups
        self._chunk_offsets = chunk_offsets
        self._letters: Letters = {}

    def run(self) -> list[PartitionAudit]:
        """1. What is settled. 2. Dead letters. 3. Partition by partition."""
        logs = self._source.logs()
        self._letters = self._source.letters()
        with ThreadPoolExecutor(1, thread_name_prefix="audit") as pool:
            partitions = [self._partition(log, pool) for log in logs]
        return partitions + self._unknown_partitions()

    def _partition(self, log: PartitionLog, pool: ThreadPoolExecutor) -> PartitionAudit:
        groups = self._groups[log.source.topic]
        tallies = [Tally() for _ in groups]
        result = PartitionAudit(
            connector=self._connector,
            topic=log.source.topic,
            partition=log.source.partition,
            log_begin=log.log_begin,
            stable_end=log.stable_end,
            settled=log.settled,
            produced=0,
            skipped=0,
        )
        settled = log.settled or 0
        for begin in range(log.log_begin, log.stable_end, self._chunk_offsets):
            end = min(begin + self._chunk_offsets, log.stable_end)
            # The servers count while this process reads the log.
            rows = [pool.submit(g.reader.counts, log.source, begin, end) for g in groups]
            messages = self._source.read(log.source, begin, end)
            result.produced += messages.messages
            result.skipped += messages.tombstones
            assigned = flags_of(begin, end - begin, log.assigned)
            chunk = Chunk(begin, messages.valued, assigned)
            for group, tally, future in zip(groups, tallies, rows, strict=True):
                found, different = future.result()
                dead = self._dead(log.source, group, begin, end)
                tally.judge(chunk, Held(found, different, dead), len(group.entries), settled)
        for group, tally in zip(groups, tallies, strict=True):
            result.tables.append(self._outside(log, group, tally))
        return result

    def _dead(self, source: TopicPartition, group: _Group, begin: int, end: int) -> Counts:
        dead = np.zeros(end - begin, np.int32)
        for entry in group.entries:
            offsets = self._letters.get((source, entry))
            if offsets is not None:
                dead += counts_of(begin, end - begin, offsets)
        return dead

    def _outside(self, log: PartitionLog, group: _Group, tally: Tally) -> TableAudit:
        """Add what lies outside the log. A row beyond the stable end may be of a message
        that came meanwhile, so the end is read again until it stands still or none is."""
        source, end = log.source, log.stable_end
        outside = group.reader.outside(source, log.log_begin, end)
        for _ in range(_END_ROUNDS):
            fresh = self._source.stable_end(source) if outside.above else end
            if fresh == end:
                break
            end = fresh
            outside = group.reader.outside(source, log.log_begin, end)
        if outside.above and len(tally.foreign_at) < EXAMPLES_MAX:
            tally.foreign_at.append((end, outside.last + 1))
        return _table_audit(group, tally, tally.foreign + outside.above, outside.below)

    def _unknown_partitions(self) -> list[PartitionAudit]:
        """Rows of partitions that the topic does not have."""
        found: dict[TopicPartition, PartitionAudit] = {}
        for topic, groups in self._groups.items():
            for group in groups:
                for number, rows in group.reader.beyond(topic, self._source.counts[topic]).items():
                    source = TopicPartition(topic, number)
                    empty = PartitionAudit(self._connector, topic, number, 0, 0, None, 0, 0)
                    partition = found.setdefault(source, empty)
                    partition.tables.append(_table_audit(group, Tally(), rows, 0))
        return [found[source] for source in sorted(found)]


def _table_audit(group: _Group, tally: Tally, foreign: int, unjudged: int) -> TableAudit:
    return TableAudit(
        entries=group.entries,
        target=group.reader.target,
        loaded=tally.loaded,
        dead_lettered=tally.dead_lettered,
        missing=tally.missing,
        doubled=tally.doubled,
        foreign=foreign,
        unjudged=unjudged,
        not_yet_loaded=tally.not_yet_loaded,
        given_up=tally.given_up,
        missing_at=tally.missing_at,
        doubled_at=tally.doubled_at,
        foreign_at=tally.foreign_at,
    )
