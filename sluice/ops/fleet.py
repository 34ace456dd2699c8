"""How several drivers would share a pipeline. Reads Kafka only: nothing is fenced or written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from sluice.config import Configuration
from sluice.core.fleet.balance import Held, Member, Plan, plan, work_of
from sluice.core.ranges import TopicPartition
from sluice.kafka.log import SourceLog
from sluice.ops.partitions import ConnectorReader
from sluice.ops.status import PartitionStatus, read_status


@dataclass(frozen=True, slots=True)
class Load:
    """What is there to do for a partition.

    :param owner: who may write its next record; "" before there is a record.
    :param messages_a_second: offsets that came while they were measured, holes included.
    :param work: in messages a second, with what a range costs (`core.fleet.balance`).
    :param is_frozen: it is not moved.
    """

    source: TopicPartition
    owner: str
    lag: int
    messages_a_second: float
    work: int
    leader: int
    is_frozen: bool


@dataclass(frozen=True, slots=True)
class Share:
    """What a member would have.

    :param partitions_now: that it owns today.
    :param work_percent: of the work of all.
    :param brokers: that lead its partitions: small ranges of one broker are loaded together.
    """

    member: str
    slots: int
    partitions_now: int
    partitions: int
    messages_a_second: float
    lag: int
    work_percent: float
    brokers: int


@dataclass(frozen=True, slots=True)
class MoveShown:
    """A partition that another member would get, and why."""

    topic: str
    partition: int
    before: str
    after: str
    messages_a_second: float
    lag: int
    why: str


@dataclass(frozen=True, slots=True)
class ConnectorPlan:
    """How the members would share the partitions of a connector.

    :param uneven_before: how far the worst member would be from its share of the work, in percent
        of that, if only what nobody has were given away; `uneven_after`: as planned.
    """

    connector: str
    uneven_before: float
    uneven_after: float
    shares: tuple[Share, ...]
    moves: tuple[MoveShown, ...]


def read_plans(
    configuration: Configuration,
    slots: Sequence[int],
    seconds: float,
    wait: Callable[[float], None] = time.sleep,
) -> list[ConnectorPlan]:
    """How so many members would share each connector that answers.

    :param slots: of each member.
    :param seconds: for so long it is measured how much comes.
    :raises SluiceError: no connector answers.
    """
    connectors = [
        _Looked(connector, list(found), ConnectorReader(configuration, connector).log)
        for connector, found in groupby(read_status(configuration), attrgetter("connector"))
    ]
    wait(seconds)
    delay_seconds = configuration.batch.max_delay_seconds
    return [plan_of(each.connector, each.loads(delay_seconds), slots) for each in connectors]


class _Looked:
    """A connector that was looked at once."""

    def __init__(self, connector: str, statuses: Sequence[PartitionStatus], log: SourceLog) -> None:
        self.connector = connector
        self._log = log
        self._status_of = {TopicPartition(each.topic, each.partition): each for each in statuses}
        self._ends = log.stable_ends(self._status_of)
        self._at = time.monotonic()

    def loads(self, delay_seconds: float) -> list[Load]:
        """Look again: what has come meanwhile?"""
        ends, leaders = self._log.stable_ends(self._status_of), self._log.leaders()
        elapsed = time.monotonic() - self._at
        loads = []
        for source, status in self._status_of.items():
            rate = max(0, ends[source] - self._ends[source]) / elapsed
            lag = max(0, ends[source] - status.stable_end) + (status.lag or 0)
            work = work_of(rate, lag, delay_seconds)
            owner, leader = status.owner or "", leaders.get(source, -1)
            loads.append(Load(source, owner, lag, rate, work, leader, bool(status.frozen)))
        return loads


def plan_of(connector: str, loads: Sequence[Load], slots: Sequence[int]) -> ConnectorPlan:
    """The plan for members with so many slots each. Today's owners are the first of them, those
    with the most work before others; the rest is new. Pure.

    :param slots: of each member.
    """
    owned = Counter[str]()
    for load in loads:
        owned[load.owner] += load.work
    del owned[""]
    owners = [owner for owner, _ in sorted(owned.items(), key=lambda item: (-item[1], item[0]))]
    new = [f"new-{number}" for number in range(1, len(slots) + 1)]
    members = [Member(*pair) for pair in zip([*owners, *new], slots, strict=False)]
    held = [Held(x.source, x.owner, x.work, x.leader, x.is_frozen) for x in loads]
    made = plan(members, held)
    of = {load.source: load for load in loads}
    moves = tuple(
        MoveShown(
            *move.source,
            move.before,
            move.after,
            of[move.source].messages_a_second,
            of[move.source].lag,
            move.why,
        )
        for move in made.moves
    )
    shares = tuple(_share(member, loads, made) for member in members)
    return ConnectorPlan(connector, made.uneven_before, made.uneven_after, shares, moves)


def _share(member: Member, loads: Sequence[Load], made: Plan) -> Share:
    mine = [load for load in loads if made.member_of[load.source] == member.name]
    return Share(
        member=member.name,
        slots=member.capacity,
        partitions_now=sum(load.owner == member.name for load in loads),
        partitions=len(mine),
        messages_a_second=sum(load.messages_a_second for load in mine),
        lag=sum(load.lag for load in mine),
        work_percent=100 * sum(load.work for load in mine) / sum(load.work for load in loads),
        brokers=len({load.leader for load in mine}),
    )
