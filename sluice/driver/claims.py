"""Keeps an eye on the store of claims, and opens it again after it may have lost some (R20, H24).

Claims are lost with a store: one that was started again may lack the last second's, a failover what
had not reached the replica, a new one all of them. Their rows are in the tables, so they can be
claimed again; but not while anybody may still insert under a claim that nobody knows any more. So
the store is closed while its run is another one than that its claims are complete under: nothing
new is sent; all writers see to it that nothing of theirs can be inserted any more; then the rows
that came since are claimed, and it is open.

What writers note there for each other: `sluice.core.claim_notes`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from sluice.claims.port import ClaimStore, StoreAwayError, StoreFacts
from sluice.core.budget import BOUNDLESS, TargetShard, WindowState
from sluice.core.claim_notes import (
    SETTLE_MS,
    SPACE,
    WRITER,
    Closed,
    Me,
    Open,
    Others,
    Part,
    RebuildNow,
    Space,
    Step,
    Writer,
    gone,
    next_step,
    not_made_again,
    others_of,
    scope_of,
)
from sluice.core.claims import CLAIMS, REPEATED_SECONDS_MAX, key_space
from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.server_runs import is_same_run
from sluice.driver.background import Background
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import Clock, ShardWindow, Windows
from sluice.driver.state import Holds, PartitionState

_logger = logging.getLogger("sluice.claims")

POLL_SECONDS = 1.0
SWEEP_EVERY_MS = 10_000
SWEEP_SECONDS = 0.05
ALARM_EVERY_MS = 60_000
#: What could not be made again is tried again, later each time.
RETRY_MS, RETRY_MS_MAX = 1_000, 30_000

#: Claims every row that came into a table since then (milliseconds), in this run of the store; what
#: it is given last it calls about each second meanwhile.
Rebuild = Callable[[TableSpec, int, str, Callable[[], object]], None]


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


def _keyed(*specs: LoadSpec) -> _Keyed:
    """Where several have an entry, the first of them counts."""
    return {
        TargetShard(table.entry, CLAIMS): (Part.of_table(table), table)
        for spec in reversed(specs)
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


class _Failed(NamedTuple):
    why: str
    at_ms: int
    pause_ms: int


class _Failures:
    """Key spaces whose claims could not be made again. Each is tried again after a pause, which
    becomes longer each time."""

    def __init__(self) -> None:
        self._of: dict[str, _Failed] = {}

    def add(self, space: str, error: SluiceError, now_ms: int) -> str:
        """Gives why, in words."""
        before = self._of.get(space)
        pause_ms = RETRY_MS if before is None else min(2 * before.pause_ms, RETRY_MS_MAX)
        self._of[space] = _Failed(_in_words(error), now_ms, pause_ms)
        return self._of[space].why

    def why_later(self, space: str, now_ms: int) -> str:
        """Why it is not tried again yet; "": it may be."""
        failed = self._of.get(space, _Failed("", 0, 0))
        return failed.why if 0 <= now_ms - failed.at_ms < failed.pause_ms else ""

    def keep(self, spaces: Collection[str]) -> None:
        """Of the others nothing has to be made again now."""
        self._of = {space: failed for space, failed in self._of.items() if space in spaces}


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
    :param specs: the claims of what may be sent are watched, by the loop's rounds. Those of an
        expected version are not: until the loop goes by it, rows may come without them.
    :param rebuild: claims what is in a table.
    :param has_rows: whether a table has a row, or may have one soon.
    :param settle_ms: how long another writer may take to notice a new run of the store, and what
        the store may lose of the last notes.
    """

    def __init__(
        self,
        windows: Windows,
        open_store: Callable[[], ClaimStore],
        specs: LoadSpecs,
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
        #: Of which the claims are watched, as they were at the loop's last round.
        self._specs, self._live, self._spec = specs, specs.live, specs.today.spec
        self._keyed = _keyed(*self._live)
        self._begun = _Begun()
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
        self._failures = _Failures()
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
        spec_of: Callable[[PartitionState], LoadSpec],
        now_ms: int,
    ) -> None:
        """Look which claims are to be watched, and whether anything of this connector may still be
        inserted under claims of a run before; called by its loop in every round.

        :param spec_of: under which a range in doubt is sent again.
        """
        if self._specs.live is not self._live:
            self._live = self._specs.live
            self._know(_keyed(*self._live), self._specs.today.spec)
        if self._waits:
            run = self.run  # the other thread may see another one meanwhile
            is_late = may_still_insert(states, holds, self._spec, spec_of, run, now_ms)
            self._quiet_in = "" if is_late else run

    def _know(self, keyed: _Keyed, today: LoadSpec) -> None:
        """Watch these. What was quiet may not be so where an entry claims that did not."""
        new = {part for part, _ in keyed.values()} - {part for part, _ in self._keyed.values()}
        if new or today is not self._spec:
            self._quiet_in = ""
        if today is not self._spec:
            self._begun.go_over(self._spec, today)
        self._spec, self._keyed = today, keyed

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
            self._opened, self._failures = frozenset(), _Failures()
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
        kept = {SPACE + part.name: Space(run, now_ms).written() for part in ready}
        store.keep({WRITER + self._me.name: writer.written(), **kept}, run)
        self._own = _windows_of(keyed, run, now_ms)
        new = {part.scope for part in ready if part.space not in self._opened}
        if new:
            _warn_of_tables(not_made_again(notes, run, new, now_ms))
        spaces = {part.space for part in ready}
        self._opened |= spaces
        self._noted_ms = {**self._noted_ms, **dict.fromkeys(spaces, now_ms)}
        self._failures.keep(waits)
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
        why_later = self._failures.why_later(space, now_ms)
        new = list[Part]()
        if is_quiet and has_settled and not why_later:
            try:
                unknown = (part for part in tables if SPACE + part.name not in notes)
                new = [part for part in unknown if not self._has_rows(tables[part])]
            except SluiceError as error:
                return Closed(self._failures.add(space, error, self._now_ms()))
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
        return Closed(why_later) if isinstance(step, RebuildNow) and why_later else step

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
                self._failures.add(part.space, error, self._now_ms())
        now_ms = self._now_ms()  # nobody has inserted anything there meanwhile
        store.keep({SPACE + part.name: Space(run, now_ms).written() for part in made}, run)
        self._begun.made_again(made)

    def _care(self, store: ClaimStore, run: str, notes: Mapping[str, str], now_ms: int) -> None:
        """Now and then: drop what is over, and see how it is doing."""
        if not 0 <= now_ms - self._swept_at_ms < SWEEP_EVERY_MS:
            self._swept_at_ms = now_ms
            for name in gone(notes, now_ms):
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
