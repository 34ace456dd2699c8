"""Reading the ranges of a bundle, one after the other, in one call: what every reader must do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import confluent_kafka as ck
import pytest

from sluice.core.bundles import OFFSET_BITS
from sluice.core.errors import SluiceError
from sluice.core.ranges import Range, TopicPartition
from sluice.kafka import reader as reader_module
from sluice.kafka.errors import RangeVanishedError, StalledError, UnreadRangeError
from sluice.kafka.reader import ReadResult, Wanted
from tests.kafka.test_reader import NO_LIMIT, Reading, counts
from tests.support.kafka import Kafka, numbered


@pytest.fixture(params=["librdkafka", "native"])
def reading(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Reading]:
    made = Reading(kafka, request.param)
    yield made
    made.reader.close()


def writer(kafka: Kafka, **settings: str | int) -> ck.Producer:
    """A producer that keeps the order also where the broker wants a request again."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ck.Producer({"bootstrap.servers": kafka.brokers, "enable.idempotence": True, **named})


@contextmanager
def is_unread(
    number: int, reason: type[SluiceError]
) -> Iterator[pytest.ExceptionInfo[UnreadRangeError]]:
    """This range, and none of the others, is told to be what could not be read."""
    with pytest.raises(UnreadRangeError) as caught:
        yield caught
    assert caught.value.number == number
    assert isinstance(caught.value.reason, reason)


def ranges_of(topic: str, *spans: tuple[int, int]) -> list[Range]:
    """One of each partition."""
    return [Range(TopicPartition(topic, p), *span) for p, span in enumerate(spans)]


def divided(reading: Reading, count: int) -> list[list[tuple[int, bytes]]]:
    """What was delivered of each range: offsets and values, which came in the block's order."""
    assert reading.offsets == sorted(reading.offsets)
    found: list[list[tuple[int, bytes]]] = [[] for _ in range(count)]
    for place, value in zip(reading.offsets, reading.values, strict=True):
        found[place >> OFFSET_BITS].append((place & ((1 << OFFSET_BITS) - 1), value))
    return found


def result_of(values: Sequence[bytes]) -> ReadResult:
    return ReadResult(len(values), sum(map(len, values)), 0)


