"""Producing orders: as fast as librdkafka can, in one transaction, or at a steady rate."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import confluent_kafka as ck
import numpy as np
from confluent_kafka.admin import NewTopic

from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.errors import kafka_error
from sluice.machine.clock import now_ms
from sluice.testbed.local.orders import DEFECTS, TOMBSTONE, Orders

PARTITIONS = 4
#: Events that wait in librdkafka's queue before more are made.
_QUEUED_MAX = 200_000
_QUEUED_BYTES_MAX = 256 * 1024 * 1024
_FLUSH_SECONDS_MAX = 120.0
_TOMBSTONE_SHARE = 0.1
#: What a topic takes; a broken event may be twice as long as a good one.
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
#: Topics keep everything.
_TOPIC_SETTINGS = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
}
#: What a controller takes in one request: a record for each topic, partition and setting.
_CREATED_RECORDS_MAX = 10_000
_CREATE_SECONDS_MAX = 120.0
_LEADERS_SECONDS_MAX = 30.0
#: Events of a steady rate that are made beforehand; then they come again.
_STEADY_EVENTS_MAX = 200_000
#: Events of a steady rate whose latency is looked at, in each second; and in all.
_STAMPED_MAX = 2_000
_STAMPED_MAX_IN_ALL = 500_000

#: As `produce_batch` takes them: "value", and "callback" for a few.
Message = dict[str, object]

#: Called with the number of events produced so far.
Progress = Callable[[int], None]


@dataclass(slots=True)
class Produced:
    """What was produced, as the broker acknowledged it.

    :param broken: (partition, offset) of events that must become dead letters.
    :param tombstones: events without a value, which are skipped.
    :param repeated: good events that were sent before, as they are.
    :param kinds: how many broken events there are of each kind.
    """

    events: int = 0
    broken: set[tuple[int, int]] = field(default_factory=set)
    tombstones: int = 0
    repeated: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> int:
        """Different events that must become rows."""
        return self.unique - len(self.broken) - self.tombstones

    @property
    def unique(self) -> int:
        """Events, those that were sent before left out."""
        return self.events - self.repeated


def create_topic(access: KafkaAccess, topic: str, partitions: int = PARTITIONS) -> None:
    """A new topic that keeps everything and takes large messages.

    :raises TerminalError: the broker refuses.
    """
    create_topics(access, [topic], partitions)


def create_topics(access: KafkaAccess, topics: Sequence[str], partitions: int) -> None:
    """The same for many: a thousand of one partition are one request.

    :raises TerminalError: the broker refuses one.
    """
    size = max(1, _CREATED_RECORDS_MAX // (1 + partitions + len(_TOPIC_SETTINGS)))
    admin = make_admin(access)  # it must live until its answer is there
    for begin in range(0, len(topics), size):
        wanted = [
            NewTopic(name, num_partitions=partitions, replication_factor=1, config=_TOPIC_SETTINGS)
            for name in topics[begin : begin + size]
        ]
        created = admin.create_topics(wanted, request_timeout=_CREATE_SECONDS_MAX)
        for name, future in created.items():
            try:
                future.result(_CREATE_SECONDS_MAX)
            except ck.KafkaException as error:
                raise _refused(f"creating topic {name}", error.args[0]) from None


def produce_with_defects(
    access: KafkaAccess,
    topic: str,
    partitions: int,
    rows: int,
    broken: int,
    seed: int,
    progress: Progress,
    repeated: int = 0,
) -> Produced:
    """Produce `rows` events over all partitions, `broken` of them broken at random places.

    :param repeated: of the `rows`: so many are good events of the others once more, at random
        places near the first ones, in any partition.
    :raises TerminalError: the broker did not take them all.
    """
    dice = random.Random(seed)
    orders = rows - repeated
    broken = min(broken, orders)
    drawn = dice.sample(range(orders), broken + repeated)
    places, repeats = dict.fromkeys(sorted(drawn[:broken])), _Repeats(dice, set(drawn[broken:]))
    produced = Produced(repeated=repeated)
    wanted = len(places)
    acknowledged: list[int] = []

    def remember(error: ck.KafkaError | None, message: ck.Message) -> None:
        if error is None:
            acknowledged.append(message.offset())
            if message.value() is not None:
                produced.broken.add((message.partition(), message.offset()))

    with _producer(access) as producer:
        spread = _Spread(producer, [TopicPartition(topic, n) for n in range(partitions)])
        first = 0
        for events in Orders(seed).take(orders):
            messages: list[Message] = [{"value": event} for event in events]
            for place in range(first, first + len(events)):
                if place not in places:
                    continue
                tombstone = dice.random() < _TOMBSTONE_SHARE
                defect = TOMBSTONE if tombstone else DEFECTS[len(places) % len(DEFECTS)]
                del places[place]
                produced.kinds[defect.name] += 1
                produced.tombstones += tombstone
                index = place - first
                messages[index] = {"value": defect.apply(events[index]), "callback": remember}
            messages = repeats.among(messages, first)
            first += len(events)
            if first == orders:
                messages += repeats.left()
            spread.send(messages)
            produced.events += len(messages)
            progress(produced.events)
    if len(acknowledged) != wanted:
        raise TerminalError(
            f"the broker acknowledged {len(acknowledged)} of {wanted} broken events of {topic}",
            "Read the broker's log.",
        )
    return produced


@dataclass(slots=True)
class _Repeats:
    """Events that are sent a second time.

    :param places: of the events, counted from 0.
    """

    dice: random.Random
    places: set[int]
    waiting: list[Message] = field(default_factory=list)

    def among(self, messages: list[Message], first: int) -> list[Message]:
        """The messages, and at random places among them half of the repeats that wait: some of
        these very messages, some of those before.

        :param first: the place of the first of these events.
        """
        own = (n for n in range(len(messages)) if first + n in self.places)
        self.waiting += [messages[n] for n in own]
        self.dice.shuffle(self.waiting)
        half = len(self.waiting) // 2
        mixed = list(messages)
        for repeat in self.waiting[half:]:
            mixed.insert(self.dice.randrange(len(mixed) + 1), repeat)
        del self.waiting[half:]
        return mixed

    def left(self) -> list[Message]:
        """Those that wait still."""
        left, self.waiting = self.waiting, []
        return left


@contextmanager
def held_back(
    access: KafkaAccess,
    sources: Sequence[TopicPartition],
    orders: Orders,
    rows: int,
    *,
    bad_share: float = 0.0,
) -> Iterator[int]:
    """Produce `rows` events, in turn to all partitions, that all become visible when the context
    ends, at once.

    One transaction: nobody who reads committed data sees any before its commit.

    :param bad_share: share of the events that are broken, at random places.
    :returns: how many of them are broken.
    :raises TerminalError: the broker did not take them all.
    """
    identity = f"sluice-bench-{uuid.uuid4().hex[:12]}"
    broken = 0
    dice = np.random.default_rng(rows)
    with _producer(access, transactional_id=identity, transaction_timeout_ms=600_000) as producer:
        producer.init_transactions(30)
        producer.begin_transaction()
        spread = _Spread(producer, sources, _queued_max(orders.shape.event_bytes))
        for events in orders.take(rows):
            places = np.flatnonzero(dice.random(len(events)) < bad_share).tolist()
            for place in places:
                bad = DEFECTS[broken % len(DEFECTS)].apply(events[place])
                assert bad is not None, "no tombstones among the defects"
                events[place] = bad
                broken += 1
            spread.send([{"value": event} for event in events])
        _flush(producer)
        yield broken
        producer.commit_transaction(30)


@dataclass(frozen=True, slots=True)
class Stamped:
    """An acknowledged event: where it is, and when its producer made it."""

    source: TopicPartition
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Steady:
    """What was produced at a steady rate.

    :param rows: events.
    :param began_ms: wall time of the first.
    :param seconds: from the first to the last.
    :param stamped: some of the events, at random; all of them at a low rate.
    """

    rows: int
    began_ms: int
    seconds: float
    stamped: list[Stamped]


@dataclass(frozen=True, slots=True)
class SteadyProducer:
    """Good events at a steady rate, in turn to all partitions, a hundredth of a second's worth at a
    time.

    :param pool: events; when they are used up they come again.
    :param queued_max: events that may wait in librdkafka's queue.
    """

    producer: ck.Producer
    sources: Sequence[TopicPartition]
    pool: list[bytes]
    rows_per_second: int
    queued_max: int

    def produce(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> Steady:
        """Produce for so long, and return when the broker has it all.

        :param meanwhile: called about a hundred times a second; what it takes is made good for.
        :raises TerminalError: the broker did not take all events.
        """
        stamped: list[Stamped] = []

        def remember(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is None:
                source = TopicPartition(message.topic(), message.partition())
                stamped.append(Stamped(source, message.offset(), message.timestamp()[1]))

        producer, sources, pool = self.producer, self.sources, self.pool
        rows = max(1, int(self.rows_per_second * seconds))
        dice = random.Random(rows)
        share = min(_STAMPED_MAX, _STAMPED_MAX_IN_ALL / seconds) / self.rows_per_second
        wanted = sent = 0
        began_ms, began = now_ms(), time.monotonic()
        while sent < rows:
            due = min(rows, int((time.monotonic() - began) * self.rows_per_second) + 1)
            due = min(due, sent + max(0, self.queued_max - len(producer)))
            for place in range(sent, due):
                # The first one always: there is something to look at.
                watched = share >= 1 or place == 0 or dice.random() < share
                wanted += watched
                source = sources[place % len(sources)]
                producer.produce(
                    source.topic,
                    pool[place % len(pool)],
                    partition=source.partition,
                    on_delivery=remember if watched else None,
                )
            sent = due
            producer.poll(0.01)
            meanwhile()
        took = time.monotonic() - began
        _flush(producer)
        if len(stamped) != wanted:
            raise TerminalError(
                f"the broker acknowledged {len(stamped)} of {wanted} watched events",
                "Read the broker's log.",
            )
        return Steady(rows, began_ms, took, stamped)


@contextmanager
def steady_producer(
    access: KafkaAccess,
    sources: Sequence[TopicPartition],
    orders: Orders,
    rows_per_second: int,
    seconds: float,
) -> Iterator[SteadyProducer]:
    """A producer that is ready: its events are made, and it knows the leaders of all partitions.
    Else the first events would wait for them: of 1,000 topics for two seconds [measured].

    :param seconds: of producing, so many events are made.
    :raises SluiceError: the broker does not tell the leaders.
    """
    queued_max = _queued_max(orders.shape.event_bytes)
    events = min(max(1, int(rows_per_second * seconds)), _STEADY_EVENTS_MAX, queued_max)
    pool = [event for chunk in orders.take(events) for event in chunk]
    with _producer(access, linger_ms=5) as producer:
        for topic in dict.fromkeys(source.topic for source in sources):
            try:
                producer.list_topics(topic, timeout=_LEADERS_SECONDS_MAX)
            except ck.KafkaException as error:
                raise kafka_error(f"reading the leaders of {topic}", error) from None
        yield SteadyProducer(producer, sources, pool, rows_per_second, queued_max)


@contextmanager
def _producer(access: KafkaAccess, **more: str | int | bool) -> Iterator[ck.Producer]:
    """An idempotent producer, flushed at the end. Large batches: speed is all it is for."""
    tuning: dict[str, str | int | bool] = {
        "enable_idempotence": True,
        "linger_ms": 50,
        "batch_size": 1_000_000,
        "compression_type": "lz4",
        "queue_buffering_max_messages": 2 * _QUEUED_MAX,
        "queue_buffering_max_kbytes": 1_048_576,
        "message_max_bytes": MESSAGE_BYTES_MAX,
        **more,
    }
    producer = ck.Producer({"log_level": 2, **access.client(**tuning)})
    try:
        yield producer
        _flush(producer)
    finally:
        producer.purge()
        producer.flush(5)


def _queued_max(event_bytes: int) -> int:
    """How many events may wait in librdkafka's queue."""
    return max(1, min(_QUEUED_MAX, _QUEUED_BYTES_MAX // event_bytes))


@dataclass(slots=True)
class _Spread:
    """Sends events in turn to all partitions, whatever the size of the pieces they come in."""

    producer: ck.Producer
    sources: Sequence[TopicPartition]
    queued_max: int = _QUEUED_MAX
    sent: int = 0

    def send(self, messages: list[Message]) -> None:
        """The next events; waits while the queue is full."""
        while len(self.producer) > self.queued_max:
            self.producer.poll(0.01)
        count = len(self.sources)
        for first in range(min(count, len(messages))):
            source = self.sources[(self.sent + first) % count]
            share = messages[first::count]
            taken = self.producer.produce_batch(source.topic, share, partition=source.partition)
            if taken != len(share):
                raise TerminalError(
                    f"the producer took {taken} of {len(share)} events of {source}",
                    "Is there enough memory? The events wait in it before they are sent.",
                )
        self.sent += len(messages)
        self.producer.poll(0)


def _flush(producer: ck.Producer) -> None:
    left = producer.flush(_FLUSH_SECONDS_MAX)
    if left:
        raise TerminalError(
            f"{left} events were not acknowledged within {_FLUSH_SECONDS_MAX:.0f} s",
            "Read the broker's log.",
        )


def _refused(action: str, error: ck.KafkaError) -> TerminalError:
    return TerminalError(f"{action}: {error.str()}", "Read the broker's log.")
