"""Dead letters as Kafka messages, and marks among them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import confluent_kafka as ck
import pytest

from sluice.core.ranges import intervals_of
from sluice.core.receipts import DeadLetter, Origin
from sluice.kafka.dead_letters import (
    DeadLetterKey,
    DeadLetterTopic,
    Outgoing,
    Purged,
    Replayed,
    StoredDeadLetter,
    joined,
    purged_marks,
    read_dead_letters,
    read_mark,
    replayed_mark,
    unwrap,
    wrap,
)
from sluice.kafka.errors import KafkaTerminalError, KafkaUnavailableError
from sluice.kafka.replaying import only_table, replayed_message
from sluice.kafka.tail import LogMessage
from tests.kafka.groups import NOW, letter
from tests.support.kafka import Kafka

LETTER = letter(
    5,
    attempted_at_ms=NOW + 5,
    connector="shop.dc1",
    spec="0123456789abcdef",
    topic_id="Zm9vYmFyYmE",
)


def read(message: Outgoing) -> LogMessage:
    """A message as it is read from its topic."""
    return LogMessage(0, NOW, message.key, message.value, message.headers)


def wrapped(each: DeadLetter) -> Outgoing:
    return wrap("letters", each, 1_000_000)


def stored(**changes: object) -> StoredDeadLetter:
    return StoredDeadLetter(0, 7, LETTER._replace(**changes), NOW, "1", ())  # type: ignore[arg-type]


def test_every_field_comes_back() -> None:
    moved = LETTER._replace(offset=90, origin=Origin("events", 0, 5, NOW), attempt=3)
    facts = (("duplicate-key", '["ä"]'), ("duplicate-of", "Zm9vYmFyYmE/3/7"))
    copy = letter(1, reason="duplicate", facts=facts)
    for each in (LETTER, moved, letter(1, key=None, value=None, timestamp_ms=None), copy):
        assert unwrap(read(wrapped(each))) == each


def test_headers_tell_everything_by_name() -> None:
    headers = dict(wrapped(LETTER).headers)
    assert headers["sluice.reason"] == b"syntax"
    assert (headers["sluice.table"], headers["sluice.column"]) == (b"orders", b"id")
    assert headers["sluice.error"] == b"not an object"
    assert headers["sluice.origin"] == b"events/0/5"
    assert headers["sluice.origin-timestamp"] == b"%d" % NOW
    assert headers["sluice.attempt"] == b"1"
    assert headers["sluice.attempted-at"] == b"%d" % (NOW + 5)
    assert headers["sluice.load-spec"] == b"0123456789abcdef"
    assert headers["sluice.version"]
    copy = letter(1, facts=(("duplicate-key", '["a"]'), ("duplicate-of", "Zm9vYmFyYmE/3/7")))
    headers = dict(wrapped(copy).headers)
    assert headers["sluice.duplicate-key"] == b'["a"]'
    assert headers["sluice.duplicate-of"] == b"Zm9vYmFyYmE/3/7"


def test_a_replayed_message_that_is_bad_again_keeps_its_origin() -> None:
    first = replayed_message("letters", stored())
    assert dict(first.headers)["sluice.table"] == b"orders"
    again = letter(90, value=LETTER.value, headers=tuple(first.headers))
    back = unwrap(read(wrapped(again)))
    assert (back.origin, back.attempt) == (Origin("events", 0, 5, NOW), 2)
    assert (back.offset, back.headers) == (90, LETTER.headers)
    third = replayed_message("letters", replace(stored(), letter=back))
    assert dict(third.headers)["sluice.origin"] == b"events/0/5"
    assert dict(third.headers)["sluice.attempt"] == b"3"
    assert [name for name, _ in third.headers].count("sluice.attempt") == 1


@pytest.mark.parametrize("origin", [b"events", b"events/x/5", b"a/1/2/3", b"\xff/0/1"])
def test_headers_that_no_replay_wrote_are_the_messages_own(origin: bytes) -> None:
    own = (("sluice.origin", origin), ("sluice.attempt", b"2"))
    back = unwrap(read(wrapped(letter(5, headers=own))))
    assert (back.headers, back.origin, back.attempt) == (own, None, 1)


def test_a_message_without_a_table_is_routed_anew() -> None:
    headers = replayed_message("letters", stored(table="")).headers
    assert "sluice.table" not in dict(headers) and dict(headers)["trace"] == b"t"


def test_a_message_that_was_for_one_table_and_that_nobody_took_stays_for_it() -> None:
    """The driver did not know the entry yet; the next replay must not reach the others."""
    first = replayed_message("letters", stored())
    nobodys = letter(90, table="", reason="no-route", headers=tuple(first.headers))
    back = unwrap(read(wrapped(nobodys)))
    assert (back.table, back.attempt, only_table(back)) == ("", 2, "orders")
    again = replayed_message("letters", replace(stored(), letter=back))
    assert dict(again.headers)["sluice.table"] == b"orders"
    assert [name for name, _ in again.headers].count("sluice.table") == 1


def test_marks_come_back() -> None:
    mark = Replayed(2, 77, NOW, "ada@host", "run1")
    message = replayed_mark("letters", stored(), mark)
    assert (message.topic, message.partition, message.value) == ("letters", 2, None)
    headers = {n: v or b"" for n, v in message.headers}
    assert read_mark(2, 0, headers, None) == mark
    assert (headers["sluice.topic"], headers["sluice.offset"]) == (b"events", b"5")
    key = DeadLetterKey("events", 0, "orders", "id", 3)
    purged = Purged(2, 78, NOW, "ada@host", {key: ((1, 3), (9, 10))})
    (message,) = purged_marks("letters", purged)
    assert (message.topic, message.partition) == ("letters", 2)
    given, value = {n: v or b"" for n, v in message.headers}, message.value
    assert read_mark(2, 78, given, value) == purged
    assert read_mark(2, 77, given, value) == replace(purged, is_done=False)
    old = b'{"topic":"events","partition":0,"table":"orders","offsets":[[1,3]]}'  # older versions
    found = read_mark(2, 78, given, old)
    assert isinstance(found, Purged) and [*found.offsets] == [DeadLetterKey("events", 0, "orders")]
    assert read_mark(2, 0, {"sluice.reason": b"x"}, None) is None
    with pytest.raises(ValueError, match="unknown kind"):
        read_mark(2, 0, {**given, "sluice.kind": b"other"}, value)


def test_long_purges_are_several_messages() -> None:
    key = DeadLetterKey("events", 0, "orders")
    every_other = intervals_of(range(0, 90_000, 2))
    parts = [
        read_mark(0, 9, {n: v or b"" for n, v in message.headers}, message.value)
        for message in purged_marks("letters", Purged(0, 9, NOW, "a", {key: every_other}))
    ]
    assert len(parts) == 3
    assert joined([part.offsets for part in parts if isinstance(part, Purged)]) == {
        key: every_other
    }


def test_intervals_of_marks_are_joined() -> None:
    key = DeadLetterKey("events", 0, "orders")
    parts = [{key: ((1, 3), (9, 10))}, {key: ((2, 5), (10, 11))}, {}]
    assert joined(parts) == {key: ((1, 5), (9, 11))}


def produce(kafka: Kafka, topic: str, messages: list[Outgoing], partition: int = 0) -> None:
    producer = ck.Producer({"bootstrap.servers": kafka.brokers})
    for message in messages:
        key, headers = message.key, message.headers
        producer.produce(topic, message.value, key, partition=partition, headers=headers)
    assert producer.flush(30) == 0


def test_reading_parts_dead_letters_from_marks(kafka: Kafka) -> None:
    topic = kafka.own_topic()
    mark = Replayed(0, 0, NOW, "ada@host", "run1")
    produce(kafka, topic, [wrapped(LETTER), replayed_mark(topic, stored(), mark)])
    with closing(DeadLetterTopic(kafka.access(), topic)) as held:
        first, second = held.records()
        assert isinstance(first, StoredDeadLetter)
        assert (first.offset, first.letter, first.written_at_ms) == (0, LETTER, NOW + 5)
        assert second == mark
        assert held.replayed() == {(0, 0): mark}
    assert list(read_dead_letters(kafka.access(), topic)) == [LETTER]


def test_partitions_are_read_one_after_the_other(kafka: Kafka) -> None:
    """By one client, which has messages of the one before already."""
    topic, counts = kafka.topic(4), (600, 0, 3, 1)
    for partition, count in enumerate(counts):
        produce(kafka, topic, [wrapped(LETTER)] * count, partition)
    places = [(partition, n) for partition, count in enumerate(counts) for n in range(count)]
    with closing(DeadLetterTopic(kafka.access(), topic)) as held:
        assert held.is_there and next(held.records()) is not None
        for to_log_end in (False, True):
            found = held.records(to_log_end=to_log_end)
            told = [(r.partition, r.offset) for r in found if isinstance(r, StoredDeadLetter)]
            assert told == places
    missing = DeadLetterTopic(kafka.access(), "no-such-topic")
    assert not missing.is_there
    with pytest.raises(KafkaUnavailableError, match="there is no such topic"):
        next(missing.records())


def test_a_strange_message_is_named(kafka: Kafka) -> None:
    topic = kafka.own_topic()
    kafka.produce(topic, [b"hello"])
    with pytest.raises(KafkaTerminalError, match="at offset 0 that is no dead letter"):
        list(read_dead_letters(kafka.access(), topic))
