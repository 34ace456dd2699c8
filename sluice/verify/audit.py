"""The audit: every message of the topics against every row of the tables.

Exact: each offset of each partition is looked for in the table's lineage columns and in the
dead letters. Bounded: one piece of offsets for each worker is in memory at a time. Safe
beside a running pipeline: what is settled is read first, dead letters and tables after it,
so that whatever happens meanwhile can only add what was not demanded yet.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.config import Configuration, TableConfiguration
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.load_spec import NEEDED_LINEAGE, Sharding
from sluice.core.ranges import Interval, TopicPartition
from sluice.driver.specs import access_of, lineage_columns, tables_of_connector
from sluice.verify.audit_chunk import EXAMPLES_MAX, TableAudit, Told
from sluice.verify.audit_duplicates import Unproven, unproven_duplicates
from sluice.verify.audit_last_values import Unread, has_last_values, unproven_last_values
from sluice.verify.audit_piece import Judge, Judged, Piece, PieceTable, judge_in_worker
from sluice.verify.audit_source import (
    DeadLetters,
    History,
    PartitionLog,
    Recent,
    SourceReader,
    offsets_of,
)
from sluice.verify.audit_specs import LoadedAs, LoadedBy, Stretch
from sluice.verify.audit_tables import Loaders, TableReader
from sluice.verify.pace import Pace

_logger = logging.getLogger("sluice.audit")

#: Offsets in memory at once: about 30 bytes each.
CHUNK_OFFSETS = 1_000_000
#: Of an audit that rests between pieces.
RECENT_CHUNK_OFFSETS = 100_000

_END_ROUNDS = 5
_NO_OFFSETS = np.zeros(0, np.uint64)


@dataclass(slots=True)
class PartitionAudit:
    """One partition.

    :param settled: everything below is settled; None if the pipeline never began here.
    :param unrecorded: see `AuditReport`.
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
    unrecorded: int = 0


#: What a report has the sums of.
_OF_PARTITIONS = ("produced", "skipped", "unrecorded")
_OF_TABLES = (
    *("loaded", "dead_lettered", "missing", "doubled", "foreign"),
    *("misplaced", "duplicates", "uncounted", "not_demanded"),
)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The sums, and where they come from.

    :param produced: messages in the logs, tombstones included.
    :param loaded: rows of these messages, each once.
    :param dead_lettered: dead letters of these messages, each once for a table entry.
    :param skipped: tombstones.
    :param missing: settled messages with neither row nor dead letter.
    :param doubled: rows and dead letters beyond the first of a message and entry.
    :param foreign: rows and dead letters of offsets that the logs do not hold, and rows of these
        topics whose `_source` says that somebody else loaded them.
    :param duplicates: messages whose rows were left out, since others own their keys; each once
        for a table entry.
    :param unproven: those of which no row has the key, if that was asked for; and, of tables that
        keep the last row of each key, last messages that they have no row of. In the order of
        connectors, topics, partitions and offsets.
    :param unaudited: entries that cannot be looked at: their rows carry no offset. Of what was
        settled lately, those as well whose tables keep the last row of each key.
    :param left_out: offsets of these partitions that there was no time for.
    :param uncounted: messages that may have several rows and have one at least, of which no receipt
        in the ledger says how many: rows may be missing within them.
    :param not_demanded: messages that no entry loaded into a table when they were settled, or that
        none of its routes took, says the ledger, and that the entries of now would load; each once
        for a table. Nobody looked for their rows.
    :param unrecorded: settled messages of which the ledger has no load spec: they were judged by
        the entries of now.
    :param former: entries that loaded these messages and are not configured any more, or have
        another table by now: what they loaded is not looked at, unless rows of a table do not say
        who loaded them.
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
    misplaced: int = 0
    duplicates: int = 0
    unproven: tuple[Unproven, ...] = ()
    left_out: int = 0
    uncounted: int = 0
    not_demanded: int = 0
    unrecorded: int = 0
    former: tuple[str, ...] = ()

    @staticmethod
    def of(partitions: Sequence[PartitionAudit], **more: Any) -> AuditReport:
        """With the sums of all partitions and their tables.

        :param more: what is not of partitions.
        """
        tables = [table for partition in partitions for table in partition.tables]
        sums = {
            name: sum(getattr(each, name) for each in of)
            for of, names in ((partitions, _OF_PARTITIONS), (tables, _OF_TABLES))
            for name in names
        }
        return AuditReport(partitions=tuple(partitions), **sums, **more)

    @property
    def is_broken(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.missing or self.doubled or self.foreign or self.unproven)

    @property
    def covered(self) -> int:
        """Offsets that were compared."""
        return sum(each.stable_end - each.log_begin for each in self.partitions) - self.left_out

    def where(self) -> Iterator[str]:
        """Where the findings are: the first intervals of each partition and table."""
        for partition in self.partitions:
            source = f"{partition.connector} {partition.topic}[{partition.partition}]"
            for table in partition.tables:
                for what in ("missing", "doubled", "foreign"):
                    for begin, end in getattr(table, f"{what}_at"):
                        yield f"{what}: {source} offsets [{begin}, {end}) in {table.target}"

    def not_demanded_where(self) -> Iterator[str]:
        """What was not demanded of each table and topic, and an example."""
        found: dict[tuple[str, str, str], int] = {}
        examples: dict[tuple[str, str, str], str] = {}
        for partition in self.partitions:
            for table in partition.tables:
                for begin, end in table.not_demanded_at[:1]:
                    where = (partition.connector, partition.topic, table.target)
                    found[where] = found.get(where, 0) + table.not_demanded
                    example = f"partition {partition.partition}, offsets [{begin}, {end})"
                    examples.setdefault(where, example)
        for where, count in found.items():
            connector, topic, target = where
            yield (
                f"not demanded: {count} messages of {connector} {topic} in {target}, as in "
                f"{examples[where]}: by the load specs of then they did not come there, or without "
                "their offset"
            )


