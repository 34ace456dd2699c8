"""Keeps an eye on the store of claims, and opens it again after it may have lost some (R20, H24).

Claims are lost with a store: one that was started again may lack the last second's, a failover what
had not reached the replica, a new one all of them. Their rows are in the tables, so they can be
claimed again; but not while anybody may still insert under a claim that nobody knows any more. So
the store is closed while its run is another one than that its claims are complete under: nothing
new is sent; all writers see to it that nothing of theirs can be inserted any more; then the rows
that came since are claimed, and it is open.

Every claim that was answered before a note was written is there if the note is. Each second a
writer notes the time, and what the store still has of that says since when claims may be missing.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import NamedTuple

from sluice.claims.port import ClaimStore, StoreAwayError, StoreFacts
from sluice.core.budget import BOUNDLESS, TargetShard, WindowState
from sluice.core.claims import CLAIMS, REPEATED_SECONDS_MAX, key_space
from sluice.core.errors import SluiceError
from sluice.core.lease import CLOCK_SKEW_MS_MAX, has_expired
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.server_runs import is_same_run
from sluice.driver.background import Background
from sluice.driver.ports import Clock, ShardWindow, Windows
from sluice.driver.state import Holds, PartitionState

_logger = logging.getLogger("sluice.claims")

POLL_SECONDS = 1.0
SWEEP_EVERY_MS = 10_000
SWEEP_SECONDS = 0.05
ALARM_EVERY_MS = 60_000
#: A server says to the second when a part came, by a clock of its own.
SINCE_MARGIN_MS = 2 * CLOCK_SKEW_MS_MAX + 2_000

#: A store elsewhere is polled by all who claim there, who notice a new run so soon; one that writes
#: its log each second loses no more notes. A local one cannot be another one unnoticed.
SETTLE_MS = 3_000
#: What nobody has noted for so long was not kept up: rows may have come without claims.
STALE_MS = 60_000
#: A driver that has not told of itself for so long is not coming back.
FORGOTTEN_MS = 86_400_000

#: What could not be made again is tried again, later each time.
RETRY_MS, RETRY_MS_MAX = 1_000, 30_000

#: Claims every row that came into a table since then (milliseconds), in this run of the store; what
#: it is given last it calls about each second meanwhile.
Rebuild = Callable[[TableSpec, int, str, Callable[[], object]], None]


@dataclass(frozen=True, slots=True)
class Writer:
    """What a driver says of a connector of its own, beside the claims.

    :param connector: with its pipeline.
    :param run: of the store that it knows; `is_quiet`: nothing can be inserted any more under
        claims of a run before.
    :param lease_ms: nothing that it sent is inserted later than this after `at_ms`.
    :param waits: by scope, why it loads nothing into tables that deduplicate in it, in words.
    """

    connector: str
    run: str
    is_quiet: bool
    at_ms: int
    lease_ms: int
    parts: tuple[str, ...]
    waits: Mapping[str, str] = field(default_factory=dict)

    def written(self) -> str:
        """As it stands in the store."""
        return json.dumps(astuple(self), separators=(",", ":"))

    @staticmethod
    def read(text: str) -> Writer:
        """What was written."""
        connector, run, is_quiet, at_ms, lease_ms, parts, *more = json.loads(text)
        if more and isinstance(more[0], str):  # of a version that knew one reason for all
            more = [dict.fromkeys((Part.of(name).scope for name in parts), more[0])] * bool(more[0])
        return Writer(connector, run, is_quiet, at_ms, lease_ms, tuple(parts), *more)


@dataclass(frozen=True, slots=True)
class Me:
    """Which writer this is.

    :param connector: with its pipeline.
    :param owner: as in records, another one for each driver process.
    :param since_ms: when it started.
    """

    connector: str
    owner: str
    since_ms: int

    @property
    def name(self) -> str:
        """Among all writers."""
        return f"{self.connector} {self.owner}"

    def took_over(self, other: Writer) -> bool:
        """Whether what another one has sent is in doubt here: it was this connector's driver, and
        has not told of itself since this one started."""
        return other.connector == self.connector and other.at_ms < self.since_ms


@dataclass(frozen=True, slots=True)
class Space:
    """What is known of the claims of one part (`Part`).

    :param run: all claims of it are there, in this run; "": they never were.
    :param alive_ms: claims that were answered before are there, in any run that has this note.
    """

    run: str = ""
    alive_ms: int = 0

    def written(self) -> str:
        """As it stands in the store."""
        return json.dumps([self.run, self.alive_ms], separators=(",", ":"))

    @staticmethod
    def read(text: str) -> Space:
        """What was written; "": nothing was."""
        return Space(*json.loads(text)) if text else Space()


_WRITER, _SPACE = "writer ", "space "


def scope_of(space: str) -> str:
    """The scope of a key space, see `core.claims.key_space`."""
    return space.rpartition("/")[0]


class Part(NamedTuple):
    """Claims that can be made again from one table: those of a key space for rows of a table, for
    so long. Several tables may share a key space, and each is read by who loads it.

    :param space: see `core.claims.key_space`.
    :param target: database.table.
    :param seconds: the window.
    """

    space: str
    target: str
    seconds: int

    @property
    def name(self) -> str:
        """In the store."""
        return "\t".join(map(str, self))

    @property
    def scope(self) -> str:
        """See `core.claims.Deduplicate`."""
        return scope_of(self.space)

    @staticmethod
    def of(name: str) -> Part:
        """The part of a name."""
        space, target, seconds = name.split("\t")
        return Part(space, target, int(seconds))

    @staticmethod
    def of_table(table: TableSpec) -> Part:
        """The part of an entry that deduplicates."""
        assert table.deduplicate is not None
        space = key_space(table.deduplicate, table.columns)
        return Part(space, table.target, table.deduplicate.window_seconds)


@dataclass(frozen=True, slots=True)
class Open:
    """All claims are there."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing is sent; why, in words."""

    why: str


