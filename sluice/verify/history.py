"""The two histories that the verifier reads, as events of `sluice.core.anomalies`.

* `LedgerHistory`: the ledger topic. It forgets nothing (no retention), and knows receipts.
* `OffsetsHistory`: Kafka's own `__consumer_offsets`, the independent witness. Only the
  partition that holds the connector's group is read, so the other groups of a cluster cost
  little; records of other groups in it, of members and of assignments are skipped.

**The offsets topic forgets.** It is compacted, so a history read from it may begin anywhere,
and its first instance is taken as it is. In the middle it cannot have a hole that was there
before the reading began: the cleaner removes a message only for the sake of a later one with
the same key, so what it removes of a partition's history is always its oldest part. But it may
pass while the history is read, and then M' may seem to follow M although what stood between
them was removed after M was read. It swaps segments from the log's begin on, so it then
removed M too. Therefore: after M and M' were found to contradict each other, M is looked for
again; only if it is still there the anomaly is one (`still_holds`), else the history is not
complete at that place, and is reported as such. (What remains: a leader of the offsets topic
that moves twice during one reading, between replicas that were cleaned differently. Reading
again tells.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from sluice.core import rests
from sluice.core.anomalies import (
    Acknowledged,
    Event,
    Forgotten,
    Instance,
    Place,
    Settled,
    SpecSeen,
)
from sluice.core.ledger import entries_in
from sluice.core.load_spec import digest_of
from sluice.core.ranges import TopicPartition
from sluice.core.records import InvalidRecordError, Record, decode
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaTerminalError
from sluice.kafka.offsets_topic import OFFSETS_TOPIC, parse_key, parse_value, partition_of
from sluice.kafka.tail import FOLLOWING_MS, LogMessage, Tail
from sluice.kafka.topics import partition_count


class History(Protocol):
    """One connector's history, read in the order of its log."""

    connector: str
    tail: Tail

    complete: bool
    """Whether it is read from the log's very beginning."""

    def poll(self, timeout_seconds: float) -> list[Event]:
        """The next events; none if none came in time.

        :raises SluiceError: the log cannot be read.
        """

    def still_holds(self, place: Place) -> bool:
        """Whether what was read there is still there."""

    def close(self) -> None:
        """Close the clients."""


class LedgerHistory:
    """The ledger's entries of one connector."""

    def __init__(self, access: KafkaAccess, topic: str, since_ms: int | None = None) -> None:
        self.connector = access.connector
        self.tail = Tail(access, topic, since_ms=since_ms, fetch_wait_max_ms=FOLLOWING_MS)
        #: Whether it is read from the ledger's very first entry on.
        self.complete = self.tail.position == 0

    def poll(self, timeout_seconds: float) -> list[Event]:
        """See `History`."""
        found: list[Event] = []
        for message in self.tail.poll(timeout_seconds):
            place = Place(self.tail.topic, self.tail.partition, message.offset)
            found += ledger_events(self.connector, place, message)
        return found

    def still_holds(self, place: Place) -> bool:
        """Entries leave the ledger from its begin on, and never while younger ones are read."""
        return True

    def close(self) -> None:
        """Close the consumer."""
        self.tail.close()


class OffsetsHistory:
    """The committed offsets of one connector's group."""

    #: Never known: what was compacted away leaves no trace.
    complete = False

    def __init__(
        self, access: KafkaAccess, group: str, partitions: int, since_ms: int | None = None
    ) -> None:
        self.connector = access.connector
        self._access = access
        self._group = group
        partition = partition_of(group, partitions)
        self.tail = Tail(
            *(access, OFFSETS_TOPIC, partition), since_ms=since_ms, fetch_wait_max_ms=FOLLOWING_MS
        )
        self._again: Tail | None = None

    def poll(self, timeout_seconds: float) -> list[Event]:
        """See `History`."""
        found = []
        try:
            messages = self.tail.poll(timeout_seconds)
        except KafkaTerminalError as error:
            raise _closed(error) from None
        for message in messages:
            place = Place(self.tail.topic, self.tail.partition, message.offset)
            event = offsets_event(self.connector, self._group, place, message)
            if event is not None:
                found.append(event)
        return found

    def still_holds(self, place: Place) -> bool:
        """See the module: the proof that nothing after this place was compacted away."""
        if self._again is None:
            self._again = Tail(self._access, place.topic, place.partition, place.offset)
        else:
            self._again.seek(place.offset)
        end = min(place.offset + 1, self._again.stable_end)
        return any(message.offset == place.offset for message in self._again.below(end))

    def close(self) -> None:
        """Close the consumers."""
        self.tail.close()
        if self._again is not None:
            self._again.close()


def open_ledger(
    access: KafkaAccess, topic: str, since_ms: int | None = None
) -> LedgerHistory | None:
    """The ledger's history; None if there is no ledger yet.

    :param since_ms: only what was written since then.
    :raises SluiceError: it cannot be read.
    """
    return LedgerHistory(access, topic, since_ms) if partition_count(access, topic) else None


def open_offsets(
    access: KafkaAccess, group: str, since_ms: int | None = None
) -> OffsetsHistory | None:
    """The offsets topic's history; None before anybody ever committed in this cluster.

    :param since_ms: only what was written since then.
    :raises SluiceError: it cannot be read, as where it is closed to us.
    """
    try:
        partitions = partition_count(access, OFFSETS_TOPIC)
        return OffsetsHistory(access, group, partitions, since_ms) if partitions else None
    except KafkaTerminalError as error:
        raise _closed(error) from None