@dataclass(frozen=True, slots=True)
class _Group:
    """The entries that load one topic into one table.

    :param shards: that they load it into.
    :param sharding: that all of them have; None: nobody can tell a row's shard.
    :param counts_rows: messages may have any number of rows.
    :param whose: rows are theirs; None where rows do not say who loaded them.
    :param known: who else of the configuration loads the topic into the table, they included; for
        the first group of a table, which looks for rows of others.
    """

    entries: tuple[str, ...]
    reader: TableReader
    shards: tuple[str, ...]
    sharding: Sharding | None
    whose: Loaders | None = None
    known: Loaders | None = None
    counts_rows: bool = False

    def audit(self) -> TableAudit:
        """Of a partition, of which nothing is counted yet."""
        return TableAudit(self.entries, self.reader.target)

    @property
    def not_others(self) -> Loaders | None:
        """Their rows; those that nobody of the configuration loaded as well, in the first group."""
        if self.known is None or self.whose is None:
            return self.whose
        return Loaders(tuple(n for n in self.known.names if n not in self.whose.names), but=True)


#: Does pieces of work somewhere else and gives the results in their order:
#: `sluice.spark.context.spread` with its session.
Spread = Callable[[str, Callable[[Any], Any], Sequence[Any]], list[Any]]
#: Judges pieces, in their order.
JudgeAll = Callable[[Iterable[Piece]], Iterable[Judged]]


