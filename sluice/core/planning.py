"""Which range of which partition is loaded next, and how ranges share tasks: many small ones one, a
large one has its own. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.core.ranges import Range, TopicPartition

#: A range may exceed `max_bytes` by this factor before it is refused (R12).
RANGE_BYTES_FACTOR = 1.5

#: Assumed until a topic's messages were seen; errs on the large side.
BYTES_PER_MESSAGE_UNKNOWN = 1024.0


#: From this share of parts_to_delay_insert on, ranges wait longer, at most so many times as long,
#: and not for longer than this unless `max_delay` is longer.
CROWDED_FROM = 0.5
STRETCH_MAX = 10
STRETCHED_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Limits:
    """When a range is full or due."""

    messages_max: int
    bytes_max: int
    delay_ms_max: int

    @property
    def range_bytes_max(self) -> int:
        """Size above which a range is inserted by nobody."""
        return int(self.bytes_max * RANGE_BYTES_FACTOR)


class Backlog(NamedTuple):
    """One partition that could be given a range. A tuple: they are made often.

    :param position: the settled position; the next range begins there.
    :param stable_end: last stable offset, fresh from the broker.
    :param waiting_since_ms: when the driver first saw a last stable offset beyond `position`.
    :param bytes_per_message: observed, or None before the first range of its topic.
    """

    source: TopicPartition
    position: int
    stable_end: int
    waiting_since_ms: int
    bytes_per_message: float | None = None

    @property
    def messages(self) -> int:
        """Offsets that wait."""
        return self.stable_end - self.position

    @property
    def bytes(self) -> float:
        """What they may be, as far as it is known."""
        each = self.bytes_per_message
        return self.messages * (BYTES_PER_MESSAGE_UNKNOWN if each is None else each)


def messages_of_range(limits: Limits, bytes_per_message: float | None) -> int:
    """How many offsets a full range spans; at least one."""
    each = BYTES_PER_MESSAGE_UNKNOWN if bytes_per_message is None else bytes_per_message
    # Compared by hand: each round asks for each partition that waits, and `max` and `min` take
    # longer than all else [measured].
    full = int(limits.bytes_max / each) if each > 1.0 else int(limits.bytes_max)
    full = full if full < limits.messages_max else limits.messages_max
    return full if full > 1 else 1


def next_range(backlog: Backlog, limits: Limits, now_ms: int, *, flush: bool) -> Range | None:
    """The range that is due now, or None.

    A range is due when it is full, when its oldest message has waited, or on `flush`.
    """
    available = backlog.stable_end - backlog.position
    if available <= 0 or not (flush or is_due(backlog, limits, limits.delay_ms_max, now_ms)):
        return None
    full = messages_of_range(limits, backlog.bytes_per_message)
    end = backlog.position + min(available, full)
    return Range(backlog.source, backlog.position, end)


def is_due(backlog: Backlog, limits: Limits, delay_ms: int, now_ms: int) -> bool:
    """Whether the next range of a partition that has messages is full, or has waited so long."""
    return now_ms - backlog.waiting_since_ms >= delay_ms or is_full(backlog, limits)


def is_full(backlog: Backlog, limits: Limits) -> bool:
    """Whether a partition has enough for a range of its own."""
    full = messages_of_range(limits, backlog.bytes_per_message)
    return backlog.stable_end - backlog.position >= full


def stretched_delay_ms(delay_ms: int, crowding: float) -> int:
    """How long the oldest message of a range that is not full waits for company, while merges
    fall behind: fewer, larger blocks make fewer parts.

    :param crowding: parts as a share of those from which the server delays inserts.
    """
    over = min(1.0, max(0.0, (crowding - CROWDED_FROM) / (1 - CROWDED_FROM)))
    stretched = math.ceil(delay_ms * (1 + (STRETCH_MAX - 1) * over))
    return max(delay_ms, min(stretched, STRETCHED_MS_MAX))


def smoothed_bytes(before: float | None, messages: int, observed_bytes: int) -> float | None:
    """Bytes a message, following growth at once and shrinkage slowly.

    Growth must be followed at once: the estimate is what keeps a worker's memory bounded.
    """
    if messages <= 0:
        return before
    now = observed_bytes / messages
    if before is None or now >= before:
        return now
    return 0.7 * before + 0.3 * now


def in_fair_order(backlogs: Iterable[Backlog]) -> list[Backlog]:
    """Longest waiting first, so that no partition starves; ties by name."""
    return sorted(backlogs, key=lambda backlog: (backlog.waiting_since_ms, backlog.source))


#: Ranges of a task, about. A task costs Spark's JVM 20 to 30 ms and the driver 10, a range a few ms
#: of a worker: with so many in a task the first hardly counts, and it ends within a second or two.
RANGES_OF_TASK = 32

#: A range that is a larger part of a task than this has a task of its own.
SMALL_SHARE_MAX = 0.5


def share_of_task(messages: int, full: int) -> float:
    """How much of a task a range is; above 0, at most 1.

    :param messages: that it spans.
    :param full: that the largest range of its partition would span.
    """
    return min(1.0, max(1 / RANGES_OF_TASK, messages / max(1, full)))


def packed(shares: Sequence[float], slots: int) -> list[list[list[int]]]:
    """Jobs of tasks of ranges, each range by its place in `shares`.

    Large ranges and small ones are in jobs of their own, since all of a job come back together.
    Small ones are spread over as many tasks as can run at once before they share one.

    :param slots: tasks that can run at once; no job has more.
    """
    large = [[place] for place, share in enumerate(shares) if share > SMALL_SHARE_MAX]
    small = [place for place, share in enumerate(shares) if share <= SMALL_SHARE_MAX]
    jobs = [
        tasks[i : i + slots]
        for tasks in (large, _spread(small, shares, slots))
        for i in range(0, len(tasks), slots)
    ]
    return jobs


def _spread(places: list[int], shares: Sequence[float], slots: int) -> list[list[int]]:
    """Tasks of about equal weight, none much above one; those that come first, go first."""
    if not places:
        return []
    # Sums of thirty-seconds are exact; a sum of others may miss a whole number by a little.
    total = math.ceil(sum(shares[place] for place in places) - 1e-9)
    count = max(total, min(slots, len(places)))
    tasks: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0.0, number) for number in range(count)]
    for place in sorted(places, key=lambda place: -shares[place]):
        weight, number = lightest[0]
        tasks[number].append(place)
        heapq.heapreplace(lightest, (weight + shares[place], number))
    for task in tasks:
        task.sort()
    return tasks
