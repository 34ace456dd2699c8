"""Putting the histories of several logs into one order of time. Pure.

A min-heap by commit timestamp, as in the article. Within one log the log's own order counts,
whatever its timestamps say: a clock that was set back cannot turn a history round. Between
logs an event is given out once every other log has been read up to its time. A log that has
nothing new is waited for no longer than the skew allowance.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from sluice.core.instances import Event

#: How much later than its timestamp an event of another log may become readable, their clocks'
#: difference included. An event that comes later still is judged all the same, since a chain
#: lies within one log; only the order of what is printed suffers.
SKEW_ALLOWANCE_MS = 10_000


class Merge:
    """Merges any number of logs, which are known by number."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Event]] = []
        self._last_ms: dict[int, int] = {}
        self._count = 0

    def push(self, log: int, event: Event) -> None:
        """Add the next event of a log."""
        at_ms = max(event.at_ms, self._last_ms.get(log, event.at_ms))
        self._last_ms[log] = at_ms
        self._count += 1
        heapq.heappush(self._heap, (at_ms, log, self._count, event))

    def last_ms(self, log: int) -> int:
        """The time that a log was read up to; 0 before its first event."""
        return self._last_ms.get(log, 0)

    def ready(self, read_up_to_ms: Mapping[int, float]) -> Iterator[Event]:
        """The events that may be given out, oldest first.

        :param read_up_to_ms: for each log, the time before which nothing of it is to come.
        """
        while self._heap:
            at_ms, log, _, event = self._heap[0]
            if any(until < at_ms for other, until in read_up_to_ms.items() if other != log):
                return
            heapq.heappop(self._heap)
            yield event

    def __len__(self) -> int:
        return len(self._heap)