def audit(
    configuration: Configuration,
    chunk_offsets: int = CHUNK_OFFSETS,
    spread: Spread | None = None,
    *,
    proves_duplicates: bool = False,
    recent: Recent | None = None,
) -> AuditReport:
    """Compare all topics with all tables. Changes nothing.

    :param chunk_offsets: offsets that are compared at a time.
    :param spread: compare there, e.g. on Spark, as many pieces at once as it has slots.
    :param proves_duplicates: read each message that was left out as a duplicate, and look for a row
        with its key; reads the keys of all rows.
    :param recent: only what was settled lately, in the pace that it says. Asks for the rows of
        these offsets and of no others, so rows outside of the logs, or of another loader, stay
        unseen.
    :raises ConfigurationError: no entry's rows carry their offset, or two connectors' rows
        cannot be told apart.
    :raises TransientError: a server does not answer, or messages expire while it runs.
    """
    partitions: list[PartitionAudit] = []
    unaudited: set[str] = set()
    former: set[str] = set()
    left_out = 0
    with ExitStack() as stack:
        readers = _open_tables(configuration, stack, unaudited, is_gentle=recent is not None)
        told_apart = {target for target, reader in readers.items() if reader.tells}
        sources = [
            SourceReader(configuration, each, told_apart, recent)
            for each in configuration.connectors
        ]
        refuse_ambiguous(configuration, readers, sources)
        by_keys = {
            e.name for e in configuration.tables if has_last_values(e, readers[e.target].facts)
        }
        logs = [source.logs() for source in sources]
        for source, found in zip(sources, logs, strict=True):
            groups = _groups(configuration, source, sources, readers, unaudited | by_keys)
            judge = _judging(configuration, source, spread, stack, is_gentle=recent is not None)
            today = {topic: _loaded_now(configuration, topic, unaudited) for topic in groups}
            auditor = _Auditor(source, found, groups, today, chunk_offsets, judge)
            partitions += auditor.run() if recent is None else auditor.run_recent(recent.pace)
            left_out += auditor.left_out
            former |= auditor.former
        unproven = unproven_duplicates(configuration, sources, logs) if proves_duplicates else []
        if by_keys and recent is None:
            last_values = unproven_last_values(configuration, sources, logs, by_keys)
            unproven += last_values.unproven
            _add_unread(partitions, last_values.unread)
        elif by_keys:
            unaudited |= by_keys
    return AuditReport.of(
        partitions,
        unaudited=tuple(sorted(unaudited)),
        unproven=tuple(sorted(unproven)),
        left_out=left_out,
        former=tuple(sorted(former)),
    )


def _loaded_now(configuration: Configuration, topic: str, unaudited: Collection[str]) -> LoadedBy:
    """What a topic is loaded by.

    :param unaudited: entries whose rows carry no offset.
    """
    return {
        each.name: LoadedAs(
            each.target, each.route, each.rows == "many", each.name not in unaudited
        )
        for each in configuration.tables_of(topic)
    }


def _add_unread(partitions: Iterable[PartitionAudit], unread: Iterable[Unread]) -> None:
    """Tell of offsets that were not compared with a table that keeps the last row of each key."""
    of_source = {(each.connector, each.topic, each.partition): each for each in partitions}
    for each in unread:
        audit = of_source[each.connector, each.source.topic, each.source.partition]
        table = TableAudit((each.entry,), each.target)
        table.not_demanded = sum(end - begin for begin, end in each.intervals)
        table.not_demanded_at = list(each.intervals[:EXAMPLES_MAX])
        audit.tables.append(table)


def _judging(
    configuration: Configuration,
    source: SourceReader,
    spread: Spread | None,
    stack: ExitStack,
    *,
    is_gentle: bool,
) -> JudgeAll:
    """How pieces of a connector are judged: here, or where they are spread to."""
    access = access_of(configuration)
    if spread is None:
        judge = stack.enter_context(closing(Judge(source.access, access, is_gentle=is_gentle)))
        return partial(map, judge.judge)

    def elsewhere(pieces: Iterable[Piece]) -> Iterator[Judged]:
        work = partial(judge_in_worker, source.access, access)
        name = f"sluice audit of {source.access.connector}"
        for result in spread(name, work, list(pieces)):
            if isinstance(result, SluiceError):
                raise result
            yield result

    return elsewhere


def refuse_ambiguous(
    configuration: Configuration,
    readers: dict[str, TableReader],
    sources: Sequence[SourceReader],
) -> None:
    """Without `_source` in each row an audit would take those of one connector for another's.

    :raises ConfigurationError: rows of two connectors carry the same lineage.
    """
    loaders: dict[tuple[str, str], str] = {}
    for source in sources:
        connector = source.access.connector
        for table in tables_of_connector(configuration, connector):
            if table.lineage is False:
                continue
            for topic in filter(table.takes, sorted(source.counts)):
                other = loaders.setdefault((topic, table.target), connector)
                if other != connector and not _told_apart(readers[table.target], topic):
                    raise ConfigurationError(
                        f"connectors {other} and {connector} both load a topic {topic} into "
                        f"{table.target}: their rows carry the same lineage",
                        "Give the table the column _source (`sluice doctor` has the statement) "
                        "before anything is loaded, or each connector a table of its own, or a "
                        "topic of another name.",
                    )


