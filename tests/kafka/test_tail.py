"""A topic read up to an offset, on a real broker."""

from __future__ import annotations

import json
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from sluice.kafka import tail as tail_module
from sluice.kafka.clients import KafkaAccess, make_consumer
from sluice.kafka.errors import KafkaUnavailableError, StalledError
from sluice.kafka.tail import OPEN_SECONDS, Tail, TooMuchToReadError, log_ends
from tests.support.kafka import Kafka, numbered


def test_up_to_an_offset(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.produce(topic, numbered(10))
    with closing(Tail(kafka.access(), topic, begin=2)) as tail:
        assert [message.value for message in tail.below(5)] == numbered(3, first=2)
    with closing(Tail(kafka.access(), topic)) as tail:
        assert [message.offset for message in tail.below()] == list(range(10))
        assert list(tail.below()) == [], "all of it was read"


def test_what_is_there_is_not_waited_for(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of a ledger took as long as the client may wait for more of it."""
    monkeypatch.setattr(tail_module, "_POLL_SECONDS", 120.0)
    topic = kafka.topic()
    kafka.transaction(topic, numbered(3))
    began = time.monotonic()
    with closing(Tail(kafka.access(), topic)) as tail:
        assert [message.value for message in tail.below()] == numbered(3)
        assert tail.position == 4  # behind the marker
    assert time.monotonic() - began < 60


def test_a_partition_is_read_again_from_its_begin(kafka: Kafka) -> None:
    """The client may not have forgotten yet how far it was read before; and a fetch that the broker
    keeps for half a second holds back whatever is asked after it."""
    topic = kafka.topic()
    kafka.produce(topic, numbered(3))
    began = time.monotonic()
    with closing(Tail(kafka.access(), topic)) as tail:
        for _ in range(20):
            tail.turn_to(0)
            assert tail.position == 0
            assert [message.value for message in tail.below()] == numbered(3)
    assert time.monotonic() - began < 5, "it took half a second and more for each turn"


def test_open_transactions_are_waited_for_below_an_end_that_is_given(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"before"])
    writer = kafka.open_transaction(topic, [b"open"])
    _, end = log_ends(kafka.access(), topic, is_stable=False)
    assert log_ends(kafka.access(), topic, is_stable=True) == (0, 1) and end == 2
    with closing(Tail(kafka.access(), topic)) as tail:
        assert [message.value for message in tail.below()] == [b"before"]
        with pytest.raises(StalledError, match="beyond offset 1; perhaps a transaction") as stalled:
            list(tail.below(end, patience_seconds=0.3))
        assert "describe-producers" in stalled.value.hint
        with pytest.raises(TooMuchToReadError):
            list(tail.below(end, until=time.monotonic()))
        writer.commit_transaction(30)
        assert [message.value for message in tail.below(end)] == [b"open"]


def test_who_is_given_messages_may_take_longer_than_nothing_may_come(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause between two messages is no stall of the broker."""
    now = 0.0
    monkeypatch.setattr(tail_module, "time", SimpleNamespace(monotonic=lambda: now))
    topic = kafka.topic()
    kafka.produce(topic, numbered(1200))
    with closing(Tail(kafka.access(), topic)) as tail:
        for _ in tail.below():
            now += 2 * OPEN_SECONDS
        assert tail.position == 1200


def test_brokers_have_nothing_to_do_while_messages_are_looked_at(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the log's end a client asks a hundred times a second; whoever reads it may rest for
    minutes."""
    fetches: list[tuple[float, int]] = []

    def take(told: str) -> None:
        brokers = json.loads(told)
        count = sum(broker["req"].get("Fetch", 0) for broker in brokers["brokers"].values())
        fetches.append((brokers["ts"] / 1e6, count))

    made: list[ck.Consumer] = []

    def make(*args: Any, **own: Any) -> ck.Consumer:
        made.append(make_consumer(*args, **own))
        return made[-1]

    monkeypatch.setattr(tail_module, "make_consumer", make)
    topic, rests = kafka.topic(), []
    kafka.produce(topic, numbered(1200))
    told: dict[str, Any] = {"statistics.interval.ms": "100", "stats_cb": take}
    with closing(Tail(KafkaAccess("dc1", kafka.brokers, told), topic)) as tail:
        for message in tail.below():
            if message.offset in (499, 999, 1199):
                began = time.monotonic()
                while time.monotonic() < began + 2.0:
                    time.sleep(0.05)
                    # What it tells comes by the queue of messages, which is to be empty then.
                    if message.offset == 1199:
                        assert made[0].poll(0.0) is None
                rests.append((began, time.monotonic()))
    for began, ended in rests:
        counts = [count for at, count in fetches if began <= at <= ended]
        assert len(counts) > 1 and counts[-1] - counts[0] <= 3, (rests, fetches)


def test_a_log_that_is_cut_meanwhile_is_read_again_from_its_new_begin(kafka: Kafka) -> None:
    topic = kafka.topic()
    writer = kafka.open_transaction(topic, numbered(3))
    with closing(Tail(kafka.access(), topic)) as tail:
        kafka.delete_records(topic, 2)
        with pytest.raises(KafkaUnavailableError, match=r"\[0\] at 0: "):
            list(tail.below(3))
    writer.commit_transaction(30)
    kafka.until(lambda: kafka.stable_end(topic) == 4)
    with closing(Tail(kafka.access(), topic)) as tail:
        assert [message.value for message in tail.below()] == [b"2"]


def test_headers_are_given_to_whom_asks_for_them(kafka: Kafka) -> None:
    topic = kafka.topic()
    producer = kafka.writer()
    producer.begin_transaction()
    producer.produce(topic, value=b"x", headers=[("a", b"1"), ("a", None)])
    producer.commit_transaction(30)
    for with_headers, expected in ((True, [("a", b"1"), ("a", None)]), (False, [])):
        with closing(Tail(kafka.access(), topic, with_headers=with_headers)) as tail:
            (message,) = tail.below(1)
            assert message.headers == expected
