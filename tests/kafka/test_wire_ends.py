"""Last stable offsets of many partitions: one request for each broker; brokers that move or are
away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import confluent_kafka as ck
import pytest

from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaUnavailableError
from sluice.kafka.log import SourceLog
from sluice.kafka.wire import ends as ends_module
from sluice.kafka.wire import messages
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.ends import StableEnds
from tests.kafka.scripted_broker import ScriptedBroker, scripted_broker
from tests.kafka.wire_log import MemoryLog
from tests.support.kafka import Kafka
from tests.support.world import wait_for

SOURCES = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(4)]


def log_of(source: TopicPartition) -> MemoryLog:
    return MemoryLog([], end=10 * source.partition + len(source.topic), source=source)


def told(source: TopicPartition, epoch: int = 4) -> EpochOffset:
    return EpochOffset(10 * source.partition + 1, epoch)


@contextmanager
def two_brokers() -> Iterator[tuple[ScriptedBroker, ScriptedBroker, StableEnds]]:
    """Partitions 0 and 1 of each topic are led by the first, the others by the second."""
    first, second = (
        [log_of(source) for source in SOURCES if (source.partition >= 2) is is_second]
        for is_second in (False, True)
    )
    with ExitStack() as stack:
        other = ScriptedBroker(second[0], second[1:])
        broker = ScriptedBroker(first[0], first[1:], [other])
        for each in (other, broker):
            stack.enter_context(scripted_broker(each))
        ends = StableEnds(KafkaAccess("dc1", f"localhost:{broker.port}"))
        stack.callback(ends.close)
        yield broker, other, ends


def asked(broker: ScriptedBroker) -> int:
    return broker.asked.count(messages.LIST_OFFSETS)


@contextmanager
def silence(*brokers: ScriptedBroker) -> Iterator[None]:
    """They are asked for offsets, and do not answer."""
    over = threading.Event()
    for each in brokers:
        each.answers[messages.LIST_OFFSETS] = lambda _: b"" if over.wait(600) else None
    try:
        yield
    finally:
        over.set()


def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long answers are waited for at most from now on, one after the other."""
    comes, found = Connection.comes, list[float]()

    def waiting(connection: Connection, seconds: float) -> bool:
        found.append(seconds)
        return comes(connection, seconds)

    monkeypatch.setattr(Connection, "comes", waiting)
    return found


def test_each_broker_is_asked_once_for_all_that_it_leads() -> None:
    with two_brokers() as (broker, other, ends):
        found, failure = ends.ask(SOURCES)
        assert failure is None
        assert found == {source: told(source) for source in SOURCES}
        assert (asked(broker), asked(other)) == (1, 1)
        assert broker.asked.count(messages.METADATA) == 1
        assert {ends.leader_of(s) for s in SOURCES if s.partition < 2} == {7}
        assert {ends.leader_of(s) for s in SOURCES if s.partition >= 2} == {8}
        assert ends.leader_of(TopicPartition("c", 0)) == -1


def test_the_same_object_comes_back_until_something_changes() -> None:
    with two_brokers() as (broker, _, ends):
        found, _ = ends.ask(SOURCES)
        assert ends.ask(list(SOURCES))[0] is found
        broker.log.end = 77
        changed, _ = ends.ask(SOURCES)
        assert changed[SOURCES[0]] == EpochOffset(77, 4)
        assert found[SOURCES[0]] == told(SOURCES[0])
        fewer, _ = ends.ask(SOURCES[1:])
        assert set(fewer) == set(SOURCES[1:])


def test_partitions_that_moved_are_found_at_their_new_leader() -> None:
    with two_brokers() as (broker, other, ends):
        ends.ask(SOURCES)
        moved = broker.more.pop()
        other.more.append(moved)
        found, failure = ends.ask(SOURCES)
        assert isinstance(failure, TransientError) and str(moved.source) in str(failure)
        assert set(found) == set(SOURCES) - {moved.source}
        found, failure = ends.ask(SOURCES)
        assert failure is None
        assert found == {source: told(source) for source in SOURCES}


