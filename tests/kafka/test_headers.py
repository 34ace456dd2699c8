"""Headers whose names are no UTF-8, as producers write them that take names for bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetterReason
from sluice.core.routing import Seen
from sluice.kafka import reader
from sluice.kafka.headers import UNREADABLE_NAME, Headers, headers_of
from sluice.kafka.reader import RangeReader, Wanted, read_originals
from sluice.kafka.readers import make_reader
from sluice.kafka.wire import messages
from tests.kafka.batches import Entry, batch
from tests.support.kafka import Kafka

MANY = 1 << 40
PRODUCE, PRODUCE_VERSION = 0, 3
FAULT = DeadLetterReason("orders", "syntax", "not an object")
#: What is written, and what is told of it, of each message.
NAMES: Sequence[tuple[tuple[tuple[bytes, bytes | None], ...], Headers]] = (
    ((), []),
    (((b"table", b"orders"), (b"b\xfc", b"1")), [("table", b"orders"), (UNREADABLE_NAME, b"1")]),
    (((b"table", b"clicks"), (b"b", None)), [("table", b"clicks"), ("b", None)]),
    (
        ((b"\xff", None), ("größe".encode(), b"2"), (b"\xfe\xfd", b"3"), (b"table", b"orders")),
        [(UNREADABLE_NAME, None), ("größe", b"2"), (UNREADABLE_NAME, b"3"), ("table", b"orders")],
    ),
)
#: So many that Python has specialised whatever is called for each of them.
COUNT = 200


@pytest.fixture
def range_reader(kafka: Kafka) -> Iterator[RangeReader]:
    made = RangeReader(kafka.access())
    yield made
    made.close()


def produced(kafka: Kafka) -> Range:
    """Messages with these headers again and again. confluent-kafka takes names for text, so the
    batch goes to the broker as it is."""
    topic = kafka.topic()
    entries = [
        Entry(n, b"value %d" % n, headers=NAMES[n % len(NAMES)][0], at_ms=1_700_000_000_000)
        for n in range(COUNT)
    ]
    records = batch(entries)
    body = struct.pack(">hhii", -1, -1, 10_000, 1) + messages.text(topic)
    body += struct.pack(">iii", 1, 0, len(records)) + records
    host, port = kafka.brokers.split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(messages.request(PRODUCE, 1, "test", body, PRODUCE_VERSION))
        answer = connection.recv(4096)
    at = 8 + 4 + 2 + len(topic) + 4 + 4
    assert struct.unpack_from(">hq", answer, at) == (0, 0)
    return Range(TopicPartition(topic, 0), 0, COUNT)


def test_what_routes_and_columns_are_told(kafka: Kafka, range_reader: RangeReader) -> None:
    seen: list[Seen] = []
    range_reader.read(produced(kafka), MANY, lambda values, offsets: None, seen.extend)
    expected = [NAMES[n % len(NAMES)][1] for n in range(COUNT)]
    assert [headers for _, headers, _ in seen] == expected


def test_dead_letters_have_all_that_can_be_read(
    kafka: Kafka, range_reader: RangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_range = produced(kafka)
    wanted: dict[int, Sequence[DeadLetterReason]] = dict.fromkeys(range(COUNT), (FAULT,))
    expected = [tuple(NAMES[n % len(NAMES)][1]) for n in range(COUNT)]
    letters = read_originals(kafka.access(), block_range, wanted, MANY)
    assert [letter.headers for letter in letters] == expected
    native = make_reader(replace(kafka.access(), reader="native"))
    assert native.dead_letters(Wanted(block_range), wanted, {}, MANY) == letters
    native.close()
    # The next range keeps what dead letters need, of good messages, too.
    values = {n: b"value %d" % n for n in range(COUNT)}
    range_reader.dead_letters(Wanted(block_range), wanted, values, MANY)
    monkeypatch.delattr(reader, "read_originals")
    range_reader.read(block_range, MANY, lambda values, offsets: None)
    assert range_reader.dead_letters(Wanted(block_range), wanted, values, MANY) == letters


def test_a_message_is_asked_as_often_as_one_likes(kafka: Kafka) -> None:
    found = kafka.read(produced(kafka).source.topic)
    for _ in range(3):
        assert [headers_of(message) for message in found[:4]] == [told for _, told in NAMES]
