"""`__consumer_offsets`: every version of its keys and values, and a real broker's own."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.anomalies import Event, Forgotten, Instance
from sluice.core.records import Kind, encode
from sluice.kafka.offsets_topic import (
    OFFSETS_TOPIC,
    CommitKey,
    CommitValue,
    UnknownCommitFormatError,
    parse_key,
    parse_value,
    partition_of,
)
from sluice.kafka.topics import partition_count
from sluice.verify.history import OffsetsHistory, open_offsets
from tests.kafka.groups import SETTLED, Group, intend
from tests.support.kafka import Kafka

TEXT = st.text(max_size=40)
LONG = st.integers(-(2**63), 2**63 - 1)


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw


def compact(text: str) -> bytes:
    raw, out = text.encode(), b""
    length = len(raw) + 1
    while length >= 0x80:
        out += bytes([length & 0x7F | 0x80])
        length >>= 7
    return out + bytes([length]) + raw


def key_bytes(version: int, group: str, topic: str, partition: int) -> bytes:
    return struct.pack(">h", version) + string(group) + string(topic) + struct.pack(">i", partition)


def value_bytes(value: CommitValue) -> bytes:
    """As `OffsetCommitValue.json` of Kafka says."""
    out = struct.pack(">hq", value.version, value.offset)
    if value.version >= 3:
        out += struct.pack(">i", value.leader_epoch)
    out += compact(value.metadata) if value.version >= 4 else string(value.metadata)
    out += struct.pack(">q", value.committed_at_ms)
    if value.version == 1:
        out += struct.pack(">q", -1)
    if value.version >= 4:  # one tagged field: tag 0, 16 bytes of topic id
        out += b"\x01\x00\x10" + bytes(range(16))
    return out


@st.composite
def values(draw: st.DrawFn) -> CommitValue:
    version = draw(st.integers(0, 4))
    epoch = draw(st.integers(-1, 2**31 - 1)) if version >= 3 else -1
    return CommitValue(version, draw(LONG), epoch, draw(TEXT), draw(LONG))


@given(values())
def test_every_version_of_a_value(value: CommitValue) -> None:
    assert parse_value(value_bytes(value)) == value


@given(st.sampled_from([0, 1]), TEXT, TEXT, st.integers(0, 2**31 - 1))
def test_both_versions_of_a_key(version: int, group: str, topic: str, partition: int) -> None:
    found = parse_key(key_bytes(version, group, topic, partition))
    assert found == CommitKey(group, topic, partition)


def test_long_metadata_takes_more_bytes_of_length() -> None:
    value = CommitValue(4, 7, 0, "x" * 4096, 1)
    assert parse_value(value_bytes(value)) == value


@pytest.mark.parametrize("kind", [*range(2, 24), 99, -1])
def test_other_kinds_of_records_are_not_ours(kind: int) -> None:
    """Group metadata, and the records of consumer, share and streams groups of Kafka 4."""
    assert parse_key(struct.pack(">h", kind) + string("group") + string("member")) is None


def test_what_has_no_key_is_not_ours() -> None:
    assert parse_key(None) is None and parse_key(b"") is None and parse_key(b"\x00") is None


@pytest.mark.parametrize("version", range(5))
def test_a_damaged_value_is_refused(version: int) -> None:
    whole = value_bytes(CommitValue(version, 5, -1, "some metadata", 1))
    needed = len(whole) - {1: 8, 4: 19}.get(version, 0)
    for length in range(needed):
        with pytest.raises(UnknownCommitFormatError) as caught:
            parse_value(whole[:length])
        assert "--source ledger" in caught.value.hint


def test_a_damaged_key_is_refused() -> None:
    whole = key_bytes(1, "group", "topic", 3)
    for length in range(2, len(whole)):
        with pytest.raises(UnknownCommitFormatError):
            parse_key(whole[:length])


def test_a_version_that_is_to_come_is_refused() -> None:
    with pytest.raises(
        UnknownCommitFormatError, match="version 5 of a committed offset is not known"
    ):
        parse_value(b"\x00\x05" + bytes(40))


def test_the_partition_of_a_group_is_javas() -> None:
    # "polygenelubricants" has Java's hash of Integer.MIN_VALUE; "ä" is one UTF-16 unit.
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("hello", 1_000_000_000) == 99162322
    assert partition_of("ä", 50) == 0xE4 % 50
    assert partition_of("sluice.orders.dc1", 50) == 8
    # Below zero in Java: -191044978.
    assert partition_of("sluice.clicks.dc1", 50) == 28


# On a real broker


def read(group: Group, history: OffsetsHistory) -> list[Event]:
    group.committed()  # waits until the broker has marked the last transaction as committed
    history.tail.ask_end()
    found: list[Event] = []
    while not history.tail.caught_up:
        found += history.poll(0.5)
    return found


def opened(group: Group) -> OffsetsHistory:
    history = open_offsets(group.kafka.access(), group.name)
    assert history is not None
    return history


def offsets(events: list[Event]) -> list[int | None]:
    """Committed offsets; None for a tombstone."""
    return [event.offset if isinstance(event, Instance) else None for event in events]


@pytest.mark.slow
def test_what_a_broker_writes_is_read(group: Group) -> None:
    """Transactions that commit and abort, a stray consumer's commit, a deleted offset."""
    source = group.sources[0]
    driver = group.owning("a")
    driver.record(group.commit(intend("a", 0, 10)), {})
    aborting = group.kafka.writer()
    aborting.begin_transaction()
    metadata = encode(intend("b", 5, 10))
    where = ck.TopicPartition(source.topic, 0, 5, metadata=metadata)
    consumer = ck.Consumer({"bootstrap.servers": group.kafka.brokers, "group.id": group.name})
    aborting.send_offsets_to_transaction([where], consumer.consumer_group_metadata())
    aborting.abort_transaction(30)
    consumer.close()
    group.kafka.commit_as_consumer(group.name, source.topic, 7)  # with member records
    group.kafka.commit_as_consumer(f"{group.name}x", source.topic, 8)
    group.kafka.admin.delete_consumer_groups([group.name])[group.name].result(30)
    driver.record(group.commit(replace(SETTLED, owner="a", batch=9)), {})
    history = opened(group)
    events = read(group, history)
    assert offsets(events) == [0, 0, 7, None, 0]
    first, second, stray, tombstone, _ = events
    assert isinstance(first, Instance) and isinstance(second, Instance)
    assert first.record == replace(SETTLED, owner="a") and first.source == source
    assert second.record == intend("a", 0, 10)
    assert second.metadata == encode(intend("a", 0, 10))
    assert abs(second.at_ms - time.time() * 1000) < 600_000
    assert isinstance(stray, Instance) and stray.record is None
    assert stray.problem == "offset 7 was committed without metadata"
    assert isinstance(tombstone, Forgotten) and tombstone.source == source
    assert all(history.still_holds(event.place) for event in events)
    # What comes later is read on.
    driver.record(group.commit(intend("a", 0, 20, batch=10)), {})
    assert offsets(read(group, history)) == [0]
    history.close()