def test_a_broker_that_is_away_holds_up_its_own_partitions_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And it is not waited for again and again."""
    monkeypatch.setattr(ends_module, "REST_SECONDS", 3600.0)
    monkeypatch.setattr(ends_module, "REST_SECONDS_MAX", 3600.0)
    with two_brokers() as (_, other, ends):
        ends.ask(SOURCES)
        with silence(other):
            found, failure = ends.ask(SOURCES)
            assert isinstance(failure, KafkaUnavailableError)
            assert set(found) == {source for source in SOURCES if source.partition < 2}
            before, waited = asked(other), waits(monkeypatch)
            again, failure = ends.ask(SOURCES)
        assert len(waited) == 1, "for the one that answers"
        assert isinstance(failure, KafkaUnavailableError) and "does not answer" in str(failure)
        assert set(again) == set(found)
        assert asked(other) == before


def test_a_connection_that_was_closed_meanwhile_is_opened_again() -> None:
    with two_brokers() as (_, other, ends):
        ends.ask(SOURCES)
        usual = other.answers[messages.LIST_OFFSETS]
        other.answers[messages.LIST_OFFSETS] = lambda _: None
        ends.ask(SOURCES)
        other.answers[messages.LIST_OFFSETS] = usual
        wait_for(lambda: ends.ask(SOURCES)[1] is None, 60, "another question to the broker")
        assert ends.ask(SOURCES)[0] == {source: told(source) for source in SOURCES}


def test_an_answer_about_something_else_is_none() -> None:
    with two_brokers() as (broker, _, ends):
        usual = broker.list_offsets
        body = messages.list_offsets_body(SOURCES[:1], messages.LATEST)
        broker.answers[messages.LIST_OFFSETS] = lambda _: usual(body)
        found, failure = ends.ask(SOURCES)
        assert failure is not None and "not about what was asked for" in str(failure)
        assert set(found) == {source for source in SOURCES if source.partition >= 2}


def test_no_broker_at_all() -> None:
    with two_brokers() as (broker, _, _):
        port = broker.port
    with pytest.raises(KafkaUnavailableError):
        StableEnds(KafkaAccess("dc1", f"localhost:{port}")).ask(SOURCES)


def test_a_broker_that_is_too_old_is_named() -> None:
    with two_brokers() as (broker, _, ends):
        broker.versions[messages.LIST_OFFSETS] = (0, 4)
        with pytest.raises(ConfigurationError, match="version 5 of ListOffsets"):
            ends.ask(SOURCES)


def test_a_real_broker_says_what_the_admin_client_says(kafka: Kafka) -> None:
    """With an open transaction, an aborted one, and a partition that was never written."""
    topic = kafka.topic(partitions=4)
    sources = [TopicPartition(topic, number) for number in range(4)]
    kafka.produce(topic, [b"x"] * 5, partition=1)
    producer = ck.Producer({"bootstrap.servers": kafka.brokers, "transactional.id": topic})
    producer.init_transactions(30)
    for partition, ends_by in ((2, producer.abort_transaction), (3, None)):
        producer.begin_transaction()
        producer.produce(topic, b"y", partition=partition)
        producer.flush(30)
        if ends_by is not None:
            ends_by(30)
    ends = StableEnds(KafkaAccess("dc1", kafka.brokers))
    log, admin = SourceLog(kafka.admin, ends), SourceLog(kafka.admin)
    kafka.until(lambda: log.epoch_ends(sources)[sources[2]].offset == 2)
    found = log.epoch_ends(sources)
    assert found == admin.epoch_ends(sources)
    assert [found[source].offset for source in sources] == [0, 5, 2, 0]
    assert {end.epoch for end in found.values()} == {0}
    producer.abort_transaction(30)
    kafka.until(lambda: log.epoch_ends(sources)[sources[3]].offset == 2)
    found = log.epoch_ends(sources)
    assert log.stable_ends(sources[:2]) == {sources[0]: 0, sources[1]: 5}
    assert log.epoch_ends(sources) is found, "whoever asks once makes it forget whom to ask"
    missing = TopicPartition(f"{topic}-missing", 0)
    assert set(log.epoch_ends([*sources, missing], partial=True)) == set(sources)
    with pytest.raises(TransientError):
        log.epoch_ends([*sources, missing])
    ends.close()


def test_partitions_of_a_broker_that_rests_are_found_at_their_new_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may have moved while nobody asked it."""
    monkeypatch.setattr(ends_module, "REST_SECONDS", 3600.0)
    monkeypatch.setattr(ends_module, "REST_SECONDS_MAX", 3600.0)
    with two_brokers() as (broker, other, ends):
        ends.ask(SOURCES)
        other.answers[messages.LIST_OFFSETS] = lambda _: None
        ends.ask(SOURCES)
        ends.ask(SOURCES)
        moved = other.more.pop()
        broker.more.append(moved)
        wait_for(lambda: moved.source in ends.ask(SOURCES)[0], 30, "its new leader")


