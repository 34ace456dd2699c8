"""Reading exactly one range of a real log (H20, R12): what every reader must do."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import confluent_kafka as ck
import pytest

from sluice.core.bundles import place_of
from sluice.core.errors import SluiceError
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetterReason
from sluice.kafka import reader as reader_module
from sluice.kafka.errors import RangeVanishedError, StalledError, UnreadRangeError
from sluice.kafka.reader import RangeReader, ReadResult, Wanted, read_originals
from sluice.kafka.readers import Reader, make_reader
from sluice.kafka.wire import messages
from tests.support.kafka import Kafka, numbered

NO_LIMIT = 1 << 40


class Reading:
    """A reader, and what it delivered last."""

    def __init__(self, kafka: Kafka, name: str) -> None:
        self.name = name
        self.reader: Reader = make_reader(replace(kafka.access(), reader=name))
        self.values: list[bytes] = []
        self.offsets: list[int] = []

    def read(self, topic: str, begin: int, end: int, bytes_max: int = NO_LIMIT) -> ReadResult:
        self.values, self.offsets = [], []
        try:
            return self.read_ranges([Range(TopicPartition(topic, 0), begin, end)], bytes_max)[0]
        except UnreadRangeError as unread:
            assert unread.number == 0
            raise unread.reason from None

    def read_ranges(
        self, ranges: Sequence[Range], bytes_max: int = NO_LIMIT
    ) -> tuple[ReadResult, ...]:
        self.values, self.offsets = [], []
        wanted = [Wanted(each, base=place_of(n, 0)) for n, each in enumerate(ranges)]
        return self.reader.read_ranges(wanted, bytes_max, self._take)

    def _take(self, values: list[bytes], offsets: Sequence[int]) -> None:
        assert len(values) == len(offsets)
        self.values += values
        self.offsets += offsets


def counts(result: ReadResult) -> ReadResult:
    """Without the timestamps."""
    return replace(result, oldest_ms=None, last_ms=None)


@pytest.fixture(params=["librdkafka", "native"])
def reading(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Reading]:
    made = Reading(kafka, request.param)
    yield made
    made.reader.close()


def test_exactly_the_range(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, numbered(3000))
    for begin, end in ((0, 3000), (0, 1), (700, 2311), (2999, 3000)):
        result = reading.read(topic, begin, end)
        assert reading.offsets == list(range(begin, end))
        assert reading.values == numbered(end - begin, begin)
        assert counts(result) == ReadResult(end - begin, sum(map(len, reading.values)), 0)


@pytest.mark.parametrize("by", ["CreateTime", "LogAppendTime"])
def test_the_oldest_and_the_last_timestamp(kafka: Kafka, reading: Reading, by: str) -> None:
    topic = kafka.topic(message_timestamp_type=by)
    before_ms = time.time_ns() // 1_000_000
    producer = ck.Producer({"bootstrap.servers": kafka.brokers, "linger.ms": 10_000})
    for sent_ms in (7_000, 8_000, 6_000):
        producer.produce(topic, b"{}", partition=0, timestamp=sent_ms)
    assert producer.flush(30) == 0
    found = reading.read(topic, 0, 3)
    oldest_ms, last_ms = found.oldest_ms, found.last_ms
    assert oldest_ms is not None and last_ms is not None
    if by == "LogAppendTime":
        assert oldest_ms >= before_ms and last_ms >= before_ms
    else:
        assert last_ms == (7_000 if reading.name == "native" else 6_000)  # they are one batch
        assert oldest_ms == (6_000 if reading.name == "native" else 7_000)
        assert reading.read(topic, 1, 2).oldest_ms == 8_000
    assert reading.read(topic, 3, 3).last_ms is None


def test_an_empty_range_reads_nothing(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    assert reading.read(topic, 0, 0) == ReadResult(0, 0, 0)


def test_consecutive_ranges_reuse_the_connection(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, numbered(5000))
    source = TopicPartition(topic, 0)

    def connection() -> object:
        reader = reading.reader
        if isinstance(reader, RangeReader):
            return reader._consumers[source][0]
        return reader._cluster.connection(reader._cluster.leader(source))

    reading.read(topic, 0, 333)
    kept = connection()
    for begin, end in ((333, 334), (334, 2000), (2000, 5000)):
        reading.read(topic, begin, end)
        assert reading.offsets == list(range(begin, end))
        assert connection() is kept
    reading.read(topic, 100, 250)  # again, for a replay
    assert reading.offsets == list(range(100, 250))


def test_messages_that_come_later_are_read_by_a_kept_consumer(
    kafka: Kafka, reading: Reading
) -> None:
    topic = kafka.topic()
    for begin in (0, 10, 20):
        kafka.produce(topic, numbered(10, begin))
        reading.read(topic, begin, begin + 10)
        assert reading.values == numbered(10, begin)


def test_an_aborted_tail_ends_a_range(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, numbered(5))
    kafka.transaction(topic, [b"aborted"] * 4, commit=False)
    kafka.until(lambda: kafka.stable_end(topic) == 10)  # five, four aborted, the marker
    result = reading.read(topic, 0, 10)
    assert reading.offsets == [0, 1, 2, 3, 4]
    assert result.messages == 5
    for begin, end in ((5, 10), (6, 8), (9, 10)):  # nothing but aborted data and the marker
        assert reading.read(topic, begin, end).messages == 0
        assert reading.offsets == []


def test_transaction_markers_are_holes(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    for first in (0, 2, 4):
        kafka.transaction(topic, numbered(2, first))
    kafka.until(lambda: kafka.stable_end(topic) == 9)
    reading.read(topic, 0, 9)
    assert reading.offsets == [0, 1, 3, 4, 6, 7]
    for begin, end, offsets in ((0, 3, [0, 1]), (2, 5, [3, 4]), (2, 3, []), (5, 9, [6, 7])):
        reading.read(topic, begin, end)
        assert reading.offsets == offsets, (begin, end)
    kafka.transaction(topic, numbered(1, 6))
    kafka.until(lambda: kafka.stable_end(topic) == 11)
    reading.read(topic, 9, 11)  # the kept consumer stood behind the last marker
    assert reading.offsets == [9]


def test_a_foreign_open_transaction_holds_the_stable_end(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, numbered(3))
    foreign = kafka.open_transaction(topic, [b"open"] * 2)
    kafka.produce(topic, numbered(4, 3))
    assert kafka.stable_end(topic) == 3
    reading.read(topic, 0, 3)
    assert reading.offsets == [0, 1, 2]
    foreign.abort_transaction(30)
    kafka.until(lambda: kafka.stable_end(topic) == 10)
    reading.read(topic, 3, 10)
    assert reading.offsets == [5, 6, 7, 8]


def test_interleaved_transactions(kafka: Kafka, reading: Reading) -> None:
    """Of each producer some are aborted; their messages lie between those of the others."""
    topic = kafka.topic()
    producers = [kafka.writer() for _ in range(3)]
    expected: list[bytes] = []
    for turn in range(6):
        for producer in producers:
            producer.begin_transaction()
        values = numbered(9, 9 * turn)
        for index, value in enumerate(values):
            producers[index % 3].produce(topic, value, partition=0)
            producers[index % 3].flush(30)
        for number, producer in enumerate(producers):
            if (turn + number) % 2:
                producer.commit_transaction(30)
                expected += values[number::3]
            else:
                producer.abort_transaction(30)
    written = 6 * (9 + 3)
    kafka.until(lambda: kafka.stable_end(topic) == written)
    reading.read(topic, 0, written)
    assert sorted(reading.values, key=int) == sorted(expected, key=int)
    whole = list(zip(reading.offsets, reading.values, strict=True))
    for begin in range(0, written, 5):
        reading.read(topic, begin, min(begin + 7, written))
        part = list(zip(reading.offsets, reading.values, strict=True))
        assert part == [pair for pair in whole if begin <= pair[0] < begin + 7]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(kafka: Kafka, reading: Reading, codec: str) -> None:
    topic = kafka.topic()
    big = random.Random(1).randbytes(300_000)
    expected = [*numbered(2000), big, b"", b"x" * 400_000, *numbered(2000)]
    producer = ck.Producer(
        {"bootstrap.servers": kafka.brokers, "compression.type": codec, "linger.ms": 100}
    )
    for value in expected:
        producer.produce(topic, value, key=b"key", partition=0, headers={"h": b"v" * 100})
    assert producer.flush(30) == 0
    result = reading.read(topic, 0, len(expected))
    assert reading.values == expected
    assert result.bytes == sum(map(len, expected)) + 3 * len(expected)
    reading.read(topic, 1990, 2010)
    assert reading.values == expected[1990:2010]


def test_a_message_larger_than_a_fetch(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic(max_message_bytes="9000000")
    expected = [b"before", b"x" * 5_000_000, b"y" * 3_000_000, b"after"]
    producer = ck.Producer({"bootstrap.servers": kafka.brokers, "message.max.bytes": 9_000_000})
    for value in expected:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    reading.read(topic, 0, 4)
    assert reading.values == expected


def test_tombstones_are_counted_and_not_delivered(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [(b"k", b"one"), (b"k", None), b"two", (b"key", None)])
    result = reading.read(topic, 0, 4)
    assert reading.values == [b"one", b"two"]
    assert reading.offsets == [0, 2]
    size = len("kone" + "k" + "two" + "key")
    assert counts(result) == ReadResult(messages=4, bytes=size, skipped=2)


def test_too_heavy_is_a_function_of_the_range(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [(b"k" * 10, b"v" * 90)] * 1500)
    verdicts = {reading.read(topic, 0, 1500, bytes_max=100_050).heavy_at for _ in range(3)}
    assert verdicts == {1000}  # a thousand messages of a hundred bytes fit
    assert reading.read(topic, 0, 1000, bytes_max=100_050).heavy_at is None
    assert reading.read(topic, 0, 1001, bytes_max=100_050).heavy_at == 1000
    other = Reading(kafka, reading.name)
    other.read(topic, 0, 200)  # whatever was read before
    assert other.read(topic, 200, 1500, bytes_max=50_000).heavy_at == 700
    other.reader.close()


def test_one_message_is_always_allowed(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"x" * 5000, b"y" * 5000])
    assert reading.read(topic, 0, 1, bytes_max=100).heavy_at is None
    assert reading.values == [b"x" * 5000]
    assert reading.read(topic, 0, 2, bytes_max=100).heavy_at == 1


def test_a_heavy_first_message_after_a_hole_is_allowed(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.transaction(topic, [b"aborted"], commit=False)
    kafka.produce(topic, [b"x" * 5000, b"y"])
    kafka.until(lambda: kafka.stable_end(topic) == 4)
    assert reading.read(topic, 0, 3, bytes_max=100).heavy_at is None
    assert reading.read(topic, 0, 4, bytes_max=100).heavy_at == 3


def test_vanished_offsets_are_told(kafka: Kafka, reading: Reading) -> None:
    topic = kafka.topic()
    kafka.produce(topic, numbered(100))
    kafka.delete_records(topic, 50)
    with pytest.raises(RangeVanishedError) as caught:
        reading.read(topic, 20, 60)
    assert f"{topic}[0][20, 60)" in str(caught.value)
    assert "sluice adopt" in caught.value.hint
    reading.read(topic, 50, 60)
    assert reading.offsets == list(range(50, 60))


def test_offsets_beyond_the_end_are_told_not_waited_for(
    kafka: Kafka, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "STALL_SECONDS", 0.5)
    topic = kafka.topic()
    kafka.produce(topic, numbered(10))
    with pytest.raises(RangeVanishedError, match=r"it holds \[0, 10\)"):
        reading.read(topic, 0, 20)
    with pytest.raises(RangeVanishedError):
        reading.read(topic, 15, 20)


def test_a_stall_is_not_taken_for_a_loss(
    kafka: Kafka, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log holds the offsets, and nothing comes: here because the time is too short."""
    monkeypatch.setattr(reader_module, "STALL_SECONDS", -1.0)
    monkeypatch.setattr(reader_module, "POLL_TIMEOUT_SECONDS", 0.0)
    if reading.name == "native":  # it waits for the broker's answer, so the answer is empty
        monkeypatch.setattr(messages, "read_fetched", lambda *_: (0, 0, []))
    topic = kafka.topic()
    kafka.produce(topic, numbered(10))
    with pytest.raises(StalledError) as caught:
        reading.read(topic, 0, 10)
    assert isinstance(caught.value, SluiceError) and "leader" in caught.value.hint