def test_a_cluster_in_which_nobody_committed(kafka: Kafka) -> None:
    assert partition_count(kafka.access(), "no-such-topic") == 0


@contextmanager
def eager_cleaner(kafka: Kafka) -> Iterator[None]:
    """A log cleaner that compacts the offsets topic all the time."""
    topic = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC)
    (number,) = kafka.admin.list_topics(timeout=15).brokers
    broker = ConfigResource(ResourceType.BROKER, str(number))
    eager = {
        topic: {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.0"},
        broker: {"log.cleaner.backoff.ms": "100"},
    }

    def alter(operation: AlterConfigOpType) -> None:
        resources = []
        for resource, settings in eager.items():
            entries = [
                ConfigEntry(name, value, incremental_operation=operation)
                for name, value in settings.items()
            ]
            resources.append(
                ConfigResource(resource.restype, resource.name, incremental_configs=entries)
            )
        for future in kafka.admin.incremental_alter_configs(resources).values():
            future.result(30)

    alter(AlterConfigOpType.SET)
    try:
        yield
    finally:
        alter(AlterConfigOpType.DELETE)


@pytest.mark.slow
def test_compaction_removes_the_oldest_first_and_is_noticed(group: Group) -> None:
    """What makes a contradiction certain: its first instance is still there."""
    driver = group.owning("a")
    for number in range(3):
        record = intend("a", 10 * number, 10 * number + 10, batch=number + 2)
        driver.record(group.commit(record), {})
    history = opened(group)
    events = read(group, history)
    assert offsets(events) == [0, 0, 10, 20]
    with eager_cleaner(group.kafka):
        deadline = time.monotonic() + 90
        number = 5
        while history.still_holds(events[2].place):
            assert time.monotonic() < deadline, "the offsets topic was not compacted"
            time.sleep(0.5)
            record = replace(SETTLED, kind=Kind.SETTLE, begin=30, end=30, batch=number)
            driver.record(group.commit(record), {})  # a segment rolls when it is written to
            number += 1
    again = opened(group)
    left = read(group, again)
    assert not any(history.still_holds(event.place) for event in events[:3])
    assert offsets(left)[-1] == 30
    # The oldest are gone; among those that are left, none is missing.
    batches = [event.record.batch for event in left if isinstance(event, Instance) and event.record]
    assert batches == list(range(number - len(batches), number))
    assert len(batches) < number
    again.close()
    history.close()
