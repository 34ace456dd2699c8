"""Which member should have which partition: balanced by work, and as much as possible as it is.

A plan is a function of what it is made of, in whatever order that comes. Work and capacities are
whole numbers, so that sums do not depend on an order either.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.core.ranges import TopicPartition

#: Nothing moves while every member's work is within so many percent of what its capacity is due.
UNEVEN_PERCENT = 25
#: What moves is moved until it is within so many.
EVEN_PERCENT = 10
#: And only if the worst of them comes nearer by so many: work is measured, and never the same.
WORTH_PERCENT = 10
#: Members that are alike up to so many percent are told apart by whose brokers they read from.
ALIKE_PERCENT = 5
#: Partitions that fit as well as each other, of which the one is moved whose broker fits best.
_FITTING_MAX = 64
#: An end, where many small steps would go on improving a little.
_STEPS_A_PARTITION = 8
#: What waits is to be loaded within so long, beside what comes.
CATCH_UP_SECONDS = 300.0
#: What a range costs driver and worker, in messages: 310 us to 0.7 us of each (docs/SCALE.md).
MESSAGES_A_RANGE = 400.0
#: What a partition costs to which nothing comes, in messages a second.
IDLE = 2.0


def work_of(messages_a_second: float, lag: int, delay_seconds: float) -> int:
    """The work of a partition, in messages a second; at least one.

    :param lag: messages that wait.
    :param delay_seconds: a range is loaded so often, if anything comes.
    """
    busy = max(0.0, messages_a_second) + max(0, lag) / CATCH_UP_SECONDS
    ranges_a_second = min(busy, 1 / delay_seconds)
    return math.ceil(busy + MESSAGES_A_RANGE * ranges_a_second + IDLE)


class Member(NamedTuple):
    """A driver that may have partitions.

    :param capacity: in any unit that is the same for all, such as slots of Spark; at least one.
    """

    name: str
    capacity: int = 1


class Held(NamedTuple):
    """A partition, and who has it.

    :param member: its name; any other name means that nobody lives who has it.
    :param work: in any unit that is the same for all; at least one.
    :param leader: the broker that leads it. Small ranges of one broker's partitions share blocks,
        where one member has them.
    :param is_fixed: it stays where it is, as long as that member is there.
    """

    source: TopicPartition
    member: str
    work: int
    leader: int = -1
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that another member should have.

    :param before: who has it; no member, perhaps.
    """

    source: TopicPartition
    before: str
    after: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Who should have what.

    :param member_of: of every partition.
    :param moves: what is different from today, sorted.
    :param uneven_before: how far the worst member is from what it is due, in percent of that,
        before anything is moved for balance; `uneven_after`: as planned.
    """

    member_of: Mapping[TopicPartition, str]
    moves: tuple[Move, ...]
    uneven_before: float
    uneven_after: float


def plan(members: Iterable[Member], partitions: Iterable[Held]) -> Plan:
    """Give every partition to a member.

    Who lives keeps what it has, and what nobody has goes to who has least. Then partitions move
    from the busiest to the idlest, if that is worth it.

    :raises ValueError: there is no member.
    """
    known = sorted(set(members))
    if not known:
        raise ValueError("a plan needs a member")
    held = {each.source: each for each in sorted(partitions)}
    shares = _Shares(known)
    orphans = []
    for each in held.values():
        if each.member in shares.work:
            shares.give(each, each.member)
        else:
            orphans.append(each)
    for each in sorted(orphans, key=lambda each: (-each.work, each.source)):
        shares.give(each, shares.idlest_for(each))
    before, levels = shares.unevenness(), shares.percents()
    if before > UNEVEN_PERCENT:
        kept = dict(shares.member_of)
        _balance(shares, held, steps_max=_STEPS_A_PARTITION * len(held))
        if before - shares.unevenness() < WORTH_PERCENT:
            shares = _Shares(known)
            for source, member in kept.items():
                shares.give(held[source], member)
    moves = tuple(
        Move(source, held[source].member, member, _why(held[source].member, member, levels))
        for source, member in sorted(shares.member_of.items())
        if held[source].member != member
    )
    return Plan(shares.member_of, moves, before, shares.unevenness())


def _why(before: str, after: str, levels: Mapping[str, int]) -> str:
    """Why a partition is to be moved.

    :param levels: each member's work, in percent of what it is due, before the balance.
    """
    if not before:
        return "nobody has it yet"
    if before not in levels:
        return f"{before} is no member"
    return f"{before} has {levels[before]} % of its share of the work, {after} {levels[after]} %"


class _Shares:
    """Who has what, while a plan is made."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.work = {member.name: 0 for member in members}
        self.member_of: dict[TopicPartition, str] = {}
        self._capacity = {member.name: member.capacity for member in members}
        self._capacity_of_all = sum(self._capacity.values())
        self._work_of_all = 0
        #: What may be moved, by member: work and partition, ascending.
        self._movable: dict[str, list[tuple[int, TopicPartition]]] = {n: [] for n in self.work}
        #: How many partitions of a broker a member has.
        self._led: Counter[tuple[str, int]] = Counter()

    def give(self, held: Held, name: str) -> None:
        """To who should have it from now on."""
        self.member_of[held.source] = name
        self.work[name] += held.work
        self._work_of_all += held.work
        self._led[name, held.leader] += 1
        if not (held.is_fixed and held.member == name):
            insort(self._movable[name], (held.work, held.source))

    def take(self, held: Held) -> None:
        """From who has it."""
        name = self.member_of.pop(held.source)
        self.work[name] -= held.work
        self._work_of_all -= held.work
        self._led[name, held.leader] -= 1
        movable = self._movable[name]
        del movable[bisect_left(movable, (held.work, held.source))]

    def idlest_for(self, held: Held) -> str:
        """Who should have a partition that nobody has."""
        levels = {name: self._level(name, held.work) for name in self.work}
        limit = min(levels.values()) * (1 + ALIKE_PERCENT / 100)
        return min(
            (name for name, level in levels.items() if level <= limit),
            key=lambda name: (-self._led[name, held.leader], levels[name], name),
        )

    def _level(self, name: str, more: int = 0) -> float:
        return (self.work[name] + more) / self._capacity[name]

    def percents(self) -> dict[str, int]:
        """Each member's work, in percent of what its capacity is due."""
        due = max(1, self._work_of_all) / self._capacity_of_all
        return {name: round(100 * self._level(name) / due) for name in self.work}

    def unevenness(self) -> float:
        """How far the worst member is from what it is due, in percent of that."""
        if not self._work_of_all:
            return 0.0
        due = self._work_of_all / self._capacity_of_all
        return max(abs(100 * self._level(name) / due - 100) for name in self.work)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Busiest and idlest first."""
        ascending = sorted(self.work, key=lambda name: (self._level(name), name))
        for busy in reversed(ascending):
            for idle in ascending:
                if self._level(idle) < self._level(busy):
                    yield busy, idle

    def fitting(self, busy: str, idle: str, held: Mapping[TopicPartition, Held]) -> Held | None:
        """What makes two members most alike if it is moved from the one to the other; None: nothing
        does."""
        movable = self._movable[busy]
        each_way = 1 / self._capacity[busy] + 1 / self._capacity[idle]
        ideal = (self._level(busy) - self._level(idle)) / each_way
        middle = bisect_left(movable, (int(ideal), TopicPartition("", 0)))
        near = movable[max(0, middle - _FITTING_MAX) : middle + _FITTING_MAX]
        gains = {source: self._gain(busy, idle, work) for work, source in near}
        best = max(gains.values(), default=0)
        if best <= 0:
            return None

        def rank(source: TopicPartition) -> tuple[int, int, TopicPartition]:
            leader = held[source].leader
            together = self._led[idle, leader] - self._led[busy, leader]
            return -together, -gains[source], source

        return held[min((s for s, gain in gains.items() if 10 * gain >= 9 * best), key=rank)]

    def _gain(self, busy: str, idle: str, work: int) -> int:
        """By how much the sum of the squares of all work, by capacity, falls: so it comes to an
        end."""
        of_busy = (2 * self.work[busy] - work) * self._capacity[idle]
        of_idle = (2 * self.work[idle] + work) * self._capacity[busy]
        return work * (of_busy - of_idle)


def _balance(shares: _Shares, held: Mapping[TopicPartition, Held], steps_max: int) -> None:
    for _ in range(steps_max):
        if shares.unevenness() <= EVEN_PERCENT:
            return
        for busy, idle in shares.pairs():
            fitting = shares.fitting(busy, idle, held)
            if fitting is not None:
                shares.take(fitting)
                shares.give(fitting, idle)
                break
        else:
            return
