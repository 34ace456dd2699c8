"""Deciding each partition's next record. No I/O: everything that was observed is passed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from sluice.core.budget import Site, room, still_remembered
from sluice.core.errors import TerminalError
from sluice.core.lease import deadline_ms
from sluice.core.ledger import (
    Background,
    LedgerEntry,
    receipt_entry,
    record_entry,
    settled_entry,
    suspect_entry,
)
from sluice.core.planning import Backlog, Limits, in_fair_order, next_range, stretched_delay_ms
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.core.records import Kind, Record
from sluice.core.text import ConfigurationText
from sluice.spark.parking import limits_of
from sluice.spark.ports import SiteWindow
from sluice.spark.state import Claims, PartitionState, site_key

#: Entries granted to a block of a partitioned table before any was seen.
FIRST_GRANT = 8

#: Dead letters of one transaction; ranges beyond it are settled by the next ones.
LETTER_BYTES_MAX = 64 * 1024 * 1024

#: A look at the windows is too old to repeat a range on after so long: a driver that slept
#: would repeat on what the windows held before it slept, and with a new lease.
LOOK_AGE_MS_MAX = 30_000

#: A settled partition that stays idle is settled again, long before its offsets expire.
RESETTLE_MS = 6 * 3600 * 1000


class WindowTooSmallError(TerminalError):
    """One block alone needs more of a deduplication window than may be used."""


@dataclass(frozen=True, slots=True)
class Step:
    """A partition's next record.

    :param dispatch: whether its range is to be loaded after the commit.
    """

    source: TopicPartition
    record: Record
    background: Background
    dispatch: bool
    entries: tuple[LedgerEntry, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()

    def numbered(self, batch: int) -> Step:
        """The step as part of this batch, with its ledger entry for the record."""
        record = replace(self.record, batch=batch)
        entry = record_entry(self.source, record, self.background)
        return replace(self, record=record, entries=(*self.entries, entry))


def sites_of(text: ConfigurationText, topic: str) -> list[Site]:
    """Every window that a range of this topic takes entries of."""
    return [
        Site(table.entry, shard)
        for table in text.tables_of(topic)
        if not table.parked
        for shard in table.shards
    ]


class Budget:
    """The budget of one round (rule 10): what may still be granted at each site."""

    def __init__(
        self,
        windows: Mapping[Site, SiteWindow],
        claims: Claims,
        states: list[PartitionState],
        now_ms: int,
    ) -> None:
        self.windows = windows
        self._claims = claims
        self._states = states
        self._now_ms = now_ms
        self._rooms: dict[Site, int] = {}

    def affordable(self, sites: list[Site], grant: int) -> int:
        """The grant, or the most that the narrowest window may ever give; at least one.

        What one block needed must not stop the partitions whose blocks need less.
        """
        usable = [self.windows[site].state.usable for site in sites if site in self.windows]
        return max(1, min([grant, *usable]))

    def take(self, sites: list[Site], grant: int, held: int = 0, entry: str = "") -> bool:
        """Take the grant at every one of the sites, or at none.

        :param held: grant of the same range that is among the claims, and that this replaces.
        :param entry: the table entry whose block needs so much, where that is known.
        :raises WindowTooSmallError: the grant can never be given; names the narrowest window.
        """
        windows = [(site, self.windows[site]) for site in sites if site in self.windows]
        if len(windows) < len(sites):
            return False
        for site, window in sorted(windows, key=lambda item: item[1].state.usable):
            if grant > window.state.usable:
                raise too_small(site, grant, window, entry)
        if any(self._room(site, window) + held < grant for site, window in windows):
            return False
        for site in sites:
            self._rooms[site] -= grant - held
        return True

    def _room(self, site: Site, window: SiteWindow) -> int:
        if site not in self._rooms:
            held = self._claims.at(site, self._states, self._now_ms)
            ended = self._claims.ended_since(site, window.read_started_ms)
            self._rooms[site] = room(window.state, held, ended)
        return self._rooms[site]


@dataclass(slots=True)
class Planner:
    """Makes steps for a lane.

    :param text: today's configuration text; new ranges are intended under it.
    :param owner: this driver's owner id.
    :param grants: entries that a block of each table entry took at most, as learned.
    """

    text: ConfigurationText
    owner: str
    limits: Limits
    lease_seconds: float
    grants: dict[str, int] = field(default_factory=dict)
    #: The name of the text, worked out once: of a hundred tables it takes 8 ms [measured].
    digest: str = field(init=False)
    _limits_of: dict[str, Limits] = field(default_factory=dict)
    _sites_of: dict[str, list[Site]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digest = self.text.digest()

    def change(self, text: ConfigurationText) -> None:
        """Intend new ranges under another text from now on."""
        self.text, self.digest = text, text.digest()
        self._limits_of.clear()
        self._sites_of.clear()

    def limits_of(self, topic: str) -> Limits:
        """How large a new range of this topic may be; kept, since every round asks for each
        partition."""
        if topic not in self._limits_of:
            self._limits_of[topic] = limits_of(self.text, topic, self.limits)
        return self._limits_of[topic]

    def grant(self, topic: str) -> int:
        """How many entries to grant each block of a range of this topic."""
        wanted = 1
        for table in self.text.tables_of(topic):
            if table.partition_key and not table.parked:
                wanted = max(wanted, 2 * self.grants.get(table.entry, FIRST_GRANT // 2))
        return wanted

    def learn(self, entry: str, entries: int) -> None:
        """Remember what a block took: growth at once, shrinkage slowly."""
        before = self.grants.get(entry, 0)
        self.grants[entry] = max(entries, before - 1)

    # New ranges

    def due(
        self,
        states: list[PartitionState],
        windows: Mapping[Site, SiteWindow],
        now_ms: int,
        *,
        flush: bool,
    ) -> list[Backlog]:
        """Partitions whose next range is due, longest waiting first."""
        backlogs = []
        stretched: dict[str, Limits] = {}
        for state in states:
            if state.waiting_since_ms is None:
                continue
            backlog = Backlog(
                state.source,
                state.record.end,
                state.stable_end,
                state.waiting_since_ms,
                state.bytes_per_message,
            )
            topic = state.source.topic
            if topic not in stretched:
                stretched[topic] = self._stretched(topic, windows)
            if next_range(backlog, stretched[topic], now_ms, flush=flush) is not None:
                backlogs.append(backlog)
        return in_fair_order(backlogs)

    def _stretched(self, topic: str, windows: Mapping[Site, SiteWindow]) -> Limits:
        """The limits of a topic while the servers of its tables are crowded with parts."""
        limits = self.limits_of(topic)
        if topic not in self._sites_of:
            self._sites_of[topic] = sites_of(self.text, topic)
        known = [windows[site] for site in self._sites_of[topic] if site in windows]
        crowding = max((window.crowding for window in known), default=0.0)
        return replace(limits, delay_ms_max=stretched_delay_ms(limits.delay_ms_max, crowding))

    def intend(
        self,
        state: PartitionState,
        backlog: Backlog,
        windows: Mapping[Site, SiteWindow],
        grant: int,
        now_ms: int,
    ) -> Step:
        """The next range of a partition whose grant was found affordable."""
        limits = self.limits_of(state.source.topic)
        block_range = next_range(backlog, limits, now_ms, flush=True)
        assert block_range is not None
        record = Record(
            kind=Kind.INTEND,
            batch=0,
            attempt=1,
            begin=block_range.begin,
            end=block_range.end,
            owner=self.owner,
            generation=state.record.generation,
            topic_id=state.record.topic_id,
            text=self.digest,
            grant=grant,
            deadline_ms=deadline_ms(now_ms, self.lease_seconds),
            epoch=state.epoch,
        )
        background = Background(
            marks={
                site_key(site): windows[site].state.mark
                for site in sites_of(self.text, state.source.topic)
            },
            since_ms=now_ms,
            bytes_max=min(self.text.range_bytes_max, limits.range_bytes_max),
        )
        return Step(state.source, record, background, True, *settling(state, now_ms))

    # The same range again

    def renew(self, state: PartitionState, now_ms: int, grant: int | None = None) -> Step:
        """The same range with a new lease."""
        record = replace(
            state.record,
            kind=Kind.RENEW,
            attempt=state.record.attempt + 1,
            owner=self.owner,
            grant=grant or state.record.grant,
            deadline_ms=deadline_ms(now_ms, self.lease_seconds),
        )
        return Step(state.source, record, state.background, True)

    def retext(self, state: PartitionState, now_ms: int) -> Step:
        """The same range under today's text: the only task that was ever allowed to insert for
        it refused the text that it was intended under."""
        step = self.renew(state, now_ms)
        record = replace(step.record, kind=Kind.RETEXT, text=self.digest)
        return replace(step, record=record)

    def widen(self, state: PartitionState, text: str, now_ms: int) -> Step:
        """The same range under a text with columns for its fields: whoever executes the one
        before refuses the range for them, so that nobody inserted it.

        :param text: the digest of that text.
        """
        step = self.renew(state, now_ms)
        return replace(step, record=replace(step.record, kind=Kind.WIDEN, text=text))

    def shorten(self, state: PartitionState, end: int, now_ms: int) -> Step:
        """The same begin with a smaller end: nobody inserted, so the tokens may change."""
        record = replace(
            state.record,
            kind=Kind.SHORTEN,
            end=end,
            rest="",
            deadline_ms=deadline_ms(now_ms, self.lease_seconds),
        )
        return Step(state.source, record, replace(state.background, rest={}), True)

    def remembered(
        self,
        state: PartitionState,
        windows: Mapping[Site, SiteWindow],
        now_ms: int,
        read_since_ms: int,
        parked: Collection[str] = (),
    ) -> bool | None:
        """Whether the windows surely still know the blocks of a range in doubt.

        :param parked: table entries of which no block is sent again.
        :returns: None if a window was not read since `read_since_ms`.
        """
        by_key = {site_key(site): window for site, window in windows.items()}
        for key, mark in state.background.marks.items():
            if key.rpartition("/")[0] in parked:
                continue
            window = by_key.get(key)
            if window is None or window.read_started_ms < read_since_ms:
                return None
            if not still_remembered(window.state, mark):
                return False
            age_seconds = (now_ms - state.background.since_ms) / 1000
            if window.seconds is not None and age_seconds > window.seconds / 2:
                return False
        return True


def settling(
    state: PartitionState, now_ms: int
) -> tuple[tuple[LedgerEntry, ...], tuple[DeadLetter, ...]]:
    """Ledger entries and dead letters of a loaded range that this step settles."""
    loaded = state.loaded
    if loaded is None:
        return (), ()
    batch, attempt = state.record.batch, state.record.attempt
    entries = [receipt_entry(state.block_range, batch, attempt, r) for r in loaded.receipts]
    entries.append(settled_entry(state.block_range, batch, attempt, loaded))
    if state.suspect_until_ms > now_ms:
        entries.append(
            suspect_entry(state.block_range, state.suspect_until_ms, state.background.marks)
        )
    return tuple(entries), loaded.dead_letters


def refresh(state: PartitionState) -> Step:
    """A range that stays in doubt is recorded again as it is, long before its offset expires;
    nobody gets more time to insert."""
    record = replace(state.record, kind=Kind.RENEW)
    return Step(state.source, record, state.background, False)


def settle(state: PartitionState, owner: str, now_ms: int) -> Step:
    """Nothing is outstanding: an empty range at the end of what is loaded."""
    record = replace(
        state.record,
        kind=Kind.SETTLE,
        attempt=0,
        begin=state.record.end,
        owner=owner,
        grant=0,
        deadline_ms=0,
        rest="",
    )
    return Step(state.source, record, Background(since_ms=now_ms), False, *settling(state, now_ms))


def too_small(site: Site, grant: int, window: SiteWindow, entry: str) -> WindowTooSmallError:
    """A block needs more entries than the window of this site may give.

    :param entry: whose block; may be another table's than the site's, since one grant serves
        all tables of a topic. "" where only the recorded grant is known.
    """
    if entry in ("", site.entry):
        needs = f"a block of table entry {site.entry} takes {grant} entries"
    else:
        needs = (
            f"a block of table entry {entry} takes {grant} entries, and one grant serves all "
            f"tables of the topic; table entry {site.entry} has room for fewer"
        )
    table = window.state.table or f"table entry {site.entry}"
    return WindowTooSmallError(
        f"{needs}: the deduplication window of {table} in shard {site.shard} holds "
        f"{window.state.blocks}, and half of it may be used",
        f"ALTER TABLE {window.state.table or '…'} MODIFY SETTING "
        f"non_replicated_deduplication_window = {4 * grant} "
        f"(replicated_deduplication_window for a Replicated table), or load less late data.",
    )


def bounded(steps: list[Step]) -> list[Step]:
    """As many steps as one transaction can take with their dead letters; at least one that
    has any. The others are planned again in the next round."""
    taken: list[Step] = []
    size = 0
    for step in steps:
        weight = sum(len(letter.value or b"") + 1024 for letter in step.dead_letters)
        if size and weight and size + weight > LETTER_BYTES_MAX:
            continue
        size += weight
        taken.append(step)
    return taken
