"""A real Kafka broker for tests, and hands that write to it."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaUnavailableError
from sluice.kafka.log import SourceLog
from sluice.kafka.topics import ensure_own_topic
from sluice.testbed.local.running import Broker, running_broker

#: A value, or a value with its key; None as value is a tombstone.
Message = bytes | None | tuple[bytes | None, bytes | None]


class Kafka:
    """A broker that is shared by many tests: every test makes topics of its own.

    :param broker: the broker's program.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.brokers})
        self.log = SourceLog(self.admin)
        self._plain = ck.Producer(
            {
                "bootstrap.servers": broker.brokers,
                "linger.ms": 0,
                # A request that is sent again overtakes nothing: tests count on the order.
                # Idempotence promises that, too, but not for a topic that was made anew.
                "max.in.flight": 1,
                "log_level": 0,
            }
        )

    @property
    def brokers(self) -> str:
        """bootstrap.servers"""
        return self.broker.brokers

    def written_end(self, topic: str, partition: int = 0) -> int:
        """The end of everything written, also in open transactions."""
        where = {ck.TopicPartition(topic, partition): OffsetSpec.latest()}
        futures = self.admin.list_offsets(
            where, isolation_level=ck.IsolationLevel.READ_UNCOMMITTED, request_timeout=15
        )
        return int(next(iter(futures.values())).result().offset)

    def access(self, connector: str = "dc1") -> KafkaAccess:
        """How Sluice reaches it."""
        return KafkaAccess(connector, self.brokers)

    def topic(self, partitions: int = 1, name: str = "", **settings: str) -> str:
        """A new topic; settings with underscores for dots.

        It keeps messages for ever unless told otherwise: tests write messages of past years,
        and the broker would take a segment away between two reads of it.
        """
        name = name or f"topic-{uuid.uuid4().hex[:8]}"
        config = {"retention.ms": "-1"}
        config |= {key.replace("_", "."): value for key, value in settings.items()}
        make_topic(self.admin, NewTopic(name, partitions, 1, config=config))
        return name

    def own_topic(self) -> str:
        """A topic as Sluice makes those that it owns."""
        name = f"own-{uuid.uuid4().hex[:8]}"
        assert ensure_own_topic(self.admin, name)
        wait_for_leaders(self.admin, name, 1)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        delete_topic(self.admin, name)

    def produce(self, topic: str, messages: Iterable[Message], partition: int = 0) -> None:
        """Plain messages, all acknowledged."""
        _produce(self._plain, topic, messages, partition)
        assert self._plain.flush(30) == 0

    def writer(self, transactional_id: str = "", timeout_ms: int = 60_000) -> ck.Producer:
        """A transactional producer of somebody, initialised."""
        producer = ck.Producer(
            {
                "bootstrap.servers": self.brokers,
                "transactional.id": transactional_id or f"writer-{uuid.uuid4().hex[:8]}",
                "transaction.timeout.ms": timeout_ms,
                "log_level": 0,
            }
        )
        for _ in range(2):  # see `make_producer`
            producer.list_topics("__transaction_state", timeout=30)
        producer.init_transactions(30)
        return producer

    def transaction(
        self, topic: str, messages: Iterable[Message], partition: int = 0, commit: bool = True
    ) -> None:
        """Messages in a transaction that is committed, or aborted."""
        producer = self.writer()
        producer.begin_transaction()
        _produce(producer, topic, messages, partition)
        self.end_transaction(producer, topic, partition, commit)

    def end_transaction(
        self, producer: ck.Producer, topic: str, partition: int = 0, commit: bool = True
    ) -> None:
        """End a transaction that wrote there, and wait for its marker: it is written a little after
        the answer, and who reads before misses the messages."""
        producer.flush(30)
        written = self.written_end(topic, partition)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
        self.until(lambda: self.written_end(topic, partition) > written)

    def open_transaction(self, topic: str, messages: Iterable[Message]) -> ck.Producer:
        """Messages in a transaction that stays open until the caller ends it."""
        producer = self.writer()
        producer.begin_transaction()
        _produce(producer, topic, messages, 0)
        producer.flush(30)
        return producer

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Let the messages below an offset expire."""
        where = ck.TopicPartition(topic, partition, before)
        self.admin.delete_records([where])[where].result(30)

    def commit_as_consumer(
        self, group: str, topic: str, offset: int, metadata: str | None = None, partition: int = 0
    ) -> None:
        """What a foreign consumer in the group does: subscribe, commit, leave."""
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.brokers,
                "group.id": group,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe([topic])
            self.until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
            where = ck.TopicPartition(topic, partition, offset, metadata=metadata or "")
            consumer.commit(offsets=[where], asynchronous=False)
        finally:
            consumer.close()

    def read(self, topic: str) -> list[ck.Message]:
        """All committed messages of partition 0. Transactions that end are waited for."""
        self.until_stable(topic)
        consumer = ck.Consumer(
            {"bootstrap.servers": self.brokers, "group.id": "test-reader", "log_level": 0}
        )
        where = ck.TopicPartition(topic, 0)
        found: list[ck.Message] = []
        try:
            low, high = consumer.get_watermark_offsets(where, timeout=15, cached=False)
            consumer.assign([ck.TopicPartition(topic, 0, low)])
            deadline = time.monotonic() + 60
            while consumer.position([where])[0].offset < high and low < high:
                assert time.monotonic() < deadline, f"{topic} cannot be read to {high}"
                found += consumer.consume(500, 0.0) or consumer.consume(1, 0.05)
        finally:
            consumer.close()
        return found

    def stable_end(self, topic: str, partition: int = 0) -> int:
        """The last stable offset of one partition."""
        source = TopicPartition(topic, partition)
        return self.log.stable_ends([source])[source]

    def until_stable(self, topic: str, partition: int = 0) -> None:
        """Wait until no transaction is open in a partition: the marker of one that was committed
        is written a little after the answer, and until then nobody reads its messages."""
        self.until(lambda: self.stable_end(topic, partition) >= self.written_end(topic, partition))

    @staticmethod
    def until(condition: Callable[[], bool], timeout_seconds: float = 60.0) -> None:
        """Wait for something that surely comes."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.02)