def _told_apart(reader: TableReader, topic: str) -> bool:
    """Whether each row of a topic says who loaded it."""
    return reader.tells and not reader.has_nameless(topic)


def _open_tables(
    configuration: Configuration, stack: ExitStack, unaudited: set[str], *, is_gentle: bool
) -> dict[str, TableReader]:
    """A reader for each table whose rows carry their offset."""
    access = access_of(configuration)
    readers: dict[str, TableReader] = {}
    for entry in configuration.tables:
        if entry.target not in readers:
            shards = _shards_of(configuration, entry.target)
            reader = TableReader(access, entry.database, entry.table, shards, is_gentle=is_gentle)
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


def _shards_of(configuration: Configuration, target: str) -> tuple[str, ...]:
    """Where a table's rows may be, whichever entry loaded them; sorted."""
    return configuration.shards_of(*(e for e in configuration.tables if e.target == target))


def _carries_offsets(entry: TableConfiguration, reader: TableReader) -> bool:
    try:
        return set(lineage_columns(entry, reader.facts)) >= NEEDED_LINEAGE
    except SluiceError:
        return False


def _groups(
    configuration: Configuration,
    source: SourceReader,
    sources: Sequence[SourceReader],
    readers: dict[str, TableReader],
    left_out: set[str],
) -> dict[str, list[_Group]]:
    """By topic. Entries that load the same topic into the same table are judged together, where
    not each row says which of them loaded it.

    :param left_out: entries that are not judged by offsets.
    """
    found: dict[str, list[_Group]] = {topic: [] for topic in source.counts}
    for topic, groups in found.items():
        by_target: dict[str, list[TableConfiguration]] = {}
        for entry in configuration.tables_of(topic):
            by_target.setdefault(entry.target, []).append(entry)
        for target, entries in sorted(by_target.items()):
            if left_out.intersection(entry.name for entry in entries):
                continue
            reader, shards = readers[target], _shards_of(configuration, target)
            if not reader.tells:
                groups.append(_group(configuration, entries, reader, shards))
                continue
            is_clear = _told_apart(reader, topic)
            nameless = () if is_clear else ("",)
            known: Loaders | None = Loaders(
                tuple(n for s in sources for e in entries for n in s.loaders(topic, e.name))
                + nameless
            )
            for together in [[entry] for entry in entries] if is_clear else [entries]:
                mine = tuple(n for e in together for n in source.loaders(topic, e.name))
                group = _group(configuration, together, reader, shards)
                groups.append(replace(group, whose=Loaders(mine + nameless), known=known))
                known = None
    return found


def _group(
    configuration: Configuration,
    entries: Sequence[TableConfiguration],
    reader: TableReader,
    shards: tuple[str, ...],
) -> _Group:
    names = tuple(entry.name for entry in entries)
    shardings = {(entry.sharding, configuration.shards_of(entry)) for entry in entries}
    sharding = entries[0].sharding if shardings == {(entries[0].sharding, shards)} else None
    counts_rows = any(entry.rows == "many" for entry in entries)
    return _Group(names, reader, shards, sharding, counts_rows=counts_rows)