def test_a_broker_that_comes_back_at_another_address_does_not_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ends_module, "REST_SECONDS", 3600.0)
    monkeypatch.setattr(ends_module, "REST_SECONDS_MAX", 3600.0)
    with two_brokers() as (broker, other, ends), ExitStack() as stack:
        ends.ask(SOURCES)
        other.answers[messages.LIST_OFFSETS] = lambda _: None
        ends.ask(SOURCES)
        elsewhere = ScriptedBroker(other.log, other.more)
        stack.enter_context(scripted_broker(elsewhere))
        broker.others[0] = elsewhere
        wait_for(lambda: ends.ask(SOURCES)[1] is None, 30, "a question at its new address")
        assert asked(elsewhere) == 1


def test_what_has_no_leader_is_not_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others' ends stay the same object, so that nobody looks through them."""
    with two_brokers() as (broker, _, ends):
        sources = [*SOURCES, TopicPartition("a", 9)]
        ends.ask(sources)
        found, failure = ends.ask(sources)  # once more at once: a leader may just have moved
        assert set(found) == set(SOURCES) and "a[9]" in str(failure)
        before = broker.asked.count(messages.METADATA)
        monkeypatch.setattr(ends_module, "PLAN_SECONDS", 3600.0)
        for _ in range(20):
            again, failure = ends.ask(sources)
            assert again is found and "a[9]" in str(failure)
        assert broker.asked.count(messages.METADATA) <= before + 1


def test_other_partitions_are_not_mixed_up_after_nobody_answered() -> None:
    """A partition is new, another one is gone, and nobody can say who leads; then brokers can."""
    with two_brokers() as (broker, other, ends):
        ends.ask(SOURCES)
        new = TopicPartition("c", 0)
        broker.more.append(log_of(new))
        for each in (broker, other):
            each.answers[messages.METADATA] = lambda _: None
        with pytest.raises(KafkaUnavailableError):
            ends.ask([*SOURCES[1:], new])
        for each in (broker, other):
            each.answers[messages.METADATA] = broker.metadata
        expected = {source: told(source) for source in [*SOURCES[1:], new]}
        assert ends.ask([*SOURCES[1:], new]) == (expected, None)


def test_a_leader_of_before_that_does_not_know_is_not_believed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that is cut off from the others answers as if it led."""
    monkeypatch.setattr(ends_module, "PLAN_AGAIN_SECONDS", 0.5)
    with two_brokers() as (broker, other, ends):
        ends.ask(SOURCES)
        moved = broker.more[-1]
        other.more.append(MemoryLog([], end=99, source=moved.source))
        told_before = broker.metadata
        broker.answers[messages.METADATA] = lambda body: _without(broker, moved, told_before, body)

        def is_followed() -> bool:
            return ends.ask(SOURCES)[0][moved.source].offset == 99

        wait_for(is_followed, 30, "a question to the new leader")


def _without(
    broker: ScriptedBroker, log: MemoryLog, answer: Callable[[bytes], bytes], body: bytes
) -> bytes:
    """What the brokers say of who leads, once one of them does not lead a log any more."""
    led = broker.more
    broker.more = [each for each in led if each is not log]
    try:
        return answer(body)
    finally:
        broker.more = led


def test_brokers_that_are_silent_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends_module, "WAIT_SECONDS", 1.0)
    with two_brokers() as (broker, other, ends):
        ends.ask(SOURCES)
        waited = waits(monkeypatch)
        with silence(broker, other):
            found, failure = ends.ask(SOURCES)
        assert len(waited) == 2 and sum(waited) < 1.1, waited
        assert not found and isinstance(failure, KafkaUnavailableError)
