"""Whether the events that were left out as duplicates are in the tables: each has a row with its
key, or its row is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import Keys
from sluice.config import Configuration
from sluice.core.claims import KEY_BYTES, key_space
from sluice.core.load_spec import TableSpec
from sluice.core.ranges import Range, TopicPartition, intervals_of
from sluice.decode.keys.hashing import RowKeys
from sluice.driver.specs import access_of, read_spec, registry_access
from sluice.kafka.reader import RangeReader
from sluice.verify.audit_source import Duplicates, PartitionLog, SourceReader
from sluice.verify.message_keys import MessageKeys, decoder_of
from sluice.verify.stored_keys import stored_keys

#: Offsets that are read at a time.
CHUNK_OFFSETS = 100_000


@dataclass(frozen=True, slots=True, order=True)
class Unproven:
    """A message that was left out as a duplicate, and is not seen to be one."""

    connector: str
    topic: str
    partition: int
    offset: int
    entry: str
    target: str
    why: str


@dataclass(slots=True)
class _Sought:
    """Messages with keys of one space, whose events a table should have.

    :param messages: of the messages.
    :param numbers: which of them each key is of.
    """

    table: TableSpec
    hashing: MessageKeys
    messages: list[tuple[str, TopicPartition, int, str]] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    numbers: list[NDArray[np.int64]] = field(default_factory=list)


def unproven_duplicates(
    configuration: Configuration,
    sources: Sequence[SourceReader],
    logs: Sequence[Sequence[PartitionLog]],
) -> list[Unproven]:
    """Read these messages again, and look for a row with each of their keys in the tables. Of
    messages that are gone from Kafka nobody can tell.

    :param logs: of each source.
    :raises SluiceError: Kafka or a replica does not answer, or not all rows are shown.
    """
    sought: dict[tuple[str, str], _Sought] = {}
    found: list[Unproven] = []
    for source, of_source in zip(sources, logs, strict=True):
        with closing(RangeReader(source.access)) as reader:
            for log in of_source:
                for entry, some in log.history.duplicates.items():
                    for each in some:
                        found += _read(configuration, source, reader, log, entry, each, sought)
    for space in sorted({space for space, _ in sought}):
        of_space = [each for (its, _), each in sorted(sought.items()) if its == space]
        found += _without_row(configuration, of_space, _tables_of(configuration, space))
    return found


def _read(
    configuration: Configuration,
    source: SourceReader,
    reader: RangeReader,
    log: PartitionLog,
    entry: str,
    duplicates: Duplicates,
    sought: dict[tuple[str, str], _Sought],
) -> Iterator[Unproven]:
    """Take the keys of messages; gives those that have none, or of which nobody can tell."""
    offsets = duplicates.offsets[np.searchsorted(duplicates.offsets, log.log_begin) :]
    if not len(offsets):
        return
    connector, topic_id = source.access.connector, source.topic_id(log.source.topic)
    messages = [(connector, log.source, offset, entry) for offset in offsets.tolist()]
    spec = source.spec(duplicates.spec)
    if spec is None:
        why = "the ledger has no load spec that says by which key"
        target = next((each.target for each in configuration.tables if each.name == entry), entry)
        yield from (_unproven(message, target, why) for message in messages)
        return
    table = next(table for table in spec.tables if table.entry == entry)
    assert table.deduplicate is not None
    where = (key_space(table.deduplicate, table.columns), table.target)
    if where not in sought:
        sought[where] = _Sought(table, MessageKeys(spec, table, registry_access(configuration)))
    into = sought[where]
    for begin in range(int(offsets[0]), int(offsets[-1]) + 1, CHUNK_OFFSETS):
        first, beyond = np.searchsorted(offsets, [begin, begin + CHUNK_OFFSETS]).tolist()
        some = offsets[first:beyond]
        if not len(some):
            continue
        block_range = Range(log.source, int(some[0]), int(some[-1]) + 1)
        keyed = into.hashing.read(reader, block_range, topic_id, intervals_of(some.tolist()))
        at = len(into.messages)
        into.messages += messages[first:beyond]
        into.keys.append(keyed.keys)
        into.numbers.append(at + np.searchsorted(some, keyed.offsets).astype(np.int64))
        for offset in np.setdiff1d(some, keyed.offsets).tolist():
            why = "it makes no row with a key any more"
            yield _unproven((connector, log.source, offset, entry), table.target, why)


def _tables_of(configuration: Configuration, space: str) -> dict[str, TableSpec]:
    """The tables whose rows have keys of a space, as they are today; those of other pipelines are
    not known here."""
    return {
        table.target: table
        for connector in configuration.connectors
        for table in read_spec(configuration, connector.name).tables
        if table.deduplicate is not None and key_space(table.deduplicate, table.columns) == space
    }


def _without_row(
    configuration: Configuration, sought: Sequence[_Sought], tables: dict[str, TableSpec]
) -> Iterator[Unproven]:
    """Messages that have a key that no row has.

    :param sought: of one space; `tables`: all that share it.
    """
    access, registry = access_of(configuration).patient(), registry_access(configuration)
    keyed = {each.table.target: (each.table, each.hashing.row_keys) for each in sought}
    for target in tables.keys() - keyed.keys():
        table = tables[target]
        keyed[target] = table, RowKeys(table, decoder_of(table, registry).columns)
    lines = [keys for each in sought for keys in each.keys]
    wanted = np.unique(as_values(np.concatenate([np.zeros((0, KEY_BYTES), np.uint8), *lines])))
    is_there = np.zeros(len(wanted), np.bool_)
    for table, row_keys in keyed.values():
        shards = tuple(shard for shard in table.shards if shard in access.shards)
        for stored, _ in stored_keys(access, replace(table, shards=shards), row_keys):
            values = as_values(stored)
            places = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
            if len(wanted):
                is_there[places[wanted[places] == values]] = True
    why = f"no row of {', '.join(sorted(keyed))} has its key"
    for each in sought:
        missing = [
            of[~is_there[np.searchsorted(wanted, as_values(keys))]]
            for keys, of in zip(each.keys, each.numbers, strict=True)
        ]
        for number in np.unique(np.concatenate([np.zeros(0, np.int64), *missing])).tolist():
            yield _unproven(each.messages[number], each.table.target, why)


def as_values(keys: Keys) -> NDArray[np.void]:
    """Each key as one value."""
    return np.ascontiguousarray(keys).view(f"V{KEY_BYTES}")[:, 0]


def _unproven(message: tuple[str, TopicPartition, int, str], target: str, why: str) -> Unproven:
    connector, source, offset, entry = message
    return Unproven(connector, source.topic, source.partition, offset, entry, target, why)
