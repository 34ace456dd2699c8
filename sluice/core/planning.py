"""Which range of which partition is loaded next. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
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
