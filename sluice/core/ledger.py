"""What the ledger holds: every load spec, record, receipt and settle, each exactly once.

Every entry is one JSON object. All entries are written in the transaction that also
commits the offsets they speak about. Pure: `sluice.kafka.ledger` reads and writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from sluice.core import rests
from sluice.core.ranges import Interval, Range, TopicPartition, intervals_of
from sluice.core.receipts import DeadLetter, Loaded, Receipt, Stages
from sluice.core.records import Record, encode
from sluice.core.server_runs import ServerRuns
from sluice.core.values import pickled_by_fields, value

#: Insert counters of the windows, by `TargetShard.key`.
InsertCounters = dict[str, int]
Rest = dict[str, tuple[Interval, ...]]
Stored = dict[str, rests.StoredRows]

# Their fields are plain values, `queueing` aside: `asdict`, which looks into each, takes 20 us a
# range [measured].
_OF_RECEIPT = tuple(field.name for field in fields(Receipt))
_values_of_receipt = attrgetter(*_OF_RECEIPT)
_OF_STAGES = tuple(field.name for field in fields(Stages))


@value
class LedgerEntry:
    """One entry to be written. `body` must be JSON-serialisable."""

    source: TopicPartition | None
    body: dict[str, Any]


def spec_entry(digest: str, canonical: str) -> LedgerEntry:
    """A load spec; written by every owner that uses it, so that it stays near."""
    return LedgerEntry(None, {"type": "load_spec", "digest": digest, "text": canonical})


@pickled_by_fields
@value
class Background:
    """What belongs to a record in doubt and is too long for the offset's metadata.

    :param insert_counters: of the windows, taken before the range could first be inserted.
    :param since_ms: when the range was first intended; 0: nobody knows.
    :param rest: what a probe found missing, by table entry; else empty.
    :param stored: of entries whose messages have several rows, those rows of `rest` that the probe
        found.
    :param bytes_max: size above which nobody ever inserted this range (R12).
    :param servers: of shards with tables that are not replicated, the process that served them
        when the insert counters were taken. One that is missing is unknown: such a table may know a
        block of the range that it does not have.
    """

    insert_counters: InsertCounters = field(default_factory=dict)
    since_ms: int = 0
    rest: Rest = field(default_factory=dict)
    bytes_max: int = 0
    servers: ServerRuns = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)


def common_background(backgrounds: Sequence[Background]) -> Background:
    """What is known of all members of a bundle: where one has no insert counter, or another server,
    nobody knows. Of a range alone it is its own; of several, each is missing as a whole."""
    if len(backgrounds) == 1:
        return backgrounds[0]
    first, *others = {id(each): each for each in backgrounds}.values()
    return Background(
        insert_counters={
            key: min([insert_counter, *(each.insert_counters[key] for each in others)])
            for key, insert_counter in first.insert_counters.items()
            if all(key in each.insert_counters for each in others)
        },
        since_ms=min(each.since_ms for each in backgrounds),
        bytes_max=min(each.bytes_max for each in backgrounds),
        servers={
            shard: run
            for shard, run in first.servers.items()
            if all(each.servers.get(shard) == run for each in others)
        },
    )


def record_entry(
    source: TopicPartition, record: Record, background: Background, why: str = ""
) -> LedgerEntry:
    """A record exactly as it stands in the group, with its background.

    :param why: for a person's decisions, what was decided.
    """
    body: dict[str, Any] = {
        "type": "record",
        "kind": record.kind.word,
        "begin": record.begin,
        "end": record.end,
        "batch": record.batch,
        "attempt": record.attempt,
        "owner": record.owner,
        "metadata": encode(record),
        "insert_counters": background.insert_counters,
        "since_ms": background.since_ms,
        "bytes_max": background.bytes_max,
    }
    if background.rest:
        body["rest"] = {
            entry: rests.written(intervals) for entry, intervals in background.rest.items()
        }
    if background.stored:
        body["stored"] = {
            entry: rests.written_rows(rows) for entry, rows in background.stored.items()
        }
    if background.servers:
        body["servers"] = background.servers
    if why:
        body["why"] = why
    return LedgerEntry(source, body)


def receipt_entry(block_range: Range, batch: int, attempt: int, receipt: Receipt) -> LedgerEntry:
    """One acknowledged block."""
    body = {
        "type": "receipt",
        "begin": block_range.begin,
        "end": block_range.end,
        "batch": batch,
        "attempt": attempt,
        **dict(zip(_OF_RECEIPT, _values_of_receipt(receipt), strict=True)),
    }
    if receipt.messages is None:
        del body["messages"]
    if not receipt.is_shared:
        del body["is_shared"]
    if not receipt.failed_over:
        del body["failed_over"], body["in_doubt"]
    if receipt.queueing is None:
        del body["queueing"]
    else:
        body["queueing"] = asdict(receipt.queueing)
    return LedgerEntry(block_range.source, body)


@lru_cache(maxsize=16)
def _seconds_of(stages: Stages) -> dict[str, float]:
    """Kept, since of a bundle's members all but the first took no time of their own."""
    return {name: round(getattr(stages, name), 4) for name in _OF_STAGES}


