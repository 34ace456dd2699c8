"""Steady production beside the faults, and what it must become."""

from __future__ import annotations

import heapq
import random
import threading
import time

from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.testbed.chaos.sending import Event, Sender, Truth
from sluice.testbed.local.orders import DEFECTS, TOMBSTONE, Defect, Orders

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
