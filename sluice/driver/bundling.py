"""Bundles in a round: which ranges in doubt stand in one, and which new ranges form one (R19)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from sluice.driver.ports import ShardWindow
from sluice.driver.record_updates import (
    Budget,
    RecordPlanner,
    RecordUpdate,
    TopicGroup,
    give_back,
    refresh,
)
from sluice.driver.state import PartitionState, Probed, ToProbe

_logger = logging.getLogger("sluice.loop")

#: A range of more than this part of a full one is loaded alone: it gains nothing from company.
BUNDLED_SHARE_MAX = 0.5
#: A member that cannot be read holds up the others, if they may have been inserted, so often.
FAILURES_ALONE_MAX = 5
#: Bundles that are loaded at once are not made smaller than this to have one for each task.
BUNDLE_BYTES_MIN = 4 * 1024 * 1024

#: What ranges that may be loaded together have in common: the group of their topics, and the broker
#: that leads them, so that one that is away holds up no others.
Together = tuple[TopicGroup, int]


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


#: Of a range in doubt that is not out: its next update, and whether it may run as it is.
Again = Callable[[PartitionState], tuple[RecordUpdate | None, bool]]
#: Has a range looked for, or stops it where that cannot be.
HaveProbed = Callable[[PartitionState], None]


def again_together(
    members: list[PartitionState], again: Again, probe: HaveProbed, owner: str, now_ms: int
) -> tuple[list[RecordUpdate], bool]:
    """The members of a bundle that are in doubt and not out, or one range alone: their next
    updates, and whether they may run as they are. What becomes of a bundle is decided for its first
    member, and is the same for all."""
    first = members[0]
    if not first.record.bundle:
        update, runs = again(first)
        return [update] if update else [], runs
    if not is_whole_bundle(members) or _leaves(members):
        return _dissolved(members, again, probe, owner, now_ms), False
    unrecorded = [refresh(state) for state in members if state.is_unrecorded]
    if unrecorded or any(state.rests(now_ms) for state in members):
        return unrecorded, False
    if any(isinstance(state.stage, ToProbe) for state in members):
        return _dissolved(members, again, probe, owner, now_ms), False
    update, runs = again(first)
    is_given_back = update is not None and update.record.end == update.record.begin
    if isinstance(first.stage, ToProbe) or is_given_back:
        return _dissolved(members, again, probe, owner, now_ms), False
    if update is None or not update.dispatch:
        return [], runs
    # A member that was recorded by itself may be ahead of the others.
    attempt = max(state.record.attempt for state in members)
    attempt += update.record.attempt - first.record.attempt
    return [_as_first(state, update, attempt) for state in members], False


def _dissolved(
    members: list[PartitionState], again: Again, probe: HaveProbed, owner: str, now_ms: int
) -> list[RecordUpdate]:
    """The bundle is no more. Each range goes its own way: back into the backlog where surely nobody
    inserted anything of it, nor will; else a probe says what of it is there (R11)."""
    updates: list[RecordUpdate] = []
    to_probe: list[PartitionState] = []
    for state in members:
        if state.is_unrecorded:
            updates.append(refresh(state))
        elif isinstance(state.stage, Probed):
            update, _ = again(state)
            updates += [update] if update else []
        elif isinstance(state.stage, ToProbe):
            continue
        elif state.may_be_given_back:
            updates.append(give_back(state, owner, now_ms))
        else:
            to_probe.append(state)
    if to_probe:
        # One line: there may be a thousand of them.
        _logger.warning(
            "bundle %s is not loaded as a whole any more; %d of its ranges are probed, %s first",
            *(to_probe[0].record.bundle, len(to_probe), to_probe[0].block_range),
        )
    for state in to_probe:
        probe(state)
    return updates


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


@dataclass(slots=True)
class _Open:
    """A bundle in the making.

    :param reservation: of its block, told to each member; `background`, too.
    :param members: the partitions, and their ranges.
    """

    reservation: int
    background: Background
    room: Room
    members: list[tuple[PartitionState, Range]] = field(default_factory=list)


class NewRanges:
    """The new ranges of one round, and which of them are loaded together.

    :param windows: of the tables, as last read.
    :param slots: tasks that can run at once.
    :param backlogs: partitions that may be given a range, in the order in which they are.
    :param states: of these partitions.
    :param leader_of: the id of the broker that leads a partition, -1 where it is not known.
    """

    def __init__(
        self,
        planner: RecordPlanner,
        windows: Mapping[TargetShard, ShardWindow],
        slots: int,
        backlogs: Iterable[Backlog],
        states: Mapping[TopicPartition, PartitionState],
        leader_of: Callable[[TopicPartition], int],
    ) -> None:
        self._planner = planner
        self._windows = windows
        self._probed: dict[TopicGroup, bool] = {}
        self._states = states
        self._alone: list[RecordUpdate] = []
        self._open: dict[Together, _Open] = {}
        self._closed: list[_Open] = []
        self._small: dict[TopicPartition, tuple[Together, Range, float]] = {}
        self._leader_of = leader_of
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
        if small is None:
            return False
        together, found, expected = small
        bundle = self._open.get(together)
        return bundle is not None and bundle.room.is_enough(found.span, expected)

    def join(self, source: TopicPartition) -> None:
        """Take a range into the bundle that has room for it: its block is paid for."""
        small = self._small[source]
        _, found, expected = small
        bundle = self._open[small[0]]
        bundle.members.append((self._states[source], found))
        bundle.room.take(found.span, expected)
        self._count(small, -1)

    def begin(
        self,
        backlog: Backlog,
        budget: Budget,
        target_shards: list[TargetShard],
        reservation: int,
        now_ms: int,
    ) -> float:
        """A range whose reservation was taken: alone, or the first of a bundle.

        :returns: how much of a task it is.
        """
        planner, small = self._planner, self._small.get(backlog.source)
        limits = planner.limits_of(backlog.source.topic)
        background = planner.background(limits, budget.windows, target_shards, now_ms)
        if small is None:
            state = self._states[backlog.source]
            found = next_range(backlog, limits, now_ms, flush=True)
            assert found is not None
            self._alone.append(planner.intend(state, found, reservation, background, now_ms))
            return share_of_task(found.span, messages_of_range(limits, backlog.bytes_per_message))
        together = small[0]
        if together in self._open:
            self._closed.append(self._open[together])
        members_max = planner.members_of(together[0].entries)
        room = Room(members_max, limits.messages_max, self._waiting[together].share)
        self._open[together] = _Open(reservation, background, room)
        self.join(backlog.source)
        return 1.0

    def updates(self, now_ms: int) -> list[RecordUpdate]:
        """All of them, those of a bundle with its name."""
        intend, updates = self._planner.intend, self._alone
        for bundle in (*self._closed, *self._open.values()):
            told, name = (bundle.reservation, bundle.background, now_ms), ""
            if len(bundle.members) > 1:
                name = bundle_name(
                    Member(found, state.record.topic_id, state.record.generation)
                    for state, found in bundle.members
                )
            updates += [intend(state, found, *told, name) for state, found in bundle.members]
        return updates


def named(updates: list[RecordUpdate]) -> list[RecordUpdate]:
    """The same updates with the name of the bundle that they are, if they are several."""
    if len(updates) == 1:
        return updates
    records = [(update.source, update.record) for update in updates]
    name = bundle_name(Member.of(Range(s, r.begin, r.end), r) for s, r in records)
    return [replace(each, record=replace(each.record, bundle=name)) for each in updates]
