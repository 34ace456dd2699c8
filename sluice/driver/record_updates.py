"""Deciding each partition's next record. No I/O: everything that was observed is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.core.budget import Site, WindowState, room, still_remembered, still_young
from sluice.core.bundles import members_in
from sluice.core.errors import TerminalError
from sluice.core.lease import deadline_ms, has_expired, lease_seconds_max
from sluice.core.ledger import (
    Background,
    LedgerEntry,
    Marks,
    receipt_entry,
    record_entry,
    settled_entry,
    suspect_entry,
)
from sluice.core.planning import (
    Backlog,
    Limits,
    in_fair_order,
    next_range,
    smoothed_bytes,
    stretched_delay_ms,
)
from sluice.core.ranges import TopicPartition, digest_of_rest
from sluice.core.receipts import DeadLetter, Loaded
from sluice.core.records import Kind, Record
from sluice.core.server_runs import ServerRuns, is_same_run
from sluice.core.text import ConfigurationText
from sluice.driver.parking import limits_of, parked_in
from sluice.driver.ports import SiteWindow
from sluice.driver.state import Claims, PartitionState

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
class RecordUpdate:
    """A partition's next record.

    :param dispatch: whether its range is to be loaded after the commit.
    :param settles: the bundle of the range that it settles, "" of one alone or of none.
    """

    source: TopicPartition
    record: Record
    background: Background
    dispatch: bool
    entries: tuple[LedgerEntry, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    settles: str = ""

    def numbered(self, batch: int) -> RecordUpdate:
        """The update as part of this batch, with its ledger entry for the record."""
        record = replace(self.record, batch=batch)
        entry = record_entry(self.source, record, self.background)
        return replace(self, record=record, entries=(*self.entries, entry))


def busy(states: Iterable[PartitionState], now_ms: int) -> list[PartitionState]:
    """The partitions that a round may do anything for. An idle one costs it this look."""
    stale_ms = now_ms - RESETTLE_MS
    return [
        state
        for state in states
        if state.waiting_since_ms is not None
        or state.record.kind is not Kind.SETTLE
        or state.committed_at_ms < stale_ms
    ]


def sites_of(text: ConfigurationText, topic: str) -> list[Site]:
    """Every table that a range of this topic is inserted into; see `Budget.sites`, too."""
    return [
        Site(table.entry, shard)
        for table in text.tables_of(topic)
        if not table.parked
        for shard in table.shards
    ]


def marks_at(sites: Iterable[Site], windows: Mapping[Site, SiteWindow]) -> tuple[Marks, ServerRuns]:
    """What the windows of these sites, as far as they were read, say of now: what a range that is
    inserted from now on is remembered by."""
    known = [(site, windows[site]) for site in sites if site in windows]
    return (
        {site.key: window.state.mark for site, window in known},
        {site.shard: window.server for site, window in known if window.server},
    )


#: A table in a shard, whichever entries and views go to it.
_Place = tuple[str, str]


class Budget:
    """The budget of one round (R10): what may still be granted at each window.

    A window that several entries, or views of theirs, go to is one window: they share it.
    """

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
        self._rooms: dict[_Place, _Room] = {}
        self._behind: dict[Site, list[Site]] = {}
        self._sharing: dict[_Place, list[Site]] = {}
        for site in windows:
            self._sharing.setdefault(self._place(site), []).append(site)
            if site.target:
                self._behind.setdefault(site.own, []).append(site)

    def _place(self, site: Site) -> _Place:
        return self.windows[site].state.table or site.name, site.shard

    def sites(self, text: ConfigurationText, topic: str) -> list[Site]:
        """Every window that a range of this topic takes entries of: those of its tables, and of
        all that the views behind them write to."""
        return [
            each for site in sites_of(text, topic) for each in (site, *self._behind.get(site, ()))
        ]

    def affordable(self, sites: list[Site], grant: int) -> int:
        """The grant, or the most that the narrowest window may ever give; at least one.

        What one block needed must not stop the partitions whose blocks need less.
        """
        known = [site for site in sites if site in self.windows]
        blocks = Counter(map(self._place, known))
        usable = [self.windows[site].state.usable // blocks[self._place(site)] for site in known]
        return max(1, min([grant, *usable]))

    def take(self, sites: list[Site], grant: int, held: int = 0, entry: str = "") -> bool:
        """Take the grant at every one of the sites, or at none.

        :param held: grant of the same range that is among the claims, and that this replaces.
        :param entry: the table entry whose block needs so much, where that is known.
        :raises WindowTooSmallError: the grant can never be given; names the narrowest window.
        """
        if any(site not in self.windows for site in sites):
            return False
        self.require_possible(sites, grant, entry)
        blocks = Counter(self._place(site) for site in sites)
        needed = {place: (grant - held) * count for place, count in blocks.items()}
        if any(self._room(place).left < needs for place, needs in needed.items()):
            return False
        for place, needs in needed.items():
            self._room(place).left -= needs
        return True

    def require_possible(self, sites: list[Site], grant: int, entry: str = "") -> None:
        """See that every window that was read could give the grant if nobody else held any.

        :raises WindowTooSmallError: names the narrowest window that could not.
        """
        windows = [(site, self.windows[site]) for site in sites if site in self.windows]
        # A range whose blocks go to one table by several ways takes the grant once for each.
        blocks = Counter(self._place(site) for site, _ in windows)
        for site, window in sorted(windows, key=lambda item: item[1].state.usable):
            if grant * blocks[self._place(site)] > window.state.usable:
                raise too_small(site, grant, window, entry, blocks[self._place(site)])

    def take_again(self, sites: list[Site], grant: int, marks: Marks) -> bool | None:
        """Take the grant for a range that is to be repeated and that is no claim any more, since
        its lease is over. It becomes the claim that it was: as old as its marks.

        :param marks: from before the range's first insert.
        :returns: False if others hold what it needs: nothing new is granted there in this round.
            None if it would have no room though nobody else held any.
        """
        if any(site not in self.windows for site in sites):
            return False
        oldest: dict[_Place, int] = {}
        for site in sites:
            mark = marks.get(site.key, self.windows[site].state.mark)
            oldest[self._place(site)] = min(mark, oldest.get(self._place(site), mark))
        needed = {
            place: grant * count
            for place, count in Counter(self._place(site) for site in sites).items()
        }
        rooms = [(self._room(place), needs, oldest[place]) for place, needs in needed.items()]
        if any(each.left_alone(mark) < needs for each, needs, mark in rooms):
            return None
        if any(each.left_for(mark) < needs for each, needs, mark in rooms):
            for each, _, _ in rooms:
                each.left = min(each.left, 0)
            return False
        for each, needs, mark in rooms:
            each.left = each.left_for(mark) - needs
            each.oldest = min(each.oldest, mark)
        return True

    def _room(self, place: _Place) -> _Room:
        if place not in self._rooms:
            sites = self._sharing[place]
            read = [self.windows[site] for site in sites]
            claims = self._claims
            held = [c for site in sites for c in claims.at(site, self._states, self._now_ms)]
            ended = sum(
                claims.ended_since(site, window.read_started_ms)
                for site, window in zip(sites, read, strict=True)
            )
            # Read one after the other: the one that was read last says most.
            window = WindowState(
                min(each.state.blocks for each in read), max(each.state.mark for each in read)
            )
            oldest = min((claim.mark for claim in held), default=window.mark)
            self._rooms[place] = _Room(window, room(window, held, ended), oldest)
        return self._rooms[place]


@dataclass(slots=True)
class _Room:
    """What is left of a window in this round.

    :param left: entries that may still be granted.
    :param oldest: the mark of the oldest claim.
    """

    window: WindowState
    left: int
    oldest: int

    def left_for(self, mark: int) -> int:
        """The same for a claim of this mark: what was created since then counts, too."""
        return self.left - max(0, self.oldest - mark)

    def left_alone(self, mark: int) -> int:
        """The same if there were no other claim."""
        return self.window.usable - (self.window.mark - mark)


@dataclass(slots=True)
class RecordPlanner:
    """Makes updates for a loop.

    :param text: today's configuration text; new ranges are intended under it.
    :param owner: this driver's owner id.
    :param lease_seconds: as configured; windows that forget early shorten it.
    :param insert_seconds: what a block may take, as configured.
    :param grants: entries that a block of each table entry took at most, as learned.
    :param view_grants: by table entry, the grant with which its blocks found room in the tables of
        its views, once the server had refused a smaller one.
    :param members_max: ranges that are loaded as one block at most; 1: each has its own.
    """

    text: ConfigurationText
    owner: str
    limits: Limits
    lease_seconds: float
    insert_seconds: float = 30.0
    grants: dict[str, int] = field(default_factory=dict)
    view_grants: dict[str, int] = field(default_factory=dict)
    members_max: int = 1
    _members_of: dict[tuple[str, ...], int] = field(default_factory=dict)
    #: The name of the text, worked out once: of a hundred tables it takes 8 ms [measured].
    digest: str = field(init=False)
    _limits_of: dict[str, Limits] = field(default_factory=dict)
    _bytes_of: dict[str, float | None] = field(default_factory=dict)
    _sites_of: dict[str, list[Site]] = field(default_factory=dict)
    _configured_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.digest = self.text.digest()
        self._configured_seconds = self.lease_seconds

    def see_windows(self, windows: Mapping[Site, SiteWindow]) -> None:
        """Windows may be altered while a driver runs: no new lease is longer than what they
        remember allows (`core.lease`)."""
        longest = [lease_seconds_max(window.seconds) for window in windows.values()]
        known = [seconds for seconds in longest if seconds is not None]
        self.lease_seconds = min([self._configured_seconds, *known])

    def change(self, text: ConfigurationText) -> None:
        """Intend new ranges under another text from now on."""
        self.text, self.digest = text, text.digest()
        self._members_of.clear()
        self._limits_of.clear()
        self._sites_of.clear()

    def entries_of(self, topic: str) -> tuple[str, ...]:
        """The table entries that a topic goes to."""
        return tuple(table.entry for table in self.text.tables_of(topic))

    def members_of(self, entries: tuple[str, ...]) -> int:
        """How many ranges one block of these table entries may be of."""
        return self._members_of.get(entries, self.members_max)

    def narrow(self, state: PartitionState) -> None:
        """Form smaller bundles of what goes to the entries of this one: its block has more rows, or
        takes more entries of a window, than one may."""
        entries = self.entries_of(state.source.topic)
        fewer = max(1, members_in(state.record.bundle) // 2)
        self._members_of[entries] = min(fewer, self.members_of(entries))

    def limits_of(self, topic: str) -> Limits:
        """How large a new range of this topic may be; kept, since every round asks for each
        partition."""
        if topic not in self._limits_of:
            self._limits_of[topic] = limits_of(self.text, topic, self.limits)
        return self._limits_of[topic]

    def grant(self, topic: str, sites: Iterable[Site], windows: Mapping[Site, SiteWindow]) -> int:
        """How many entries to grant each block of a range of this topic.

        How many a block takes in the table that a view writes to is not known before it is
        inserted; the server refuses what is above the grant.

        :param sites: all windows that its blocks go to.
        """
        wanted = 1
        for table in self.text.tables_of(topic):
            if table.partition_key and not table.parked:
                wanted = max(wanted, 2 * self.grants.get(table.entry, FIRST_GRANT // 2))
        for site in sites:
            if site.target and site in windows:
                first = FIRST_GRANT if windows[site].is_partitioned else 1
                wanted = max(wanted, self.view_grants.get(site.entry, first))
        return wanted

    def learn_views(self, entry: str, entries: int) -> None:
        """Remember that the tables behind an entry's views were refused a block with less. Nobody
        counts what they take, so this does not shrink."""
        self.view_grants[entry] = max(entries, self.view_grants.get(entry, 0))

    def learn(self, entry: str, entries: int) -> None:
        """Remember what a block took: growth at once, shrinkage slowly."""
        before = self.grants.get(entry, 0)
        self.grants[entry] = max(entries, before - 1)

    def learn_bytes(self, topic: str, messages: int, size: int) -> None:
        """Remember what messages of a topic take: its partitions are alike until one was seen."""
        self._bytes_of[topic] = smoothed_bytes(self._bytes_of.get(topic), messages, size)

    def bytes_of(self, state: PartitionState) -> float | None:
        """What a message of a partition takes, or one of its topic where no range of it was loaded
        yet; None: nobody knows."""
        own = state.bytes_per_message
        return self._bytes_of.get(state.source.topic) if own is None else own

    def give_time(self, state: PartitionState) -> None:
        """A block did not end in its time: what it may take doubles, up to the lease."""
        before = max(self.insert_seconds, state.insert_seconds)
        state.insert_seconds = min(2 * before, self.lease_seconds)

    def learn_time(self, state: PartitionState, loaded: Loaded) -> None:
        """A range was loaded: blocks that are quick again get no more time than configured."""
        longest = max((receipt.insert_ms for receipt in loaded.receipts), default=0) / 1000
        if longest < self.insert_seconds / 2:
            state.insert_seconds = 0.0

    def lease_left_ms(self, state: PartitionState) -> float:
        """With less of a lease left, a range is not sent again under it."""
        half = self.lease_seconds / 2
        return 1000 * max(half, min(2 * state.insert_seconds, 0.9 * self.lease_seconds))

    # New ranges

    def waiting(
        self,
        states: list[PartitionState],
        windows: Mapping[Site, SiteWindow],
        now_ms: int,
        *,
        flush: bool,
    ) -> tuple[list[Backlog], set[TopicPartition]]:
        """Partitions that have messages for a range, longest waiting first; and those of them whose
        next range is due."""
        backlogs, due = [], set()
        stretched: dict[str, Limits] = {}
        for state in states:
            if state.waiting_since_ms is None:
                continue
            backlog = Backlog(
                state.source,
                state.record.end,
                state.stable_end,
                state.waiting_since_ms,
                self.bytes_of(state),
            )
            topic = state.source.topic
            if topic not in stretched:
                stretched[topic] = self._stretched(topic, windows)
            backlogs.append(backlog)
            if next_range(backlog, stretched[topic], now_ms, flush=flush) is not None:
                due.add(state.source)
        return in_fair_order(backlogs), due

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
        sites: Iterable[Site],
        grant: int,
        now_ms: int,
    ) -> RecordUpdate:
        """The next range of a partition whose grant was found affordable at these sites."""
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
        marks, servers = marks_at(sites, windows)
        background = Background(
            marks=marks,
            since_ms=now_ms,
            bytes_max=min(self.text.range_bytes_max, limits.range_bytes_max),
            servers=servers,
        )
        return RecordUpdate(state.source, record, background, True, *settling(state, now_ms))

    # The same range again

    def renew(self, state: PartitionState, now_ms: int, grant: int | None = None) -> RecordUpdate:
        """The same range with a new lease."""
        record = replace(
            state.record,
            kind=Kind.RENEW,
            attempt=state.record.attempt + 1,
            owner=self.owner,
            grant=grant or state.record.grant,
            deadline_ms=deadline_ms(now_ms, self.lease_seconds),
        )
        return RecordUpdate(state.source, record, state.background, True)

    def retext(self, state: PartitionState, now_ms: int) -> RecordUpdate:
        """The same range under today's text: the only task that was ever allowed to insert for
        it refused the text that it was intended under."""
        update = self.renew(state, now_ms)
        record = replace(update.record, kind=Kind.RETEXT, text=self.digest)
        return replace(update, record=record)

    def widen(self, state: PartitionState, text: str, now_ms: int) -> RecordUpdate:
        """The same range under a text with columns for its fields: whoever executes the one
        before refuses the range for them, so that nobody inserted it.

        :param text: the digest of that text.
        """
        update = self.renew(state, now_ms)
        return replace(update, record=replace(update.record, kind=Kind.WIDEN, text=text))

    def probed(
        self,
        state: PartitionState,
        text: str,
        background: Background,
        now_ms: int,
        grant: int | None = None,
        attempt: int | None = None,
    ) -> RecordUpdate:
        """The same range, of which a probe has told what is missing, in no bundle.

        :param text: digest of the text under which the rest is loaded.
        :param attempt: its number; None: the next one.
        """
        renewed = self.renew(state, now_ms, grant).record
        renewed = replace(renewed, attempt=attempt or renewed.attempt)
        rest = digest_of_rest(background.rest, renewed.attempt, background.stored)
        record = replace(renewed, kind=Kind.PROBE, text=text, rest=rest, bundle="")
        return RecordUpdate(state.source, record, background, True)

    def shorten(self, state: PartitionState, end: int, now_ms: int) -> RecordUpdate:
        """The same begin with a smaller end: nobody inserted, so the tokens may change."""
        record = replace(
            state.record,
            kind=Kind.SHORTEN,
            end=end,
            rest="",
            deadline_ms=deadline_ms(now_ms, self.lease_seconds),
        )
        return RecordUpdate(
            state.source, record, replace(state.background, rest={}, stored={}), True
        )

    def remembered(
        self,
        state: PartitionState,
        text: ConfigurationText,
        windows: Mapping[Site, SiteWindow],
        now_ms: int,
        read_since_ms: int,
    ) -> bool | None:
        """Whether the windows surely still know the blocks of a range in doubt, and have the parts
        that they know.

        :param text: under which it is sent again; what is parked in it is not.
        :returns: None if a window was not read since `read_since_ms`.
        """
        why = self.why_forgotten(state, text, windows, now_ms, read_since_ms)
        return None if why is None else why == ""

    def why_forgotten(
        self,
        state: PartitionState,
        text: ConfigurationText,
        windows: Mapping[Site, SiteWindow],
        now_ms: int,
        read_since_ms: int,
    ) -> str | None:
        """The same in words: why a block may be unknown, or known without being there; "" where
        all are known. None if a window was not read since `read_since_ms`."""
        background, why = state.background, ""
        marks = {Site.of(key): mark for key, mark in background.marks.items()}
        parked = parked_in(text, state.source.topic)
        own = {site.own for site in marks if site.entry not in parked}
        own.update(sites_of(text, state.source.topic))
        for site in {*own, *(each for each in windows if each.own in own)}:
            window = windows.get(site)
            if window is None or window.read_started_ms < read_since_ms:
                return None
            # A view that was not known when the range was intended: all that its table ever took.
            mark = marks.get(site, 0)
            table = f"{window.state.table or site.name} in shard {site.shard}"
            if not still_remembered(window.state, mark):
                why = (
                    f"{window.state.mark - mark} blocks came to {table} since, of which its "
                    f"deduplication window keeps {window.state.blocks}"
                )
            elif not still_young(window.seconds, background.since_ms, now_ms):
                why = f"the deduplication window of {table} keeps blocks for {window.seconds} s"
            elif window.server and not is_same_run(
                background.servers.get(site.shard), window.server
            ):
                why = (
                    f"the server of {table} was started again, or failed while it stored a block, "
                    "and a table that is not replicated may know a block then that it has lost"
                )
        return why


def settling(
    state: PartitionState, now_ms: int
) -> tuple[tuple[LedgerEntry, ...], tuple[DeadLetter, ...], str]:
    """Ledger entries and dead letters of a loaded range that this update settles, and its
    bundle."""
    loaded = state.loaded
    if loaded is None:
        return (), (), ""
    batch, attempt = state.record.batch, state.record.attempt
    entries = [receipt_entry(state.block_range, batch, attempt, r) for r in loaded.receipts]
    entries.append(settled_entry(state.block_range, batch, attempt, loaded))
    if not has_expired(state.suspect_until_ms, now_ms):
        entries.append(
            suspect_entry(state.block_range, state.suspect_until_ms, state.background.marks)
        )
    return tuple(entries), loaded.dead_letters, state.record.bundle


def refresh(state: PartitionState) -> RecordUpdate:
    """A range that stays in doubt is recorded again as it is, long before its offset expires;
    nobody gets more time to insert."""
    record = replace(state.record, kind=Kind.RENEW)
    return RecordUpdate(state.source, record, state.background, False)


def settle(state: PartitionState, owner: str, now_ms: int) -> RecordUpdate:
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
        bundle="",
    )
    nothing = Background(since_ms=now_ms)
    return RecordUpdate(state.source, record, nothing, False, *settling(state, now_ms))


def give_back(state: PartitionState, owner: str, now_ms: int) -> RecordUpdate:
    """An empty range at the begin of one of which nobody inserted anything, nor will: what it holds
    is planned anew."""
    nothing = replace(state.record, end=state.record.begin, kind=Kind.SETTLE, bundle="", rest="")
    record = replace(nothing, attempt=0, owner=owner, grant=0, deadline_ms=0)
    return RecordUpdate(state.source, record, Background(since_ms=now_ms), False)


def too_small(
    site: Site, grant: int, window: SiteWindow, entry: str, blocks: int = 1
) -> WindowTooSmallError:
    """A block needs more entries than the window of this site may give.

    :param entry: whose block; may be another table's than the site's, since one grant serves
        all tables of a topic. "" where only the recorded grant is known.
    :param blocks: of one range that go to this table, by several entries or views.
    """
    if blocks > 1:
        needs = f"{blocks} blocks of a range go to it, each of which may take {grant} entries"
    elif site.target:
        needs = f"a block of table entry {site.entry} may take {grant} entries behind its views"
    elif entry in ("", site.entry):
        needs = f"a block of table entry {site.entry} takes {grant} entries"
    else:
        needs = (
            f"a block of table entry {entry} takes {grant} entries, and one grant serves all "
            f"tables of the topic; table entry {site.entry} has room for fewer"
        )
    grant *= blocks
    table = window.state.table or f"table entry {site.entry}"
    return WindowTooSmallError(
        f"{needs}: the deduplication window of {table} in shard {site.shard} holds "
        f"{window.state.blocks}, and half of it may be used",
        f"ALTER TABLE {window.state.table or '…'} MODIFY SETTING "
        f"non_replicated_deduplication_window = {4 * grant} "
        f"(replicated_deduplication_window for a Replicated table), or load less late data.",
    )


def bounded(updates: list[RecordUpdate]) -> list[RecordUpdate]:
    """As many updates as one transaction can take with their dead letters; at least one that
    has any, and those that settle a bundle all or none. The others are planned again in the next
    round."""
    groups: dict[str | int, list[RecordUpdate]] = {}
    for place, update in enumerate(updates):
        groups.setdefault(update.settles or place, []).append(update)
    taken: list[RecordUpdate] = []
    size = 0
    for group in groups.values():
        letters = (letter for update in group for letter in update.dead_letters)
        weight = sum(len(letter.value or b"") + 1024 for letter in letters)
        if size and weight and size + weight > LETTER_BYTES_MAX:
            continue
        size += weight
        taken += group
    return taken