def test_consumers_are_bounded(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(kafka, "librdkafka")
    assert isinstance(reading.reader, RangeReader)
    monkeypatch.setattr(reader_module, "CONSUMERS_MAX", 2)
    topics = [kafka.topic() for _ in range(3)]
    for topic in topics:
        kafka.produce(topic, [b"x"])
        reading.read(topic, 0, 1)
    assert [source.topic for source in reading.reader._consumers] == topics[1:]
    reading.reader.close()


def test_the_original_of_the_only_message_is_read(kafka: Kafka) -> None:
    """No neighbour and no marker of a transaction makes up for an end that is one too low."""
    topic = kafka.topic()
    kafka.produce(topic, [b"bad"])
    kafka.until(lambda: kafka.stable_end(topic) == 1)
    fault = DeadLetterReason("orders", "syntax", "not an object", "id")
    block_range = Range(TopicPartition(topic, 0), 0, 1)
    (letter,) = read_originals(kafka.access(), block_range, {0: (fault,)}, 100)
    assert (letter.offset, letter.value) == (0, b"bad")


def test_originals_of_bad_messages(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.transaction(topic, [(b"k1", b"bad one"), b"good"])
    kafka.produce(topic, [(b"k3", b"worse" * 100), None])
    kafka.until(lambda: kafka.stable_end(topic) == 5)
    block_range = Range(TopicPartition(topic, 0), 0, 5)
    fault = DeadLetterReason("orders", "syntax", "not an object", "id")
    twice = (fault, DeadLetterReason("clicks", "value", "too large"))
    dead_letters = read_originals(kafka.access(), block_range, {0: twice, 3: (fault,)}, 100)
    assert [(x.offset, x.table, x.reason, x.column) for x in dead_letters] == [
        (0, "orders", "syntax", "id"),
        (0, "clicks", "value", ""),
        (3, "orders", "syntax", "id"),
    ]
    assert [(x.key, x.value, x.truncated) for x in dead_letters] == [
        (b"k1", b"bad one", False),
        (b"k1", b"bad one", False),
        (b"k3", None, True),  # beyond the cap: a pointer
    ]
    assert all(x.topic == topic and (x.timestamp_ms or 0) > 0 for x in dead_letters)
