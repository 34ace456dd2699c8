"""What a chaos run sends, and what became of it: a producer that hangs is replaced."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import confluent_kafka as ck

from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin, make_consumer
from sluice.testbed.local.orders import TOMBSTONE, Defect
from sluice.testbed.local.producing import PARTITIONS

_FLUSH_SECONDS_MAX = 180.0
#: A producer that gets no acknowledgement for so long from a broker that is well gets none any more
#: [measured: librdkafka 2.16 after a half-open link and a broker that was started again meanwhile].
_STUCK_SECONDS = 60.0
_QUIET_SECONDS = 10.0
_LOOK_EVERY_SECONDS = 5.0
_ANSWER_SECONDS_MAX = 3.0
_PURGE_SECONDS_MAX = 5.0
_READ_SECONDS_MAX = 120.0
_PURGED = (ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT, ck.KafkaError._FATAL)


def _numbers(sources: int = PARTITIONS) -> list[array[int]]:
    return [array("Q") for _ in range(sources)]


@dataclass(slots=True)
class Truth:
    """What the topics hold. Two parallel lists for each partition, in any order; a partition of
    several topics goes by its number among all of them.

    :param offsets: of events that must become rows.
    :param identities: `order_id` of the event at that offset.
    :param broken: (partition, offset) of events that must become dead letters.
    :param skipped: likewise of messages without a value.
    :param replaced: producers that got stuck.
    :param unknown: events that their producer did not hear of any more; `found`: of those, that the
        topics hold. They are among the others.
    """

    offsets: list[array[int]] = field(default_factory=_numbers)
    identities: list[array[int]] = field(default_factory=_numbers)
    broken: set[tuple[int, int]] = field(default_factory=set)
    skipped: set[tuple[int, int]] = field(default_factory=set)
    replaced: int = 0
    unknown: int = 0
    found: int = 0

    @classmethod
    def of(cls, partitions: int) -> Truth:
        """Nothing yet, of so many partitions."""
        return cls(_numbers(partitions), _numbers(partitions))

    @property
    def rows(self) -> int:
        """Messages that must become rows, unless they are duplicates."""
        return sum(map(len, self.offsets))

    @property
    def unique(self) -> int:
        """Different events among them."""
        return len(set().union(*self.identities))

    @property
    def tombstones(self) -> int:
        """Messages without a value."""
        return len(self.skipped)

    @property
    def events(self) -> int:
        """Everything that is there."""
        return self.rows + len(self.broken) + self.tombstones


@dataclass(frozen=True, slots=True)
class Event:
    """What is sent.

    :param identity: `order_id`, broken or not.
    """

    value: bytes | None
    identity: int
    defect: Defect | None = None


class Sender:
    """Sends events, each to a partition that is chosen. To be used by one thread at a time.

    An idempotent producer: what it retries while the broker is away is written once. What one that
    had to be replaced did not hear of may be there, or not: that is read at the end.

    :param truth: is added to.
    """

    def __init__(
        self, access: KafkaAccess, sources: Sequence[TopicPartition], truth: Truth
    ) -> None:
        self.truth = truth
        self._access = access
        self._sources = sources
        self._failure: TerminalError | None = None
        self._sent = 0
        self._pending: dict[int, Event] = {}
        self._unknown: list[Event] = []
        self._moved_at = time.monotonic()
        self._look_at = 0.0
        self._producer = self._make()

    def send(self, number: int, event: Event) -> None:
        """Send to the partition of this number.

        :raises TerminalError: the broker has refused something.
        """
        source, sequence = self._sources[number], self._sent
        while True:
            try:
                self._producer.produce(
                    source.topic,
                    event.value,
                    partition=source.partition,
                    on_delivery=lambda error, message: self._take(
                        error, message, sequence, number, event
                    ),
                )
                break
            except BufferError:
                self.poll(0.1)
            except ck.KafkaException as error:
                if error.args[0].code() not in _PURGED:
                    raise
                self._replace()
        self._pending[sequence] = event
        self._sent += 1

    def poll(self, seconds: float = 0.0) -> None:
        """Take acknowledgements; a producer that is stuck is replaced.

        :raises TerminalError: the broker has refused something.
        """
        self._producer.poll(seconds)
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        if not self._pending:
            self._moved_at = now
        if now - self._moved_at < _QUIET_SECONDS or now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_SECONDS
        if not self._broker_is_well():
            self._moved_at = now - _QUIET_SECONDS
        elif now - self._moved_at >= _STUCK_SECONDS:
            self._replace()

    def finish(self) -> None:
        """Wait for all acknowledgements, and look for what nobody heard of.

        :raises TerminalError: the broker did not take them all.
        """
        until = time.monotonic() + _FLUSH_SECONDS_MAX
        while self._pending:
            self.poll(0.1)
            if time.monotonic() > until:
                raise TerminalError(
                    f"{len(self._pending)} events were not acknowledged", "Read the broker's log."
                )
        if self._unknown:
            self._read_unknown()

    def _make(self) -> ck.Producer:
        return ck.Producer(
            {
                "log_level": 2,
                **self._access.client(
                    enable_idempotence=True,
                    linger_ms=50,
                    compression_type="lz4",
                    delivery_timeout_ms=600_000,
                    queue_buffering_max_messages=2_000_000,
                ),
            }
        )

    def _replace(self) -> None:
        self._producer.purge()
        self._producer.flush(_PURGE_SECONDS_MAX)
        self._unknown += self._pending.values()
        self._pending.clear()
        self._producer = self._make()
        self.truth.replaced += 1
        self._moved_at = time.monotonic()

    def _broker_is_well(self) -> bool:
        topics = {source.topic for source in self._sources}
        try:
            found = make_admin(self._access).list_topics(timeout=_ANSWER_SECONDS_MAX).topics
        except ck.KafkaException:
            return False
        return topics <= found.keys() and all(
            partition.leader >= 0
            for topic in topics
            for partition in found[topic].partitions.values()
        )

    def _take(
        self,
        error: ck.KafkaError | None,
        message: ck.Message,
        sequence: int,
        number: int,
        event: Event,
    ) -> None:
        if sequence not in self._pending:
            return  # its producer was replaced: nobody knows
        if error is None:
            self._moved_at = time.monotonic()
            del self._pending[sequence]
            self._add(number, message.offset(), event)
        elif error.code() not in _PURGED:
            self._failure = TerminalError(f"an event was refused: {error}", "Read the log.")

    def _add(self, number: int, offset: int, event: Event) -> None:
        truth = self.truth
        if event.defect is None:
            truth.offsets[number].append(offset)
            truth.identities[number].append(event.identity)
        elif event.defect is TOMBSTONE:
            truth.skipped.add((number, offset))
        else:
            truth.broken.add((number, offset))

    def _read_unknown(self) -> None:
        """Add what is there of the events of unknown fate.

        :raises TerminalError: something is there that nobody sent.
        """
        truth = self.truth
        by_value = {event.value: event for event in self._unknown}
        truth.unknown += len(self._unknown)
        for number, source in enumerate(self._sources):
            known = set(truth.offsets[number])
            known |= {o for n, o in truth.broken | truth.skipped if n == number}
            for offset, value in messages_of(self._access, source):
                if offset in known:
                    continue
                if value not in by_value:
                    raise TerminalError(
                        f"{source}/{offset} is a message that nobody sent", "Is there another run?"
                    )
                self._add(number, offset, by_value[value])
                truth.found += 1


def messages_of(access: KafkaAccess, source: TopicPartition) -> Iterator[tuple[int, bytes | None]]:
    """Offset and value of all messages of a partition that are committed.

    :raises TerminalError: they cannot be read in time.
    """
    consumer = make_consumer(access, "chaos-reader")
    try:
        at = ck.TopicPartition(source.topic, source.partition, 0)
        _, end = consumer.get_watermark_offsets(at, timeout=_READ_SECONDS_MAX, cached=False)
        consumer.assign([at])
        until = time.monotonic() + _READ_SECONDS_MAX
        place = 0
        while place < end:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is None:
                    yield message.offset(), message.value()
            (where,) = consumer.position([at])
            place = max(place, where.offset)
            if time.monotonic() > until:
                raise TerminalError(f"{source} was not read in time", "Read the broker's log.")
    finally:
        consumer.close()