class _Auditor:
    """Audits one connector.

    :param today: what each topic is loaded by.
    """

    def __init__(
        self,
        source: SourceReader,
        logs: list[PartitionLog],
        groups: dict[str, list[_Group]],
        today: Mapping[str, LoadedBy],
        chunk_offsets: int,
        judge: JudgeAll,
    ) -> None:
        self._connector = source.access.connector
        self._source = source
        self._logs = logs
        self._groups = groups
        self._today = today
        self._chunk_offsets = chunk_offsets
        self._judge = judge
        self.left_out = 0
        self.former: set[str] = set()
        self._dead_letters: DeadLetters = {}
        self._left_out: DeadLetters = {
            (log.source, entry): offsets_of(some)
            for log in logs
            for entry, some in log.history.duplicates.items()
        }

    def run(self) -> list[PartitionAudit]:
        """What is settled was read before. 1. Dead letters. 2. All pieces. 3. What lies
        outside, or is of others."""
        self._begin()
        pieces = [piece for log in self._logs for piece in self._pieces(log)]
        for piece, judged in zip(pieces, self._judge(pieces), strict=True):
            self._add(piece, judged)
        for log in self._logs:
            tables = self._audits[log.source].tables
            for group, table in zip(self._groups[log.source.topic], tables, strict=True):
                self._add_outside(log, group, table)
        return [*self._audits.values(), *self._unknown_partitions()]

    def run_recent(self, pace: Pace) -> list[PartitionAudit]:
        """The same of what was settled lately: the newest piece of each partition, then the one
        before, in another order of partitions each time. `left_out` is what there was no time for;
        for one piece there always is.
        """
        self._logs = [log for log in self._logs if self._groups[log.source.topic]]
        self._begin()
        newest_first = [list(self._pieces(log))[::-1] for log in self._logs]
        random.shuffle(newest_first)
        pieces = filter(None, chain.from_iterable(zip_longest(*newest_first)))
        for number, piece in enumerate(pieces):
            if number and pace.is_over:
                self.left_out += piece.end - piece.begin
                continue
            for judged in self._judge([piece]):
                self._add(piece, judged)
            pace.rest()
        return list(self._audits.values())

    def _begin(self) -> None:
        self._dead_letters = self._source.dead_letters()
        self._audits = {
            log.source: PartitionAudit(
                connector=self._connector,
                topic=log.source.topic,
                partition=log.source.partition,
                log_begin=log.log_begin,
                stable_end=log.stable_end,
                settled=log.settled,
                produced=0,
                skipped=0,
                tables=[group.audit() for group in self._groups[log.source.topic]],
            )
            for log in self._logs
        }

    def _add(self, piece: Piece, judged: Judged) -> None:
        audit = self._audits[piece.source]
        audit.produced += judged.messages
        audit.skipped += judged.tombstones
        if not piece.is_recorded:
            audit.unrecorded += judged.messages - judged.tombstones
        for table, more in zip(audit.tables, judged.tables, strict=True):
            table.add(more)

    def _pieces(self, log: PartitionLog) -> Iterator[Piece]:
        """A piece was loaded by the same entries."""
        today = self._today[log.source.topic]
        for stretch in self._source.stretches(log, today):
            self.former |= self._former(log, stretch)
            told = [log.history.told.get(n, []) for n, one in stretch.by.items() if one.counts_rows]
            routes, routes_now = (
                {name: one.route for name, one in by.items()}
                for by in (stretch.by, {} if stretch.by == today else today)
            )
            begin = end = stretch.begin
            while end < stretch.end:
                begin, end = end, _piece_end(told, end, stretch.end, self._chunk_offsets)
                yield Piece(
                    log.source,
                    begin,
                    end,
                    tuple(_inside(log.assigned, begin, end)),
                    log.settled or 0,
                    routes,
                    tuple(
                        self._piece_table(log, group, stretch, begin, end)
                        for group in self._groups[log.source.topic]
                    ),
                    routes_now,
                    stretch.is_recorded,
                )

    def _former(self, log: PartitionLog, stretch: Stretch) -> set[str]:
        """The entries that are not looked at, since they load the topic there no more."""
        today, groups = self._today[log.source.topic], self._groups[log.source.topic]
        whole = {group.reader.target for group in groups if group.whose is None}
        return {
            f"{name} into {one.target}"
            for name, one in stretch.by.items()
            if one.target not in whole and (name not in today or today[name].target != one.target)
        }

    def _piece_table(
        self, log: PartitionLog, group: _Group, stretch: Stretch, begin: int, end: int
    ) -> PieceTable:
        entries = stretch.loading(group.reader.target)
        if group.whose is not None:
            entries = tuple(name for name in entries if name in group.entries)
        is_other = stretch.by != self._today[log.source.topic]
        names, empty = entries or group.entries, log.history.empty
        return PieceTable(
            group.reader.facts.database,
            group.reader.facts.table,
            group.shards,
            entries,
            _within(self._dead_letters, log.source, names, begin, end),
            {name: tuple(_inside(empty[name], begin, end)) for name in names if name in empty},
            group.whose,
            _within(self._left_out, log.source, names, begin, end),
            _told(log.history, group, stretch, entries, begin, end),
            group.entries if is_other else (),
        )

    def _add_outside(self, log: PartitionLog, group: _Group, table: TableAudit) -> None:
        """Add what lies outside the log. A row beyond the last stable offset may be of a message
        that came meanwhile, so the end is read again until it stands still or none is."""
        source, end = log.source, log.stable_end
        outside = group.reader.outside(source, log.log_begin, end, group.whose)
        for _ in range(_END_ROUNDS):
            fresh = self._source.stable_end(source) if outside.above else end
            if fresh == end:
                break
            end = fresh
            outside = group.reader.outside(source, log.log_begin, end, group.whose)
        if outside.above and len(table.foreign_at) < EXAMPLES_MAX:
            table.foreign_at.append((end, outside.last + 1))
        table.foreign += outside.above
        table.unjudged = outside.below
        if group.sharding is not None:
            table.misplaced = group.reader.misplaced(
                source, log.log_begin, end, group.sharding, group.whose
            )
        if group.known is not None:
            others, first, last = group.reader.others(source, log.log_begin, group.known)
            table.foreign += sum(others.values())
            table.foreign_sources = others
            if others and len(table.foreign_at) < EXAMPLES_MAX:
                table.foreign_at.append((first, last))

    def _unknown_partitions(self) -> list[PartitionAudit]:
        """Rows of partitions that the topic does not have."""
        found: dict[TopicPartition, PartitionAudit] = {}
        for topic, groups in self._groups.items():
            for group in groups:
                count = self._source.counts[topic]
                for number, rows in group.reader.beyond(topic, count, group.not_others).items():
                    source = TopicPartition(topic, number)
                    empty = PartitionAudit(self._connector, topic, number, 0, 0, None, 0, 0)
                    partition = found.setdefault(source, empty)
                    table = group.audit()
                    table.foreign = rows
                    if group.known is not None:
                        table.foreign_sources, _, _ = group.reader.others(source, 0, group.known)
                    partition.tables.append(table)
        return [found[source] for source in sorted(found)]


