"""What a task reports about its range. Facts only; they cross from worker to driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sluice.core.dynamic import NewField
from sluice.core.errors import SluiceError
from sluice.core.ranges import Interval, Range
from sluice.core.tracing import WorkSpan
from sluice.core.values import pickled_by_fields, value


@dataclass(frozen=True, slots=True)
class Queueing:
    """How a block waited for the insert lock of a table that takes one quorum insert at a time.

    :param wait_ms: until it had the lock, or was sent without.
    :param held: False: nobody could be asked for the lock: an unlocked insert.
    :param lost: the lock was lost before it was released.
    """

    wait_ms: int
    held: bool
    lost: bool = False


@pickled_by_fields
@value
class Receipt:
    """One block that ClickHouse acknowledged.

    :param bytes: size of the Native block.
    :param checksum: of the Native block; equal blocks have equal checksums.
    :param replica: URL of the server that acknowledged.
    :param entries: distinct ClickHouse partitions, i.e. window entries, of the block.
    :param acknowledged_at_ms: the worker's wall time when the server's word had arrived.
    :param messages: that made the rows; None: one row each.
    :param failed_over: replicas that were offered the block before, within the same task, each
        with the name of what went wrong, like "http://host:8123 CONNECTION_REFUSED".
    :param in_doubt: one of those may still store the block.
    :param queueing: None: nobody queues for this table.
    :param is_shared: the block is that of a bundle, and an earlier member of it counts it.
    """

    entry: str
    target: str
    shard: str
    token: str
    rows: int
    bytes: int
    checksum: str
    replica: str
    entries: int
    insert_ms: int
    acknowledged_at_ms: int = 0
    messages: int | None = None
    failed_over: tuple[str, ...] = ()
    in_doubt: bool = False
    queueing: Queueing | None = None
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message stood in Kafka when it was loaded for the first time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None


#: Which of the pipeline's topics gets a message that made no row.
Into = Literal["dead-letters", "parking", "duplicates"]


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Why a message cannot become a row of a table entry.

    :param entry: "" where no entry takes the message.
    :param column: "" where it is not about one column.
    :param into: the topic that gets it.
    :param facts: more that is said of it, by name.
    """

    entry: str
    reason: str
    error: str
    column: str = ""
    into: Into = "dead-letters"
    facts: tuple[tuple[str, str], ...] = ()


class DeadLetter(NamedTuple):
    """A message that cannot become a row of one table, with where it stands.

    A tuple, because there may be thousands in a range: to make one, to pack it in a worker and to
    unpack it in the driver costs a quarter of what it does with a dataclass [measured].

    :param value: the payload as it was, or its first bytes if `truncated`.
    :param timestamp_ms: the message's Kafka timestamp, None if it has none.
    :param table: name of the table entry.
    :param origin: of a replayed message, where it stood before its first replay.
    :param attempt: 1 for a message that was never replayed.
    :param attempted_at_ms: when the driver heard of it; 0 if that was not recorded.
    :param connector: pipeline and connector that read it, as `pipeline.connector`.
    :param spec: digest of the load spec that it was read under.
    :param topic_id: short id of the topic when it was read; "" if that was not recorded.
    :param generation: of the record of its range; None if that was not recorded.
    :param into: see `DeadLetterReason`, as `facts`.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    reason: str
    error: str
    table: str
    column: str = ""
    truncated: bool = False
    origin: Origin | None = None
    attempt: int = 1
    attempted_at_ms: int = 0
    connector: str = ""
    spec: str = ""
    into: Into = "dead-letters"
    facts: tuple[tuple[str, str], ...] = ()
    topic_id: str = ""
    generation: int | None = None

    @property
    def first(self) -> Origin:
        """Where the message stood at first: its origin, or itself."""
        return self.origin or Origin(self.topic, self.partition, self.offset, self.timestamp_ms)

    @property
    def weight(self) -> int:
        """About what it takes in a transaction, with its headers."""
        return len(self.value or b"") + 1024


@pickled_by_fields
@value
class Stages:
    """Where a task's time went, in seconds of wall time; `cpu` is its process' CPU time.

    :param fetch: reading the range from Kafka into buffers; `check` is the part of it that
        proves where messages begin and end, and joins them.
    :param claim: asking who owns the keys of events, and leaving duplicates out.
    :param insert: everything about inserting; `wait` is the part of it from the first byte of
        the block to the server's answer.
    :param dead_letters: reading the originals of bad messages again.
    """

    fetch: float = 0.0
    check: float = 0.0
    decode: float = 0.0
    claim: float = 0.0
    insert: float = 0.0
    wait: float = 0.0
    dead_letters: float = 0.0
    total: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Events of a table entry that other messages own (R20).

    :param rows: that were left out.
    :param messages: of which all rows were left out.
    :param offsets: of these messages, as they stand in the ledger (`core.rests`).
    """

    rows: int
    messages: int
    offsets: Any


@dataclass(frozen=True, slots=True)
class ClaimedRows:
    """What a task asked the store of claims for a table entry.

    :param rows: that have a key.
    :param in_ranges: of them, left out since a row of the same ranges has the key; `before`: since
        another one has it.
    :param seconds: until all were answered.
    """

    rows: int
    in_ranges: int
    before: int
    seconds: float


#: Of so many fields of a table entry it is told that no column takes them.
IGNORED_FIELDS_MAX = 200


