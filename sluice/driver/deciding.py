"""Deciding a round: which partition takes which step, within the budget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from sluice.core.budget import Site
from sluice.core.errors import SluiceError
from sluice.core.flights import InFlight, Place
from sluice.core.packing import share_of_task
from sluice.core.planning import messages_of_range
from sluice.core.ranges import TopicPartition, digest_of_rest
from sluice.core.records import Kind, Record
from sluice.core.text import ConfigurationText
from sluice.driver.changes import SchemaChanges
from sluice.driver.parking import why_not_parked
from sluice.driver.ports import Windows
from sluice.driver.state import Claims, PartitionState, sites_gone
from sluice.driver.steps import (
    LOOK_AGE_MS_MAX,
    RESETTLE_MS,
    Budget,
    Planner,
    Step,
    WindowTooSmallError,
    marks_at,
    refresh,
    settle,
    sites_of,
)
from sluice.driver.stopped import unprobable

_logger = logging.getLogger("sluice.lane")

#: How long a range that cannot be parked waits until its table is looked at again.
PARTLY_STORED_MS = 30_000


class Decider:
    """Decides the rounds of one lane. Reads the world only through `windows`.

    :param states: the lane's own mapping; partitions may join it later.
    :param slots: tasks that can run at once; ranges for twice as many may be under way.
    :param stop: called for a partition that cannot go on.
    :param schema: knows what the tables are now.
    :param flights: how many ranges each replica is given.
    """

    def __init__(
        self,
        states: dict[TopicPartition, PartitionState],
        planner: Planner,
        claims: Claims,
        windows: Windows,
        slots: int,
        stop: Callable[[PartitionState, SluiceError], None],
        schema: SchemaChanges,
        flights: InFlight,
    ) -> None:
        self._states = states
        self._planner = planner
        self._claims = claims
        self._windows = windows
        self._slots = slots
        self._stop = stop
        self._schema = schema
        self._flights = flights
        #: Ranges of the last round that waited for a replica to finish others.
        self.held_back = 0

    def plan(
        self, now_ms: int, *, flush: bool, stopping: bool
    ) -> tuple[list[Step], list[PartitionState]]:
        """Steps that need a record, and partitions whose committed record may run as it is.

        :param flush: partial ranges are due at once.
        :param stopping: nothing new is intended.
        """
        windows = self._windows.current()
        self._planner.see_windows(windows)
        self._claims.forget(now_ms, min((w.read_started_ms for w in windows.values()), default=0))
        budget = Budget(windows, self._claims, list(self._states.values()), now_ms)
        steps: list[Step] = []
        ready: list[PartitionState] = []
        self._count_flights()
        free = [s for s in self._states.values() if s.stopped is None and not s.out]
        idle = [s for s in free if s.loaded is not None or not s.record.in_doubt]
        for state in free:
            if state.loaded is not None or not state.record.in_doubt:
                continue  # idle; `in` would compare each with all of them
            step, runs = self._again(state, budget, now_ms)
            if (runs or (step and step.dispatch)) and not self._may_go(state):
                continue
            if step is None and not runs and now_ms - state.committed_at_ms > RESETTLE_MS:
                step = refresh(state)
            steps += [step] if step else []
            ready += [state] if runs else []
        going_on = [state for state in idle if not state.retiring]
        intended = [] if stopping else self._intend(going_on, budget, now_ms, flush=flush)
        steps += intended
        planned = {step.source for step in steps}
        for state in idle:
            stale = now_ms - state.committed_at_ms > RESETTLE_MS
            if state.source not in planned and (state.loaded is not None or stale):
                steps.append(settle(state, self._planner.owner, now_ms))
        return steps, ready

    def _count_flights(self) -> None:
        self.held_back = 0
        self._flights.begin()
        for state in self._states.values():
            if state.out:
                self._flights.add(self._places(state))

    def _places(self, state: PartitionState) -> frozenset[Place]:
        """Where the blocks of a recorded range go."""
        text = self.text_of(state)
        is_new = text is self._planner.text
        digest = self._planner.digest if is_new else state.record.text
        return self._flights.places(text, digest, state.source)

    def _may_go(self, state: PartitionState) -> bool:
        """Whether the replicas that a range in doubt goes to have room for it now."""
        places = self._places(state)
        if not self._flights.has_room(places):
            self.held_back += 1
            return False
        self._flights.add(places)
        return True

    def _intend(
        self, idle: list[PartitionState], budget: Budget, now_ms: int, *, flush: bool
    ) -> list[Step]:
        room_left = 2 * self._slots - sum(self.share(s) for s in self._states.values() if s.out)
        steps: list[Step] = []
        if room_left <= 0:
            return steps
        for backlog in self._planner.due(idle, budget.windows, now_ms, flush=flush):
            if room_left <= 0:
                break
            topic = backlog.source.topic
            if self._schema.why_barred(topic) is not None:
                continue
            sites = budget.sites(self._planner.text, topic)
            if self._outage(sites):
                continue
            planner = self._planner
            places = self._flights.places(planner.text, planner.digest, backlog.source)
            if not self._flights.has_room(places):
                self.held_back += 1
                continue
            state = self._states[backlog.source]
            wanted = planner.grant(topic, sites, budget.windows)
            grant = budget.affordable(sites, wanted)
            try:
                if not budget.take(sites, grant):
                    continue
            except WindowTooSmallError as error:
                self._stop(state, error)
                continue
            step = planner.intend(state, backlog, budget.windows, sites, grant, now_ms)
            steps.append(step)
            self._flights.add(places)
            room_left -= self._share(state, step.record)
        return steps

    def share(self, state: PartitionState) -> float:
        """How much of a task the recorded range is."""
        return self._share(state, state.record)

    def _share(self, state: PartitionState, record: Record) -> float:
        limits = self._planner.limits_of(state.source.topic)
        full = messages_of_range(limits, state.bytes_per_message)
        return share_of_task(record.end - record.begin, full)

    def _again(
        self, state: PartitionState, budget: Budget, now_ms: int
    ) -> tuple[Step | None, bool]:
        """A range in doubt that is not out: its next step, and whether it may run as it is."""
        if state.is_unrecorded:
            return refresh(state), False
        if state.probing or state.probe_out or now_ms < state.retry_at_ms:
            return None, False
        if state.shorten_to is not None:
            return self._shorten(state, state.shorten_to, budget, now_ms), False
        if self._outage(sites_of(self.text_of(state), state.source.topic)):
            return None, False
        if state.is_probed:
            return self._record_probe(state, budget, now_ms), False
        if not self._schema.is_known(state, now_ms):
            return None, False
        changes_text = self._schema.may_change_text(state)
        if self._schema.is_unrepeatable(state) and not changes_text:
            gone = sites_gone(state.background, self.text_of(state), state.source.topic)
            if gone:
                self._stop(state, unprobable(state.block_range, gone[0]))
            state.probing = not gone
            return None, False
        read_since_ms = max(state.back_at_ms, now_ms - LOOK_AGE_MS_MAX)
        look = (state, self.text_of(state), budget.windows, now_ms, read_since_ms)
        remembered = self._planner.remembered(*look)
        if remembered is None:
            return None, False
        if not remembered:
            why = self._planner.why_forgotten(*look)
            _logger.warning("%s is probed before it is loaded again: %s", state.block_range, why)
            state.probing = True
            return None, False
        if state.grant_wanted is not None:
            return self._regrant(state, budget, now_ms), False
        left_ms = state.record.deadline_ms - now_ms
        if left_ms > self._planner.lease_left_ms(state) and state.outdated is None:
            return None, True
        if not self._has_room_again(state, budget, now_ms, state.record.grant):
            return None, False
        return self._schema.again(state, now_ms), False

    def _shorten(self, state: PartitionState, end: int, budget: Budget, now_ms: int) -> Step | None:
        """A shorter range of which nobody inserted anything. While its lease runs its grant is
        among the claims; then it went to others, and is taken anew, under marks of now."""
        step = self._planner.shorten(state, end, now_ms)
        if state.may_insert(now_ms):
            return step
        sites = budget.sites(self.text_of(state), state.source.topic)
        try:
            if not budget.take(sites, state.record.grant):
                return None
        except WindowTooSmallError as error:
            self._stop(state, error)
            return None
        marks, servers = marks_at(sites, budget.windows)
        background = replace(step.background, marks=marks, since_ms=now_ms, servers=servers)
        return replace(step, background=background)

    def _has_room_again(
        self, state: PartitionState, budget: Budget, now_ms: int, grant: int
    ) -> bool:
        """Whether a range may be sent again with this grant within the budget. While its lease
        runs it is among the claims; then its grant was given to others."""
        if state.may_insert(now_ms):
            return True
        sites = budget.sites(self.text_of(state), state.source.topic)
        has_room = budget.take_again(sites, grant, state.background.marks)
        if has_room is None:
            _logger.warning(
                "%s is probed before it is loaded again: a repeat of up to %d blocks would come "
                "after more than half of a deduplication window",
                state.block_range,
                grant,
            )
            state.probing = True
        return bool(has_room)

    def _regrant(self, state: PartitionState, budget: Budget, now_ms: int) -> Step | None:
        """The same range with the grant that one of its blocks needs."""
        need = state.grant_wanted
        assert need is not None
        grant, is_claim = need.entries, state.may_insert(now_ms)
        try:
            sites = budget.sites(self.text_of(state), state.source.topic)
            budget.require_possible(sites, grant, need.entry)
            # All of it at once: with only what it had, it would keep from others what they need to
            # go on, and wait for the rest for ever.
            if (
                budget.take(sites, grant, state.record.grant, need.entry)
                if is_claim
                else self._has_room_again(state, budget, now_ms, grant)
            ):
                return self._planner.renew(state, now_ms, grant=grant)
        except WindowTooSmallError as error:
            self._stop(state, error)
        return None

    def _record_probe(self, state: PartitionState, budget: Budget, now_ms: int) -> Step | None:
        """What a probe found is recorded before it is loaded (R11). Its blocks are new to
        the window, so they need room in it like those of a new range."""
        text, windows = self.text_of(state), budget.windows
        waits = why_not_parked(text, state.block_range, state.background.stored)
        if waits is not None:
            _logger.warning("%s", waits)
            state.is_probed, state.probing = False, True
            state.retry_at_ms = now_ms + PARTLY_STORED_MS
            return None
        sites = budget.sites(text, state.source.topic)
        try:
            if not budget.take(sites, state.record.grant):
                return None
        except WindowTooSmallError as error:
            self._stop(state, error)
            return None
        marks, servers = marks_at(sites, windows)
        background = replace(state.background, marks=marks, since_ms=now_ms, servers=servers)
        renewed = self._planner.renew(state, now_ms)
        record = replace(
            renewed.record,
            kind=Kind.PROBE,
            text=text.digest(),
            rest=digest_of_rest(background.rest, renewed.record.attempt, background.stored),
        )
        return Step(state.source, record, background, True)

    def text_of(self, state: PartitionState) -> ConfigurationText:
        """The recorded text if it can be executed; else today's, under a probe (R8)."""
        return self._schema.text_of(state)

    def _outage(self, sites: list[Site]) -> bool:
        return any(self._windows.outage(site) for site in sites)
