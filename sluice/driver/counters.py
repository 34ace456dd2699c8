"""What a loop has done since it started; read by progress, metrics and the benchmark."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from sluice.core.budget import TargetShard
from sluice.core.dead_letters import PARKED
from sluice.core.errors import SluiceError
from sluice.core.receipts import (
    IGNORED_FIELDS_MAX,
    BundleTooHeavy,
    ClaimedRows,
    Loaded,
    NeedsReservation,
    Outcome,
    Outdated,
    TooHeavy,
    Untried,
)


@dataclass(slots=True)
class Inserted:
    """What one replica acknowledged of one table.

    :param parts: that the server made of the blocks: one for each ClickHouse partition of each.
    :param bytes: of the Native blocks.
    """

    blocks: int = 0
    parts: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Waits:
    """What a loop waits for without sending anything, so that no failure is counted.

    :param windows: why the window of a table in a shard cannot be read now, so that its ranges
        wait; None where it can.
    :param kafka: Kafka did not answer when it was last asked for last stable offsets: all ranges
        wait.
    :param records: transactions in a row that could not be committed: nothing is settled.
    :param parked: whether a table entry is parked now, of those that may be: its messages wait.
    :param frozen: whether a person has frozen a table entry, or what it belongs to.
    :param refused: topics that are to be loaded and cannot be, and why; the others go on.
    """

    windows: Mapping[TargetShard, str | None]
    kafka: bool
    records: int
    parked: Mapping[str, bool]
    frozen: Mapping[str, bool]
    refused: Mapping[str, SluiceError]


#: What a task does with a range, and all of it.
STAGES = ("fetch", "decode", "claim", "insert", "total")
#: Within how many seconds a store of claims may have answered for a block.
CLAIM_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: Within how many seconds of its timestamp a message may be in its table.
END_TO_END_SECONDS = (
    *(0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0),
    86_400.0,
)


#: Within how many seconds a stage of a range, or a block's insert, may have ended.
STAGE_SECONDS = (*(0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0), 120.0)
#: Likewise a round, or a transaction.
ROUND_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
BLOCK_ROWS = (1, 10, 100, 1_000, 10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)


class Histogram:
    """How often something took how long, or was how large.

    :param bounds: ascending.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """It was so much once more; a clock that was set back says less than nothing."""
        value = max(0.0, value)
        self.sum += value
        self._counts[bisect_left(self._bounds, value)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """How often it was so much at most, as Prometheus has it."""
        names = (*map(str, self._bounds), "+Inf")
        return [*zip(names, map(float, accumulate(self._counts)), strict=True)]


@dataclass(slots=True)
class Blocks:
    """Of a table entry.

    :param seconds: until a server had acknowledged each.
    """

    rows: Histogram = field(default_factory=lambda: Histogram(BLOCK_ROWS))
    seconds: Histogram = field(default_factory=lambda: Histogram(STAGE_SECONDS))


@dataclass(slots=True)
class Claimed:
    """What was asked of the store of claims for a table entry; see `core.receipts.ClaimedRows`.

    :param answered: how long it took for each block.
    """

    rows: int = 0
    in_ranges: int = 0
    before: int = 0
    answered: Histogram = field(default_factory=lambda: Histogram(CLAIM_SECONDS))

    def add(self, found: ClaimedRows) -> None:
        """Count a block."""
        self.rows += found.rows
        self.in_ranges += found.in_ranges
        self.before += found.before
        self.answered.add(found.seconds)


#: What becomes of a message, for one table entry that its topic goes to: `row`s of it, a
#: `dead_letter`, a `duplicate`, `skipped` as a tombstone, `parked`, or `passed` over since it is
#: another entry's or has no rows.
OUTCOMES = ("row", "dead_letter", "duplicate", "skipped", "parked", "passed")


@dataclass(slots=True)
class Accounted:
    """What became of the messages of a table entry.

    :param unaccounted: how far the outcomes were from the messages, added up.
    """

    messages: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    unaccounted: int = 0

    def add(self, entry: str, loaded: Loaded) -> None:
        """Count a range that was loaded as a whole."""
        mine = [letter for letter in loaded.dead_letters if letter.table == entry]
        parked = sum(letter.reason == PARKED for letter in mine)
        told = loaded.duplicates.get(entry)
        duplicates = 0 if told is None else told.messages
        made = sum(
            receipt.rows if receipt.messages is None else receipt.messages
            for receipt in loaded.receipts
            if receipt.entry == entry
        )
        passed = loaded.passed.get(entry, 0) - duplicates
        found = (made, len(mine) - parked, duplicates, loaded.skipped, parked, passed)
        for outcome, count in zip(OUTCOMES, found, strict=True):
            self.outcomes[outcome] += count
        self.messages += loaded.messages
        self.unaccounted += abs(loaded.messages - sum(found))


#: Why a range came back neither loaded nor failed. It is sent again, most often as something else.
UNLOADED: Mapping[type[Outcome], str] = {
    Untried: "untried",
    TooHeavy: "too_heavy",
    BundleTooHeavy: "bundle_too_heavy",
    NeedsReservation: "reservation",
    Outdated: "outdated",
}


@dataclass(slots=True)
class Counters:
    """Sums over all settled ranges; seconds are wall time inside tasks."""

    messages: int = 0
    rows: int = 0
    bytes: int = 0
    dead_letters: int = 0
    skipped: int = 0
    unrouted: int = 0
    dropped_rows: int = 0
    blocks: int = 0
    batches: int = 0
    retries: int = 0
    failovers: int = 0
    locked_inserts: int = 0
    insert_lock_wait_seconds: float = 0.0
    unlocked_inserts: int = 0
    insert_locks_lost: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    #: By why; see `UNLOADED`.
    unloaded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UNLOADED.values(), 0))
    worker_memory_bytes_max: int = 0
    probes: int = 0
    rounds: Histogram = field(default_factory=lambda: Histogram(ROUND_SECONDS))
    transactions: Histogram = field(default_factory=lambda: Histogram(ROUND_SECONDS))
    #: Of ranges, by stage of `core.receipts.Stages`.
    stages: dict[str, Histogram] = field(
        default_factory=lambda: {stage: Histogram(STAGE_SECONDS) for stage in STAGES}
    )
    #: By table entry.
    sent: dict[str, Blocks] = field(default_factory=dict)
    #: By database.table, shard, and the replica's URL.
    inserted: dict[tuple[str, str, str], Inserted] = field(default_factory=dict)
    #: Of the store of claims, by table entry.
    claimed: dict[str, Claimed] = field(default_factory=dict)
    #: By table entry; of ranges that a probe left a part of nothing is counted.
    accounted: dict[str, Accounted] = field(default_factory=dict)
    #: By table entry: fields of messages that no column takes.
    ignored: dict[str, set[str]] = field(default_factory=dict)
    #: By table entry: of each range, from the timestamp of its oldest message until all its rows
    #: were acknowledged.
    end_to_end: dict[str, Histogram] = field(default_factory=dict)

    def newly_ignored(self, loaded: Loaded) -> dict[str, list[str]]:
        """By table entry, the fields without a column that no range before had. The names of events
        may be any number: after IGNORED_FIELDS_MAX, no more are told."""
        new: dict[str, list[str]] = {}
        for entry, names in loaded.ignored.items():
            known = self.ignored.setdefault(entry, set())
            new[entry] = [name for name in names if name not in known]
            del new[entry][max(0, IGNORED_FIELDS_MAX - len(known)) :]
            known.update(new[entry])
        return {entry: names for entry, names in new.items() if names}

    def came_back(self, outcome: Outcome) -> None:
        """Count a range that a task gave back."""
        why = UNLOADED.get(type(outcome))
        if why is not None:
            self.unloaded[why] += 1

    def account(self, entries: Iterable[str], loaded: Loaded) -> None:
        """Count what became of each message of a range that was settled now.

        :param entries: the table entries that it went to.
        """
        for entry in entries:
            self.accounted.setdefault(entry, Accounted()).add(entry, loaded)

    def settled(self, loaded: Loaded) -> None:
        """Count a range that was settled now."""
        self.messages += loaded.messages
        self.rows += loaded.rows
        self.bytes += loaded.bytes
        self.dead_letters += len(loaded.dead_letters)
        self.skipped += loaded.skipped
        self.unrouted += loaded.unrouted
        self.dropped_rows += sum(loaded.dropped_rows.values())
        own = [receipt for receipt in loaded.receipts if not receipt.is_shared]
        self.blocks += len(own)
        for queueing in (receipt.queueing for receipt in own):
            if queueing is not None:
                self.locked_inserts += queueing.held
                self.insert_lock_wait_seconds += queueing.wait_ms / 1000
                self.unlocked_inserts += not queueing.held
                self.insert_locks_lost += queueing.lost
        for stage, histogram in self.stages.items():
            histogram.add(getattr(loaded.stages, stage))
        for receipt in own:
            blocks = self.sent.setdefault(receipt.entry, Blocks())
            blocks.rows.add(receipt.rows)
            blocks.seconds.add(receipt.insert_ms / 1000)
        for entry, found in loaded.claimed.items():
            self.claimed.setdefault(entry, Claimed()).add(found)
        for receipt in loaded.receipts:
            where = receipt.target, receipt.shard, receipt.replica
            inserted = self.inserted.setdefault(where, Inserted())
            inserted.blocks += not receipt.is_shared
            inserted.parts += 0 if receipt.is_shared else receipt.entries
            inserted.rows += receipt.rows
            inserted.bytes += receipt.bytes
        self._end_to_end(loaded)

    def _end_to_end(self, loaded: Loaded) -> None:
        """A producer's clock may be ahead of a worker's: then it took no time."""
        if loaded.oldest_ms is None:
            return
        acknowledged_ms: dict[str, int] = {}
        for receipt in loaded.receipts:
            before = acknowledged_ms.get(receipt.entry, 0)
            acknowledged_ms[receipt.entry] = max(before, receipt.acknowledged_at_ms)
        for entry, at_ms in acknowledged_ms.items():
            if entry not in self.end_to_end:
                self.end_to_end[entry] = Histogram(END_TO_END_SECONDS)
            self.end_to_end[entry].add(max(0, at_ms - loaded.oldest_ms) / 1000)
