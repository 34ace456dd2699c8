"""Ranges of offsets and sets of offsets. All of them are half-open: [begin, end)."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from sluice.core.values import ordered_value, pickled_by_fields, value

Interval = tuple[int, int]


class TopicPartition(NamedTuple):
    """One partition of one topic of one connector's Kafka cluster.

    A tuple, because it is the key of nearly everything: to find it in a mapping costs a third of
    what it does with a dataclass [measured].
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@pickled_by_fields
@ordered_value
class Range:
    """The offsets [begin, end) of a partition; the unit that is intended, loaded, settled.

    `end - begin` is not a message count: transactions and compaction leave holes.
    """

    source: TopicPartition
    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin <= self.end:
            raise ValueError(f"not a range: {self}")

    @property
    def span(self) -> int:
        """Number of offsets, holes included."""
        return self.end - self.begin

    def __str__(self) -> str:
        return f"{self.source}[{self.begin}, {self.end})"


#: A leader epoch that nobody told: a broker before 2.1, or a record from before they were kept.
EPOCH_UNKNOWN = -1


@value
class EpochOffset:
    """An end of a log, and the epoch of the leader that vouches for all below it.

    Messages keep the epoch that they were written in. Where a log is cut and filled again, what
    comes after the cut is of a later epoch.
    """

    offset: int
    epoch: int = EPOCH_UNKNOWN


class RangeRelation(Enum):
    """How a range lies to one that was recorded before it. Examples against [10, 20)."""

    SAME = "same"  # [10, 20)
    NEXT = "next"  # [20, 30)
    SHORTER = "shorter"  # [10, 15): same begin, smaller end
    GAP = "gap"  # [25, 30)
    OVERLAP = "overlap"  # [15, 25), [5, 25), [10, 30)
    BACKWARD = "backward"  # [0, 10): wholly before


def relate(recorded: Range, arriving: Range) -> RangeRelation:
    """Name the relation of two ranges of one partition.

    :raises ValueError: the ranges belong to different partitions.
    """
    if recorded.source != arriving.source:
        raise ValueError(f"{recorded} and {arriving} belong to different partitions")
    if (arriving.begin, arriving.end) == (recorded.begin, recorded.end):
        return RangeRelation.SAME
    if arriving.begin == recorded.end:
        return RangeRelation.NEXT
    if arriving.begin == recorded.begin and arriving.end < recorded.end:
        return RangeRelation.SHORTER
    if arriving.begin > recorded.end:
        return RangeRelation.GAP
    if arriving.end <= recorded.begin:
        return RangeRelation.BACKWARD
    return RangeRelation.OVERLAP


def normalize(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sort and join intervals, so that equal sets of offsets are equal tuples."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if begin >= end:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def intervals_of(offsets: Iterable[int]) -> tuple[Interval, ...]:
    """Single offsets as intervals."""
    return normalize((offset, offset + 1) for offset in offsets)


def subtract(whole: Interval, present: Iterable[Interval]) -> tuple[Interval, ...]:
    """The offsets of `whole` that `present` lacks."""
    rest: list[Interval] = []
    position, stop = whole
    for begin, end in normalize(present):
        if end <= position:
            continue
        if begin >= stop:
            break
        if begin > position:
            rest.append((position, begin))
        position = end
    if position < stop:
        rest.append((position, stop))
    return tuple(rest)


def contains(intervals: tuple[Interval, ...], offset: int) -> bool:
    """Whether normalised intervals hold the offset."""
    at = bisect_right(intervals, offset, key=lambda interval: interval[0]) - 1
    return at >= 0 and offset < intervals[at][1]


def digest_of_rest(
    rest: dict[str, tuple[Interval, ...]],
    attempt: int = 0,
    stored: Mapping[str, tuple[tuple[int, int, int], ...]] | None = None,
) -> str:
    """12 hexadecimal digits that name what a probe found missing, by table entry (H18).

    :param stored: rows of these offsets that are not missing.
    :param attempt: of the record that names it. A server may know the block of an earlier attempt
        without having it, and a probe looks when nothing of that can land any more: what is found
        again has another name.
    """
    digest = hashlib.sha256(f"{attempt}\n".encode() if attempt else b"")
    for entry in sorted(rest):
        digest.update(f"{entry}\n".encode())
        for begin, end in normalize(rest[entry]):
            digest.update(f"{begin}-{end}\n".encode())
        for offset, first, beyond in (stored or {}).get(entry, ()):
            digest.update(f"{offset}/{first}-{beyond}\n".encode())
    return digest.hexdigest()[:12]
