"""Whether a table that keeps the last row of each key has it (R22).

Of such a table rows go by themselves: which of them are still there says nothing. What can be told
is, of each key, that the table has a row of its last message that is settled, or a later one; and
that all of its messages are in one partition, without which there is no last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import OWNER, Keys
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.vanishing import key_elements
from sluice.config import Configuration, TableConfiguration
from sluice.core.claims import KEY_BYTES, Deduplicate
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.ranges import Interval, Range, TopicPartition, normalize, subtract
from sluice.driver.delivery import keeps_last_values
from sluice.driver.specs import access_of, read_spec, registry_access
from sluice.kafka.reader import RangeReader
from sluice.verify.audit_duplicates import CHUNK_OFFSETS, Unproven, as_values
from sluice.verify.audit_source import PartitionLog, SourceReader
from sluice.verify.audit_specs import loaded_by
from sluice.verify.message_keys import MessageKeys
from sluice.verify.stored_keys import stored_keys


def has_last_values(entry: TableConfiguration, facts: TableFacts) -> bool:
    """Whether an entry is audited by keys instead of by offsets."""
    return entry.delivery == "replacing" and keeps_last_values(facts)


@dataclass(slots=True)
class _Last:
    """The last message of each key, in the order of the keys.

    :param sources: the partition that it is in; `offsets`: its offset.
    """

    keys: NDArray[np.void]
    sources: NDArray[np.int64]
    offsets: NDArray[np.uint64]

    @staticmethod
    def of(keys: Keys, source: int, offsets: NDArray[np.uint64]) -> _Last:
        """Of messages of one partition."""
        return _Last(as_values(keys), np.full(len(keys), source, np.int64), offsets).of_each_key()

    def of_each_key(self) -> _Last:
        """One of each key, in the order of the keys."""
        order = np.lexsort((self.offsets, self.keys))
        keys = self.keys[order]
        is_last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.zeros(0, np.bool_)
        chosen = order[is_last]
        return _Last(self.keys[chosen], self.sources[chosen], self.offsets[chosen])

    def then(self, other: _Last) -> _Last:
        """With further messages."""
        return _Last(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.sources, other.sources]),
            np.concatenate([self.offsets, other.offsets]),
        ).of_each_key()


class Unread(NamedTuple):
    """Offsets of a partition that were not compared with a table: its entry loaded them into
    another one, by another route, or not at all."""

    connector: str
    source: TopicPartition
    entry: str
    target: str
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class LastValues:
    """What was found of tables that keep the last row of each key."""

    unproven: list[Unproven] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


def unproven_last_values(
    configuration: Configuration,
    sources: Sequence[SourceReader],
    logs: Sequence[Sequence[PartitionLog]],
    entries: Collection[str],
) -> LastValues:
    """Read the settled messages of these entries again, by today's load spec, and look for the last
    one of each key in their tables: those that an entry loaded into its table then, too. A key
    that was taken out of a table for good is not found.

    :param logs: of each source.
    :raises SluiceError: Kafka or a replica does not answer, not all rows are shown, or the rows do
        not say of which message they are.
    """
    found = LastValues()
    for source, of_source in zip(sources, logs, strict=True):
        connector = source.access.connector
        spec = read_spec(configuration, connector)
        for table in (table for table in spec.tables if table.entry in entries):
            key = tuple(key_elements(table.sorting_key))
            by = Deduplicate(key, 0, f"last/{table.target}", on_null="row")
            keyed = replace(table, deduplicate=by)
            hashing = MessageKeys(spec, keyed, registry_access(configuration))
            mine = []
            for log in (log for log in of_source if table.takes(log.source.topic)):
                unread = _unread(source, log, spec, table.entry)
                if unread:
                    left = Unread(connector, log.source, table.entry, table.target, unread)
                    found.unread.append(left)
                read = (part for each in log.assigned for part in subtract(each, unread))
                mine.append(replace(log, assigned=list(read)))
            last = _read(source, mine, hashing)
            found.unproven.extend(
                _without_row(configuration, connector, keyed, hashing, mine, last)
            )
    return found


def _unread(
    source: SourceReader, log: PartitionLog, spec: LoadSpec, entry: str
) -> tuple[Interval, ...]:
    """What is assigned, and was not loaded as the entry would do it now."""
    today = loaded_by(spec, log.source.topic)
    alike = [
        (each.begin, each.end)
        for each in source.stretches(log, today)
        if (then := each.by.get(entry)) is not None and then.is_like(today[entry])
    ]
    begin = log.log_begin
    left = (part for b, e in log.assigned for part in subtract((max(b, begin), e), alike))
    return normalize(left)


def _read(source: SourceReader, logs: Sequence[PartitionLog], hashing: MessageKeys) -> list[_Last]:
    """The last message of each key, of each partition."""
    found: list[_Last] = []
    with closing(RangeReader(source.access)) as reader:
        for number, log in enumerate(logs):
            last = _Last.of(np.zeros((0, KEY_BYTES), np.uint8), number, np.zeros(0, np.uint64))
            topic_id = source.topic_id(log.source.topic)
            for begin, end in _chunks(log):
                keyed = hashing.read(reader, Range(log.source, begin, end), topic_id)
                last = last.then(_Last.of(keyed.keys, number, keyed.offsets))
            found.append(last)
    return found


def _chunks(log: PartitionLog) -> Iterator[tuple[int, int]]:
    for first, beyond in log.assigned:
        for begin in range(max(first, log.log_begin), beyond, CHUNK_OFFSETS):
            yield begin, min(begin + CHUNK_OFFSETS, beyond)


def _without_row(
    configuration: Configuration,
    connector: str,
    table: TableSpec,
    hashing: MessageKeys,
    logs: Sequence[PartitionLog],
    last: Sequence[_Last],
) -> Iterator[Unproven]:
    """Last messages of which the table has no row, nor a later one of their key."""
    access = access_of(configuration).patient()
    together = _Last(
        np.concatenate([np.zeros(0, f"V{KEY_BYTES}"), *(each.keys for each in last)]),
        np.concatenate([np.zeros(0, np.int64), *(each.sources for each in last)]),
        np.concatenate([np.zeros(0, np.uint64), *(each.offsets for each in last)]),
    )
    wanted, of_keys, times = np.unique(together.keys, return_inverse=True, return_counts=True)
    newest = np.full(len(wanted), -1, np.int64)
    for stored, owners in stored_keys(access, table, hashing.row_keys):
        values = as_values(stored)
        places = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
        if len(wanted):
            is_known = wanted[places] == values
            offsets = owners.view(OWNER)[:, 0]["offset"].astype(np.int64)
            np.maximum.at(newest, places[is_known], offsets[is_known])
    places = of_keys.reshape(-1)
    is_lost = newest[places] < together.offsets.astype(np.int64)
    for bad, why in (
        (times[places] > 1, "its key has messages in several partitions"),
        (is_lost & (times[places] == 1), "no row of it, nor a later one of its key"),
    ):
        for number in np.flatnonzero(bad).tolist():
            source: TopicPartition = logs[int(together.sources[number])].source
            offset = int(together.offsets[number])
            yield Unproven(
                connector,
                source.topic,
                source.partition,
                offset,
                table.entry,
                table.target,
                why,
            )
