"""What a lane knows of each of its partitions, and of inserts that may come late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sluice.core.budget import Claim, Site
from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.core.ledger import Background, Marks
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, Range, TopicPartition
from sluice.core.receipts import Loaded, NeedsGrant, Outdated
from sluice.core.records import Record
from sluice.core.text import ConfigurationText


@dataclass(slots=True)
class PartitionState:
    """One partition of a lane. `record` is always what is committed in Kafka.

    :param epoch: of the leader that told `stable_end`.
    :param out: a task of this record may be running.
    :param loaded: the report that the next record will settle.
    :param shorten_to: the range was refused as too heavy; its new end.
    :param grant_wanted: the range was refused; which of its blocks needs more window entries.
    :param probing: the range left the window and has to be probed.
    :param probe_out: a probe is running.
    :param is_probed: what the probe found is not recorded yet. It may well be what an earlier
        probe found, and is recorded again all the same: under marks of now, and under a text that
        can be executed.
    :param suspect_until_ms: until then a lost task of this range may still insert.
    :param waiting_since_ms: when the stable end was first seen beyond the record's end.
    :param held_back_at: the stable end at the last look for open transactions.
    :param back_at_ms: when its task last came back; a repeat needs a younger look at the
        windows, since entries that are younger than the look may have pushed its block out.
    :param sent: some task was sent this range.
    :param untouched: nobody inserted anything of this range: each task that was ever sent it came
        back, and said that it refused all of it. False where that is not known.
    :param repeated: the last task that was sent it was not the first one.
    :param outdated: its first task refused the text; see `core.receipts.Outdated`.
    :param refusals: how often in a row its block was refused for its columns.
    :param short_since_ms: since when the log ends before the record's end.
    :param is_unrecorded: the background was changed, and the ledger does not know.
    :param insert_seconds: what a block of it may take, as learned from those that took longer than
        the configuration allows; 0: none did.
    :param retiring: its topic is not configured any more: it is let go once it is settled.
    :param stopped: why this partition stopped, if it did.
    """

    source: TopicPartition
    record: Record
    background: Background
    stable_end: int
    committed_at_ms: int
    epoch: int = EPOCH_UNKNOWN
    out: bool = False
    loaded: Loaded | None = None
    shorten_to: int | None = None
    grant_wanted: NeedsGrant | None = None
    probing: bool = False
    probe_out: bool = False
    is_probed: bool = False
    suspect_until_ms: int = 0
    waiting_since_ms: int | None = None
    bytes_per_message: float | None = None
    retry_at_ms: int = 0
    failures: int = 0
    back_at_ms: int = 0
    held_back_at: int = -1
    sent: bool = False
    untouched: bool = False
    repeated: bool = False
    outdated: Outdated | None = None
    refusals: int = 0
    short_since_ms: int | None = None
    is_unrecorded: bool = False
    insert_seconds: float = 0.0
    retiring: bool = False
    stopped: SluiceError | None = None

    @property
    def block_range(self) -> Range:
        """The recorded range."""
        return Range(self.source, self.record.begin, self.record.end)

    @property
    def settled(self) -> int:
        """Nothing below this offset is outstanding."""
        return self.record.begin

    def distrust_servers(self) -> None:
        """A table that is not replicated may know a block of this range that it does not have: it
        is not sent again under its token. That has to be in the ledger, for who comes next."""
        if self.record.in_doubt and self.background.servers:
            self.background = replace(self.background, servers={})
            self.is_unrecorded = True

    def see_end(self, end: EpochOffset, now_ms: int) -> None:
        """Take a fresh stable end in. In another epoch than before it may be less: nobody vouches
        any more for what was seen above it."""
        is_same = end.epoch in (self.epoch, EPOCH_UNKNOWN)
        self.stable_end = max(end.offset, self.stable_end if is_same else 0)
        if end.epoch != EPOCH_UNKNOWN:
            self.epoch = end.epoch
        if self.stable_end <= self.record.end:
            self.waiting_since_ms = None
        elif self.waiting_since_ms is None:
            self.waiting_since_ms = now_ms

    def fail(self, error: SluiceError, retry_at_ms: int) -> None:
        """A range came back unloaded; it is sent again at `retry_at_ms`."""
        self.failures += 1
        self.retry_at_ms = retry_at_ms

    def stop(self, error: SluiceError) -> None:
        """Stop this partition; the others go on."""
        self.stopped = error
        self.loaded = None
        self.shorten_to = None
        self.grant_wanted = None

    def may_insert(self, now_ms: int) -> bool:
        """Whether anybody may still insert for the committed record."""
        return self.out or (
            self.record.in_doubt and not has_expired(self.record.deadline_ms, now_ms)
        )


@dataclass(frozen=True, slots=True)
class Suspect:
    """A settled range of which a lost task may still try an insert."""

    marks: Marks
    deadline_ms: int


@dataclass(slots=True)
class Claims:
    """Everything that holds on to a window: R10's bookkeeping for one lane."""

    suspects: list[Suspect] = field(default_factory=list)
    ended: list[tuple[int, Marks, int]] = field(default_factory=list)

    def suspect(self, found: Iterable[Suspect]) -> None:
        """Take in what a take-over found; what is known already counts once."""
        for suspect in found:
            if suspect not in self.suspects:
                self.suspects.append(suspect)

    def end(self, now_ms: int, marks: Marks, grant: int) -> None:
        """A claim ended; its entries may be missing in marks that were read before."""
        self.ended.append((now_ms, marks, grant))

    def forget(self, now_ms: int, read_started_ms: int) -> None:
        """Drop what no longer counts."""
        self.suspects = [s for s in self.suspects if not has_expired(s.deadline_ms, now_ms)]
        self.ended = [item for item in self.ended if item[0] >= read_started_ms]

    def ended_since(self, site: Site, read_started_ms: int) -> int:
        """Grants that ended after a mark's reading began."""
        return sum(
            grant for at, marks, grant in self.ended if at >= read_started_ms and site.key in marks
        )

    def at(self, site: Site, states: list[PartitionState], now_ms: int) -> list[Claim]:
        """The claims on one site's window."""
        key = site.key
        held = [Claim(s.marks[key], 0) for s in self.suspects if key in s.marks]
        for state in states:
            if key in state.background.marks and state.may_insert(now_ms):
                held.append(Claim(state.background.marks[key], state.record.grant))
        return held


def sites_gone(background: Background, text: ConfigurationText, topic: str) -> list[str]:
    """Where a range in doubt may have blocks and a text does not insert, in words: table entries,
    and shards of those that it has.

    A probe under that text would not look there: rows of a table entry would count as loaded, rows
    in a shard as missing.
    """
    shards = {table.entry: table.shards for table in text.tables_of(topic)}
    sites = sorted({(site.entry, site.shard) for site in map(Site.of, background.marks)})
    held = {entry for entry, _ in sites} | set(background.rest)
    gone = [f"table entry {entry}" for entry in sorted(held - shards.keys())]
    for entry, shard in sites:
        if entry in shards and shard not in shards[entry]:
            gone.append(f"shard {shard} of table entry {entry}")
    return gone
