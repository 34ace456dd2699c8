"""Ranges in doubt that are not out: what becomes of them in a round.

What becomes of a bundle is decided for its first member, and is the same for all (R19).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from sluice.core.budget import TargetShard
from sluice.core.load_spec import LoadSpec
from sluice.core.receipts import NeedsReservation, TooHeavy
from sluice.driver.bundling import FAILURES_ALONE_MAX, is_whole_bundle
from sluice.driver.probed import ProbedRanges, found_nothing
from sluice.driver.record_updates import (
    LOOK_AGE_MS_MAX,
    Budget,
    RecordUpdate,
    WindowTooSmallError,
    from_now_on,
    give_back,
    refresh,
)
from sluice.driver.remembering import target_shards_of, why_forgotten
from sluice.driver.schema_decision import Probe, Wait
from sluice.driver.state import Answered, PartitionState, Probed, ToProbe
from sluice.driver.stopped import not_to_be_cut
from sluice.driver.this_round import ThisRound

_logger = logging.getLogger("sluice.loop")


class Repeats:
    """Those of one round.

    :param probed: takes what probes have found.
    """

    def __init__(self, this_round: ThisRound, probed: ProbedRanges) -> None:
        self._round, self._probed = this_round, probed
        self._planner, self._schema = this_round.planner, this_round.schema
        self._budget, self._now_ms = this_round.budget, this_round.now_ms

    def updates(self, members: list[PartitionState]) -> tuple[list[RecordUpdate], bool]:
        """The next updates of the members of a bundle, or of one range alone, and whether they may
        run as they are."""
        first, now_ms = members[0], self._now_ms
        if not first.record.bundle:
            update, runs = self._again(first)
            return [update] if update else [], runs
        if not is_whole_bundle(members) or _leaves(members):
            return self._dissolved(members), False
        unrecorded = [refresh(state) for state in members if state.is_unrecorded]
        if unrecorded or any(state.rests(now_ms) for state in members):
            return unrecorded, False
        if any(isinstance(state.stage, ToProbe) for state in members):
            return self._dissolved(members), False
        update, runs = self._again(first)
        is_given_back = update is not None and update.record.end == update.record.begin
        if isinstance(first.stage, ToProbe) or is_given_back:
            return self._dissolved(members), False
        if update is None or not update.dispatch:
            return [], runs
        # A member that was recorded by itself may be ahead of the others.
        attempt = max(state.record.attempt for state in members)
        attempt += update.record.attempt - first.record.attempt
        return [_as_first(state, update, attempt) for state in members], False

    def _dissolved(self, members: list[PartitionState]) -> list[RecordUpdate]:
        """The bundle is no more. Each range goes its own way: back into the backlog where surely
        nobody inserted anything of it, nor will; else a probe says what of it is there (R11)."""
        updates: list[RecordUpdate] = []
        to_probe: list[PartitionState] = []
        for state in members:
            if state.is_unrecorded:
                updates.append(refresh(state))
            elif isinstance(state.stage, Probed):
                update, _ = self._again(state)
                updates += [update] if update else []
            elif isinstance(state.stage, ToProbe):
                continue
            elif state.may_be_given_back:
                updates.append(give_back(state, self._planner.owner, self._now_ms))
            else:
                to_probe.append(state)
        if to_probe:
            # One line: there may be a thousand of them.
            _logger.warning(
                "bundle %s is not loaded as a whole any more; %d of its ranges are probed, "
                "%s first",
                *(to_probe[0].record.bundle, len(to_probe), to_probe[0].block_range),
            )
        for state in to_probe:
            self._round.have_probed(state)
        return updates

    def _again(self, state: PartitionState) -> tuple[RecordUpdate | None, bool]:
        """The next update of a range, and whether it may run as it is."""
        this_round, now_ms = self._round, self._now_ms
        if state.is_unrecorded:
            return refresh(state), False
        is_disputed = self._schema.unrepeatable.is_disputed
        if state.has_to_be_probed or state.rests(now_ms) or is_disputed(state):
            return None, False
        match state.stage:
            case Answered(TooHeavy(end=end)) if not _may_shorten(state, this_round.spec_of(state)):
                connector = self._planner.spec.connector
                this_round.stop(state, not_to_be_cut(state.block_range, end, connector))
                return None, False
            case Answered(TooHeavy(end=end)):
                return self._shorten(state, end), False
        if this_round.is_away(target_shards_of(this_round.spec_of(state), state.source.topic)):
            return None, False
        if isinstance(state.stage, Probed):
            return self._probed.record(state), False
        decision = self._schema.decide(state, now_ms)
        match decision:
            case Wait() as wait:
                this_round.effects += self._schema.asks(state, wait, now_ms)
                return None, False
            case Probe():
                this_round.have_probed(state)
                return None, False
        read_since_ms = max(state.back_at_ms, now_ms - LOOK_AGE_MS_MAX)
        windows = self._budget.windows
        why = why_forgotten(state, this_round.spec_of(state), windows, now_ms, read_since_ms)
        if why is None:
            return None, False
        if why and state.may_be_given_back:
            _logger.info("%s, which nobody inserted, is planned anew: %s", state.block_range, why)
            return give_back(state, self._planner.owner, now_ms), False
        if why:
            _logger.warning("%s is probed before it is loaded again: %s", state.block_range, why)
            this_round.have_probed(state)
            return None, False
        match state.stage:
            case Answered(NeedsReservation() as need):
                return self._reserve_again(state, need), False
        left_ms = state.record.deadline_ms - now_ms
        if left_ms > self._planner.lease_left_ms(state) and state.outdated is None:
            return None, True
        if not self._has_room_again(state, state.record.reservation):
            return None, False
        return self._schema.again(state, decision, now_ms), False

    def _shorten(self, state: PartitionState, end: int) -> RecordUpdate | None:
        """A shorter range of which nobody inserted anything. While its lease runs its reservation
        is among the holds; then it went to others, and is taken anew, under insert counters of
        now."""
        this_round, now_ms = self._round, self._now_ms
        update = self._planner.shorten(state, end, now_ms)
        if state.may_insert(now_ms):
            return update
        target_shards = this_round.target_shards(state)
        if this_round.is_away(target_shards):
            return None  # what is of now may not be used yet, as a store that lacks claims
        if not this_round.take_or_stop(state, target_shards, state.record.reservation):
            return None
        background = from_now_on(update.background, target_shards, self._budget.windows, now_ms)
        return replace(update, background=background)

    def _has_room_again(self, state: PartitionState, reservation: int) -> bool:
        """Whether a range may be sent again with this reservation within the budget. While its
        lease runs it is among the holds; then its reservation was given to others."""
        if state.may_insert(self._now_ms):
            return True
        has_room = self._budget.take_again(
            self._round.target_shards(state), reservation, state.background.insert_counters
        )
        if has_room is None:
            _logger.warning(
                "%s is probed before it is loaded again: a repeat of up to %d blocks would come "
                "after more than half of a deduplication window",
                *(state.block_range, reservation),
            )
            self._round.have_probed(state)
        return bool(has_room)

    def _reserve_again(self, state: PartitionState, need: NeedsReservation) -> RecordUpdate | None:
        """The same range with the reservation that one of its blocks needs."""
        budget, now_ms = self._budget, self._now_ms
        is_hold = state.may_insert(now_ms)
        try:
            target_shards = self._round.target_shards(state)
            reservation = _entries_again(state, need, budget, target_shards)
            budget.require_possible(target_shards, reservation, need.entry)
            # All of it at once: with what it had, it would keep from others what they need.
            if (
                budget.take(target_shards, reservation, state.record.reservation, need.entry)
                if is_hold
                else self._has_room_again(state, reservation)
            ):
                return self._planner.renew(state, now_ms, reservation=reservation)
        except WindowTooSmallError as error:
            if state.record.bundle:
                # Each range may well have room for itself.
                self._planner.narrow(state)
                state.alone = True
            else:
                self._round.stop(state, error)
        return None


def _leaves(members: list[PartitionState]) -> bool:
    """Whether a member goes alone from now on: the bundle cannot be loaded together, or the member
    fails where the others do not. A bundle of which surely nobody inserted anything is given up
    soon: it costs nothing."""
    failures = [state.failures for state in members]
    patience = 1 if all(state.untouched for state in members) else FAILURES_ALONE_MAX
    for state in members:
        state.alone |= state.failures - min(failures) >= patience
    return any(state.alone for state in members)


def _as_first(state: PartitionState, update: RecordUpdate, attempt: int) -> RecordUpdate:
    """The update of a bundle's first member for another one."""
    told = update.record
    record = replace(
        state.record,
        kind=told.kind,
        attempt=attempt,
        owner=told.owner,
        spec=told.spec,
        reservation=told.reservation,
        deadline_ms=told.deadline_ms,
    )
    return replace(update, source=state.source, record=record, background=state.background)


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
