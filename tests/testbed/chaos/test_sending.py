"""A producer that hangs does not end a run: what the topic holds is what counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.log import SourceLog
from sluice.testbed.chaos import sending
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import PRODUCE, kafka_requests
from sluice.testbed.chaos.sending import Event, Production, Sender, Truth, messages_of
from sluice.testbed.chaos.stage import ProxiedBroker
from sluice.testbed.local.orders import DEFECTS, TOMBSTONE
from sluice.testbed.local.producing import create_topic
from tests.support.kafka import Kafka
from tests.support.world import wait_for

SOURCES = [TopicPartition("events", number) for number in range(2)]


class Behind(Sender):
    """Behind a link that breaks: the broker itself is well."""

    def _broker_is_well(self) -> bool:
        return True


@pytest.fixture
def link() -> Iterator[Proxy]:
    with Proxy(kafka_requests(frozenset({PRODUCE}))) as proxy:
        yield proxy


def sent(sender: Sender, first: int, count: int, partitions: int = 2) -> None:
    for number in range(first, first + count):
        defect = {7: TOMBSTONE, 8: DEFECTS[0]}.get(number % 100)
        value = None if defect is TOMBSTONE else b"%d" % number
        sender.send(number % partitions, Event(value, number, defect))


def has_replaced(sender: Sender, times: int) -> bool:
    sender.poll(0.1)
    return sender.truth.replaced == times


@pytest.mark.slow
def test_what_a_stuck_producer_sent_is_looked_for(
    tmp_path: Path, link: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the events of one producer nobody hears, though they are there; those of the next one get
    lost; those of the third one are acknowledged. A broker is well while it answers."""
    monkeypatch.setattr(sending, "_QUIET_SECONDS", 0.5)
    monkeypatch.setattr(sending, "_LOOK_EVERY_SECONDS", 0.2)
    monkeypatch.setattr(sending, "_STUCK_SECONDS", 3.0)
    broker = ProxiedBroker(tmp_path / "kafka", link)
    broker.start()
    try:
        direct = KafkaAccess("dc1", broker.brokers)
        create_topic(direct, "events", len(SOURCES))
        sender = Behind(KafkaAccess("dc1", f"127.0.0.1:{link.port}"), SOURCES, Truth.of(2))
        truth = sender.truth
        link.strike(LinkFault(Kind.DROP_REPLY))
        sent(sender, 0, 100)
        # Nobody counts how long the producer hears nothing, until it is polled.
        log = SourceLog(make_admin(direct))
        wait_for(lambda: sum(log.stable_ends(SOURCES).values()) == 100, 60, "the events")
        wait_for(lambda: has_replaced(sender, 1), 60, "a second producer")
        link.strike(LinkFault(Kind.HALF_OPEN))
        sent(sender, 100, 100)
        wait_for(lambda: has_replaced(sender, 2), 60, "a third producer")
        monkeypatch.setattr(sending, "_STUCK_SECONDS", 60.0)  # a slow machine is not stuck
        link.heal()
        sent(sender, 200, 100)
        wait_for(lambda: Sender._broker_is_well(sender), 60, "the broker's answer")
        elsewhere = Sender(direct, [TopicPartition("none", 0)], Truth.of(1))
        assert not elsewhere._broker_is_well()
        sender.finish()
        assert (truth.replaced, truth.unknown, truth.found) == (2, 200, 100)
        assert (truth.rows, len(truth.broken), truth.tombstones) == (196, 2, 2)
        assert {*truth.identities[0], *truth.identities[1]} == {
            n for n in (*range(100), *range(200, 300)) if n % 100 not in (7, 8)
        }
        for number, source in enumerate(SOURCES):
            there = dict(messages_of(direct, source))
            good = dict(zip(truth.offsets[number], truth.identities[number], strict=True))
            others = {o for n, o in truth.broken | truth.skipped if n == number}
            assert there.keys() == good.keys() | others
            assert all(there[offset] == b"%d" % identity for offset, identity in good.items())
    finally:
        broker.kill()
    assert not Sender._broker_is_well(sender), "it is dead"


def test_a_message_that_nobody_sent_is_found(kafka: Kafka) -> None:
    topic = kafka.topic()
    source = TopicPartition(topic, 0)
    sender = Sender(kafka.access(), [source], Truth.of(1))
    sent(sender, 0, 3, partitions=1)
    sender.finish()
    assert [value for _, value in messages_of(kafka.access(), source)] == [b"0", b"1", b"2"]
    other = Sender(kafka.access(), [source], Truth.of(1))
    other._unknown.append(Event(b"3", 3))
    with pytest.raises(TerminalError, match="/0 is a message that nobody sent"):
        other.finish()


@pytest.mark.slow
def test_a_share_of_the_events_comes_again(kafka: Kafka) -> None:
    """In other partitions of any topic; what was broken comes again as what it was."""
    topics = [kafka.topic(2), kafka.topic(2)]
    truth = Truth.of(4)
    more = (topics[1],)
    production = Production(kafka.access(), topics[0], 20_000, 5, truth, more, duplicates=0.3)
    production.start()
    wait_for(lambda: truth.rows > 20_000, 60, "events")
    assert production.finish() is truth
    again = truth.rows - truth.unique
    assert 0.28 < again / truth.unique < 0.45  # some of them come a third time
    places: dict[int, list[int]] = {}
    for number, identities in enumerate(truth.identities):
        for identity in identities:
            places.setdefault(identity, []).append(number)
    assert any(len(set(numbers)) == 3 for numbers in places.values())
    assert {len(set(numbers)) for numbers in places.values() if len(numbers) == 2} == {2}
    assert sum(len({n // 2 for n in numbers}) == 2 for numbers in places.values()) > again / 4
    for number in range(4):
        source = TopicPartition(topics[number // 2], number % 2)
        read = {offset for offset, _ in messages_of(kafka.access(), source)}
        known = {o for n, o in truth.broken | truth.skipped if n == number}
        assert read == known | set(truth.offsets[number])
    assert set().union(*truth.identities) != set(range(max(places) + 1))  # broken, and not again
