"""What a loop does when its tables were altered while it runs (R8).

New ranges are intended under the load spec of now. What becomes of a range in doubt is decided in
`schema_decision`; here is what is known of the tables. Which load specs there are, `load_specs`
knows. Where a block does not fit any more, its topics stop.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from sluice.clickhouse.comparing import Today, why_not_executable
from sluice.core.budget import TargetShard
from sluice.core.errors import SluiceError
from sluice.core.ledger import Rest
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind
from sluice.driver.effects import AddColumns, Effect, ReadTables, StopPartition
from sluice.driver.parking import Parking, known_rest, parked_in
from sluice.driver.ports import ConfigurationRead, SchemaRead
from sluice.driver.record_updates import LOOK_AGE_MS_MAX, RecordPlanner, RecordUpdate
from sluice.driver.schema_decision import (
    Change,
    Decision,
    Facts,
    Wait,
    decide,
    executable,
    open_fields,
)
from sluice.driver.start import Started
from sluice.driver.state import Holds, PartitionState

_logger = logging.getLogger("sluice.loop")

#: After a look that found nothing new, fields that no column has are dead letters at once: one
#: range in this time is held back for a look, not each of them.
LOOK_FOR_FIELDS_MS = 60_000
#: Columns that are still missing are asked for again.
WANT_AGAIN_MS = 1_000


class Unrepeatable:
    """Recorded load spec and topic of ranges in doubt that the same load spec would not make again.

    What a take-over found it can repeat, and the last reading of the tables says not, is *disputed*
    until a reading that began later: the tables may have changed after either of them. So is what a
    take-over could ask nobody about.
    """

    def __init__(self) -> None:
        self._found: set[tuple[str, str]] = set()
        #: Those of the disputed ones that the last reading says nothing against.
        self._unasked: set[tuple[str, str]] = set()
        #: Since when each one is disputed.
        self._disputed: dict[tuple[str, str], int] = {}

    def __contains__(self, state: PartitionState) -> bool:
        return (state.record.spec, state.source.topic) in self._found

    def is_disputed(self, state: PartitionState) -> bool:
        """Whether only a later reading can tell."""
        return (state.record.spec, state.source.topic) in self._disputed

    @property
    def disputed(self) -> Collection[tuple[str, str]]:
        """Of which only a later reading can tell."""
        return self._disputed.keys()

    def read(
        self,
        judged: Collection[tuple[str, str]] | None,
        began_ms: int,
        unread: Collection[tuple[str, str]] = (),
    ) -> None:
        """A reading found these; None: what the one before it found.

        :param unread: those of the disputed ones of which it did not see all shards.
        """
        over = {at for at, ms in self._disputed.items() if began_ms >= ms and at not in unread}
        left = {each: ms for each, ms in self._disputed.items() if each not in over}
        if judged is None:
            self._found |= over - self._unasked
            self._unasked &= left.keys()
        else:
            stay = {*judged, *self._unasked, *unread}
            left = {at: ms for at, ms in left.items() if at in stay}
            self._found = set(judged) - left.keys()
            self._unasked = left.keys() - set(judged)
        self._disputed = left

    def join(
        self,
        found: Collection[tuple[str, str]],
        judged: Collection[tuple[str, str]],
        unasked: Collection[tuple[str, str]],
        now_ms: int,
    ) -> bool:
        """A take-over found these; and what else it found the last reading judges so; and of these
        it found nothing out. Gives whether there is any of the last two."""
        self._found |= set(found)
        disputed = {*judged, *unasked} - self._found
        self._unasked = (self._unasked | {*unasked}) - {*judged} - self._found
        self._disputed |= dict.fromkeys(disputed, now_ms)
        return bool(disputed)

    def clock_went_back(self, now_ms: int) -> None:
        """No reading is waited for that would begin later than now."""
        self._disputed = {each: min(ms, now_ms) for each, ms in self._disputed.items()}


class SchemaChanges:
    """Takes readings of the tables in for one loop.

    :param states: the loop's own mapping; partitions may join it later.
    :param holds: the loop's own, too.
    :param is_read: somebody reads the tables; where nobody does, nothing waits for it.
    :param parking: which entries may be parked.
    :param version: of the configuration; readings for an older one come too late.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        planner: RecordPlanner,
        holds: Holds,
        parking: Parking,
        version: int,
        *,
        is_read: bool,
    ) -> None:
        self._version, self._parking, self._holds = version, parking, holds
        self._barred: Mapping[str, SluiceError] = {}
        self._states, self._planner, self._specs = states, planner, planner.specs
        self._is_read = is_read
        self._read_ms, self._unread = 0, frozenset[str]()
        #: Whether a block is known again by its token alone; not before it is known.
        self._has_tokens = False
        self._today: Today | None = None
        self.unrepeatable = Unrepeatable()
        self._looks_at_ms = 0
        self._want_again_ms: dict[TopicPartition, int] = {}

    # Readings

    def take(self, read: SchemaRead) -> None:
        """Take a reading in."""
        if read.version != self._version:
            return
        self._read_ms, self._unread = read.started_ms, read.unread
        self._barred = read.barred
        self._parking.take(read.altered, asked=read.asked)
        self._change(self._parking.applied(read.spec))
        judged = None
        if read.today is not None:
            self._today, self._has_tokens = read.today, read.today.tokens
            judged = set(self._judged(self._states.values(), read.today))
        unread = [at for at in self.unrepeatable.disputed if not self._saw(read, *at)]
        self.unrepeatable.read(judged, read.started_ms, unread)

    def _saw(self, read: SchemaRead, digest: str, topic: str) -> bool:
        """Whether a reading is of all shards that a topic needs under a load spec."""
        spec = self._specs.get(digest)
        if spec is None:
            return not read.unread
        needed = (shard for table in spec.tables_of(topic) for shard in table.shards)
        return read.unread.isdisjoint(needed)

    def _judged(self, states: Iterable[PartitionState], today: Today) -> Iterator[tuple[str, str]]:
        """Those of these ranges that the load spec of their record would not make again: its
        digest, and their topic."""
        for state in states:
            spec = self._specs.get(state.record.spec)
            topic = state.source.topic
            if spec is None or not state.record.in_doubt or self.why_barred(topic) is not None:
                continue
            inserted = [table for table in spec.tables_of(topic) if not table.parked]
            if any(table.target not in today.tables for table in inserted):
                continue  # Its window cannot be read either: it waits for that.
            if why_not_executable(spec, today, topic) is not None:
                yield state.record.spec, topic

    def configured(self, read: ConfigurationRead) -> None:
        """What is loaded was applied anew. Ranges in doubt keep their load specs."""
        self._version, self._barred = read.version, {}
        self._parking.allow(read.parkable)
        self._change(self._parking.applied(read.spec))

    def parkable_target_shards(self) -> list[TargetShard]:
        """Where new ranges insert into entries that may be parked."""
        return self._parking.target_shards(self._planner.spec)

    def park(self, entry: str, why: SluiceError) -> None:
        """Park an entry that may be parked."""
        self._parking.refuse(entry, why)
        self._change(self._parking.applied(self._planner.spec))

    def _change(self, spec: LoadSpec) -> None:
        """New ranges are intended under this one from now on. What nothing needs any more is let
        go: nothing may be planned now that is not recorded."""
        if self._planner.change(spec):
            self._looks_at_ms = 0
        named = {state.record.spec for state in self._states.values()}
        late = (key for each in self._holds.late_inserts for key in each.insert_counters)
        self._specs.keep(named, {TargetShard.of(key).own for key in late})

    def join(self, started: Started, now_ms: int) -> list[Effect]:
        """A take-over has found this. The loop may have a load spec from before that cannot be
        executed today. The tables may have changed since the take-over looked at them, or since the
        last reading: where the two differ, or the take-over could ask nobody, another one is asked
        for, and the range waits for it.
        """
        found = {
            (state.record.spec, state.source.topic)
            for state in started.states
            if state.record.in_doubt and state.record.spec in started.refused
        }
        judged = set() if self._today is None else {*self._judged(started.states, self._today)}
        is_open = self.unrepeatable.join(found, judged, started.unasked, now_ms)
        return [ReadTables()] if is_open else []

    # What follows for partitions

    def barred(self) -> Iterator[StopPartition]:
        """Partitions whose tables do not take their blocks any more. What is out may come back
        loaded, and what is loaded is settled first."""
        for state in self._states.values() if self._barred else ():
            is_idle = state.stopped is None and not state.out and state.loaded is None
            why = self.why_barred(state.source.topic) if is_idle else None
            if why is not None:
                yield StopPartition(state.source, why)

    def why_barred(self, topic: str) -> SluiceError | None:
        """Why nothing of a topic can be loaded any more; None if it can."""
        if not self._barred:
            return None
        entries = (table.entry for table in self._planner.spec.tables_of(topic))
        return next((self._barred[entry] for entry in entries if entry in self._barred), None)

    def decide(self, state: PartitionState, now_ms: int) -> Decision:
        """What becomes of a range in doubt, by what is known of its tables now."""
        return decide(self._facts(state, now_ms))

    def _facts(self, state: PartitionState, now_ms: int) -> Facts:
        facts = self._spec_facts(state)
        if not self._is_read or open_fields(facts):
            return facts
        are_columns_coming = not self._has_tokens and self._are_columns_coming()
        tables = self.spec_of(state).tables_of(state.source.topic) if self._unread else ()
        is_read = self._unread.isdisjoint(shard for table in tables for shard in table.shards)
        since_ms = self._read_since_ms(state, now_ms)
        is_fresh = not since_ms or (is_read and self._read_ms >= since_ms)
        return replace(facts, is_fresh=is_fresh, are_columns_coming=are_columns_coming)

    def _spec_facts(self, state: PartitionState) -> Facts:
        return Facts(
            topic=state.source.topic,
            record=state.record,
            recorded=self._specs.get(state.record.spec),
            current=self._planner.spec,
            current_digest=self._planner.digest,
            tables=self._today,
            outdated=state.outdated,
            untouched=state.untouched,
            is_altered=self.is_unrepeatable(state),
            is_read=self._is_read,
        )

    def _read_since_ms(self, state: PartitionState, now_ms: int) -> int:
        """How young a reading of the tables a repeat of this range needs; 0: it needs none.

        A server that hashes what it stores does not know a block again once a column was added,
        so there a repeat needs a fresh look at the tables, as it does at their windows.
        """
        if not self._has_tokens:
            return max(state.back_at_ms, now_ms - LOOK_AGE_MS_MAX)
        is_columns = state.outdated is not None and not state.outdated.schemas
        return state.back_at_ms if is_columns or state.refusals else 0

    def asks(self, state: PartitionState, wait: Wait, now_ms: int) -> Iterator[Effect]:
        """What a range that waits asks for; columns again only after a while."""
        if wait.reading:
            yield ReadTables()
        again_ms = self._want_again_ms.get(state.source, 0)
        is_due = not 0 < again_ms - now_ms <= WANT_AGAIN_MS
        if wait.columns and is_due and not self._would_be_disturbed():
            self._want_again_ms[state.source] = now_ms + WANT_AGAIN_MS
            yield AddColumns(wait.columns)

    def is_unrepeatable(self, state: PartitionState) -> bool:
        """Whether the same load spec would not make the same blocks, or not be known as such."""
        spec, topic = self._specs.get(state.record.spec), state.source.topic
        was_unparked = spec is not None and self._parking.was_unparked(spec, topic)
        return was_unparked or state in self.unrepeatable

    def known_rest(self, state: PartitionState) -> Rest:
        """See `parking.known_rest`."""
        spec = self._specs.get(state.record.spec)
        if spec is None:
            return {}
        known = known_rest(spec, state.block_range, state.background.rest)
        if spec is self.spec_of(state):
            return known
        # Under another load spec, what is sent again may be other rows.
        return {entry: known[entry] for entry in parked_in(spec, state.source.topic)}

    @property
    def may_be_parked(self) -> Collection[str]:
        """See `ports.Sought`."""
        return self._parking.parked.keys()

    def in_parts(self, state: PartitionState) -> frozenset[str]:
        """See `ports.Prober`."""
        spec = self._specs.get(state.record.spec)
        tables = (spec or self.spec_of(state)).tables_of(state.source.topic)
        found = {table.entry for table in tables if table.partition_key or spec is None}
        return frozenset(found | state.background.stored.keys())

    def spec_of(self, state: PartitionState) -> LoadSpec:
        """The recorded load spec if it can be executed; else today's, under a probe. One that says
        which schemas there are, where the registry does not know those of the range."""
        if state.outdated is not None and state.outdated.schemas:
            widened = executable(self._spec_facts(state))
            if widened is not None:
                return self._specs.adopt(widened).spec
        if self.is_unrepeatable(state):
            return self._planner.spec
        return self._specs.get(state.record.spec) or self._planner.spec

    def again(self, state: PartitionState, decision: Decision, now_ms: int) -> RecordUpdate:
        """The same range again, with a new lease, under the load spec that was decided."""
        match decision:
            case Change(Kind.ADD_COLUMNS, spec):
                return self._planner.add_columns(state, self._specs.adopt(spec).digest, now_ms)
            case Change():
                return self._planner.change_spec(state, now_ms)
        if state.outdated is not None:
            self._looks_at_ms = now_ms + LOOK_FOR_FIELDS_MS
        return self._planner.renew(state, now_ms)

    def _would_be_disturbed(self) -> bool:
        """Whether a repeat is out that a new column could make another block of: where rows are
        hashed, Sluice itself adds none between such a task's look at the columns and its insert."""
        return not self._has_tokens and any(s.out and s.repeated for s in self._states.values())

    def _are_columns_coming(self) -> bool:
        """Whether columns were asked for that are not there yet."""
        for source in list(self._want_again_ms):
            state = self._states.get(source)
            is_going = state is not None and state.stopped is None
            if is_going and open_fields(self._spec_facts(self._states[source])):
                return True
            del self._want_again_ms[source]
        return False

    def looks_for_fields(self, now_ms: int) -> bool:
        """Whether a field that no column has is worth a look at the table."""
        return self._is_read and now_ms >= self._looks_at_ms
