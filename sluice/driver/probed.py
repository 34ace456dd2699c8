"""Ranges that were probed: what was found is recorded before it is loaded (R11).

Those of which nothing was found are loaded together, as new ones are (R19).
"""

from __future__ import annotations

import logging

from sluice.core.bundles import members_in
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import Limits
from sluice.driver.bundling import Packer, Room, expected_bytes, is_small, named
from sluice.driver.parking import why_not_parked
from sluice.driver.record_updates import RecordUpdate, WindowTooSmallError, from_now_on
from sluice.driver.state import PartitionState
from sluice.driver.this_round import ThisRound

_logger = logging.getLogger("sluice.loop")

#: How long a range that cannot be parked waits until its table is looked at again.
PARTLY_STORED_MS = 30_000

#: What those that are loaded together have in common: the load spec, by identity, how many they may
#: be, table entries, limits, and the broker that leads them.
_Together = tuple[int, int, tuple[str, ...], Limits, int]


class ProbedRanges:
    """Those of one round. Their blocks are new to the windows, so they need room there like those
    of new ranges."""

    def __init__(self, this_round: ThisRound) -> None:
        self._round, self._planner = this_round, this_round.planner
        #: Of which nothing was found.
        self._absent: list[PartitionState] = []

    def record(self, state: PartitionState) -> RecordUpdate | None:
        """What a probe found of a range. Of one of which it found nothing `load_absent` tells."""
        spec = self._round.spec_of(state)
        waits = why_not_parked(spec, state.block_range, state.found.stored)
        if waits is not None:
            _logger.warning("%s", waits)
            state.probe()
            state.retry_at_ms = self._round.now_ms + PARTLY_STORED_MS
            return None
        if self._planner.members_max > 1 and found_nothing(state, spec):
            self._absent.append(state)
            return None
        return next(iter(self._recorded([state])), None)

    def load_absent(self) -> list[RecordUpdate]:
        """Those of the round of which nothing was found, as far as there is room for them."""
        updates: list[RecordUpdate] = []
        for members in self._together():
            if len(members) > 1 or self._round.may_go(members[0]):
                updates += self._recorded(members)
        return updates

    def _together(self) -> list[list[PartitionState]]:
        """By the block that they become. They are put together as new ones are: after a server was
        away, hundreds of small ranges would else be a block and a job each. Those that were
        together before without being loaded come together in halves, so that one of them does not
        hold up the others for ever."""
        packer, leader_of = Packer[_Together, PartitionState](), self._round.leader_of
        for state in sorted(self._absent, key=lambda state: state.source):
            topic, found = state.source.topic, state.block_range
            limits, each = self._planner.limits_of(topic), self._planner.bytes_of(state)
            if state.alone or not is_small(found, limits, each):
                packer.leave_alone(state)
                continue
            spec = self._round.spec_of(state)
            entries = tuple(table.entry for table in spec.tables_of(topic))
            members_max = self._planner.members_of(entries)
            if state.record.rest and state.record.bundle:
                members_max = min(members_max, max(1, members_in(state.record.bundle) // 2))
            key = id(spec), members_max, entries, limits, leader_of(state.source)
            size = expected_bytes(found, each)
            if not packer.has_room(key, found, size):
                packer.begin(key, Room(members_max, limits.messages_max, float(limits.bytes_max)))
            packer.join(key, found, size, state)
        return packer.groups()

    def _recorded(self, members: list[PartitionState]) -> list[RecordUpdate]:
        """Those that are loaded together, or one range alone, if there is room for their block."""
        this_round, first = self._round, members[0]
        budget, now_ms = this_round.budget, this_round.now_ms
        spec, target_shards = this_round.spec_of(first), this_round.target_shards(first)
        # It may have been reserved where more could be: in a larger window, or by a member alone.
        most = max(state.record.reservation for state in members)
        reservation = budget.affordable(target_shards, most)
        is_alone = len(members) == 1
        if is_alone and not this_round.take_or_stop(first, target_shards, reservation):
            return []
        digest, attempt = spec.digest(), 1 + max(state.record.attempt for state in members)
        updates = named(
            [
                self._planner.probed(
                    state,
                    digest,
                    from_now_on(state.found, target_shards, budget.windows, now_ms),
                    now_ms,
                    reservation,
                    attempt,
                )
                for state in members
            ]
        )
        if is_alone:
            return updates
        places = this_round.flights.places(spec, digest, first.source, updates[0].record.bundle)
        if not this_round.has_room(places):
            return []
        try:
            if not budget.take(target_shards, reservation):
                return []
        except WindowTooSmallError:
            for state in members:  # each range may well have room for itself
                state.alone = True
            return []
        this_round.flights.add(places)
        return updates


def found_nothing(state: PartitionState, spec: LoadSpec) -> bool:
    """Whether a probe found no row of a range in any table of this load spec."""
    whole = ((state.record.begin, state.record.end),)
    rest, stored = state.found.rest, state.found.stored
    tables = spec.tables_of(state.source.topic)
    if any(table.is_staged for table in tables):
        return False  # nobody looked there
    return not any(stored.values()) and all(rest.get(table.entry) == whole for table in tables)