def settled_entry(block_range: Range, batch: int, attempt: int, loaded: Loaded) -> LedgerEntry:
    """A settled range with its counts, and where its task's time went."""
    dead_letters: dict[str, int] = {}
    for letter in loaded.dead_letters:
        dead_letters[letter.table] = dead_letters.get(letter.table, 0) + 1
    body: dict[str, Any] = {
        "type": "settled",
        "begin": block_range.begin,
        "end": block_range.end,
        "batch": batch,
        "attempt": attempt,
        "messages": loaded.messages,
        "bytes": loaded.bytes,
        "rows": loaded.rows,
        "skipped": loaded.skipped,
        "dead_letters": len(loaded.dead_letters),
        "dead_letters_by_table": dead_letters,
        "seconds": _seconds_of(loaded.stages),
    }
    if loaded.passed:
        body["passed_by_table"] = dict(loaded.passed)
    if loaded.unrouted:
        body["unrouted"] = loaded.unrouted
    if loaded.empty:
        body["empty_by_table"] = {
            entry: list(map(list, intervals)) for entry, intervals in loaded.empty.items()
        }
    if loaded.duplicates:
        body["duplicates_by_table"] = {
            entry: asdict(found) for entry, found in loaded.duplicates.items()
        }
    if loaded.dropped_rows:
        body["dropped_rows_by_table"] = dict(loaded.dropped_rows)
    return LedgerEntry(block_range.source, body)


def late_insert_entry(
    block_range: Range, deadline_ms: int, insert_counters: InsertCounters, claimed_in: str = ""
) -> LedgerEntry:
    """A settled range of which a lost task may still try an insert until the deadline.

    :param claimed_in: the run of the store of claims that it was loaded under; "": it claimed
        nothing, or that is not known.
    """
    body = {
        "type": "late_insert",
        "begin": block_range.begin,
        "end": block_range.end,
        "deadline_ms": deadline_ms,
        "insert_counters": insert_counters,
    }
    if claimed_in:
        body["claimed_in"] = claimed_in
    return LedgerEntry(block_range.source, body)


#: About 400 bytes each, so that a message stays far below what brokers take.
CHECKPOINT_RECORDS_MAX = 500


def checkpoint_entries(
    last: Iterable[LedgerEntry], others: Iterable[TopicPartition] | None
) -> tuple[LedgerEntry, ...]:
    """Records once more, so that who starts need not read back to when each partition last had
    work. In several parts, which are written in one transaction.

    :param last: the last record of each partition, as it was committed.
    :param others: partitions that have, or may have, a record further back. Every other one that
        stands in no part has none at all. None: nobody knows.
    """
    bodies = [
        {"topic": entry.source.topic, "partition": entry.source.partition, **entry.body}
        for entry in last
        if entry.source is not None
    ]
    size = CHECKPOINT_RECORDS_MAX
    parts = [bodies[begin : begin + size] for begin in range(0, max(1, len(bodies)), size)]
    body = {"type": "checkpoint", "parts": len(parts)}
    first: dict[str, Any] = {"others": None if others is None else _numbers_of(others)}
    return tuple(
        LedgerEntry(
            None, body | {"part": number, "records": records} | (first if not number else {})
        )
        for number, records in enumerate(parts)
    )


def _numbers_of(sources: Iterable[TopicPartition]) -> dict[str, tuple[Interval, ...]]:
    numbers: dict[str, list[int]] = {}
    for source in sources:
        numbers.setdefault(source.topic, []).append(source.partition)
    return {topic: intervals_of(found) for topic, found in numbers.items()}


def others_in(checkpoint: Mapping[str, Any]) -> frozenset[TopicPartition] | None:
    """What the first part of a checkpoint says of partitions with older records."""
    if checkpoint["others"] is None:
        return None
    return frozenset(
        TopicPartition(str(topic), number)
        for topic, intervals in checkpoint["others"].items()
        for begin, end in intervals
        for number in range(int(begin), int(end))
    )


def encode_entry(connector: str, now_ms: int, entry: LedgerEntry) -> tuple[bytes, bytes]:
    """Key and value of the ledger message."""
    body: dict[str, Any] = {"connector": connector, "at_ms": now_ms}
    key = connector
    if entry.source is not None:
        body |= {"topic": entry.source.topic, "partition": entry.source.partition}
        key = f"{connector}/{entry.source.topic}/{entry.source.partition}"
    body |= entry.body
    return key.encode(), json.dumps(body, separators=(",", ":")).encode()


#: Entries of one message, and about how long it may become: brokers take a megabyte unless they
#: are told to take less.
PACK_ENTRIES_MAX = 1_000
PACK_BYTES_MAX = 200_000
#: Entries of these types are packed, and stand in this order: whoever reads on finds what is said
#: of a range before the record that goes on behind it.
_PACKED = ("receipt", "settled", "late_insert", "record")


