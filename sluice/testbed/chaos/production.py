"""Steady production beside the faults, and what it must become."""

from __future__ import annotations

import random
import threading
import time
from array import array
from dataclasses import dataclass, field

import confluent_kafka as ck

from sluice.core.errors import TerminalError
from sluice.kafka.clients import KafkaAccess
from sluice.testbed.local.orders import DEFECTS, TOMBSTONE, Defect, Orders
from sluice.testbed.local.producing import PARTITIONS

#: Of all events. Every broken one costs its range a search, as in life.
_BROKEN_SHARE = 1 / 2500
_TOMBSTONE_SHARE = 1 / 5000
_TURN_SECONDS = 0.05
_FLUSH_SECONDS_MAX = 180.0


def _numbers(partitions: int = PARTITIONS) -> list[array[int]]:
    return [array("Q") for _ in range(partitions)]


@dataclass(slots=True)
class Truth:
    """What the broker acknowledged. Two parallel lists for each partition, in any order.

    :param offsets: of events that must become rows.
    :param identities: `order_id` of the event at that offset.
    :param broken: (partition, offset) of events that must become dead letters.
    """

    offsets: list[array[int]] = field(default_factory=_numbers)
    identities: list[array[int]] = field(default_factory=_numbers)
    broken: set[tuple[int, int]] = field(default_factory=set)
    tombstones: int = 0

    @classmethod
    def of(cls, partitions: int) -> Truth:
        """Nothing yet, of so many partitions."""
        return cls(_numbers(partitions), _numbers(partitions))

    @property
    def rows(self) -> int:
        """Events that must become rows."""
        return sum(map(len, self.offsets))

    @property
    def events(self) -> int:
        """Everything that was acknowledged."""
        return self.rows + len(self.broken) + self.tombstones


class Production:
    """Produces in a thread of its own until it is told to finish.

    An idempotent producer: what it retries while the broker is away is written once.

    :param rate: events a second, on average.
    :param truth: what was produced before, into as many partitions; it is added to.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        rate: int,
        seed: int,
        truth: Truth | None = None,
    ) -> None:
        self.truth = Truth() if truth is None else truth
        self._before = self.truth.events
        self._topic = topic
        self._rate = rate
        self._dice = random.Random(seed)
        self._orders = Orders(seed)
        self._identity = 0
        self._finishing = threading.Event()
        self._failure: Exception | None = None
        self._producer = ck.Producer(
            {
                "log_level": 2,
                **access.client(
                    enable_idempotence=True,
                    linger_ms=50,
                    compression_type="lz4",
                    delivery_timeout_ms=600_000,
                    queue_buffering_max_messages=2_000_000,
                ),
            }
        )
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
        left = self._producer.flush(_FLUSH_SECONDS_MAX)
        missing = self._before + self._identity - self.truth.events
        if left or missing:
            raise TerminalError(
                f"{missing} events were not acknowledged",
                "Read the broker's log.",
            )
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
                self._producer.poll(0)
        except Exception as error:
            self._failure = error

    def _send(self, event: bytes) -> None:
        identity = self._identity
        defect = self._defect()
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    event if defect is None else defect.apply(event),
                    partition=identity % len(self.truth.offsets),
                    on_delivery=lambda error, message: self._take(error, message, identity, defect),
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._identity += 1

    def _defect(self) -> Defect | None:
        dice = self._dice.random()
        if dice < _BROKEN_SHARE:
            return self._dice.choice(DEFECTS)
        return TOMBSTONE if dice < _BROKEN_SHARE + _TOMBSTONE_SHARE else None

    def _take(
        self, error: object, message: ck.Message, identity: int, defect: Defect | None
    ) -> None:
        if error is not None:
            self._failure = TerminalError(f"an event was refused: {error}", "Read the log.")
            return
        partition, offset = message.partition(), message.offset()
        if defect is None:
            self.truth.offsets[partition].append(offset)
            self.truth.identities[partition].append(identity)
        elif defect is TOMBSTONE:
            self.truth.tombstones += 1
        else:
            self.truth.broken.add((partition, offset))
