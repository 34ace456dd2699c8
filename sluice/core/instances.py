"""What a history consists of: the facts that the verifier judges, one by one. Pure.

A history is read from one of two logs. The offsets topic holds committed offsets with their
records, and tombstones. The ledger holds the same records, and receipts, settles and
load specs besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Record
from sluice.core.topics import matches

#: Owner ids that begin so belong to a person's decision (`sluice adopt`, `resolve`, `rewind`).
OPERATOR_PREFIX = "operator-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was read: a message of the offsets topic or of the ledger."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a log says of a partition.

    :param at_ms: when it was committed, by the clock of who wrote it: the broker for the
        offsets topic, the driver for the ledger.
    """

    connector: str
    source: TopicPartition
    place: Place
    at_ms: int


@dataclass(frozen=True, slots=True)
class Instance(_Seen):
    """One record of one partition as a log holds it; the article's "instance".

    :param offset: the committed offset.
    :param record: None if what stands there is no record of ours.
    :param problem: why there is no record.
    :param why: what a person decided; None where the log does not say, as the offsets topic.
    :param rest_offsets: how many offsets a probe's record loads, by table entry.
    """

    offset: int
    metadata: str | None
    record: Record | None
    problem: str = ""
    why: str | None = None
    rest_offsets: Mapping[str, int] | None = None

    @property
    def block_range(self) -> Range:
        """The record's range; an empty one at the offset without a record."""
        if self.record is None:
            return Range(self.source, self.offset, self.offset)
        return Range(self.source, self.record.begin, self.record.end)


@dataclass(frozen=True, slots=True)
class Forgotten(_Seen):
    """A tombstone: the group's offset expired, or was deleted with the group or the topic."""


@dataclass(frozen=True, slots=True)
class Acknowledged(_Seen):
    """A receipt in the ledger.

    :param messages: that made the rows.
    """

    begin: int
    end: int
    batch: int
    attempt: int
    entry: str
    shard: str
    token: str
    rows: int
    messages: int


@dataclass(frozen=True, slots=True)
class Settled(_Seen):
    """A settled range in the ledger, with its counts.

    :param bad: dead letters by table entry; None in entries that do not tell.
    :param passed: messages that are neither rows nor dead letters of a table entry.
    """

    begin: int
    end: int
    batch: int
    messages: int
    rows: int
    skipped: int
    dead_letters: int
    bad: Mapping[str, int] | None
    passed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpecSeen:
    """A load spec in the ledger.

    :param entries: the names of its table entries by topic.
    :param patterns: expressions that take further topics, each with the name of its entry.
    """

    connector: str
    place: Place
    at_ms: int
    digest: str
    entries: Mapping[str, tuple[str, ...]]
    patterns: tuple[tuple[str, str], ...] = ()

    def entries_of(self, topic: str) -> tuple[str, ...]:
        """The names of the table entries that a topic goes to, each once."""
        named = self.entries.get(topic, ())
        return named + tuple(
            entry
            for pattern, entry in self.patterns
            if entry not in named and matches(pattern, topic)
        )


Event = Instance | Forgotten | Acknowledged | Settled | SpecSeen