@dataclass(frozen=True, slots=True)
class RebuildNow:
    """Nobody can insert any more under claims that may be lost: what came since is claimed.

    :param since_ms: by part.
    """

    since_ms: Mapping[Part, int]


Step = Open | Closed | RebuildNow


#: Other writers of one key space, by name, each with its parts of it.
Others = Mapping[str, tuple[Writer, list[Part]]]


def next_step(
    notes: Mapping[str, str],
    others: Others,
    run: str,
    parts: Collection[Part],
    *,
    is_quiet: bool,
    has_settled: bool,
    was_open: bool,
    noted_ms: int,
    unknown_until_ms: int,
    new: Collection[Part] = (),
    begun: Collection[Part] = (),
    now_ms: int,
) -> Step:
    """What a writer does about a key space of a store. Pure.

    :param notes: all that the store has.
    :param others: see `others_of`.
    :param run: of the store, read before the notes.
    :param parts: of the key space, that the writer's entries claim in.
    :param is_quiet: nothing of this writer can be inserted any more under another run's claims.
    :param has_settled: the run is known for long enough that each live writer has told of itself.
    :param was_open: this writer has found the store open in this run.
    :param noted_ms: what this writer noted last in the run before, while it looked at it without a
        pause; 0: it did not. Where that is lost, what another one said of itself may be, too, and
        that one may be asleep.
    :param unknown_until_ms: until then others may insert under claims of the run before.
    :param new: parts whose tables are empty: nobody has claimed there.
    :param begun: parts that this writer has only begun to claim: whatever others note, its own rows
        may have come without claims.
    """
    known = {part: Space.read(notes.get(_SPACE + part.name, "")) for part in parts}
    lacking = {
        part: space
        for part, space in known.items()
        if part in begun or space.run != run or now_ms - space.alive_ms > STALE_MS
    }
    if not lacking:
        for name, (_, theirs) in others.items() if not was_open else ():
            if any(Space.read(notes.get(_SPACE + part.name, "")).run != run for part in theirs):
                return Closed(f"{name} has yet to claim the rows of its tables again")
        return Open()
    if not is_quiet:
        return Closed("blocks that were sent before may still be inserted")
    if not has_settled:
        return Closed("others who claim there may not have noticed yet")
    is_lost = any(
        part not in new and space.run != run and not 0 < noted_ms <= space.alive_ms
        for part, space in lacking.items()
    )
    if is_lost and not has_expired(unknown_until_ms, now_ms):
        until = datetime.fromtimestamp((unknown_until_ms + 2 * CLOCK_SKEW_MS_MAX) // 1000, UTC)
        return Closed(
            "it is new, or was emptied, and does not know who else may still insert: nothing is "
            f"loaded until {until:%Y-%m-%d %H:%M:%S} UTC"
        )
    for name, (writer, _) in others.items():
        if not (writer.run == run and writer.is_quiet):
            return Closed(f"{name} claims there, too, and may still insert")
    return RebuildNow(
        {
            # What came before would be over by now, or its claims are there.
            part: max(0 if part in begun else space.alive_ms, now_ms - 1000 * part.seconds)
            - SINCE_MARGIN_MS
            for part, space in lacking.items()
        }
    )


def others_of(notes: Mapping[str, str], me: Me, now_ms: int) -> dict[str, Others]:
    """The other writers that may still insert, by key space. Pure.

    :param notes: all that the store has.
    """
    found: dict[str, dict[str, tuple[Writer, list[Part]]]] = {}
    for name, text in sorted(notes.items()):
        if not name.startswith(_WRITER) or name == _WRITER + me.name:
            continue
        writer = Writer.read(text)
        if has_expired(writer.at_ms + writer.lease_ms, now_ms) or me.took_over(writer):
            continue
        for part in map(Part.of, writer.parts):
            of_space = found.setdefault(part.space, {})
            of_space.setdefault(name.removeprefix(_WRITER), (writer, []))[1].append(part)
    return dict(found)


def other_leases(
    notes: Mapping[str, str], lease_ms: int, scopes: Collection[str], now_ms: int
) -> dict[str, int]:
    """The connectors that claim in these scopes with another lease, and theirs. Pure.

    :param notes: all that the store has.
    """
    return {
        writer.connector: writer.lease_ms - SETTLE_MS
        for writer in _live_writers(notes, now_ms)
        if writer.lease_ms != lease_ms + SETTLE_MS
        and any(Part.of(name).scope in scopes for name in writer.parts)
    }


def waiting_for(
    notes: Mapping[str, str], run: str, scopes: Iterable[str], now_ms: int
) -> dict[str, str]:
    """Why entries that claim in each of these scopes may not load now; "": they may. Pure.

    :param notes: all that the store has.
    :param run: of the store, read before the notes.
    """
    found = {}
    live = _live_writers(notes, now_ms)
    for scope in scopes:
        known = [space for part, space in _spaces(notes).items() if part.scope == scope]
        latest = max(known, key=lambda space: space.alive_ms, default=Space())
        waiting = [
            f"{writer.connector} says: {writer.waits[scope]}"
            for writer in live
            if scope in writer.waits
        ]
        why = ""
        if waiting:
            why = "; ".join(waiting)
        elif not latest.run:
            why = "nobody has claimed in it yet"
        elif latest.run != run:
            why = "the store was started again, and not all claims are made again yet"
        elif now_ms - latest.alive_ms > STALE_MS:
            why = f"no driver keeps it up, for {(now_ms - latest.alive_ms) // 1000} s now"
        found[scope] = why
    return found


def not_made_again(
    notes: Mapping[str, str], run: str, scopes: Iterable[str], now_ms: int
) -> dict[str, list[str]]:
    """By scope, tables whose rows may have no claims any more, and that nobody loads who could make
    them again: an event that only such a table has is loaded once more. Pure.

    :param notes: all that the store has.
    :param run: of the store, read before the notes.
    """
    wanted, found = set(scopes), dict[str, set[str]]()
    loaded = {name for writer in _live_writers(notes, now_ms) for name in writer.parts}
    for part, space in _spaces(notes).items():
        is_over = now_ms - space.alive_ms > 1000 * part.seconds
        if part.scope in wanted and part.name not in loaded and space.run != run and not is_over:
            found.setdefault(part.scope, set()).add(part.target)
    return {scope: sorted(targets) for scope, targets in found.items()}


def _spaces(notes: Mapping[str, str]) -> dict[Part, Space]:
    return {
        Part.of(name.removeprefix(_SPACE)): Space.read(text)
        for name, text in notes.items()
        if name.startswith(_SPACE)
    }


def _live_writers(notes: Mapping[str, str], now_ms: int) -> list[Writer]:
    """Those of which something may still be inserted."""
    writers = (Writer.read(text) for name, text in notes.items() if name.startswith(_WRITER))
    return [each for each in writers if not has_expired(each.at_ms + each.lease_ms, now_ms)]


def _gone(notes: Mapping[str, str], now_ms: int) -> list[str]:
    """The notes of writers that are not coming back."""
    writers = {n: Writer.read(text) for n, text in notes.items() if n.startswith(_WRITER)}
    return [n for n, w in writers.items() if now_ms - w.at_ms - w.lease_ms > FORGOTTEN_MS]


def may_still_insert(
    states: Iterable[PartitionState],
    holds: Holds,
    spec: LoadSpec,
    spec_of: Callable[[PartitionState], LoadSpec],
    run: str,
    now_ms: int,
) -> bool:
    """Whether an insert under claims of another run of the store may be on its way, or come, or one
    without claims into a table that deduplicates by now.

    :param spec: today's; `spec_of`: under which a range in doubt is sent again.
    """
    digest = spec.digest()
    for state in states:
        is_open = state.record.in_doubt and state.loaded is None and state.stopped is None
        if is_open and (recorded := spec_of(state)) is not spec:
            topic = state.source.topic
            if _claiming(spec, topic) - _claiming(recorded, topic):
                return True
        if not _claims(state.background.insert_counters):
            continue
        # What is probed, and loaded under today's load spec, may have claimed by another key.
        is_repeated = state.record.spec == digest or spec_of(state) is not spec
        is_known = is_same_run(state.claimed_in, run)
        if state.record.in_doubt and is_known and is_repeated:
            continue
        last_ms = state.late_insert_until_ms
        if state.record.in_doubt and state.loaded is None and not state.untouched:
            last_ms = max(last_ms, state.record.deadline_ms)
        if state.out or not has_expired(last_ms, now_ms):
            return True
    return any(
        _claims(late.insert_counters)
        and not has_expired(late.deadline_ms, now_ms)
        and not is_same_run(late.claimed_in, run)  # its rows are there, and their claims, too
        for late in holds.late_inserts
    )


def why_other_claims(recorded: LoadSpec, today: LoadSpec, topic: str) -> str | None:
    """Why claims under a recorded load spec are not those that are made today: its events are known
    by another key, or in another scope; None if they are."""
    spaces = {
        table.entry: key_space(table.deduplicate, table.columns)
        for table in today.tables
        if table.deduplicate is not None
    }
    for table in recorded.tables_of(topic):
        if table.deduplicate is None or table.parked:
            continue
        then = key_space(table.deduplicate, table.columns)
        if spaces.get(table.entry, then) != then:
            return (
                f"events of table entry {table.entry} were known by "
                f"{', '.join(table.deduplicate.key)} in the scope {table.deduplicate.scope}, and "
                "are known otherwise today"
            )
    return None


#: By entry, what it claims in, and under which load spec's text.
_Keyed = Mapping[TargetShard, tuple[Part, TableSpec]]


def _keyed(spec: LoadSpec) -> _Keyed:
    return {
        TargetShard(table.entry, CLAIMS): (Part.of_table(table), table)
        for table in spec.tables
        if table.deduplicate is not None
    }


def _spaces_of(keyed: _Keyed) -> set[str]:
    return {part.space for part, _ in keyed.values()}


def _tables_of(keyed: _Keyed) -> dict[Part, TableSpec]:
    """Where the rows of each part are: in its table, in all shards that an entry has of it."""
    found: dict[Part, TableSpec] = {}
    for part, table in keyed.values():
        before = found.get(part, table)
        found[part] = before
        if before.shards != table.shards:
            shards = tuple(sorted({*before.shards, *table.shards}))
            found[part] = replace(before, shards=shards)
    return found


def _windows_of(keyed: _Keyed, run: str, now_ms: int) -> dict[TargetShard, ShardWindow]:
    return {
        target_shard: ShardWindow(
            WindowState(BOUNDLESS, 0, f"the claims of {part.space}"),
            now_ms,
            min(part.seconds, 2 * REPEATED_SECONDS_MAX),
            server=run,
        )
        for target_shard, (part, _) in keyed.items()
    }


def _claiming(spec: LoadSpec, topic: str) -> set[str]:
    """The entries of a topic that claim under a load spec, or take nothing under it."""
    tables = spec.tables_of(topic)
    return {table.entry for table in tables if table.deduplicate is not None or table.parked}


def _claims(insert_counters: Iterable[str]) -> bool:
    return any(TargetShard.of(key).shard == CLAIMS for key in insert_counters)


_NOT_READ = "it was not read yet"
#: Scopes that a line of the log names.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class _Failed:
    """Claims of a key space could not be made again; it is tried again after a pause."""

    why: str
    at_ms: int
    pause_ms: int

    def waits(self, now_ms: int) -> bool:
        return 0 <= now_ms - self.at_ms < self.pause_ms


class _Due(NamedTuple):
    """What is to be claimed again of a part.

    :param begun: see `_Begun.parts`; 0: it is not there.
    """

    table: TableSpec
    since_ms: int
    begun: int


class _Begun:
    """Parts that an entry of today's load spec began to claim while this driver runs: its rows came
    without claims before, while others, or this driver for what was in doubt, noted that all claims
    are there. Changed by the loop, and by the keeper's thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._times = 0
        #: Which beginning it is: while a part is made again it may end, and begin once more.
        self.parts: Mapping[Part, int] = {}

    def go_over(self, before: LoadSpec, today: LoadSpec) -> None:
        """From one load spec to the next."""
        parts = {part for part, _ in _keyed(today).values()}
        parts -= {part for part, _ in _keyed(before).values()}
        with self._changing:
            self._times += 1
            self.parts = {**self.parts, **dict.fromkeys(parts, self._times)}

    def made_again(self, due: Mapping[Part, _Due]) -> None:
        """All claims of these are there now."""
        with self._changing:
            self.parts = {
                part: begun
                for part, begun in self.parts.items()
                if part not in due or due[part].begun != begun
            }


class ClaimsKeeper(Background):
    """The windows of a loop, those of claims among them; see `sluice.driver.ports.Windows`.

    Each key space is opened for itself: one of which claims cannot be made again, as of a table
    whose servers are away, holds up no other.

    :param windows: of the tables.
    :param open_store: connects to the store.
    :param rebuild: claims what is in a table.
    :param has_rows: whether a table has a row, or may have one soon.
    :param settle_ms: how long another writer may take to notice a new run of the store, and what
        the store may lose of the last notes.
    """

    def __init__(
        self,
        windows: Windows,
        open_store: Callable[[], ClaimStore],
        spec: LoadSpec,
        me: Me,
        lease_ms: int,
        now_ms: Clock,
        rebuild: Rebuild,
        has_rows: Callable[[TableSpec], bool],
        settle_ms: int,
    ) -> None:
        super().__init__("claims", "watching the store of claims", POLL_SECONDS)
        self._others = windows
        self._open_store = open_store
        self._store: ClaimStore | None = None
        self._me = me
        self._now_ms = now_ms
        self._rebuild = rebuild
        self._has_rows = has_rows
        self._settle_ms = settle_ms
        self._spec = spec
        self._keyed = _keyed(spec)
        self._begun = _Begun()
        self._changing = threading.Lock()
        #: Of the store, as last read; "": it was never read.
        self.run = ""
        self.facts: StoreFacts | None = None
        self._run_since_ms = 0
        #: When it was looked at last, and of each key space when it was open last.
        self._looked_ms = 0
        self._noted_ms: Mapping[str, int] = {}
        self._noted_ms_max = max(settle_ms, SETTLE_MS)
        #: It sends for so long without another note.
        self._lease_ms = lease_ms + self._noted_ms_max
        #: By key space, the longest lease of others who may insert there.
        self._leases_ms: dict[str, int] = {}
        self._open: frozenset[Part] = frozenset()
        #: Key spaces that were open in this run.
        self._opened: frozenset[str] = frozenset()
        #: By key space, why the others are not open.
        self._waits: Mapping[str, str] = dict.fromkeys(_spaces_of(self._keyed), _NOT_READ)
        self._failed: dict[str, _Failed] = {}
        #: Under this run nothing can be inserted any more under claims of a run before; "": none.
        self._quiet_in = ""
        self._own: dict[TargetShard, ShardWindow] = {}
        self._merged: tuple[object, object, Mapping[TargetShard, ShardWindow]] = (None, None, {})
        self._swept_at_ms = 0
        self._alarmed_at_ms = 0

    def start(self) -> None:
        """Read once, then go on in the background."""
        self.poll()
        self._begin()

    def watch(self, spec: LoadSpec) -> None:
        """Watch the claims of a recorded load spec, too; today's stay as they are. Called from any
        thread."""
        with self._changing:
            self._know({**_keyed(spec), **self._keyed})

    def only(self, specs: Iterable[LoadSpec]) -> None:
        """Watch the claims of these load specs beside today's, and no others; called from any
        thread."""
        with self._changing:
            found = _keyed(self._spec)
            for spec in specs:
                found = {**_keyed(spec), **found}
            self._know(found)

    def _know(self, keyed: _Keyed) -> None:
        """Watch these. What was quiet may not be so where an entry claims that did not."""
        if {part for part, _ in keyed.values()} - {part for part, _ in self._keyed.values()}:
            self._quiet_in = ""
        self._keyed = keyed

    def current(self) -> Mapping[TargetShard, ShardWindow]:
        """See `Windows`."""
        others, own = self._others.current(), self._own
        known_others, known_own, merged = self._merged
        if others is not known_others or own is not known_own:
            merged = {**others, **own}
            self._merged = (others, own, merged)
        return merged

    def outage(self, target_shard: TargetShard) -> str | None:
        """See `Windows`."""
        if target_shard.shard != CLAIMS:
            return self._others.outage(target_shard)
        part, _ = self._keyed.get(target_shard, (None, None))
        if part is None or part not in self._open or part in self._begun.parts:
            why = _NOT_READ if part is None else self._waits.get(part.space, _NOT_READ)
            return f"the store of claims waits: {why}"
        is_old = self._now_ms() - self._noted_ms.get(part.space, 0) > self._noted_ms_max
        return "the store of claims does not answer in time" if is_old else None

    def refusal(self, target_shard: TargetShard) -> SluiceError | None:
        """See `Windows`."""
        return None if target_shard.shard == CLAIMS else self._others.refusal(target_shard)

    def see(
        self,
        states: Iterable[PartitionState],
        holds: Holds,
        spec: LoadSpec,
        spec_of: Callable[[PartitionState], LoadSpec],
        now_ms: int,
    ) -> None:
        """Look whether anything of this connector may still be inserted under claims of a run
        before; called by its loop in every round.

        :param spec: today's: columns may be added while the driver runs; `spec_of`: under which a
            range in doubt is sent again.
        """
        if spec is not self._spec:
            with self._changing:
                self._quiet_in = ""
                self._begun.go_over(self._spec, spec)
                self._spec = spec
                self._know({**self._keyed, **_keyed(spec)})
        if self._waits:
            run = self.run  # the other thread may see another one meanwhile
            is_late = may_still_insert(states, holds, spec, spec_of, run, now_ms)
            self._quiet_in = "" if is_late else run

    def _step(self) -> None:
        self.poll()

    def poll(self) -> None:
        """Look at the store, and do what is to be done about it. One thread at a time."""
        self._notice_pause()
        try:
            if self._store is None:
                self._store = self._open_store()
            due = self._look(self._store)
            if due:
                self._make_again(self._store, due)
                self._look(self._store)
        except SluiceError as error:
            self._wait(frozenset(), dict.fromkeys(_spaces_of(self._keyed), _in_words(error)))
            if self._store is not None:
                self._store.close()
                self._store = None

    def _notice_pause(self) -> int:
        """Gives what time it is."""
        now_ms = self._now_ms()
        if now_ms - self._looked_ms > self._noted_ms_max:
            self._noted_ms = {}
        self._looked_ms = now_ms
        return now_ms

    def _look(self, store: ClaimStore) -> dict[Part, _Due]:
        """Look once, and tell of this writer; gives what is to be claimed again now."""
        now_ms, run = self._notice_pause(), store.run()
        if run != self.run:
            self.run, self._run_since_ms = run, now_ms
            self._opened, self._failed = frozenset(), {}
            why = "it was started again, or is another one"
            self._wait(frozenset(), dict.fromkeys(_spaces_of(self._keyed), why))
        keyed, begun = self._keyed, self._begun.parts
        is_quiet = self._quiet_in == run  # read after the others
        tables, notes = _tables_of(keyed), store.notes()
        by_space = others_of(notes, self._me, now_ms)
        parts = sorted(tables)  # in one order in every process
        waits, due = dict[str, str](), dict[Part, _Due]()
        for space, of_space in groupby(parts, lambda part: part.space):
            known = {part: tables[part] for part in of_space}
            others = by_space.get(space, {})
            step = self._step_of(space, known, notes, others, begun, now_ms, is_quiet=is_quiet)
            if isinstance(step, RebuildNow):
                for part, since_ms in step.since_ms.items():
                    due[part] = _Due(tables[part], since_ms, begun.get(part, 0))
                waits[space] = "its claims are made again from the tables"
            elif isinstance(step, Closed):
                waits[space] = step.why
        ready = [part for part in parts if part.space not in waits]
        names = tuple(sorted(part.name for part in parts))
        by_scope = {part.scope: waits[part.space] for part in parts if part.space in waits}
        is_quiet = is_quiet or not waits
        # Who rebuilds has to know of this writer before it sends anything.
        writer = Writer(self._me.connector, run, is_quiet, now_ms, self._lease_ms, names, by_scope)
        kept = {_SPACE + part.name: Space(run, now_ms).written() for part in ready}
        store.keep({_WRITER + self._me.name: writer.written(), **kept}, run)
        self._own = _windows_of(keyed, run, now_ms)
        new = {part.scope for part in ready if part.space not in self._opened}
        if new:
            _warn_of_tables(not_made_again(notes, run, new, now_ms))
        spaces = {part.space for part in ready}
        self._opened |= spaces
        self._noted_ms = {**self._noted_ms, **dict.fromkeys(spaces, now_ms)}
        self._failed = {space: of for space, of in self._failed.items() if space in waits}
        self._wait(frozenset(ready), waits)
        if ready or not waits:
            self._care(store, run, notes, now_ms)
        return due

    def _step_of(
        self,
        space: str,
        tables: Mapping[Part, TableSpec],
        notes: Mapping[str, str],
        others: Others,
        begun: Collection[Part],
        now_ms: int,
        *,
        is_quiet: bool,
    ) -> Step:
        """What is to be done about a key space."""
        # Where the store was emptied, it does not know any more what others have said.
        leases_ms = [writer.lease_ms for writer, _ in others.values()]
        longest_ms = max([self._lease_ms, self._leases_ms.get(space, 0), *leases_ms])
        has_settled = now_ms - self._run_since_ms >= self._settle_ms
        failed = self._failed.get(space)
        waits = failed is not None and failed.waits(now_ms)
        new = list[Part]()
        if is_quiet and has_settled and not waits:
            try:
                unknown = (part for part in tables if _SPACE + part.name not in notes)
                new = [part for part in unknown if not self._has_rows(tables[part])]
            except SluiceError as error:
                return Closed(self._fails(space, error))
        step = next_step(
            notes,
            others,
            self.run,
            tables.keys(),
            is_quiet=is_quiet,
            has_settled=has_settled,
            was_open=space in self._opened,
            noted_ms=self._noted_ms.get(space, 0),
            # Who uses a store that only this machine has is gone with its run.
            unknown_until_ms=self._run_since_ms + longest_ms if self._settle_ms else 0,
            new=new,
            begun=begun,
            now_ms=now_ms,
        )
        self._leases_ms[space] = max([*leases_ms, 0]) if isinstance(step, Open) else longest_ms
        if isinstance(step, Open) and not has_settled:
            return Closed("others may not have noticed yet")
        if isinstance(step, RebuildNow) and failed is not None and waits:
            return Closed(failed.why)
        return step

    def _make_again(self, store: ClaimStore, due: Mapping[Part, _Due]) -> None:
        """Claim what is in these tables. Other key spaces are kept up meanwhile."""
        run, made = self.run, dict[Part, _Due]()
        for part, of in due.items():
            try:
                self._rebuild(of.table, of.since_ms, run, lambda: self._look(store))
                made[part] = of
            except StoreAwayError:
                raise
            except SluiceError as error:
                self._fails(part.space, error)
        now_ms = self._now_ms()  # nobody has inserted anything there meanwhile
        store.keep({_SPACE + part.name: Space(run, now_ms).written() for part in made}, run)
        self._begun.made_again(made)

    def _fails(self, space: str, error: SluiceError) -> str:
        """Claims of a key space cannot be made again now; gives why."""
        before = self._failed.get(space)
        pause_ms = RETRY_MS if before is None else min(2 * before.pause_ms, RETRY_MS_MAX)
        why = _in_words(error)
        self._failed[space] = _Failed(why, self._now_ms(), pause_ms)
        return why

    def _care(self, store: ClaimStore, run: str, notes: Mapping[str, str], now_ms: int) -> None:
        """Now and then: drop what is over, and see how it is doing."""
        if not 0 <= now_ms - self._swept_at_ms < SWEEP_EVERY_MS:
            self._swept_at_ms = now_ms
            for name in _gone(notes, now_ms):
                store.keep({name: ""}, run)
            store.sweep(now_ms // 1000 - REPEATED_SECONDS_MAX, SWEEP_SECONDS)
            self.facts = store.facts()

    def _wait(self, still_open: frozenset[Part], waits: Mapping[str, str]) -> None:
        """Say what is new; every minute again what goes on, since nothing is loaded there."""
        now_ms = self._now_ms()
        again = not 0 <= now_ms - self._alarmed_at_ms < ALARM_EVERY_MS
        if waits and (waits != self._waits or again):
            self._alarmed_at_ms = now_ms
            _say(waits)
        elif self._waits and not waits:
            _logger.info("the store of claims is open: run %s has all claims", self.run)
        self._open, self._waits = still_open, waits


def _in_words(error: SluiceError) -> str:
    return f"{error}. Try: {error.hint}"


def _warn_of_tables(found: Mapping[str, list[str]]) -> None:
    for scope, targets in found.items():
        _logger.warning(
            "claims of the scope %s are not made again from %s, which nobody loads now: start "
            "who does, or events that came there may be loaded once more",
            *(scope, ", ".join(targets)),
        )


def _say(waits: Mapping[str, str]) -> None:
    for why in sorted(set(waits.values())):
        scopes = sorted({scope_of(space) for space in waits if waits[space] == why})
        more = f" and {len(scopes) - _SHOWN} more" if len(scopes) > _SHOWN else ""
        _logger.warning(
            "table entries that deduplicate in the scope %s%s wait for the store of claims: %s",
            *(", ".join(scopes[:_SHOWN]), more, why),
        )
