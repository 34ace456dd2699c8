"""What dead letters need of their messages: kept while a range is read, or read again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import confluent_kafka as ck
import pytest

from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetter, DeadLetterReason
from sluice.kafka import originals, reader
from sluice.kafka.reader import RangeReader, Wanted, read_originals
from sluice.kafka.readers import make_reader
from tests.support.kafka import Kafka

MANY = 1 << 40
FAULT, OTHER = (
    DeadLetterReason("orders", "syntax", "not an object", "id"),
    DeadLetterReason("clicks", "value", "no"),
)


@pytest.fixture
def range_reader(kafka: Kafka) -> Iterator[RangeReader]:
    made = RangeReader(kafka.access())
    yield made
    made.close()


def produced(kafka: Kafka, count: int, header: bytes = b"h") -> tuple[str, Range]:
    """A topic of messages with and without keys and headers, with tombstones."""
    topic = kafka.topic()
    producer = ck.Producer({"bootstrap.servers": kafka.brokers, "log_level": 0})
    for number in range(count):
        producer.produce(
            topic,
            None if number % 10 == 9 else b"value %d" % number,
            b"key %d" % number if number % 3 else None,
            timestamp=1_700_000_000_000 + number,
            headers=[("a", header), ("b", None)] if number % 7 == 0 else None,
        )
    assert producer.flush(20) == 0
    return topic, Range(TopicPartition(topic, 0), 0, count)


def dead_letters_of(
    range_reader: RangeReader, block_range: Range, wanted: dict[int, Sequence[DeadLetterReason]]
) -> tuple[DeadLetter, ...]:
    """As a task does it: the values come from what was delivered."""
    values: dict[int, bytes] = {}

    def take(polled: list[bytes], offsets: Sequence[int]) -> None:
        values.update(zip(offsets, polled, strict=True))

    range_reader.read(block_range, MANY, take)
    some = {offset: values[offset] for offset in wanted}
    return range_reader.dead_letters(Wanted(block_range), wanted, some, MANY)


def test_both_readers_read_the_same_again(kafka: Kafka) -> None:
    _, block_range = produced(kafka, 1500)
    some = random.Random(1).sample(range(1500), 200)
    wanted: dict[int, Sequence[DeadLetterReason]] = dict.fromkeys(some, (FAULT, OTHER))
    native = make_reader(replace(kafka.access(), reader="native"))
    try:
        for bytes_max in (MANY, 2_000):
            expected = read_originals(kafka.access(), block_range, wanted, bytes_max)
            found = native.dead_letters(Wanted(block_range), wanted, {}, bytes_max)
            assert found == expected and len(found) == 400
            assert any(letter.truncated for letter in found) == (bytes_max == 2_000)
    finally:
        native.close()


def test_what_was_kept_is_what_is_read_again(
    kafka: Kafka, range_reader: RangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, block_range = produced(kafka, 1500)
    wanted: dict[int, Sequence[DeadLetterReason]] = {1: (FAULT,), 7: (FAULT, OTHER), 700: (OTHER,)}
    wanted |= dict.fromkeys(range(1000, 1009), (FAULT,))
    expected = read_originals(kafka.access(), block_range, wanted, MANY)
    assert len(expected) == 13 and expected[0].key == b"key 1"
    assert dead_letters_of(range_reader, block_range, wanted) == expected

    def refuse(*_: object) -> tuple[DeadLetter, ...]:
        raise AssertionError("read again")

    # The range before had bad messages: from now on the reader keeps what dead letters need.
    monkeypatch.setattr(reader, "read_originals", refuse)
    assert dead_letters_of(range_reader, block_range, wanted) == expected
    assert dead_letters_of(range_reader, block_range, wanted) == expected


def test_too_much_to_keep_is_read_again(
    kafka: Kafka, range_reader: RangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(originals, "KEPT_BYTES_MAX", 5_000)
    _, block_range = produced(kafka, 300, header=b"x" * 500)
    wanted: dict[int, Sequence[DeadLetterReason]] = {0: (FAULT,), 280: (OTHER,)}
    expected = read_originals(kafka.access(), block_range, wanted, MANY)
    for _ in range(2):
        assert dead_letters_of(range_reader, block_range, wanted) == expected
    assert [len(letter.headers) for letter in expected] == [2, 2]


def test_values_that_are_not_at_hand_or_too_many_are_read_again(
    kafka: Kafka, range_reader: RangeReader
) -> None:
    _, block_range = produced(kafka, 20)
    wanted: dict[int, Sequence[DeadLetterReason]] = {3: (FAULT,), 5: (FAULT,)}
    dead_letters_of(range_reader, block_range, wanted)
    for values in ({3: b"value 3"}, {3: b"value 3", 5: b"value 5"}):
        range_reader.read(block_range, MANY, lambda values, offsets: None)
        dead_letters = range_reader.dead_letters(Wanted(block_range), wanted, values, 10)
        assert [(x.offset, x.value, x.truncated) for x in dead_letters] == [
            (3, b"value 3", False),
            (5, None, True),
        ]


def test_another_range_has_nothing_of_the_last_one(kafka: Kafka, range_reader: RangeReader) -> None:
    topic, block_range = produced(kafka, 100)
    first, second = (Range(TopicPartition(topic, 0), *ends) for ends in ((0, 50), (50, 100)))
    dead_letters_of(range_reader, block_range, {1: (FAULT,)})
    range_reader.read(first, MANY, lambda values, offsets: None)
    dead_letters = range_reader.dead_letters(
        Wanted(second), {60: (FAULT,)}, {60: b"value 60"}, MANY
    )
    assert dead_letters == read_originals(kafka.access(), second, {60: (FAULT,)}, MANY)
