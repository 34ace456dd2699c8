"""Deciding each partition's next record. No I/O: everything that was observed is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sluice.core.budget import TargetShard, WindowState, room
from sluice.core.bundles import members_in
from sluice.core.errors import TerminalError
from sluice.core.fleet.floors import FLOOR_SHARE, STARTS, keeps_floor
from sluice.core.lease import deadline_ms, has_expired, lease_seconds_max
from sluice.core.ledger import (
    Background,
    InsertCounters,
    LedgerEntry,
    late_insert_entry,
    receipt_entry,
    settled_entry,
)
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import Limits, smoothed_bytes
from sluice.core.ranges import Range, TopicPartition, digest_of_rest
from sluice.core.receipts import DeadLetter, Loaded
from sluice.core.records import Kind, Record
from sluice.core.values import value
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.parking import limits_of
from sluice.driver.ports import ShardWindow
from sluice.driver.remembering import target_shards_of
from sluice.driver.state import Holds, PartitionState

#: Entries reserved for a block of a partitioned table before any was seen.
FIRST_RESERVATION = 8

#: A look at the windows is too old to repeat a range on after so long: a driver that slept
#: would repeat on what the windows held before it slept, and with a new lease.
LOOK_AGE_MS_MAX = 30_000

#: A settled partition that stays idle is settled again, long before its offsets expire.
RESETTLE_MS = 6 * 3600 * 1000


class WindowTooSmallError(TerminalError):
    """One block alone needs more of a deduplication window than may be used."""


@value
class RecordUpdate:
    """A partition's next record.

    :param dispatch: whether its range is to be loaded after the commit.
    :param settles: the bundle of the range that it settles, "" of one alone or of none.
    :param weight: about what its dead letters take in a transaction.
    """

    source: TopicPartition
    record: Record
    background: Background
    dispatch: bool
    entries: tuple[LedgerEntry, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    settles: str = ""
    weight: int = 0

    def numbered(self, batch: int) -> Record:
        """The record as part of this batch."""
        return self.record if self.record.batch == batch else replace(self.record, batch=batch)


def from_now_on(
    background: Background,
    target_shards: Iterable[TargetShard],
    windows: Mapping[TargetShard, ShardWindow],
    now_ms: int,
) -> Background:
    """The same, for a range whose blocks are new to the windows of these target shards: it is
    remembered by what these, as far as they were read, say of now."""
    known = [(each, windows[each]) for each in target_shards if each in windows]
    return replace(
        background,
        insert_counters={each.key: window.state.insert_counter for each, window in known},
        since_ms=now_ms,
        servers={each.shard: window.server for each, window in known if window.server},
    )


#: A table in a shard, whichever entries and views go to it.
_Place = tuple[str, str]


class Budget:
    """The budget of one round (R10): what may still be reserved at each window.

    A window that several entries, or views of theirs, go to is one window: they share it.
    """

    def __init__(
        self,
        windows: Mapping[TargetShard, ShardWindow],
        holds: Holds,
        states: list[PartitionState],
        now_ms: int,
    ) -> None:
        self.windows = windows
        self._holds = holds
        self._states = states
        self._now_ms = now_ms
        self._rooms: dict[_Place, _Room] = {}
        self._behind: dict[TargetShard, list[TargetShard]] = {}
        self._sharing: dict[_Place, list[TargetShard]] = {}
        for target_shard in windows:
            self._sharing.setdefault(self._place(target_shard), []).append(target_shard)
            if target_shard.target:
                self._behind.setdefault(target_shard.own, []).append(target_shard)

    def _place(self, target_shard: TargetShard) -> _Place:
        return self.windows[target_shard].state.table or target_shard.name, target_shard.shard

    def _known(
        self, target_shards: list[TargetShard]
    ) -> list[tuple[TargetShard, ShardWindow, int]]:
        """Those that were read, with how many blocks of a range go to their table: to one by
        several entries or views, the range makes its reservation there once for each."""
        known = [target_shard for target_shard in target_shards if target_shard in self.windows]
        blocks = Counter(map(self._place, known))
        return [(each, self.windows[each], blocks[self._place(each)]) for each in known]

    def target_shards(self, spec: LoadSpec, topic: str) -> list[TargetShard]:
        """Every window that a range of this topic takes entries of: those of its tables, and of
        all that the views behind them write to."""
        return [
            each
            for target_shard in target_shards_of(spec, topic)
            for each in (target_shard, *self._behind.get(target_shard, ()))
        ]

    def affordable(self, target_shards: list[TargetShard], reservation: int) -> int:
        """The reservation, or the most that the narrowest window may ever give; at least one.

        What one block needed must not stop the partitions whose blocks need less.
        """
        usable = [window.state.most // blocks for _, window, blocks in self._known(target_shards)]
        return max(1, min([reservation, *usable]))

    def take(
        self, target_shards: list[TargetShard], reservation: int, held: int = 0, entry: str = ""
    ) -> bool:
        """Make the reservation at every one of the target shards, or at none.

        :param held: reservation of the same range that is among the holds, and that this replaces.
        :param entry: the table entry whose block needs so much, where that is known.
        :raises WindowTooSmallError: the reservation can never be given; names the narrowest window.
        """
        if any(target_shard not in self.windows for target_shard in target_shards):
            return False
        self.require_possible(target_shards, reservation, entry)
        known = self._known(target_shards)
        needed = {self._place(each): (reservation - held) * blocks for each, _, blocks in known}
        if any(self._room(place).left < needs for place, needs in needed.items()):
            return False
        for place, needs in needed.items():
            self._room(place).left -= needs
        return True

    def require_possible(
        self, target_shards: list[TargetShard], reservation: int, entry: str = ""
    ) -> None:
        """See that every window that was read could give the reservation if nobody else held any.

        :raises WindowTooSmallError: names the narrowest window that could not.
        """
        known = sorted(self._known(target_shards), key=lambda each: each[1].state.most)
        for target_shard, window, blocks in known:
            if reservation * blocks > window.state.most:
                raise too_small(target_shard, reservation, window, entry, blocks)

    def take_again(
        self, target_shards: list[TargetShard], reservation: int, insert_counters: InsertCounters
    ) -> bool | None:
        """Make the reservation for a range that is to be repeated and that has no hold any more,
        since its lease is over. It becomes the hold that it was: as old as its insert counters.

        :param insert_counters: from before the range's first insert.
        :returns: False if others hold what it needs: nothing new is reserved there in this round.
            None if it would have no room though nobody else held any.
        """
        if any(target_shard not in self.windows for target_shard in target_shards):
            return False
        oldest: dict[_Place, int] = {}
        needed: dict[_Place, int] = {}
        for target_shard, window, blocks in self._known(target_shards):
            insert_counter = insert_counters.get(target_shard.key, window.state.insert_counter)
            place = self._place(target_shard)
            oldest[place] = min(insert_counter, oldest.get(place, insert_counter))
            needed[place] = reservation * blocks
        rooms = [(self._room(place), needs, oldest[place]) for place, needs in needed.items()]
        if any(each.left_alone(insert_counter) < needs for each, needs, insert_counter in rooms):
            return None
        if any(each.left_for(insert_counter) < needs for each, needs, insert_counter in rooms):
            for each, _, _ in rooms:
                each.left = min(each.left, 0)
            return False
        for each, needs, insert_counter in rooms:
            each.left = each.left_for(insert_counter) - needs
            each.oldest = min(each.oldest, insert_counter)
        return True

    def _room(self, place: _Place) -> _Room:
        if place not in self._rooms:
            target_shards = self._sharing[place]
            read = [self.windows[target_shard] for target_shard in target_shards]
            holds = self._holds
            held = [
                c
                for target_shard in target_shards
                for c in holds.at(target_shard, self._states, self._now_ms)
            ]
            ended = sum(
                holds.ended_since(target_shard, window.read_started_ms)
                for target_shard, window in zip(target_shards, read, strict=True)
            )
            # Read one after the other: the one that was read last says most.
            window = WindowState(
                min(each.state.blocks for each in read),
                max(each.state.insert_counter for each in read),
                share=read[0].state.share,
            )
            oldest = min((hold.insert_counter for hold in held), default=window.insert_counter)
            self._rooms[place] = _Room(window, room(window, held, ended), oldest)
        return self._rooms[place]


@dataclass(slots=True)
class _Room:
    """What is left of a window in this round.

    :param left: entries that may still be reserved.
    :param oldest: the insert counter of the oldest hold.
    """

    window: WindowState
    left: int
    oldest: int

    def left_for(self, insert_counter: int) -> int:
        """The same for a hold of this insert counter: what was created since then counts, too. To
        the members of a fleet it does so already, if they know of a hold that is so old."""
        share = self.window.share
        if share is not None:
            return self.left if insert_counter >= share.own else -1
        return self.left - max(0, self.oldest - insert_counter)

    def left_alone(self, insert_counter: int) -> int:
        """The same if there were no other hold."""
        window, share = self.window, self.window.share
        if share is None:
            return window.usable - (window.insert_counter - insert_counter)
        if not keeps_floor(window.blocks, window.insert_counter, insert_counter):
            return -1
        alone = replace(share, floor=insert_counter)
        return alone.left(window.blocks, window.insert_counter, insert_counter, 0)


@dataclass(frozen=True, slots=True, eq=False)
class TopicGroup:
    """Topics that go to the same table entries under the same limits: their ranges may be loaded
    together, and what is so for one of them is so for all. There is one object for each group.

    :param limits: how large a new range of them may be.
    :param target_shards: the tables that such a range is inserted into.
    """

    entries: tuple[str, ...]
    limits: Limits
    target_shards: list[TargetShard]


@dataclass(slots=True)
class RecordPlanner:
    """Makes updates for a loop.

    :param specs: new ranges are intended under today's.
    :param owner: this driver's owner id.
    :param lease_seconds: as configured; windows that forget early shorten it.
    :param insert_seconds: what a block may take, as configured.
    :param reservations: entries that a block of each table entry took at most, as learned.
    :param view_reservations: by table entry, the reservation with which its blocks found room in
        the tables of its views, once the server had refused a smaller one.
    :param members_max: ranges that are loaded as one block at most; 1: each has its own.
    :param batch: number of the transaction that is planned now.
    """

    specs: LoadSpecs
    owner: str
    limits: Limits
    lease_seconds: float
    insert_seconds: float = 30.0
    reservations: dict[str, int] = field(default_factory=dict)
    view_reservations: dict[str, int] = field(default_factory=dict)
    members_max: int = 1
    batch: int = 0
    _members_of: dict[tuple[str, ...], int] = field(default_factory=dict)
    _group_of: dict[str, TopicGroup] = field(default_factory=dict)
    _groups: dict[tuple[tuple[str, ...], Limits], TopicGroup] = field(default_factory=dict)
    _bytes_of: dict[str, float | None] = field(default_factory=dict)
    _configured_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._configured_seconds = self.lease_seconds

    @property
    def spec(self) -> LoadSpec:
        """Today's load spec."""
        return self.specs.today.spec

    @property
    def digest(self) -> str:
        """Its name, worked out once: of a hundred tables it takes 8 ms [measured]."""
        return self.specs.today.digest

    def see_windows(self, windows: Mapping[TargetShard, ShardWindow]) -> None:
        """Windows may be altered while a driver runs: no new lease is longer than what they
        remember allows (`core.lease`)."""
        longest = [lease_seconds_max(window.seconds) for window in windows.values()]
        known = [seconds for seconds in longest if seconds is not None]
        self.lease_seconds = min([self._configured_seconds, *known])

    def change(self, spec: LoadSpec) -> bool:
        """Intend new ranges under this load spec from now on; False: they are so already."""
        if not self.specs.go_over(spec):
            return False
        self._members_of.clear()
        self._group_of.clear()
        self._groups.clear()
        return True

    def group_of(self, topic: str) -> TopicGroup:
        """The group of a topic; kept, since every round asks for each partition."""
        found = self._group_of.get(topic)
        if found is None:
            entries = tuple(table.entry for table in self.spec.tables_of(topic))
            limits = limits_of(self.spec, topic, self.limits)
            group = TopicGroup(entries, limits, target_shards_of(self.spec, topic))
            found = self._group_of[topic] = self._groups.setdefault((entries, limits), group)
        return found

    def members_of(self, entries: tuple[str, ...]) -> int:
        """How many ranges one block of these table entries may be of."""
        return self._members_of.get(entries, self.members_max)

    def narrow(self, state: PartitionState) -> None:
        """Form smaller bundles of what goes to the entries of this one: its block has more rows, or
        takes more entries of a window, than one may."""
        entries = self.group_of(state.source.topic).entries
        fewer = max(1, members_in(state.record.bundle) // 2)
        self._members_of[entries] = min(fewer, self.members_of(entries))

    def limits_of(self, topic: str) -> Limits:
        """How large a new range of this topic may be."""
        return self.group_of(topic).limits

    def reservation(
        self,
        topic: str,
        target_shards: Iterable[TargetShard],
        windows: Mapping[TargetShard, ShardWindow],
    ) -> int:
        """How many entries to reserve for each block of a range of this topic.

        How many a block takes in the table that a view writes to is not known before it is
        inserted; the server refuses what is above the reservation.

        :param target_shards: all windows that its blocks go to.
        """
        wanted = 1
        for table in self.spec.tables_of(topic):
            has_window = not (table.parked or table.is_replacing or table.is_staged)
            if table.partition_key and has_window:
                wanted = max(wanted, 2 * self.reservations.get(table.entry, FIRST_RESERVATION // 2))
        for target_shard in target_shards:
            if target_shard.target and target_shard in windows:
                first = FIRST_RESERVATION if windows[target_shard].is_partitioned else 1
                wanted = max(wanted, self.view_reservations.get(target_shard.entry, first))
        return wanted

    def learn_views(self, entry: str, entries: int) -> None:
        """Remember that the tables behind an entry's views were refused a block with less. Nobody
        counts what they take, so this does not shrink."""
        self.view_reservations[entry] = max(entries, self.view_reservations.get(entry, 0))

    def learn(self, entry: str, entries: int) -> None:
        """Remember what a block took: growth at once, shrinkage slowly."""
        before = self.reservations.get(entry, 0)
        self.reservations[entry] = max(entries, before - 1)

    def learn_bytes(self, topic: str, messages: int, size: int) -> None:
        """Remember what messages of a topic take: its partitions are alike until one was seen."""
        self._bytes_of[topic] = smoothed_bytes(self._bytes_of.get(topic), messages, size)

    def bytes_of(self, state: PartitionState) -> float | None:
        """What a message of a partition takes, or one of its topic; None: nobody knows."""
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

    def background(
        self,
        limits: Limits,
        windows: Mapping[TargetShard, ShardWindow],
        target_shards: Iterable[TargetShard],
        now_ms: int,
    ) -> Background:
        """That of new ranges that are inserted at these target shards from now on."""
        background = Background(bytes_max=min(self.spec.range_bytes_max, limits.range_bytes_max))
        return from_now_on(background, target_shards, windows, now_ms)

    def intend(
        self,
        state: PartitionState,
        block_range: Range,
        reservation: int,
        background: Background,
        now_ms: int,
        bundle: str = "",
    ) -> RecordUpdate:
        """The next range of a partition whose reservation was found affordable.

        :param background: the same object for all of a bundle.
        """
        record = Record(
            kind=Kind.INTEND,
            batch=self.batch,
            attempt=1,
            begin=block_range.begin,
            end=block_range.end,
            owner=self.owner,
            generation=state.record.generation,
            topic_id=state.record.topic_id,
            spec=self.digest,
            reservation=reservation,
            deadline_ms=deadline_ms(now_ms, self.lease_seconds),
            epoch=state.epoch,
            bundle=bundle,
        )
        return RecordUpdate(state.source, record, background, True, *settling(state, now_ms))

    # The same range again

    def renew(
        self, state: PartitionState, now_ms: int, reservation: int | None = None
    ) -> RecordUpdate:
        """The same range with a new lease."""
        record = replace(
            state.record,
            kind=Kind.RENEW,
            attempt=state.record.attempt + 1,
            owner=self.owner,
            reservation=reservation or state.record.reservation,
            deadline_ms=deadline_ms(now_ms, self.lease_seconds),
        )
        return RecordUpdate(state.source, record, state.background, True)

    def change_spec(self, state: PartitionState, now_ms: int) -> RecordUpdate:
        """The same range under today's load spec: the only task that was ever allowed to insert for
        it refused the load spec that it was intended under."""
        update = self.renew(state, now_ms)
        record = replace(update.record, kind=Kind.CHANGE_SPEC, spec=self.digest)
        return replace(update, record=record)

    def add_columns(self, state: PartitionState, spec: str, now_ms: int) -> RecordUpdate:
        """The same range under a load spec with columns for its fields: whoever executes the one
        before refuses the range for them, so that nobody inserted it.

        :param spec: the digest of that load spec.
        """
        update = self.renew(state, now_ms)
        return replace(update, record=replace(update.record, kind=Kind.ADD_COLUMNS, spec=spec))

    def probed(
        self,
        state: PartitionState,
        spec: str,
        background: Background,
        now_ms: int,
        reservation: int,
        attempt: int,
    ) -> RecordUpdate:
        """The same range, of which a probe has told what is missing, in no bundle.

        :param spec: digest of the load spec under which the rest is loaded.
        """
        renewed = self.renew(state, now_ms, reservation).record
        rest, kind = digest_of_rest(background.rest, attempt, background.stored), Kind.PROBE
        record = replace(renewed, kind=kind, attempt=attempt, spec=spec, rest=rest, bundle="")
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


def settling(
    state: PartitionState, now_ms: int
) -> tuple[tuple[LedgerEntry, ...], tuple[DeadLetter, ...], str, int]:
    """Ledger entries and dead letters of a loaded range that this update settles, its bundle, and
    what those weigh."""
    loaded = state.loaded
    if loaded is None:
        return (), (), "", 0
    batch, attempt = state.record.batch, state.record.attempt
    entries = [receipt_entry(state.block_range, batch, attempt, r) for r in loaded.receipts]
    entries.append(settled_entry(state.block_range, batch, attempt, loaded))
    if not has_expired(state.late_insert_until_ms, now_ms):
        late = state.late_insert
        entries.append(
            late_insert_entry(
                state.block_range, late.deadline_ms, late.insert_counters, late.claimed_in
            )
        )
    letters = loaded.dead_letters + loaded.copies if loaded.copies else loaded.dead_letters
    return tuple(entries), letters, state.record.bundle, state.weight


def refresh(state: PartitionState) -> RecordUpdate:
    """A range that stays in doubt is recorded again as it is, long before its offset expires;
    nobody gets more time to insert."""
    record = replace(state.record, kind=Kind.RENEW)
    return RecordUpdate(state.source, record, state.background, False)


def settle(state: PartitionState, owner: str, batch: int, now_ms: int) -> RecordUpdate:
    """Nothing is outstanding: an empty range at the end of what is loaded.

    :param batch: number of the transaction that is planned now.
    """
    before = state.record
    # All that names the range that was is left out.
    record = Record(
        kind=Kind.SETTLE,
        batch=batch,
        attempt=0,
        begin=before.end,
        end=before.end,
        owner=owner,
        generation=before.generation,
        topic_id=before.topic_id,
        spec=before.spec,
        reservation=0,
        deadline_ms=0,
        epoch=before.epoch,
    )
    nothing = Background(since_ms=now_ms)
    return RecordUpdate(state.source, record, nothing, False, *settling(state, now_ms))


def give_back(state: PartitionState, owner: str, now_ms: int) -> RecordUpdate:
    """An empty range at the begin of one of which nobody inserted anything, nor will: what it holds
    is planned anew."""
    nothing = replace(state.record, end=state.record.begin, kind=Kind.SETTLE, bundle="", rest="")
    record = replace(nothing, attempt=0, owner=owner, reservation=0, deadline_ms=0)
    return RecordUpdate(state.source, record, Background(since_ms=now_ms), False)


def too_small(
    target_shard: TargetShard, reservation: int, window: ShardWindow, entry: str, blocks: int = 1
) -> WindowTooSmallError:
    """A block needs more entries than the window of this target shard may give.

    :param entry: whose block; may be another table's than the target shard's, since one reservation
        serves all tables of a topic. "" where only the recorded reservation is known.
    :param blocks: of one range that go to this table, by several entries or views.
    """
    if blocks > 1:
        needs = f"{blocks} blocks of a range go to it, each of which may take {reservation} entries"
    elif target_shard.target:
        needs = (
            f"a block of table entry {target_shard.entry} may take {reservation} entries "
            "behind its views"
        )
    elif entry in ("", target_shard.entry):
        needs = f"a block of table entry {target_shard.entry} takes {reservation} entries"
    else:
        needs = (
            f"a block of table entry {entry} takes {reservation} entries, and one reservation "
            "serves all "
            f"tables of the topic; table entry {target_shard.entry} has room for fewer"
        )
    reservation *= blocks
    table = window.state.table or f"table entry {target_shard.entry}"
    share = window.state.share
    may, wanted = "half of it may be used", 4 * reservation
    if share is not None:
        may = f"each of up to {share.members_max} members of a fleet may use {window.state.most}"
        wanted = 2 * FLOOR_SHARE * STARTS * share.members_max * reservation
    return WindowTooSmallError(
        f"{needs}: the deduplication window of {table} in shard {target_shard.shard} holds "
        f"{window.state.blocks}, and {may}",
        f"ALTER TABLE {window.state.table or '…'} MODIFY SETTING "
        f"non_replicated_deduplication_window = {wanted} "
        f"(replicated_deduplication_window for a Replicated table), or load less late data.",
    )


def bounded(updates: list[RecordUpdate], bytes_max: int) -> list[RecordUpdate]:
    """As many updates as one transaction can take with their dead letters; at least one that
    has any, and those that settle a bundle all or none. The others are planned again in the next
    round. Of what has more alone, messages beyond that become pointers to where they stand.

    :param bytes_max: of all dead letters; see `core.transaction_size`.
    """
    groups: dict[str | int, list[RecordUpdate]] = {}
    for place, update in enumerate(updates):
        groups.setdefault(update.settles or place, []).append(update)
    taken: list[RecordUpdate] = []
    size = 0
    for group in groups.values():
        weight = sum(update.weight for update in group)
        if size and weight and size + weight > bytes_max:
            continue
        size += weight
        taken += _cut(group, bytes_max) if weight > bytes_max else group
    return taken


def _cut(group: list[RecordUpdate], bytes_max: int) -> Iterator[RecordUpdate]:
    left = bytes_max
    for update in group:
        dead_letters: list[DeadLetter] = []
        for letter in update.dead_letters:
            size = len(letter.value or b"")
            if size > left:
                dead_letters.append(letter._replace(value=None, truncated=True))
            else:
                left -= size
                dead_letters.append(letter)
        yield replace(update, dead_letters=tuple(dead_letters))
