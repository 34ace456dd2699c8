"""Bundles: which ranges stand in one, and which new ranges of a round form one (R19)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from sluice.core.budget import TargetShard
from sluice.core.bundles import OFFSET_BITS, Member, bundle_name, is_whole
from sluice.core.ledger import Background
from sluice.core.load_spec import lacking_lineage
from sluice.core.planning import (
    BYTES_PER_MESSAGE_UNKNOWN,
    Backlog,
    Limits,
    messages_of_range,
    next_range,
    share_of_task,
)
from sluice.core.ranges import Range, TopicPartition
from sluice.driver.record_updates import RecordUpdate, TopicGroup
from sluice.driver.state import PartitionState
from sluice.driver.this_round import ThisRound

#: A range of more than this part of a full one is loaded alone: it gains nothing from company.
BUNDLED_SHARE_MAX = 0.5
#: A member that cannot be read holds up the others, if they may have been inserted, so often.
FAILURES_ALONE_MAX = 5
#: Bundles that are loaded at once are not made smaller than this to have one for each task.
BUNDLE_BYTES_MIN = 4 * 1024 * 1024

#: What ranges that may be loaded together have in common: the group of their topics, and the broker
#: that leads them, so that one that is away holds up no others.
Together = tuple[TopicGroup, int]
#: A new range of a partition, with the reservation and the background that it is recorded with.
_New = tuple[PartitionState, Range, int, Background]


def grouped_by_bundle(states: Iterable[PartitionState]) -> list[list[PartitionState]]:
    """The states of each bundle together, in the order of its members; those without a bundle
    alone. A group stands where its first state stood."""
    groups: dict[str | int, list[PartitionState]] = {}
    for place, state in enumerate(states):
        groups.setdefault(state.record.bundle or place, []).append(state)
    return [sorted(group, key=lambda state: state.source) for group in groups.values()]


def is_whole_bundle(members: Sequence[PartitionState]) -> bool:
    """Whether these are all members of the bundle that they are recorded in, and none of them has
    stopped; so, too, for a range alone."""
    name = members[0].record.bundle
    if any(state.stopped is not None for state in members):
        return False
    return not name or is_whole(name, (Member.of(s.block_range, s.record) for s in members))


def whole_bundles(ready: Iterable[PartitionState]) -> list[list[PartitionState]]:
    """The bundles of which these are all members, and the ranges that are alone."""
    return [members for members in grouped_by_bundle(ready) if is_whole_bundle(members)]


def share_of(members: Sequence[PartitionState], limits_of: Callable[[str], Limits]) -> float:
    """How much of a task the recorded ranges of a bundle are, or one alone."""
    first, *others = members
    full = messages_of_range(limits_of(first.source.topic), first.bytes_per_message)
    return 1.0 if others else share_of_task(first.block_range.span, full)


@dataclass(slots=True)
class Waiting:
    """What could be loaded together and is in no bundle yet.

    :param share: bytes of what one task would take of it.
    :param is_full: as many of them as one block may be of were enough for a whole one.
    """

    members: int = 0
    messages: int = 0
    bytes: float = 0.0
    share: float = 0.0
    is_full: bool = False

    def count(self, messages: int, size: float, sign: int) -> None:
        """One more, or one less."""
        self.members += sign
        self.messages += sign * messages
        self.bytes += sign * size

    def is_enough(self, limits: Limits, members_max: int) -> bool:
        """Whether as many of them as one block may be of are enough for a whole one: that many
        alone may be a row each."""
        part = min(1.0, members_max / self.members)
        return self.bytes * part >= limits.bytes_max or self.messages * part >= limits.messages_max


def is_small(found: Range, limits: Limits, each: float | None) -> bool:
    """Whether a range gains anything from company, and may have some.

    :param each: bytes of a message, None: nobody knows.
    """
    full = messages_of_range(limits, each)
    return found.span <= BUNDLED_SHARE_MAX * full and not found.end >> OFFSET_BITS


def expected_bytes(found: Range, each: float | None) -> float:
    """Bytes that a range may be, as far as they are known."""
    return found.span * (BYTES_PER_MESSAGE_UNKNOWN if each is None else each)


@dataclass(slots=True)
class Room:
    """What a bundle in the making may take: no more than one range of its own would be."""

    members_max: int
    messages_max: int
    bytes_max: float
    members: int = 0
    messages: int = 0
    bytes: float = 0.0

    def is_enough(self, span: int, size: float) -> bool:
        """Whether one more range of so many messages and bytes goes in."""
        return (
            self.members < self.members_max
            and self.messages + span <= self.messages_max
            and self.bytes + size <= self.bytes_max
        )

    def take(self, span: int, size: float) -> None:
        """A range is in."""
        self.members += 1
        self.messages += span
        self.bytes += size


_Key = TypeVar("_Key")
_Member = TypeVar("_Member")


class Packer(Generic[_Key, _Member]):
    """Puts ranges together that have a key in common. Of each key one group is open at a time."""

    def __init__(self) -> None:
        self._open: dict[_Key, tuple[Room, list[_Member]]] = {}
        self._closed: list[list[_Member]] = []

    def has_room(self, key: _Key, found: Range, size: float) -> bool:
        """Whether a range goes into the group that is open.

        :param size: bytes that it may be.
        """
        return key in self._open and self._open[key][0].is_enough(found.span, size)

    def begin(self, key: _Key, room: Room) -> None:
        """Open another group; the one before takes no more."""
        if key in self._open:
            self._closed.append(self._open[key][1])
        self._open[key] = room, []

    def join(self, key: _Key, found: Range, size: float, member: _Member) -> None:
        """Take a range into the group that is open."""
        room, members = self._open[key]
        members.append(member)
        room.take(found.span, size)

    def leave_alone(self, member: _Member) -> None:
        """It is a group of its own."""
        self._closed.append([member])

    def groups(self) -> list[list[_Member]]:
        """All of them, those that are still open last."""
        return self._closed + [members for _, members in self._open.values()]


class NewRanges:
    """The new ranges of one round, and which of them are loaded together.

    :param slots: tasks that can run at once.
    :param backlogs: partitions that may be given a range, in the order in which they are.
    :param states: of these partitions.
    """

    def __init__(
        self,
        this_round: ThisRound,
        slots: int,
        backlogs: Iterable[Backlog],
        states: Mapping[TopicPartition, PartitionState],
    ) -> None:
        self._planner = planner = this_round.planner
        self._leader_of, self._now_ms = this_round.leader_of, this_round.now_ms
        self._windows, self._states = this_round.budget.windows, states
        self._probed: dict[TopicGroup, bool] = {}
        self._alone: list[RecordUpdate] = []
        self._bundles = Packer[Together, _New]()
        #: The reservation of the block of the bundle that is open, and its background.
        self._told: dict[Together, tuple[int, Background]] = {}
        self._small: dict[TopicPartition, tuple[Together, Range, float]] = {}
        self._waiting: dict[Together, Waiting] = {}
        for backlog in backlogs if planner.members_max > 1 else ():
            found = self._bundled(states[backlog.source], backlog)
            if found is not None:
                self._small[backlog.source] = found
                self._count(found, 1)
        for (group, _), waiting in self._waiting.items():
            # What all have together is spread over the tasks that can run.
            share = max(waiting.bytes / slots, BUNDLE_BYTES_MIN)
            waiting.share = min(share, float(group.limits.bytes_max))
            waiting.is_full = waiting.is_enough(group.limits, planner.members_of(group.entries))

    def _count(self, small: tuple[Together, Range, float], sign: int) -> None:
        together, found, expected = small
        waiting = self._waiting.get(together)
        if waiting is None:
            waiting = self._waiting[together] = Waiting()
        waiting.count(found.span, expected, sign)

    def _bundled(
        self, state: PartitionState, backlog: Backlog
    ) -> tuple[Together, Range, float] | None:
        """With whom a new range goes, the range, and how large it may be; None: it goes alone. One
        that failed before, or was too much for a bundle, holds nobody up; one that is large needs
        no company; and one that cannot be probed has no way out of a bundle."""
        group = self._planner.group_of(backlog.source.topic)
        found = next_range(backlog, group.limits, 0, flush=True)
        each = backlog.bytes_per_message
        if found is None or state.failures or state.alone:
            return None
        if not is_small(found, group.limits, each) or not self._may_be_probed(group, state):
            return None
        together = group, self._leader_of(backlog.source)
        return together, found, expected_bytes(found, each)

    def _may_be_probed(self, group: TopicGroup, one: PartitionState) -> bool:
        """Whether a probe could tell what is missing of a range of these topics: else a member that
        stops would stop all others, which could be neither repeated nor probed.

        :param one: a partition of one of them.
        """
        found = self._probed.get(group)
        if found is None:
            tables, windows = self._planner.spec.tables_of(one.source.topic), self._windows
            found = self._probed[group] = all(
                table.is_replacing
                or not (table.is_staged or lacking_lineage(table.lineage, table.rows))
                for table in tables
            ) and all(windows[each].keeps_rows for each in group.target_shards if each in windows)
        return found

    def fills(self, source: TopicPartition) -> bool:
        """Whether a range need not wait until it is due: with others that may be loaded with it
        there is enough for a block."""
        if source not in self._small:
            return False
        together, _, _ = self._small[source]
        waiting = self._waiting[together]
        limits = together[0].limits
        return waiting.is_full and (
            waiting.bytes >= waiting.share / 2 or waiting.messages >= limits.messages_max / 2
        )

    def has_room(self, source: TopicPartition) -> bool:
        """Whether a range joins a bundle that was begun in this round."""
        small = self._small.get(source)
        return small is not None and self._bundles.has_room(*small)

    def join(self, source: TopicPartition) -> None:
        """Take a range into the bundle that has room for it: its block is paid for."""
        small = self._small[source]
        together, found, _ = small
        self._bundles.join(*small, (self._states[source], found, *self._told[together]))
        self._count(small, -1)

    def begin(self, backlog: Backlog, target_shards: list[TargetShard], reservation: int) -> float:
        """A range whose reservation was taken: alone, or the first of a bundle.

        :returns: how much of a task it is.
        """
        planner, small = self._planner, self._small.get(backlog.source)
        now_ms, limits = self._now_ms, planner.limits_of(backlog.source.topic)
        background = planner.background(limits, self._windows, target_shards, now_ms)
        if small is None:
            state = self._states[backlog.source]
            found = next_range(backlog, limits, now_ms, flush=True)
            assert found is not None
            self._alone.append(planner.intend(state, found, reservation, background, now_ms))
            return share_of_task(found.span, messages_of_range(limits, backlog.bytes_per_message))
        together = small[0]
        members_max = planner.members_of(together[0].entries)
        share = self._waiting[together].share
        self._bundles.begin(together, Room(members_max, limits.messages_max, share))
        self._told[together] = reservation, background
        self.join(backlog.source)
        return 1.0

    def updates(self) -> list[RecordUpdate]:
        """All of them, those of a bundle with its name."""
        intend, now_ms, updates = self._planner.intend, self._now_ms, self._alone
        for members in self._bundles.groups():
            name = ""
            if len(members) > 1:
                name = bundle_name(
                    Member(found, state.record.topic_id, state.record.generation)
                    for state, found, _, _ in members
                )
            updates += [intend(*member, now_ms, name) for member in members]
        return updates


def named(updates: list[RecordUpdate]) -> list[RecordUpdate]:
    """The same updates with the name of the bundle that they are, if they are several."""
    if len(updates) == 1:
        return updates
    records = [(update.source, update.record) for update in updates]
    name = bundle_name(Member.of(Range(s, r.begin, r.end), r) for s, r in records)
    return [replace(each, record=replace(each.record, bundle=name)) for each in updates]