def delete_topic(admin: AdminClient, topic: str) -> None:
    """Delete a topic and wait until it is gone: the answer of the controller comes before the
    broker has heard of it."""
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    Kafka.until(lambda: topic not in admin.list_topics(timeout=30).topics)


def make_topic(admin: AdminClient, new: NewTopic) -> None:
    """Create a topic and wait until the leaders of its partitions answer."""
    admin.create_topics([new])[new.topic].result(30)
    wait_for_leaders(admin, new.topic, new.num_partitions)


def wait_for_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    """Wait until the leaders of new partitions answer.

    A broker tells who leads a new partition before it leads it itself: what is asked in between
    is answered with "not leader" [KRaft; a test failed by it].
    """
    log = SourceLog(admin)
    sources = [TopicPartition(topic, number) for number in range(partitions)]
    deadline = time.monotonic() + 60
    while True:
        try:
            log.log_ends(sources)
        except KafkaUnavailableError as error:
            assert time.monotonic() < deadline, f"no leader answers for {topic}: {error}"
            admin.list_topics(topic, timeout=15)  # of partitions that were added it knows nothing
            time.sleep(0.05)
        else:
            return


def _produce(
    producer: ck.Producer, topic: str, messages: Iterable[Message], partition: int
) -> None:
    for message in messages:
        key, value = message if isinstance(message, tuple) else (None, message)
        producer.produce(topic, key=key, value=value, partition=partition)
        producer.poll(0)


def numbered(count: int, first: int = 0) -> Sequence[bytes]:
    """Values that tell which message they are."""
    return [b"%d" % number for number in range(first, first + count)]


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """One broker for all tests of a session."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-kafka-") as folder,
        running_broker(Path(folder) / "kafka") as broker,
    ):
        yield Kafka(broker)
