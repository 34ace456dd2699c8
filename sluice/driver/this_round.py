"""The round that is being decided: what all who decide a part of it ask, and what they collect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.core.budget import TargetShard
from sluice.core.errors import SluiceError
from sluice.core.flights import InFlight, Place
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.driver.changes import SchemaChanges
from sluice.driver.effects import Effect, StopPartition
from sluice.driver.ports import Windows
from sluice.driver.record_updates import Budget, RecordPlanner, WindowTooSmallError
from sluice.driver.state import PartitionState, target_shards_gone
from sluice.driver.stopped import unprobable


@dataclass(slots=True)
class ThisRound:
    """One round, from its begin until it is decided.

    :param windows: say what is away now; `budget` has them as they were when the round began.
    :param flights: how many ranges each replica is given.
    :param leader_of: the id of the broker that leads a partition, -1 where it is not known.
    :param effects: what follows for others.
    :param held_back: ranges that wait for a replica to finish others.
    """

    planner: RecordPlanner
    schema: SchemaChanges
    windows: Windows
    flights: InFlight
    leader_of: Callable[[TopicPartition], int]
    budget: Budget
    now_ms: int
    effects: list[Effect] = field(default_factory=list)
    held_back: int = 0

    def spec_of(self, state: PartitionState) -> LoadSpec:
        """The recorded spec if it can be executed; else today's, under a probe (R8)."""
        return self.schema.spec_of(state)

    def target_shards(self, state: PartitionState) -> list[TargetShard]:
        """Every window that a range in doubt takes entries of."""
        return self.budget.target_shards(self.spec_of(state), state.source.topic)

    def is_away(self, target_shards: list[TargetShard]) -> bool:
        """Whether the window of any of them cannot be read now."""
        return any(self.windows.outage(target_shard) for target_shard in target_shards)

    def stop(self, state: PartitionState, error: SluiceError) -> None:
        """Stop a partition."""
        self.effects.append(StopPartition(state.source, error))

    def have_probed(self, state: PartitionState) -> None:
        """Have a range looked for, if that can be."""
        if not self.stops_unprobable(state):
            state.probe()

    def stops_unprobable(self, state: PartitionState) -> bool:
        """Whether a range cannot be looked for: where a table or shard of it is not configured any
        more nobody would look there, nor load what was found missing. Then it stops."""
        spec, recorded = self.spec_of(state), self.planner.specs.of_record(state.record.spec)
        gone = target_shards_gone(state.background, spec, state.source.topic, recorded)
        if gone:
            self.stop(state, unprobable(state.block_range, gone[0], self.planner.spec.connector))
        return bool(gone)

    def take_or_stop(
        self, state: PartitionState, target_shards: list[TargetShard], reservation: int
    ) -> bool:
        """Make a reservation for a range. Its partition stops where that can never be; but what is
        loaded is settled first."""
        try:
            return self.budget.take(target_shards, reservation)
        except WindowTooSmallError as error:
            if state.loaded is None:
                self.stop(state, error)
            return False

    def places(self, state: PartitionState) -> frozenset[Place]:
        """Where the blocks of a recorded range go."""
        spec = self.spec_of(state)
        digest = self.planner.digest if spec is self.planner.spec else state.record.spec
        return self.flights.places(spec, digest, state.source, state.record.bundle)

    def has_room(self, places: frozenset[Place]) -> bool:
        """Whether the replicas that a range goes to have room for it now; else it is held back."""
        has_room = self.flights.has_room(places)
        self.held_back += not has_room
        return has_room

    def may_go(self, state: PartitionState) -> bool:
        """The same of a recorded range, which goes then."""
        places = self.places(state)
        if not self.has_room(places):
            return False
        self.flights.add(places)
        return True