#: Connector, partition, place in the log, and when it was written.
_Where = tuple[str, TopicPartition, Place, int]


def _closed(error: KafkaTerminalError) -> KafkaTerminalError:
    hint = f"Give the connector's user the right to read {OFFSETS_TOPIC}, or use --source ledger."
    return KafkaTerminalError(error.message, hint)


def offsets_event(connector: str, group: str, place: Place, message: LogMessage) -> Event | None:
    """What a message of the offsets topic says of a group; None if it is about another one.

    :raises UnknownCommitFormatError: it cannot be read.
    """
    key = parse_key(message.key)
    if key is None or key.group != group:
        return None
    source = TopicPartition(key.topic, key.partition)
    if message.value is None:
        return Forgotten(connector, source, place, message.timestamp_ms)
    value = parse_value(message.value)
    # The Python client commits the terminating zero of its C string too [measured].
    metadata = value.metadata.removesuffix("\0")
    record, problem = _decoded(value.offset, metadata)
    where = (connector, source, place, value.committed_at_ms)
    return Instance(*where, value.offset, metadata, record, problem)


def ledger_events(connector: str, place: Place, message: LogMessage) -> list[Event]:
    """What a message of the ledger says of a connector; nothing if it is about another one, or
    about nothing that is judged. What is no entry becomes an instance without a record."""
    try:
        entries = entries_in(json.loads(message.value or b""))
        events = [_event(connector, place, entry) for entry in entries]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"{place} is not an entry of the ledger: {type(error).__name__}: {error}"
        return [_foreign(connector, place, message.timestamp_ms, problem)]
    return [event for event in events if event is not None]


def _event(connector: str, place: Place, body: Mapping[str, Any]) -> Event | None:
    if body["connector"] != connector:
        return None
    at_ms = int(body["at_ms"])
    if body["type"] == "load_spec":
        return _spec(connector, place, at_ms, body)
    read = {"record": _record, "receipt": _receipt, "settled": _settled}.get(body["type"])
    if read is None:
        return None  # it repeats records, or is about no partition, or a newer version's
    source = TopicPartition(str(body["topic"]), int(body["partition"]))
    return read((connector, source, place, at_ms), body)


def _foreign(connector: str, place: Place, at_ms: int, problem: str) -> Instance:
    where = TopicPartition(place.topic, place.partition)
    return Instance(connector, where, place, at_ms, 0, None, None, problem)


def _spec(connector: str, place: Place, at_ms: int, body: Mapping[str, Any]) -> Event:
    canonical, digest = str(body["text"]), str(body["digest"])
    if digest_of(canonical) != digest:
        problem = f"the load spec at {place} is not the one that {digest} names"
        return _foreign(connector, place, at_ms, problem)
    entries: dict[str, tuple[str, ...]] = {}
    tables = json.loads(canonical)["tables"]
    for table in tables:
        for topic in table["topics"]:
            entries[topic] = (*entries.get(topic, ()), str(table["entry"]))
    patterns = tuple(
        (str(table["topic_pattern"]), str(table["entry"]))
        for table in tables
        if table.get("topic_pattern")
    )
    return SpecSeen(connector, place, at_ms, digest, entries, patterns)


def _record(where: _Where, body: Mapping[str, Any]) -> Event:
    offset, metadata = int(body["begin"]), str(body["metadata"])
    record, problem = _decoded(offset, metadata)
    if record is not None and not _fits(record, body):
        record, problem = None, f"the entry at {where[2]} contradicts its record {metadata!r}"
    rest = {str(entry): rests.count(offsets) for entry, offsets in body.get("rest", {}).items()}
    return Instance(*where, offset, metadata, record, problem, str(body.get("why", "")), rest)


def _fits(record: Record, body: Mapping[str, Any]) -> bool:
    said = (body["kind"], body["end"], body["batch"], body["attempt"], body["owner"])
    kind = record.kind.word
    return bool(said == (kind, record.end, record.batch, record.attempt, record.owner))


def _receipt(where: _Where, body: Mapping[str, Any]) -> Event:
    return Acknowledged(
        *where,
        begin=int(body["begin"]),
        end=int(body["end"]),
        batch=int(body["batch"]),
        attempt=int(body["attempt"]),
        entry=str(body["entry"]),
        shard=str(body["shard"]),
        token=str(body["token"]),
        rows=int(body["rows"]),
        messages=int(body.get("messages", body["rows"])),
    )


def _settled(where: _Where, body: Mapping[str, Any]) -> Event:
    return Settled(
        *where,
        begin=int(body["begin"]),
        end=int(body["end"]),
        batch=int(body["batch"]),
        messages=int(body["messages"]),
        rows=int(body["rows"]),
        skipped=int(body["skipped"]),
        bad={str(n): int(count) for n, count in body["dead_letters_by_table"].items()},
        passed={str(n): int(count) for n, count in body.get("passed_by_table", {}).items()},
    )


def _decoded(offset: int, metadata: str) -> tuple[Record | None, str]:
    try:
        return decode(offset, metadata), ""
    except InvalidRecordError as error:
        return None, str(error)
