"""The partitions that a round may do anything for: the others cost it nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluice.core.budget import TargetShard
from sluice.core.planning import Backlog, Limits, is_due, is_full, stretched_delay_ms
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind
from sluice.driver.bundling import Together, Waiting
from sluice.driver.freezing import Freezing
from sluice.driver.ports import ShardWindow
from sluice.driver.record_updates import RESETTLE_MS, RecordPlanner, TopicGroup
from sluice.driver.state import PartitionState

#: How often offsets are looked for that would expire one day.
_LOOK_FOR_OLD_EVERY_MS = 60_000


@dataclass(slots=True)
class _Crowd:
    """Partitions that may be given a range, and that may be loaded together (R19).

    :param backlogs: what each had when it was filed.
    :param total: of all of them.
    :param since_ms: none of them waits for longer.
    :param has_full: one of them has enough for a range of its own.
    """

    backlogs: dict[TopicPartition, Backlog] = field(default_factory=dict)
    total: Waiting = field(default_factory=Waiting)
    since_ms: int = 1 << 62
    has_full: bool = False

    def add(self, backlog: Backlog, limits: Limits) -> None:
        """A partition that is not among them."""
        self.backlogs[backlog.source] = backlog
        self.total.count(backlog.messages, backlog.bytes, 1)
        if backlog.waiting_since_ms < self.since_ms:
            self.since_ms = backlog.waiting_since_ms
        self.has_full |= is_full(backlog, limits)

    def remove(self, source: TopicPartition) -> None:
        """One of them. What is known of the others may say too much from now on."""
        backlog = self.backlogs.pop(source)
        self.total.count(backlog.messages, backlog.bytes, -1)

    def may_be_due(self, limits: Limits, members_max: int, now_ms: int) -> bool:
        """Whether a closer look is worth it."""
        waits_ms = now_ms - self.since_ms
        return waits_ms >= limits.delay_ms_max or self.has_full or self.fills(limits, members_max)

    def fills(self, limits: Limits, members_max: int) -> bool:
        """Whether they may be enough for a block."""
        return members_max > 1 and self.total.is_enough(limits, members_max)


class Pending:
    """What a round looks at: partitions with a range under way, and crowds of which something may
    be due. Whoever changes a state has to file it again.

    :param states: the loop's own mapping; partitions may join it later.
    :param leader_of: the id of the broker that leads a partition, -1 where it is not known.
    :param freezing: whose partitions wait for nothing, until all of them are filed again.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        planner: RecordPlanner,
        leader_of: Callable[[TopicPartition], int],
        freezing: Freezing,
    ) -> None:
        self._states = states
        self._planner = planner
        self._leader_of = leader_of
        self._freezing = freezing
        self._under_way: dict[TopicPartition, PartitionState] = {}
        self._crowds: dict[Together, _Crowd] = {}
        self._filed: dict[TopicPartition, Together] = {}
        self._looked_for_old_ms = 0
        self.file_all()

    def file_all(self) -> None:
        """What decides for all of them has changed."""
        self._under_way.clear()
        self._crowds.clear()
        self._filed.clear()
        for state in self._states.values():
            self.file(state)
        self._looked_for_old_ms = 0

    def file(self, state: PartitionState) -> None:
        """A state is new, or has changed: its record, its stage, its end, or whether it is out."""
        self.forget(state.source)
        if state.record.kind is not Kind.SETTLE or state.hands_to:
            self._under_way[state.source] = state
        if self._may_be_given_a_range(state):
            group = self._planner.group_of(state.source.topic)
            together = group, self._leader_of(state.source)
            crowd = self._crowds.get(together)
            if crowd is None:
                crowd = self._crowds[together] = _Crowd()
            crowd.add(self._backlog(state), group.limits)
            self._filed[state.source] = together

    def misfiled(self) -> list[TopicPartition]:
        """Partitions that stand elsewhere than where they were filed now: a change of theirs was
        not told. Always none, but while a round is at them."""
        return [
            source
            for source, state in self._states.items()
            if (
                (state.record.kind is not Kind.SETTLE or state.hands_to)
                and source not in self._under_way
            )
            or (self._may_be_given_a_range(state) and source not in self._filed)
        ]

    def _may_be_given_a_range(self, state: PartitionState) -> bool:
        if not state.may_be_given_a_range:
            return False
        return not self._freezing.hold(self._planner.group_of(state.source.topic).entries)

    def forget(self, source: TopicPartition) -> None:
        """A partition is not looked at any more."""
        self._under_way.pop(source, None)
        together = self._filed.pop(source, None)
        if together is not None:
            crowd = self._crowds[together]
            crowd.remove(source)
            if not crowd.backlogs:
                del self._crowds[together]

    def under_way(self, now_ms: int) -> list[PartitionState]:
        """Partitions whose record is not just where they are settled; and those of which it is so
        old that it has to be written again."""
        if not 0 <= now_ms - self._looked_for_old_ms < _LOOK_FOR_OLD_EVERY_MS:
            self._looked_for_old_ms = now_ms
            stale_ms = now_ms - RESETTLE_MS
            for source, state in self._states.items():
                if state.committed_at_ms < stale_ms:
                    self._under_way[source] = state
        return list(self._under_way.values())

    def has_loaded(self) -> bool:
        """Whether a range waits to be settled."""
        return any(state.loaded is not None for state in self._under_way.values())

    def due(
        self, windows: Mapping[TargetShard, ShardWindow], now_ms: int, *, flush: bool
    ) -> tuple[list[Backlog], set[TopicPartition]]:
        """All of the crowds in which a range is due, or which may be enough for a block; and those
        of them whose range is due."""
        backlogs: list[Backlog] = []
        due: set[TopicPartition] = set()
        for (group, _), crowd in self._crowds.items():
            limits, members_max = group.limits, self._planner.members_of(group.entries)
            if not (flush or crowd.may_be_due(limits, members_max, now_ms)):
                continue
            self._count_again(crowd, limits)
            delay_ms = _stretched_ms(group, windows)
            own = {
                each.source
                for each in crowd.backlogs.values()
                if flush or is_due(each, limits, delay_ms, now_ms)
            }
            if own or crowd.fills(limits, members_max):
                backlogs += crowd.backlogs.values()
                due |= own
        return backlogs, due

    def _count_again(self, crowd: _Crowd, limits: Limits) -> None:
        """Members have left, or a message of their topics is known to take more or less."""
        sources = list(crowd.backlogs)
        crowd.backlogs.clear()
        crowd.total, crowd.since_ms, crowd.has_full = Waiting(), 1 << 62, False
        for source in sources:
            crowd.add(self._backlog(self._states[source]), limits)

    def _backlog(self, state: PartitionState) -> Backlog:
        since_ms = state.waiting_since_ms
        assert since_ms is not None, state
        each = self._planner.bytes_of(state)
        return Backlog(state.source, state.record.end, state.stable_end, since_ms, each)


def _stretched_ms(group: TopicGroup, windows: Mapping[TargetShard, ShardWindow]) -> int:
    """How long the oldest message waits while the servers of its tables are crowded with parts."""
    known = [windows[each] for each in group.target_shards if each in windows]
    crowding = max((window.crowding for window in known), default=0.0)
    return stretched_delay_ms(group.limits.delay_ms_max, crowding)
