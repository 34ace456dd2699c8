"""Who may still insert what: tasks, and inserts that are in a server's hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.testbed.simulate.clickhouse import Host, Table
from sluice.testbed.simulate.processes import Records
from sluice.testbed.simulate.scheduler import Process
from sluice.testbed.simulate.world import World
from sluice.worker.assignment import Assignment

#: Clocks differ by less than this.
SKEW_MS = 4_900

Key = tuple[frozenset[tuple[TopicPartition, int, int, str, str, int]], str]


def key_of(records: Records, entry: str) -> Key:
    """What all attempts to insert a bundle of a table entry under one token share, or a range
    alone."""
    return frozenset(
        (source, r.begin, r.end, r.rest, r.topic_id, r.generation) for source, r in records.items()
    ), entry


@dataclass(slots=True, eq=False)
class Inserter:
    """A task that may still insert a bundle or a range alone, or an insert that is in a server's
    hands.

    :param table: of an insert; None for a task, which may insert into all tables of its topic.
    :param worker: of a task; None for an insert.
    :param insert_counters: what it is remembered by: of the windows that a task may add to.
    :param entry: of an insert, the table entry.
    :param sends_until_ms: when the machine stops sending what no server has wholly got yet, whether
        its process lives or not; None: a server has it.
    """

    records: Records
    table: Table | None
    worker: Process | None
    insert_counters: Mapping[str, int]
    entry: str = ""
    is_over: bool = False
    sends_until_ms: int | None = None

    @property
    def deadline_ms(self) -> int:
        """Until when it may begin to insert."""
        return min(record.deadline_ms for record in self.records.values())

    @property
    def reservation(self) -> int:
        """Entries that each block may take."""
        return min(record.reservation for record in self.records.values())

    def reaches(self, table: Table) -> bool:
        """Whether it may insert into this table."""
        return bool(self.entries_of(table))

    def entries_of(self, table: Table) -> list[str]:
        """The table entries for which it may insert into this table."""
        if self.table is not None:
            return [self.entry] if self.table is table else []
        named = zip(table.entries, table.target_shards, strict=True)
        return [entry for entry, name in named if name in self.insert_counters]


class Inserters:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inserters: list[Inserter] = []
        #: Of each range that was sent, by where it begins and what of it is inserted.
        self._insert_counters: dict[tuple[TopicPartition, int, str], Mapping[str, int]] = {}

    def task_begins(self, members: Sequence[Assignment], worker: Process) -> Inserter:
        """A task was started, or waits for its executor.

        :param members: of one bundle, or a range alone.
        """
        records = {member.block_range.source: member.record for member in members}
        insert_counters = members[0].background.insert_counters
        found = Inserter(records, None, worker, insert_counters)
        self._insert_counters |= dict.fromkeys(map(_sent, records.items()), insert_counters)
        self._inserters.append(found)
        return found

    def insert_begins(self, records: Records, table: Table, entry: str) -> Inserter:
        """A server has an insert, or is about to get it."""
        insert_counters = self._insert_counters[_sent(next(iter(records.items())))]
        found = Inserter(records, table, None, insert_counters, entry=entry)
        self._inserters.append(found)
        return found

    def all_of(self, source: TopicPartition | None = None) -> list[Inserter]:
        """All that may still insert something, or something of a partition."""
        self._inserters = [each for each in self._inserters if self._may_insert(each)]
        return [each for each in self._inserters if source is None or source in each.records]

    def _may_insert(self, each: Inserter) -> bool:
        until_ms = each.sends_until_ms
        if until_ms is not None and self._world.now >= until_ms:
            return False
        if each.is_over or each.worker is None:
            return not each.is_over
        begins_until = each.deadline_ms + SKEW_MS
        return not each.worker.is_dead and self._world.now <= begins_until


def _sent(of: tuple[TopicPartition, Record]) -> tuple[TopicPartition, int, str]:
    source, record = of
    return source, record.begin, record.rest


class Connection(Protocol):
    """What a statement and an insert see of the connection that they came by.

    :param checked_at: when the last ping was answered: the lease is checked then.
    :param gives_up_after: the machine stops sending after so long; 0: it never does.
    :param is_dropped: what was not delivered is thrown away.
    :param undelivered: of which a part is still on its way.
    """

    host: Host
    checked_at: int
    gives_up_after: float
    is_dropped: bool
    undelivered: Inserter | None

    @property
    def is_cut(self) -> bool:
        """Whether nothing can be sent any more."""
