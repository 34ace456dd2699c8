"""Steady production beside the faults of a chaos run, what became of it, and what it must become in
the tables: a producer that hangs is replaced.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import confluent_kafka as ck

from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.tail import Tail
from sluice.testbed.local.orders import DEFECTS, TOMBSTONE, Defect, Orders
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
    tail = Tail(access, source.topic, source.partition)
    try:
        until = time.monotonic() + _READ_SECONDS_MAX
        while not tail.caught_up:
            yield from ((message.offset, message.value) for message in tail.poll(0.2))
            if time.monotonic() > until:
                raise TerminalError(f"{source} was not read in time", "Read the broker's log.")
    finally:
        tail.close()


#: Of all events. Every broken one costs its range a search, as in life.
_BROKEN_SHARE = 1 / 2500
_TOMBSTONE_SHARE = 1 / 5000
_TURN_SECONDS = 0.05
#: How much later an event comes again, in seconds: in the same range, in one that is loaded at the
#: same time or soon after, or long after its own was loaded.
_DELAYS_SECONDS = ((0.0, 0.0), (0.2, 15.0), (20.0, 180.0))


class Production:
    """Produces in a thread of its own until it is told to finish.

    :param rate: events a second, on average; those that come again are not counted.
    :param truth: what was produced before, into as many partitions; it is added to.
    :param more_topics: with as many partitions as the first one; the truth counts all of them.
    :param duplicates: the share of messages that come again under another offset. What was broken,
        or without a value, comes again as the good event that it was.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        rate: int,
        seed: int,
        truth: Truth | None = None,
        more_topics: tuple[str, ...] = (),
        duplicates: float = 0.0,
    ) -> None:
        self.truth = Truth() if truth is None else truth
        topics = (topic, *more_topics)
        partitions = len(self.truth.offsets) // len(topics)
        sources = [TopicPartition(name, n) for name in topics for n in range(partitions)]
        self._sender = Sender(access, sources, self.truth)
        self._sources = len(sources)
        self._rate = rate
        self._dice = random.Random(seed)
        self._orders = Orders(seed)
        self._again = _Again(duplicates, random.Random(f"{seed} again"), len(sources))
        self._identity = 0
        self._finishing = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="production", daemon=True)

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def finish(self) -> Truth:
        """Stop producing, wait for all acknowledgements.

        :raises TerminalError: the broker did not take them all.
        """
        self.stop()
        if self._failure is not None:
            raise self._failure
        self._send_again(float("inf"))
        self._sender.finish()
        return self.truth

    def stop(self) -> None:
        """Produce no more. Harmless when repeated."""
        self._finishing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            began = time.monotonic()
            while not self._finishing.wait(_TURN_SECONDS):
                due = int((time.monotonic() - began) * self._rate) - self._identity
                # What was late is made up for, at most a second's worth at once.
                for events in self._orders.take(max(0, min(due, self._rate))):
                    for event in events:
                        self._send(event)
                self._send_again(time.monotonic())
                self._sender.poll()
        except Exception as error:
            self._failure = error

    def _send(self, event: bytes) -> None:
        identity, defect = self._identity, self._defect()
        number = identity % self._sources
        value = event if defect is None else defect.apply(event)
        self._sender.send(number, Event(value, identity, defect))
        self._again.draw(number, Event(event, identity), time.monotonic())
        self._identity += 1

    def _send_again(self, now: float) -> None:
        for number, event in self._again.due(now):
            self._sender.send(number, event)
            # It may come a third time, unless this is the end.
            if now != float("inf"):
                self._again.draw(number, event, now)

    def _defect(self) -> Defect | None:
        dice = self._dice.random()
        if dice < _BROKEN_SHARE:
            return self._dice.choice(DEFECTS)
        return TOMBSTONE if dice < _BROKEN_SHARE + _TOMBSTONE_SHARE else None


class _Again:
    """Events that come again.

    :param sources: partitions.
    """

    def __init__(self, share: float, dice: random.Random, sources: int) -> None:
        self._share = share
        self._dice = dice
        self._sources = sources
        self._waiting: list[tuple[float, int, int, Event]] = []
        self._drawn = 0

    def draw(self, number: int, event: Event, now: float) -> None:
        """Perhaps it comes again, in another partition."""
        dice = self._dice
        if dice.random() >= self._share:
            return
        due = now + dice.uniform(*dice.choice(_DELAYS_SECONDS))
        other = (number + dice.randrange(1, self._sources)) % self._sources
        self._drawn += 1
        heapq.heappush(self._waiting, (due, self._drawn, other, event))

    def due(self, now: float) -> list[tuple[int, Event]]:
        """Those that come now, each with its partition."""
        found = []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, number, event = heapq.heappop(self._waiting)
            found.append((number, event))
        return found
