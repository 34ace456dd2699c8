"""Deciding a round: which partition takes which update, within the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sluice.core.flights import InFlight
from sluice.core.planning import in_fair_order
from sluice.core.ranges import TopicPartition
from sluice.core.transaction_size import TransactionSize
from sluice.driver.bundling import NewRanges, grouped_by_bundle, share_of
from sluice.driver.changes import SchemaChanges
from sluice.driver.effects import Effect
from sluice.driver.freezing import Freezing, stand_still
from sluice.driver.pending import Pending
from sluice.driver.ports import Jobs, Windows
from sluice.driver.probed import ProbedRanges
from sluice.driver.record_updates import (
    RESETTLE_MS,
    Budget,
    RecordPlanner,
    RecordUpdate,
    refresh,
    settle,
)
from sluice.driver.repeating import Repeats
from sluice.driver.state import Holds, PartitionState, ToProbe
from sluice.driver.this_round import ThisRound

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
        self._leader_of, self.spec_of = leader_of, schema.spec_of
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
        this_round = self._begin(under_way, now_ms)
        out = grouped_by_bundle(s for s in under_way if s.out)
        for members in out:
            self._flights.add(this_round.places(members[0]))
        free = [s for s in under_way if s.stopped is None and not s.out]
        idle = [s for s in free if s.loaded is not None or not s.record.in_doubt]
        updates, ready = self._in_doubt(this_round, [s for s in free if s.record.in_doubt])
        # Dead letters and parked messages are held until a transaction takes them.
        is_full = sum(s.weight for s in idle) > LOADED_SHARE * self._size.bytes_max
        if not (stopping or is_full):
            updates += self._intend(this_round, out, flush=flush)
        updates += _settled(idle, {update.source for update in updates}, self._planner, now_ms)
        self.held_back = this_round.held_back
        return Round(updates, ready, this_round.effects)

    def _begin(self, under_way: list[PartitionState], now_ms: int) -> ThisRound:
        windows = self._windows.current()
        self._planner.see_windows(windows)
        read_ms = {each.key: window.read_started_ms for each, window in windows.items()}
        self._holds.forget(now_ms, read_ms)
        self._flights.begin(self._jobs.slots)
        return ThisRound(
            *(self._planner, self._schema, self._windows, self._flights, self._leader_of),
            Budget(windows, self._holds, under_way, now_ms),
            now_ms,
        )

    def _in_doubt(
        self, this_round: ThisRound, in_doubt: list[PartitionState]
    ) -> tuple[list[RecordUpdate], list[PartitionState]]:
        """What becomes of ranges in doubt that are not out: updates, and partitions whose committed
        record may run as it is."""
        probed, now_ms = ProbedRanges(this_round), this_round.now_ms
        repeats = Repeats(this_round, probed)
        updates: list[RecordUpdate] = []
        ready: list[PartitionState] = []
        resting: list[list[PartitionState]] = []
        for members in grouped_by_bundle(in_doubt):
            if any(state.loaded is not None for state in members):
                continue  # idle: they are settled later, and then this is no whole bundle
            if self._freezing.of(members[0]):
                updates += stand_still(members)
                resting.append(members)
                this_round.effects += self._freezing.asks(members, now_ms)
                continue
            # Its tables may have been altered since that was decided, or since it was looked for.
            sought = [state for state in members if isinstance(state.stage, ToProbe)]
            if [state for state in sought if this_round.stops_unprobable(state)]:
                continue
            found, runs = repeats.updates(members)
            goes = runs or any(update.dispatch for update in found)
            if goes and not this_round.may_go(members[0]):
                continue
            if not found and not runs:
                resting.append(members)
            updates += found
            ready += members if runs else []
        updates += probed.load_absent()
        planned = {update.source for update in updates}
        for members in resting:
            is_old = any(now_ms - s.committed_at_ms > RESETTLE_MS for s in members)
            if is_old and not any(state.source in planned for state in members):
                updates += [refresh(state) for state in members]
        return updates, ready

    def _intend(
        self, this_round: ThisRound, out: list[list[PartitionState]], *, flush: bool
    ) -> list[RecordUpdate]:
        """New ranges, while those that are out leave room for them."""
        planner, budget = self._planner, this_round.budget
        slots, limits_of = self._jobs.slots, planner.limits_of
        room_left = 2 * slots - sum(share_of(members, limits_of) for members in out)
        if room_left <= 0:
            return []
        waiting, due = self._pending.due(budget.windows, this_round.now_ms, flush=flush)
        if not waiting:
            return []
        # Who is not due goes along: more rows in a block that is written anyway cost little.
        waiting = in_fair_order(waiting)
        waiting.sort(key=lambda backlog: backlog.source not in due)
        new = NewRanges(this_round, slots, waiting, self._states)
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
            if this_round.is_away(target_shards):
                continue
            places = self._flights.places(planner.spec, planner.digest, backlog.source)
            if not this_round.has_room(places):
                continue
            wanted = planner.reservation(topic, target_shards, budget.windows)
            reservation = budget.affordable(target_shards, wanted)
            state = self._states[backlog.source]
            if not this_round.take_or_stop(state, target_shards, reservation):
                continue
            room_left -= new.begin(backlog, target_shards, reservation)
            self._flights.add(places)
        return new.updates()


def _settled(
    idle: list[PartitionState], planned: set[TopicPartition], planner: RecordPlanner, now_ms: int
) -> Iterator[RecordUpdate]:
    """Those of which nothing else is planned, and something is to be recorded all the same."""
    stale_ms = now_ms - RESETTLE_MS
    for state in idle:
        is_old, to = state.committed_at_ms < stale_ms, state.goes_to(now_ms)
        if (is_old or state.loaded is not None or to) and state.source not in planned:
            yield settle(state, to or planner.owner, planner.batch, now_ms)