@pytest.mark.parametrize("count", [1, 2, 100])
def test_every_range_in_its_turn(kafka: Kafka, reading: Reading, count: int) -> None:
    topic = kafka.topic(partitions=count)
    sizes = [(37 * partition) % 91 + 3 for partition in range(count)]
    for partition, size in enumerate(sizes):
        kafka.produce(topic, numbered(size, 1000 * partition), partition)
    spans = [(size // 3, size - 1 - partition % 2) for partition, size in enumerate(sizes)]
    for _ in range(2):  # by new connections, and by those that are kept
        results = reading.read_ranges(ranges_of(topic, *spans))
        found = divided(reading, count)
        for partition, (begin, end) in enumerate(spans):
            values = numbered(end - begin, 1000 * partition + begin)
            assert found[partition] == list(zip(range(begin, end), values, strict=True))
            assert counts(results[partition]) == result_of(values)


def test_ranges_of_several_topics_in_any_order(kafka: Kafka, reading: Reading) -> None:
    topics = [kafka.topic(partitions=2) for _ in range(3)]
    wanted = [Range(TopicPartition(t, p), 1, 40) for p in (1, 0) for t in topics]
    for number, each in enumerate(wanted):
        kafka.produce(each.source.topic, numbered(50, 100 * number), each.source.partition)
    reading.read_ranges(wanted)
    for number, found in enumerate(divided(reading, len(wanted))):
        assert [value for _, value in found] == numbered(39, 100 * number + 1)


def test_empty_ranges_between_others(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(partitions=4)
    for partition in range(4):
        kafka.produce(topic, numbered(5), partition)
    results = reading.read_ranges(ranges_of(topic, (2, 2), (0, 5), (5, 5), (4, 5)))
    assert [result.messages for result in results] == [0, 5, 0, 1]
    assert [len(found) for found in divided(reading, 4)] == [0, 5, 0, 1]
    assert reading.read_ranges(ranges_of(topic, (0, 0), (0, 0))) == (ReadResult(0, 0, 0),) * 2


def test_markers_and_aborted_messages_are_holes(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(partitions=4)
    kafka.transaction(topic, [b"aborted"] * 3, 0, commit=False)  # nothing but holes
    kafka.transaction(topic, numbered(2), 1)
    kafka.transaction(topic, [b"aborted"] * 2, 1, commit=False)
    kafka.produce(topic, numbered(3, 10), 1)
    kafka.produce(topic, numbered(3, 20), 2)
    kafka.transaction(topic, [b"aborted"], 2, commit=False)
    kafka.transaction(topic, numbered(1, 30), 3)
    ends = (4, 9, 5, 2)
    for partition, end in enumerate(ends):
        kafka.until(lambda p=partition, e=end: kafka.stable_end(topic, p) == e)  # type: ignore[misc]
    for _ in range(2):
        results = reading.read_ranges(ranges_of(topic, *((0, end) for end in ends)))
        assert [[offset for offset, _ in found] for found in divided(reading, 4)] == [
            [],
            [0, 1, 6, 7, 8],
            [0, 1, 2],
            [0],
        ]
        assert [result.messages for result in results] == [0, 5, 3, 1]
    reading.read_ranges(ranges_of(topic, (1, 4), (1, 5), (4, 5), (1, 2)))
    assert [len(found) for found in divided(reading, 4)] == [0, 1, 0, 0]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(kafka: Kafka, reading: Reading, codec: str) -> None:
    topic = kafka.topic(partitions=3)
    producer = writer(kafka, compression_type=codec, linger_ms=50)
    dice = random.Random(codec)
    of = [[dice.randbytes(dice.randrange(3000)).hex().encode() for _ in range(400)] for _ in "123"]
    for partition, values in enumerate(of):
        for value in values:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    results = reading.read_ranges(ranges_of(topic, (0, 400), (150, 170), (7, 399)))
    found = [[value for _, value in of_one] for of_one in divided(reading, 3)]
    assert found == [of[0], of[1][150:170], of[2][7:399]]
    assert tuple(map(counts, results)) == tuple(map(result_of, found))


def test_tombstones_are_counted_for_their_range(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [(b"k", b"one"), (b"k", None)], 0)
    kafka.produce(topic, [(b"key", None), b"two"], 1)
    results = reading.read_ranges(ranges_of(topic, (0, 2), (0, 2)))
    assert tuple(map(counts, results)) == (
        ReadResult(messages=2, bytes=len("kone" + "k"), skipped=1),
        ReadResult(messages=2, bytes=len("key" + "two"), skipped=1),
    )
    assert divided(reading, 2) == [[(0, b"one")], [(1, b"two")]]


def test_messages_larger_than_a_fetch_among_small_ones(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(partitions=5, max_message_bytes="9000000")
    producer = writer(kafka, message_max_bytes=9_000_000)
    of = [
        numbered(10),
        [b"before", b"x" * 5_000_000, b"after"],
        numbered(10, 10),
        [b"y" * 3_000_000],
        numbered(10, 20),
    ]
    for partition, values in enumerate(of):
        for value in values:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    for _ in range(2):  # when nothing is known of the sizes, and when all is
        reading.read_ranges(ranges_of(topic, *((0, len(values)) for values in of)))
        assert [[value for _, value in found] for found in divided(reading, 5)] == of


def test_the_limit_is_of_all_together(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        kafka.produce(topic, [(b"k" * 10, b"v" * 90)] * 20, partition)
    wanted = ranges_of(topic, (0, 20), (3, 20), (0, 20))
    assert reading.read_ranges(wanted, 5700)[-1].heavy_at is None
    assert len(divided(reading, 3)[2]) == 20
    heavy = reading.read_ranges(wanted, 5699)
    assert heavy[-1].heavy_at is not None and len(heavy) <= 3
    heavy = reading.read_ranges(wanted, 2550)
    assert heavy[-1].heavy_at is not None
    assert all(result.heavy_at is None for result in heavy[:-1])
    assert sum(result.bytes for result in heavy) <= 2550
    reading.read_ranges(wanted)  # nothing is left of it
    assert [len(found) for found in divided(reading, 3)] == [20, 17, 20]


def test_one_message_is_always_allowed_but_not_two(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"x" * 5000], 0)
    kafka.produce(topic, [b"y"], 1)
    assert reading.read_ranges(ranges_of(topic, (0, 1), (0, 0)), 100)[-1].heavy_at is None
    assert reading.values == [b"x" * 5000]
    assert reading.read_ranges(ranges_of(topic, (0, 1), (0, 1)), 100)[-1].heavy_at is not None


def test_a_range_whose_messages_expired_is_named(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        kafka.produce(topic, numbered(100), partition)
    kafka.delete_records(topic, 50, 1)
    with is_unread(1, RangeVanishedError) as caught:
        reading.read_ranges(ranges_of(topic, (0, 60), (20, 60), (0, 60)))
    assert f"{topic}[1][20, 60)" in str(caught.value)
    reading.read_ranges(ranges_of(topic, (0, 60), (50, 60), (0, 60)))
    assert [len(found) for found in divided(reading, 3)] == [60, 10, 60]


def test_a_range_beyond_the_end_is_named(
    kafka: Kafka, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        kafka.produce(topic, numbered(10), partition)
    reading.read_ranges(ranges_of(topic, (0, 10), (0, 10), (0, 10)))  # connections are opened
    monkeypatch.setattr(reader_module, "STALL_SECONDS", 1.0)
    with is_unread(1, RangeVanishedError) as caught:
        reading.read_ranges(ranges_of(topic, (0, 10), (0, 20), (0, 10)))
    assert f"{topic}[1][0, 20)" in str(caught.value) and "holds [0, 10)" in str(caught.value)


def test_a_topic_that_is_gone_is_named(
    kafka: Kafka, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [kafka.topic() for _ in range(3)]
    for topic in topics:
        kafka.produce(topic, numbered(10))
    wanted = [Range(TopicPartition(topic, 0), 0, 10) for topic in topics]
    reading.read_ranges(wanted)
    kafka.delete_topic(topics[1])
    with monkeypatch.context() as patch, is_unread(1, SluiceError) as caught:
        patch.setattr(reader_module, "STALL_SECONDS", 1.0)
        reading.read_ranges(wanted)
    assert topics[1] in str(caught.value)
    reading.read_ranges([wanted[0], wanted[2]])
    assert reading.values == [*numbered(10)] * 2


def test_a_later_epoch_is_noticed_in_every_range(kafka: Kafka, reading: Reading) -> None:
    """All messages here are of epoch 0, so a range that was vouched for below it was cut."""
    topic = kafka.topic(partitions=2)
    for partition in range(2):
        kafka.produce(topic, numbered(5), partition)
    first, second = ranges_of(topic, (0, 5), (0, 5))
    take = reading._take
    assert (
        len(reading.reader.read_ranges([Wanted(first, 0), Wanted(second, 0)], NO_LIMIT, take)) == 2
    )
    with is_unread(1, RangeVanishedError) as caught:
        reading.reader.read_ranges([Wanted(first, 0), Wanted(second, -2)], NO_LIMIT, take)
    assert str(second) in str(caught.value) and "leader epoch" in str(caught.value)


def test_a_leader_of_an_earlier_epoch_than_the_one_that_vouched_is_not_read(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was cut off takes itself for the leader that it was. What it has beyond the
    offset where the next leader began is nobody's any more."""
    reading = Reading(kafka, "native")
    topic = kafka.topic()
    kafka.produce(topic, numbered(5))
    (block_range,) = ranges_of(topic, (0, 5))
    with monkeypatch.context() as patch, is_unread(0, StalledError) as caught:
        patch.setattr(reader_module, "STALL_SECONDS", 0.3)
        reading.reader.read_ranges([Wanted(block_range, 1)], NO_LIMIT, reading._take)
    assert reading.values == [] and "UNKNOWN_LEADER_EPOCH" in str(caught.value)
    reading.reader.read_ranges([Wanted(block_range, 0)], NO_LIMIT, reading._take)
    assert reading.values == numbered(5)
    reading.reader.close()