def encode_entries(
    connector: str, now_ms: int, entries: Iterable[LedgerEntry]
) -> list[tuple[bytes, bytes]]:
    """Keys and values of the messages that hold the entries of one transaction.

    Those of one type that say the same things share messages, of hundreds of partitions: what is
    the same of all of them stands there once, the rest in lists. For 500 partitions that takes a
    fifth of the bytes and of the time to write, and a tenth of the time to read [measured].
    """
    alone: list[LedgerEntry] = []
    packs: dict[tuple[int, tuple[str, ...]], list[LedgerEntry]] = {}
    for entry in entries:
        kind = entry.body["type"]
        if entry.source is None or kind not in _PACKED:
            alone.append(entry)
        else:
            packs.setdefault((_PACKED.index(kind), tuple(entry.body)), []).append(entry)
    messages = [encode_entry(connector, now_ms, entry) for entry in alone]
    for key in sorted(packs):
        for begin in range(0, len(packs[key]), PACK_ENTRIES_MAX):
            some = packs[key][begin : begin + PACK_ENTRIES_MAX]
            messages += _pack(connector, now_ms, some)
    return messages


def _pack(connector: str, now_ms: int, entries: Sequence[LedgerEntry]) -> list[tuple[bytes, bytes]]:
    """Entries with the same keys."""
    if len(entries) == 1:
        return [encode_entry(connector, now_ms, entries[0])]
    sources = [entry.source for entry in entries if entry.source is not None]
    each: dict[str, list[Any]] = {
        "topic": [source.topic for source in sources],
        "partition": [source.partition for source in sources],
    }
    each |= {name: [entry.body[name] for entry in entries] for name in entries[0].body}
    same = {
        name: values[0] for name, values in each.items() if values.count(values[0]) == len(values)
    }
    body = {
        "connector": connector,
        "at_ms": now_ms,
        "type": "pack",
        "entries": len(entries),
        "same": same,
        "each": {name: values for name, values in each.items() if name not in same},
    }
    value = json.dumps(body, separators=(",", ":")).encode()
    if len(value) > PACK_BYTES_MAX:
        half = len(entries) // 2
        return [
            message
            for some in (entries[:half], entries[half:])
            for message in _pack(connector, now_ms, some)
        ]
    return [(connector.encode(), value)]


def entries_in(message: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """The entries that a message of the ledger holds, as they are without a pack.

    :raises KeyError, ValueError: it is no message of the ledger.
    """
    common = {"connector": message["connector"], "at_ms": message["at_ms"]}
    if message.get("type") != "pack":
        return ({**common, **message},)
    common |= message["same"]
    names = list(message["each"])
    # Entries that say the same in everything have no lists.
    rows = zip(*message["each"].values(), strict=True) if names else [()] * message["entries"]
    found = tuple({**common, **dict(zip(names, row, strict=True))} for row in rows)
    if len(found) != message["entries"]:
        raise ValueError(f"{len(found)} entries of {message['entries']}")
    return found


@dataclass(slots=True)
class LedgerView:
    """What a connector needs from the ledger when it takes partitions over.

    :param records: last record entry of each partition.
    :param specs: canonical load specs by digest.
    :param late_inserts: entries whose deadline may not have passed.
    :param complete: whether the ledger was read from its very beginning.
    :param recorded: all partitions that have a record anywhere in the ledger, and perhaps more;
        None: nobody knows.
    :param end: the end of the ledger when it was read.
    :param is_whole: False: what was committed before it was read may stand beyond its end, as after
        an open transaction.
    """

    records: dict[TopicPartition, dict[str, Any]] = field(default_factory=dict)
    specs: dict[str, str] = field(default_factory=dict)
    late_inserts: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    recorded: frozenset[TopicPartition] | None = None
    end: int = 0
    is_whole: bool = True

    def metadata(self, source: TopicPartition) -> str | None:
        """The last record of a partition as the ledger has it."""
        entry = self.records.get(source)
        return None if entry is None else str(entry["metadata"])

    def background(self, source: TopicPartition) -> Background:
        """The background of its last record."""
        entry = self.records.get(source)
        if entry is None:
            return Background()
        return Background(
            insert_counters={
                str(name): int(insert_counter)
                for name, insert_counter in entry["insert_counters"].items()
            },
            since_ms=int(entry["since_ms"]),
            rest={name: rests.read(offsets) for name, offsets in entry.get("rest", {}).items()},
            bytes_max=int(entry["bytes_max"]),
            servers={str(s): str(run) for s, run in entry.get("servers", {}).items()},
            stored={name: rests.read_rows(rows) for name, rows in entry.get("stored", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """One transaction: what becomes true together or not at all.

    :param records: the new record of each partition; its begin becomes the offset.
    """

    records: dict[TopicPartition, Record]
    entries: tuple[LedgerEntry, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()


class CommittedOffset(NamedTuple):
    """A committed offset of the group as the broker has it."""

    offset: int
    metadata: str | None

    @classmethod
    def of(cls, record: Record) -> CommittedOffset:
        """What is committed of a record."""
        return cls(record.begin, encode(record))


#: Of the partitions that were asked for; None: the group has none.
CommittedOffsets = dict[TopicPartition, CommittedOffset | None]