@pickled_by_fields
@value
class Loaded:
    """Every block of the range is acknowledged.

    :param messages: messages in the range, tombstones included.
    :param bytes: bytes of their keys and values.
    :param skipped: tombstones, i.e. messages without a value.
    :param passed: by table entry, messages that are neither rows nor dead letters of it: those
        of other entries, those without a route where they are skipped, those of no rows.
    :param unrouted: messages that no entry takes, skipped or not.
    :param empty: by table entry, offsets of messages of no rows, where any number is allowed.
    :param dropped_rows: by table entry, bad rows of messages whose other rows were loaded.
    :param duplicates: by table entry; `copies`: of their messages, where they are to be kept.
    :param claimed: by table entry; what all members of a bundle took is told of the first one.
    :param ignored: by table entry, names of fields that no column takes, as far as they were seen;
        told of the first member.
    :param oldest_ms: the least timestamp of its messages (`kafka.reader.ReadResult`), None where
        none has one; `last_ms`: about that of its last message.
    """

    receipts: tuple[Receipt, ...]
    dead_letters: tuple[DeadLetter, ...]
    messages: int
    bytes: int
    skipped: int
    stages: Stages = field(default_factory=Stages)
    passed: Mapping[str, int] = field(default_factory=dict)
    unrouted: int = 0
    empty: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    dropped_rows: Mapping[str, int] = field(default_factory=dict)
    duplicates: Mapping[str, Duplicates] = field(default_factory=dict)
    copies: tuple[DeadLetter, ...] = ()
    claimed: Mapping[str, ClaimedRows] = field(default_factory=dict)
    ignored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    oldest_ms: int | None = None
    last_ms: int | None = None

    @property
    def rows(self) -> int:
        """Rows in all tables."""
        return sum(receipt.rows for receipt in self.receipts)


@dataclass(frozen=True, slots=True)
class TooHeavy:
    """Its task inserted nothing: the range is above the limit of bytes or rows at `end` (R12).

    :param end: the largest end that keeps the range within the limit, above its begin.
    :param by_rows: how many there are is a function of the load spec, too: under another one
        somebody may have inserted it. Its bytes are what they are.
    """

    end: int
    bytes: int
    by_rows: bool = False


@dataclass(frozen=True, slots=True)
class BundleTooHeavy:
    """Its task inserted nothing: the ranges of the bundle are together above the limit of bytes or
    rows, a function of them all (R12). They go in smaller bundles, or alone.

    :param by_rows: as of `TooHeavy`.
    """

    by_rows: bool = False


@dataclass(frozen=True, slots=True)
class NeedsReservation:
    """A block of this table entry takes more window entries than reserved (R10).

    :param views: how many it takes in the table of a view is not known before it is inserted: the
        server has refused it there, and other tables of the entry may have it. Else nothing of the
        entry was inserted.
    :param inserted: its task may have inserted something of the range: blocks of other entries.
    """

    entry: str
    entries: int
    views: bool = False
    inserted: bool = True


@dataclass(frozen=True, slots=True)
class UnknownSchemas:
    """Messages of a table entry name schemas that the registry does not know.

    :param numbers: those that it was asked for and does not know; the first of them is named most.
    :param known: all numbers that the messages name and that it knows, ascending.
    :param messages: how many messages name a schema that it is not known to know.
    :param of: how many messages the entry was given.
    """

    numbers: tuple[int, ...]
    known: tuple[int, ...]
    messages: int
    of: int


@dataclass(frozen=True, slots=True)
class Outdated:
    """The task refused the load spec: a newer one may make other rows of it.

    :param entry: of the tables after this one nothing was inserted, nor of this one into the shard
        that refused.
    :param inserted: table entries of which a block was inserted before, into one shard at least.
    :param fields: by table entry, fields that are to get columns. Whoever executes the load spec
        refuses the range for them, so nobody inserted these entries. Empty: only the first
        attempt's task may refuse.
    :param schemas: by table entry, schemas that the registry does not know now; nothing of any
        table was inserted by this task. It may have known them before.
    """

    entry: str
    why: str
    inserted: tuple[str, ...]
    fields: Mapping[str, tuple[NewField, ...]] = field(default_factory=dict)
    schemas: Mapping[str, UnknownSchemas] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The range is not loaded, or nobody knows. The error's kind decides what follows.

    :param entry: the table entry whose block was refused; "" where it is no refusal of one.
    :param is_unstored: nobody ever inserted anything of this entry for the range.
    :param inserted: table entries whose blocks were inserted before, if `is_unstored`.
    :param inserted_nothing: its task inserted nothing of it, of no table: its messages could not be
        read, or nobody answered for its claims.
    """

    error: SluiceError
    entry: str = ""
    is_unstored: bool = False
    inserted: tuple[str, ...] = ()
    inserted_nothing: bool = False


@dataclass(frozen=True, slots=True)
class Untried:
    """The task did not come to this range, and inserted nothing of it."""


Outcome = Loaded | TooHeavy | BundleTooHeavy | NeedsReservation | Outdated | Failed | Untried


@pickled_by_fields
@value
class TaskReport:
    """What one task says of one of its ranges.

    :param task_attempt: Spark's attempt number; above 0 an earlier attempt may still run.
    :param worker_memory_bytes: peak resident memory of the worker process.
    :param may_land: a server that did not answer may still store a block of it, whatever the
        outcome is.
    :param may_lack_part: a server has failed in a way after which a table that is not replicated
        may know a block of it and not have it, whatever the outcome is.
    :param spans: what was done when, of a bundle told by its first range; none: nobody asked.
    """

    block_range: Range
    batch: int
    outcome: Outcome
    task_attempt: int = 0
    worker_memory_bytes: int = 0
    may_land: bool = False
    may_lack_part: bool = False
    spans: tuple[WorkSpan, ...] = ()
