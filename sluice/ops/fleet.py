"""The drivers of a pipeline: who reports, and how several would share it. Reads Kafka only: nothing
is fenced or written."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Literal, get_args

from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.core.fleet.balance import Held, Member, Plan, plan, work_of
from sluice.core.fleet.fold import Fold, Heard
from sluice.core.ranges import TopicPartition
from sluice.driver.connector import now_ms
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.fleet import FleetTopic, read_to_end
from sluice.kafka.log import SourceLog
from sluice.kafka.topics import cluster_metadata
from sluice.ops.partitions import ConnectorReader
from sluice.ops.status import PartitionStatus, read_status

_logger = logging.getLogger("sluice.status")

#: "reports"; "silent": it has reported, and does no more; "no report": it owns partitions, and its
#: reports are not there: a driver without [fleet], or one that is long gone.
MemberState = Literal["reports", "silent", "no report"]


@dataclass(frozen=True, slots=True)
class MemberShown:
    """A driver, as its last report and the group's offsets say.

    :param member: its name; None without a report.
    :param partitions: whose next record it may write.
    :param started_ms: by its clock; `reported_seconds`: how old its last report is, by this
        machine's clock and the topic's.
    :param out: ranges that its tasks are at.
    :param floors: by window, the insert counter of its oldest hold, or of its last reading.
    """

    connector: str
    member: str | None
    owner: str
    state: MemberState
    partitions: int
    started_ms: int | None = None
    reported_seconds: float | None = None
    data_center: str = ""
    slots: int | None = None
    out: int | None = None
    rows_per_second: float | None = None
    oldest_wait_seconds: float | None = None
    spec: str = ""
    software: str = ""
    is_leaving: bool = False
    floors: Mapping[str, int] = field(default_factory=dict)


def read_members(configuration: Configuration) -> list[MemberShown]:
    """Who reports to each connector that answers, and who owns its partitions.

    :raises SluiceError: no connector answers.
    """
    owned: dict[str, Counter[str]] = {}
    for each in read_status(configuration):
        owned.setdefault(each.connector, Counter())[each.owner or ""] += 1
    found: list[MemberShown] = []
    for connector, owners in owned.items():
        del owners[""]
        found += members_of(connector, read_reports(configuration, connector), owners, now_ms())
    return found


def read_reports(configuration: Configuration, connector: str) -> Mapping[str, Heard]:
    """The last reports of a connector's members, by owner id; none if there is no topic.

    :raises SluiceError: the topic cannot be read.
    """
    access, fold = kafka_access(configuration, connector), Fold("")
    if configuration.fleet_topic not in cluster_metadata(make_admin(access)).topics:
        return {}
    topic = FleetTopic(access, configuration.fleet_topic, is_made=False)
    try:
        read_to_end(topic, fold)
    finally:
        topic.close()
    return fold.others


def member_lines(configuration: Configuration) -> Iterator[str]:
    """Who reports to each connector that answers, in words."""
    for connector in configuration.connectors:
        try:
            heard = read_reports(configuration, connector.name)
        except SluiceError as error:
            _logger.error("connector %s: %s. Try: %s", connector.name, error, error.hint)
            continue
        for each in members_of(connector.name, heard, {}, now_ms()):
            yield (
                f"connector {each.connector}: member {each.member} ({each.owner}) {each.state}, "
                f"last {each.reported_seconds:.0f} s ago"
            )


def members_of(
    connector: str, heard: Mapping[str, Heard], owned: Mapping[str, int], at_ms: int
) -> list[MemberShown]:
    """Those that report first. Pure.

    :param owned: partitions by owner id.
    :param at_ms: now.
    """
    found = [
        MemberShown(connector, None, owner, "no report", partitions)
        for owner, partitions in sorted(owned.items())
        if owner not in heard
    ]
    for owner, last in heard.items():
        report, age = last.report, (at_ms - last.append_ms) / 1000
        found.append(
            MemberShown(
                connector=connector,
                member=report.member,
                owner=owner,
                state="reports" if age <= report.silent_seconds else "silent",
                partitions=owned.get(owner, 0),
                started_ms=report.started_ms,
                reported_seconds=round(max(0.0, age), 1),
                data_center=report.data_center,
                slots=report.slots,
                out=report.work,
                rows_per_second=report.rows_per_second,
                oldest_wait_seconds=report.oldest_wait_seconds,
                spec=report.spec,
                software=report.software,
                is_leaving=report.is_leaving,
                floors=report.floors,
            )
        )
    order = get_args(MemberState)
    return sorted(found, key=lambda each: (order.index(each.state), each.member or "", each.owner))


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