def _inside(intervals: Iterable[Interval], begin: int, end: int) -> Iterator[Interval]:
    """Those that have offsets within [begin, end)."""
    return ((b, e) for b, e in intervals if b < end and e > begin)


def _within(
    found: DeadLetters, source: TopicPartition, entries: Iterable[str], begin: int, end: int
) -> NDArray[np.uint64]:
    """Those of these offsets of all entries that lie in [begin, end), sorted."""
    of_entries = (found.get((source, entry), _NO_OFFSETS) for entry in entries)
    inside = [some[slice(*np.searchsorted(some, [begin, end]))] for some in of_entries]
    return np.sort(np.concatenate(inside))


def _piece_end(told: Iterable[Sequence[Told]], begin: int, beyond: int, offsets: int) -> int:
    """Where a piece ends: not within a stretch whose rows are counted together."""
    end = min(begin + offsets, beyond)
    for each in told:
        if at := bisect_left(each, (end,)):
            end = max(end, each[at - 1].end)
    return min(end, beyond)


def _told(
    history: History,
    group: _Group,
    stretch: Stretch,
    entries: Sequence[str],
    begin: int,
    end: int,
) -> tuple[Told, ...] | None:
    """Of several entries whose rows cannot be told apart nobody knows how many each has.

    :param entries: that loaded the piece.
    """
    counts_rows = any(stretch.by[name].counts_rows for name in entries)
    if not (counts_rows if entries else group.counts_rows):
        return None
    told = history.told.get(entries[0], []) if len(entries) == 1 else []
    inside = told[bisect_left(told, (begin,)) : bisect_left(told, (end,))]
    return tuple(each for each in inside if each.end <= end)
