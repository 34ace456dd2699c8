"""Ranges that were probed: what was found is recorded before it is loaded (R11).

Those of which nothing was found are loaded together, as new ones are (R19).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sluice.core.bundles import members_in
from sluice.core.errors import SluiceError
from sluice.core.flights import InFlight
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import Limits
from sluice.core.ranges import TopicPartition
from sluice.driver.bundling import Room, expected_bytes, is_small, named
from sluice.driver.parking import why_not_parked
from sluice.driver.record_updates import (
    Budget,
    RecordPlanner,
    RecordUpdate,
    WindowTooSmallError,
    from_now_on,
)
from sluice.driver.state import PartitionState

_logger = logging.getLogger("sluice.loop")

#: How long a range that cannot be parked waits until its table is looked at again.
PARTLY_STORED_MS = 30_000

#: What those that are loaded together have in common: the load spec, by identity, how many they may
#: be, table entries, limits, and the broker that leads them.
_Together = tuple[int, int, tuple[str, ...], Limits, int]


class ProbedRanges:
    """Those of one round. Their blocks are new to the windows, so they need room there like those
    of new ranges.

    :param flights: how many ranges each replica is given.
    :param spec_of: the load spec that a range is loaded under.
    :param leader_of: the id of the broker that leads a partition, -1 where it is not known.
    :param stop: stops a partition.
    :param may_go: whether the replicas that a range goes to have room for it now.
    """

    def __init__(
        self,
        planner: RecordPlanner,
        flights: InFlight,
        spec_of: Callable[[PartitionState], LoadSpec],
        leader_of: Callable[[TopicPartition], int],
        stop: Callable[[PartitionState, SluiceError], None],
        may_go: Callable[[PartitionState], bool],
    ) -> None:
        self._planner = planner
        self._flights = flights
        self._spec_of = spec_of
        self._leader_of = leader_of
        self._stop = stop
        self._may_go = may_go
        #: Of which nothing was found.
        self._absent: list[PartitionState] = []
        #: Blocks of this round that waited for a replica to finish others.
        self.held_back = 0

    def begin(self) -> None:
        """A round begins."""
        self._absent, self.held_back = [], 0

    def record(self, state: PartitionState, budget: Budget, now_ms: int) -> RecordUpdate | None:
        """What a probe found of a range. Of one of which it found nothing `load_absent` tells."""
        spec = self._spec_of(state)
        waits = why_not_parked(spec, state.block_range, state.found.stored)
        if waits is not None:
            _logger.warning("%s", waits)
            state.probe()
            state.retry_at_ms = now_ms + PARTLY_STORED_MS
            return None
        if self._planner.members_max > 1 and found_nothing(state, spec):
            self._absent.append(state)
            return None
        return self._record_alone(state, budget, now_ms)

    def load_absent(self, budget: Budget, now_ms: int) -> list[RecordUpdate]:
        """Those of the round of which nothing was found, as far as there is room for them."""
        updates: list[RecordUpdate] = []
        for members in self._together():
            first, *others = members
            if others:
                updates += self._record_together(members, budget, now_ms)
            elif self._may_go(first):
                update = self._record_alone(first, budget, now_ms)
                updates += [update] if update else []
        return updates

    def _record_alone(
        self, state: PartitionState, budget: Budget, now_ms: int
    ) -> RecordUpdate | None:
        spec = self._spec_of(state)
        target_shards = budget.target_shards(spec, state.source.topic)
        # It may have been reserved where more could be: in a larger window, or by a member alone.
        reservation = budget.affordable(target_shards, state.record.reservation)
        try:
            if not budget.take(target_shards, reservation):
                return None
        except WindowTooSmallError as error:
            self._stop(state, error)
            return None
        background = from_now_on(state.found, target_shards, budget.windows, now_ms)
        return self._planner.probed(state, spec.digest(), background, now_ms, reservation)

    def _together(self) -> list[list[PartitionState]]:
        """By the block that they become. They are put together as new ones are: after a server was
        away, hundreds of small ranges would else be a block and a job each. Those that were
        together before without being loaded come together in halves, so that one of them does not
        hold up the others for ever."""
        closed: list[list[PartitionState]] = []
        opened: dict[_Together, tuple[list[PartitionState], Room]] = {}
        for state in sorted(self._absent, key=lambda state: state.source):
            topic, found = state.source.topic, state.block_range
            limits, each = self._planner.limits_of(topic), self._planner.bytes_of(state)
            if state.alone or not is_small(found, limits, each):
                closed.append([state])
                continue
            spec = self._spec_of(state)
            entries = tuple(table.entry for table in spec.tables_of(topic))
            members_max = self._planner.members_of(entries)
            if state.record.rest and state.record.bundle:
                members_max = min(members_max, max(1, members_in(state.record.bundle) // 2))
            key = id(spec), members_max, entries, limits, self._leader_of(state.source)
            size = expected_bytes(found, each)
            if key not in opened or not opened[key][1].is_enough(found.span, size):
                if key in opened:
                    closed.append(opened[key][0])
                room = Room(members_max, limits.messages_max, float(limits.bytes_max))
                opened[key] = [], room
            members, room = opened[key]
            members.append(state)
            room.take(found.span, size)
        return closed + [members for members, _ in opened.values()]

    def _record_together(
        self, members: list[PartitionState], budget: Budget, now_ms: int
    ) -> list[RecordUpdate]:
        spec, topic = self._spec_of(members[0]), members[0].source.topic
        digest, target_shards = spec.digest(), budget.target_shards(spec, topic)
        reservation = max(state.record.reservation for state in members)
        reservation = budget.affordable(target_shards, reservation)
        attempt = 1 + max(state.record.attempt for state in members)
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
        first = updates[0]
        places = self._flights.places(spec, digest, first.source, first.record.bundle)
        if not self._flights.has_room(places):
            self.held_back += 1
            return []
        try:
            if not budget.take(target_shards, reservation):
                return []
        except WindowTooSmallError:
            for state in members:  # each range may well have room for itself
                state.alone = True
            return []
        self._flights.add(places)
        return updates


def found_nothing(state: PartitionState, spec: LoadSpec) -> bool:
    """Whether a probe found no row of a range in any table of this load spec."""
    whole = ((state.record.begin, state.record.end),)
    rest, stored = state.found.rest, state.found.stored
    tables = spec.tables_of(state.source.topic)
    if any(table.is_staged for table in tables):
        return False  # nobody looked there
    return not any(stored.values()) and all(rest.get(table.entry) == whole for table in tables)
