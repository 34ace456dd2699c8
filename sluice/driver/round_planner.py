"""Deciding a round: which partition takes which update, within the budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from sluice.core.budget import TargetShard
from sluice.core.errors import SluiceError
from sluice.core.flights import InFlight, Place
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import in_fair_order
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import NeedsReservation, TooHeavy
from sluice.core.transaction_size import TransactionSize
from sluice.driver.bundling import (
    NewRanges,
    again_together,
    grouped_by_bundle,
    share_of,
)
from sluice.driver.changes import SchemaChanges
from sluice.driver.effects import Effect, StopPartition
from sluice.driver.freezing import Freezing, stand_still
from sluice.driver.pending import Pending
from sluice.driver.ports import Jobs, Windows
from sluice.driver.probed import ProbedRanges, found_nothing
from sluice.driver.record_updates import (
    LOOK_AGE_MS_MAX,
    RESETTLE_MS,
    Budget,
    RecordPlanner,
    RecordUpdate,
    WindowTooSmallError,
    from_now_on,
    give_back,
    refresh,
    settle,
)
from sluice.driver.remembering import target_shards_of, why_forgotten
from sluice.driver.schema_decision import Probe, Wait
from sluice.driver.state import Answered, Holds, PartitionState, Probed, target_shards_gone
from sluice.driver.stopped import not_to_be_cut, unprobable

_logger = logging.getLogger("sluice.loop")

#: No new range is begun while what is loaded waits for more than so many transactions.
LOADED_SHARE = 2


@dataclass(frozen=True, slots=True)
class Round:
    """What is to be done now.

    :param updates: that need a record.
    :param ready: partitions whose committed record may run as it is.
    """

    updates: list[RecordUpdate] = field(default_factory=list)
    ready: list[PartitionState] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


class RoundPlanner:
    """Decides the rounds of one connector. Reads the world only through `windows`.

    :param states: the loop's own mapping; partitions may join it later.
    :param jobs: ranges for twice as many tasks as it can run at once may be under way.
    :param size: how much one transaction may settle.
    :param schema: knows what the tables are now.
    :param flights: how many ranges each replica is given.
    :param leader_of: the id of the broker that leads a partition, -1 where it is not known.
    :param pending: who may be given a range.
    :param freezing: what nothing is done for.
    """

    def __init__(
        self,
        states: dict[TopicPartition, PartitionState],
        planner: RecordPlanner,
        holds: Holds,
        windows: Windows,
        jobs: Jobs,
        size: TransactionSize,
        schema: SchemaChanges,
        flights: InFlight,
        leader_of: Callable[[TopicPartition], int],
        pending: Pending,
        freezing: Freezing,
    ) -> None:
        self._states, self._pending, self._freezing = states, pending, freezing
        self._planner, self._schema, self._holds = planner, schema, holds
        self._windows, self._flights, self._jobs, self._size = windows, flights, jobs, size
        self._leader_of, self._is_disputed = leader_of, schema.unrepeatable.is_disputed
        #: Of the round that is being decided.
        self._effects: list[Effect] = []
        self._probed = ProbedRanges(
            planner, flights, self.spec_of, leader_of, self._stop, self._may_go
        )
        #: Ranges of the last round that waited for a replica to finish others.
        self.held_back = 0

    def plan(
        self, under_way: list[PartitionState], now_ms: int, *, flush: bool, stopping: bool
    ) -> Round:
        """Decide one round.

        :param under_way: the partitions that have more than messages that wait.
        :param flush: partial ranges are due at once.
        :param stopping: nothing new is intended.
        """
        windows = self._windows.current()
        self._planner.see_windows(windows)
        read_ms = {each.key: window.read_started_ms for each, window in windows.items()}
        self._holds.forget(now_ms, read_ms)
        budget = Budget(windows, self._holds, under_way, now_ms)
        updates: list[RecordUpdate] = []
        ready: list[PartitionState] = []
        self._effects, planner, self.held_back = [], self._planner, 0
        self._probed.begin()
        out = grouped_by_bundle(s for s in under_way if s.out)
        self._flights.begin(self._jobs.slots)
        for members in out:
            self._flights.add(self._places(members[0]))
        free = [s for s in under_way if s.stopped is None and not s.out]
        idle = [s for s in free if s.loaded is not None or not s.record.in_doubt]
        resting: list[list[PartitionState]] = []
        for members in grouped_by_bundle(s for s in free if s.record.in_doubt):
            if any(state.loaded is not None for state in members):
                continue  # idle: they are settled below, and then this is no whole bundle
            if self._freezing.of(members[0]):
                updates += stand_still(members)
                resting.append(members)
                self._effects += self._freezing.asks(members, now_ms)
                continue
            found, runs = again_together(
                members,
                lambda state: self._again(state, budget, now_ms),
                self._have_probed,
                planner.owner,
                now_ms,
            )
            if (runs or any(update.dispatch for update in found)) and not self._may_go(members[0]):
                continue
            if not found and not runs:
                resting.append(members)
            updates += found
            ready += members if runs else []
        updates += self._probed.load_absent(budget, now_ms)
        self.held_back += self._probed.held_back
        planned = {update.source for update in updates}
        for members in resting:
            is_old = any(now_ms - s.committed_at_ms > RESETTLE_MS for s in members)
            if is_old and not any(state.source in planned for state in members):
                updates += [refresh(state) for state in members]
        # Dead letters and parked messages are held until a transaction takes them.
        is_full = sum(s.weight for s in idle) > LOADED_SHARE * self._size.bytes_max
        if not (stopping or is_full):
            updates += self._intend(out, budget, now_ms, flush=flush)
        updates += _settled(idle, {update.source for update in updates}, planner, now_ms)
        return Round(updates, ready, self._effects)

    def _stop(self, state: PartitionState, error: SluiceError) -> None:
        self._effects.append(StopPartition(state.source, error))

    def _places(self, state: PartitionState) -> frozenset[Place]:
        """Where the blocks of a recorded range go."""
        spec = self.spec_of(state)
        is_new = spec is self._planner.spec
        digest = self._planner.digest if is_new else state.record.spec
        return self._flights.places(spec, digest, state.source, state.record.bundle)

    def _may_go(self, state: PartitionState) -> bool:
        """Whether the replicas that a range in doubt goes to have room for it now."""
        places = self._places(state)
        if not self._flights.has_room(places):
            self.held_back += 1
            return False
        self._flights.add(places)
        return True

    def _intend(
        self,
        out: list[list[PartitionState]],
        budget: Budget,
        now_ms: int,
        *,
        flush: bool,
    ) -> list[RecordUpdate]:
        """New ranges, while those that are out leave room for them."""
        planner = self._planner
        slots, limits_of = self._jobs.slots, planner.limits_of
        room_left = 2 * slots - sum(share_of(members, limits_of) for members in out)
        if room_left <= 0:
            return []
        waiting, due = self._pending.due(budget.windows, now_ms, flush=flush)
        if not waiting:
            return []
        # Who is not due goes along: more rows in a block that is written anyway cost little.
        waiting = in_fair_order(waiting)
        waiting.sort(key=lambda backlog: backlog.source not in due)
        new = NewRanges(planner, budget.windows, slots, waiting, self._states, self._leader_of)
        for backlog in waiting:
            topic = backlog.source.topic
            if self._schema.why_barred(topic) is not None:
                continue
            if new.has_room(backlog.source):
                new.join(backlog.source)
                continue
            if room_left <= 0 or not (backlog.source in due or new.fills(backlog.source)):
                continue
            target_shards = budget.target_shards(planner.spec, topic)
            if self._outage(target_shards):
                continue
            places = self._flights.places(planner.spec, planner.digest, backlog.source)
            if not self._flights.has_room(places):
                self.held_back += 1
                continue
            state = self._states[backlog.source]
            wanted = planner.reservation(topic, target_shards, budget.windows)
            reservation = budget.affordable(target_shards, wanted)
            try:
                if not budget.take(target_shards, reservation):
                    continue
            except WindowTooSmallError as error:
                if state.loaded is None:  # what is loaded is settled first
                    self._stop(state, error)
                continue
            room_left -= new.begin(backlog, budget, target_shards, reservation, now_ms)
            self._flights.add(places)
        return new.updates(now_ms)

    def _again(
        self, state: PartitionState, budget: Budget, now_ms: int
    ) -> tuple[RecordUpdate | None, bool]:
        """A range in doubt that is not out: its next update, and whether it may run as it is."""
        if state.is_unrecorded:
            return refresh(state), False
        if state.has_to_be_probed or state.rests(now_ms) or self._is_disputed(state):
            return None, False
        match state.stage:
            case Answered(TooHeavy(end=end)) if not _may_shorten(state, self.spec_of(state)):
                self._stop(
                    state, not_to_be_cut(state.block_range, end, self._planner.spec.connector)
                )
                return None, False
            case Answered(TooHeavy(end=end)):
                return self._shorten(state, end, budget, now_ms), False
        if self._outage(target_shards_of(self.spec_of(state), state.source.topic)):
            return None, False
        if isinstance(state.stage, Probed):
            return self._probed.record(state, budget, now_ms), False
        decision = self._schema.decide(state, now_ms)
        match decision:
            case Wait() as wait:
                self._effects += self._schema.asks(state, wait, now_ms)
                return None, False
            case Probe():
                self._have_probed(state)
                return None, False
        read_since_ms = max(state.back_at_ms, now_ms - LOOK_AGE_MS_MAX)
        why = why_forgotten(state, self.spec_of(state), budget.windows, now_ms, read_since_ms)
        if why is None:
            return None, False
        if why and state.may_be_given_back:
            _logger.info("%s, which nobody inserted, is planned anew: %s", state.block_range, why)
            return give_back(state, self._planner.owner, now_ms), False
        if why:
            _logger.warning("%s is probed before it is loaded again: %s", state.block_range, why)
            self._have_probed(state)
            return None, False
        match state.stage:
            case Answered(NeedsReservation() as need):
                return self._reserve_again(state, need, budget, now_ms), False
        left_ms = state.record.deadline_ms - now_ms
        if left_ms > self._planner.lease_left_ms(state) and state.outdated is None:
            return None, True
        if not self._has_room_again(state, budget, now_ms, state.record.reservation):
            return None, False
        return self._schema.again(state, decision, now_ms), False

    def _have_probed(self, state: PartitionState) -> None:
        """Have a range looked for. Where a table or shard of it is not configured any more nobody
        would look there, so it stops."""
        gone = target_shards_gone(state.background, self.spec_of(state), state.source.topic)
        if gone:
            self._stop(state, unprobable(state.block_range, gone[0], self._planner.spec.connector))
        else:
            state.probe()

    def _shorten(
        self, state: PartitionState, end: int, budget: Budget, now_ms: int
    ) -> RecordUpdate | None:
        """A shorter range of which nobody inserted anything. While its lease runs its reservation
        is among the holds; then it went to others, and is taken anew, under insert counters of
        now."""
        update = self._planner.shorten(state, end, now_ms)
        if state.may_insert(now_ms):
            return update
        target_shards = budget.target_shards(self.spec_of(state), state.source.topic)
        if self._outage(target_shards):
            return None  # what is of now may not be used yet, as a store that lacks claims
        try:
            if not budget.take(target_shards, state.record.reservation):
                return None
        except WindowTooSmallError as error:
            self._stop(state, error)
            return None
        background = from_now_on(update.background, target_shards, budget.windows, now_ms)
        return replace(update, background=background)

    def _has_room_again(
        self, state: PartitionState, budget: Budget, now_ms: int, reservation: int
    ) -> bool:
        """Whether a range may be sent again with this reservation within the budget. While its
        lease runs it is among the holds; then its reservation was given to others."""
        if state.may_insert(now_ms):
            return True
        target_shards = budget.target_shards(self.spec_of(state), state.source.topic)
        has_room = budget.take_again(target_shards, reservation, state.background.insert_counters)
        if has_room is None:
            _logger.warning(
                "%s is probed before it is loaded again: a repeat of up to %d blocks would come "
                "after more than half of a deduplication window",
                *(state.block_range, reservation),
            )
            self._have_probed(state)
        return bool(has_room)

    def _reserve_again(
        self, state: PartitionState, need: NeedsReservation, budget: Budget, now_ms: int
    ) -> RecordUpdate | None:
        """The same range with the reservation that one of its blocks needs."""
        is_hold = state.may_insert(now_ms)
        try:
            target_shards = budget.target_shards(self.spec_of(state), state.source.topic)
            reservation = _entries_again(state, need, budget, target_shards)
            budget.require_possible(target_shards, reservation, need.entry)
            # All of it at once: with what it had, it would keep from others what they need.
            if (
                budget.take(target_shards, reservation, state.record.reservation, need.entry)
                if is_hold
                else self._has_room_again(state, budget, now_ms, reservation)
            ):
                return self._planner.renew(state, now_ms, reservation=reservation)
        except WindowTooSmallError as error:
            if state.record.bundle:
                # Each range may well have room for itself.
                self._planner.narrow(state)
                state.alone = True
            else:
                self._stop(state, error)
        return None

    def spec_of(self, state: PartitionState) -> LoadSpec:
        """The recorded spec if it can be executed; else today's, under a probe (R8)."""
        return self._schema.spec_of(state)

    def _outage(self, target_shards: list[TargetShard]) -> bool:
        return any(self._windows.outage(target_shard) for target_shard in target_shards)


def _settled(
    idle: list[PartitionState], planned: set[TopicPartition], planner: RecordPlanner, now_ms: int
) -> Iterator[RecordUpdate]:
    """Those of which nothing else is planned, and something is to be recorded all the same."""
    stale_ms = now_ms - RESETTLE_MS
    for state in idle:
        is_old, to = state.committed_at_ms < stale_ms, state.goes_to(now_ms)
        if (is_old or state.loaded is not None or to) and state.source not in planned:
            yield settle(state, to or planner.owner, planner.batch, now_ms)


def _entries_again(
    state: PartitionState, need: NeedsReservation, budget: Budget, target_shards: list[TargetShard]
) -> int:
    """What a range is sent again with. What it needs behind views is a guess: the most that its
    windows may give is tried before a guess beyond that stops it."""
    most = budget.affordable(target_shards, need.entries)
    return most if need.views and most > state.record.reservation else need.entries


def _may_shorten(state: PartitionState, spec: LoadSpec) -> bool:
    """Whether surely nobody inserted anything of a range that is too heavy: under its own load spec
    nobody did, but a probe may have found rows of another one (R12)."""
    return not state.record.rest or found_nothing(state, spec)
