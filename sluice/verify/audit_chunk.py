"""Judging one chunk of offsets: what the log holds against what tables and dead letters
hold. Pure; arrays have one element for each offset of the chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.core.ranges import Interval

Flags = NDArray[np.bool_]
Counts = NDArray[np.int32]

#: Intervals that a report names for each kind of finding.
EXAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is known of the offsets from `begin` on.

    :param valued: the log holds a message with a value.
    :param assigned: the pipeline has settled it, so its row must be there.
    """

    begin: int
    valued: Flags
    assigned: Flags


@dataclass(frozen=True, slots=True)
class Held:
    """What a table and the dead letters hold of a chunk.

    :param found: rows of each offset.
    :param different: of which different in `_row`.
    :param dead: dead letters of each offset for this table's entries.
    """

    found: Counts
    different: Counts
    dead: Counts


class Told(NamedTuple):
    """How many rows were loaded of the offsets [begin, end), by receipts."""

    begin: int
    end: int
    rows: int


@dataclass(slots=True)
class TableAudit:
    """One partition's rows in one table: counts over all chunks, and where the findings are.

    Without findings: messages with a value = loaded + dead_lettered + not_yet_loaded +
    given_up + not_demanded + duplicates, for formats with a row a message.

    :param entries: the table entries that load into it.
    :param foreign: rows and dead letters whose offset the log does not hold, and rows of others.
    :param unjudged: rows of offsets below the log's begin: nobody can tell any more.
    :param not_yet_loaded: messages that are not settled yet and have no row.
    :param given_up: messages before the start, or that `sluice adopt` went past.
    :param not_demanded: messages without a row, which the entries of now take, and which none
        loaded into this table when they were settled, or none whose rows carried their offset. Of
        tables that keep the last row of each key: offsets that were not compared therefore.
    :param missing_at: the first intervals of offsets; likewise the others.
    :param misplaced: rows in another shard than the sharding of now says: there once, but a
        Distributed table that skips shards does not find them.
    :param foreign_sources: foreign rows that others loaded, by what their `_source` says.
    :param duplicates: messages whose rows were left out, since others own their keys.
    :param uncounted: messages of any number of rows with some in the table, of which nothing says
        how many they have.
    """

    entries: tuple[str, ...] = ()
    target: str = ""
    loaded: int = 0
    dead_lettered: int = 0
    missing: int = 0
    doubled: int = 0
    foreign: int = 0
    unjudged: int = 0
    not_yet_loaded: int = 0
    given_up: int = 0
    not_demanded: int = 0
    missing_at: list[Interval] = field(default_factory=list)
    doubled_at: list[Interval] = field(default_factory=list)
    foreign_at: list[Interval] = field(default_factory=list)
    not_demanded_at: list[Interval] = field(default_factory=list)
    misplaced: int = 0
    foreign_sources: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    uncounted: int = 0

    def judge(
        self,
        chunk: Chunk,
        held: Held,
        copies: Counts | int,
        settled: int,
        told: Sequence[Told] | None = None,
        free: Flags | None = None,
    ) -> None:
        """Add a chunk.

        :param copies: table entries that load each message into this table; of a message that
            makes no row, 0.
        :param settled: everything below this offset is settled.
        :param told: rows of stretches within the chunk; None: each message has one row.
        :param free: messages whose rows may be there, as those that somebody copied, and need not.
        """
        free = np.zeros(len(chunk.valued), np.bool_) if free is None else free
        dead = np.minimum(held.dead, copies)
        # A message may be several rows, told apart by `_row`; each is there once for an entry.
        wanted = np.where(chunk.valued, (copies - dead) * np.maximum(held.different, 1), 0)
        present = np.where(chunk.valued, held.found, 0)
        absent = np.maximum(wanted - present, 0)
        doubled = np.maximum(present - wanted, 0)
        doubled += np.where(chunk.valued, held.dead - dead, 0)
        foreign = np.where(chunk.valued, 0, held.found + held.dead)
        missing = np.where(chunk.assigned & ~free, absent, 0)
        not_demanded = free & (absent > 0)
        absent[free] = 0
        before = max(0, min(settled - chunk.begin, len(absent)))
        self.loaded += int(np.minimum(present, wanted).sum())
        self.dead_lettered += int(dead[chunk.valued].sum())
        self.missing += int(missing.sum())
        self.doubled += int(doubled.sum())
        self.foreign += int(foreign.sum())
        self.given_up += int(absent[:before].sum()) - int(missing.sum())
        self.not_yet_loaded += int(absent[before:].sum())
        note(self.missing_at, chunk.begin, missing > 0)
        note(self.doubled_at, chunk.begin, doubled > 0)
        self.not_demanded += int(not_demanded.sum())
        note(self.foreign_at, chunk.begin, foreign > 0)
        note(self.not_demanded_at, chunk.begin, not_demanded)
        if told is not None:
            loaded = np.where(free, 0, np.minimum(present, wanted))
            self._count(chunk.begin, told, loaded, missing)
            rest = ~flags_of(chunk.begin, len(absent), [(each.begin, each.end) for each in told])
            self.uncounted += int((chunk.assigned & (present > 0) & rest).sum())

    def _count(self, begin: int, told: Sequence[Told], loaded: Counts, missing: Counts) -> None:
        """Rows within messages: those of a stretch are as many as were acknowledged.

        :param missing: what is missing of messages without any row counts already.
        """
        for each in told:
            inside = slice(each.begin - begin, each.end - begin)
            lacking = each.rows - int(loaded[inside].sum())
            if lacking > (known := int(missing[inside].sum())):
                self.missing += lacking - known
                _append(self.missing_at, (each.begin, each.end))
            elif lacking < 0:
                self.doubled -= lacking
                _append(self.doubled_at, (each.begin, each.end))

    def add(self, later: TableAudit) -> None:
        """Add what was counted of the offsets that follow."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for mine, more in (
            (self.missing_at, later.missing_at),
            (self.doubled_at, later.doubled_at),
            (self.foreign_at, later.foreign_at),
            (self.not_demanded_at, later.not_demanded_at),
        ):
            for interval in more:
                _append(mine, interval)


COUNTS = (
    *("loaded", "dead_lettered", "missing", "doubled", "foreign"),
    *("not_yet_loaded", "given_up", "not_demanded", "duplicates", "uncounted"),
)


def _append(intervals: list[Interval], interval: Interval) -> None:
    """Joins it to the last one where they touch; otherwise as far as there is room."""
    if intervals and intervals[-1][1] == interval[0]:
        intervals[-1] = (intervals[-1][0], interval[1])
    elif len(intervals) < EXAMPLES_MAX:
        intervals.append(interval)


def note(intervals: list[Interval], begin: int, flags: Flags) -> None:
    """Add the runs of flagged offsets, as far as there is room; joins neighbours."""
    if len(intervals) >= EXAMPLES_MAX or not flags.any():
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    for first, end in edges.reshape(-1, 2)[:EXAMPLES_MAX].tolist():
        _append(intervals, (begin + first, begin + end))


def flags_of(begin: int, length: int, intervals: list[Interval]) -> Flags:
    """The offsets of a chunk that lie in any of the intervals."""
    flags = np.zeros(length, np.bool_)
    for first, end in intervals:
        flags[max(0, first - begin) : max(0, end - begin)] = True
    return flags


def counts_of(begin: int, length: int, offsets: NDArray[np.uint64]) -> Counts:
    """How often each offset of a chunk stands in sorted offsets."""
    inside = offsets[np.searchsorted(offsets, begin) : np.searchsorted(offsets, begin + length)]
    return np.bincount((inside - np.uint64(begin)).astype(np.int64), minlength=length).astype(
        np.int32
    )
