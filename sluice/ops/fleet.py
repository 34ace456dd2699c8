"""The drivers of a pipeline: who reports. Reads Kafka only: nothing is fenced or written."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from sluice.config import Configuration
from sluice.core.decided import Decided
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.fleet.fold import Fold, Heard
from sluice.core.fleet.placement import planned
from sluice.core.fleet.view import Member, View
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS
from sluice.driver.specs import kafka_access
from sluice.kafka.fleet import FleetTopic, read_to_end
from sluice.kafka.topics import sees
from sluice.machine.clock import now_ms
from sluice.ops.driver_decisions import DecisionRefusedError, read_decided
from sluice.ops.status import read_status

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
    :param applied: which version of tables and topics it loads by, in words; "": nothing was ever
        applied, or it has said nothing and may be gone.
    :param floors: by window, the insert counter of its oldest hold, or of its last reading.
    :param busy: levels of its busy partitions (`core.fleet.busy`), by topic/partition.
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
    applied: str = ""
    floors: Mapping[str, int] = field(default_factory=dict)
    busy: Mapping[str, int] = field(default_factory=dict)


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
        heard, decided = (
            read_reports(configuration, connector),
            read_decided(configuration, connector),
        )
        found += [
            replace(each, applied=_loads_by(each, decided))
            for each in members_of(connector, heard, owners, now_ms())
        ]
    return found


def _loads_by(shown: MemberShown, decided: Decided) -> str:
    version = decided.applied
    if version is None:
        return ""
    answer = next((each for each in decided.answers if each.owner == shown.owner), None)
    if answer is None:
        return "" if shown.member is None else f"not {version.name} yet"
    return f"refuses {version.name}: {answer.error}" if answer.error else version.name


def read_reports(configuration: Configuration, connector: str) -> Mapping[str, Heard]:
    """The last reports of a connector's members, by owner id; none if there is no topic.

    :raises SluiceError: the topic cannot be read.
    """
    return _read_fold(configuration, connector).others


def require_member(configuration: Configuration, name: str) -> None:
    """:raises DecisionRefusedError: no driver of this name reports to any connector."""
    found = {
        shown.member: None
        for each in configuration.connectors
        for shown in members_of(each.name, read_reports(configuration, each.name), {}, now_ms())
        if shown.state == "reports"
    }
    if name not in found:
        raise DecisionRefusedError(
            f'no member that reports is named "{name}"',
            f"Name one of: {', '.join(sorted(map(str, found)))}." if found else "None reports.",
        )


def is_reporting(heard: Heard, at_ms: int) -> bool:
    """Whether an id still reports, by the clocks of the topic and of this machine.

    :param at_ms: now.
    """
    return at_ms - heard.append_ms <= heard.report.silent_seconds * 1000


def _read_fold(configuration: Configuration, connector: str) -> Fold:
    access, fold = kafka_access(configuration, connector), Fold("")
    if not sees(access, configuration.fleet_topic):
        return fold
    topic = FleetTopic(access, configuration.fleet_topic, is_made=False)
    try:
        read_to_end(topic, fold)
    finally:
        topic.close()
    return fold


@dataclass(frozen=True, slots=True)
class PartitionPlanned:
    """Who has a partition, and who would have it.

    :param owner: the id that its record names; "": it has no record.
    :param member: the name of who has it; None: nobody reports as that.
    :param to: the name of who would have it; None: nobody may.
    :param why: it would move; "": it stays.
    """

    connector: str
    topic: str
    partition: int
    owner: str
    member: str | None
    to: str | None
    why: str


def read_plan(
    configuration: Configuration, joining: Sequence[Member] = (), leaving: Collection[str] = ()
) -> list[PartitionPlanned]:
    """Who would have each partition, if these members joined and those left. Changes nothing.

    :param joining: their owner id is their name.
    :param leaving: names of members that report.
    :raises ConfigurationError: a member that is to join reports already, or one that is to leave
        does not.
    :raises SluiceError: no connector answers.
    """
    owned: dict[str, dict[TopicPartition, str]] = {}
    for each in read_status(configuration):
        source = TopicPartition(each.topic, each.partition)
        owned.setdefault(each.connector, {})[source] = each.owner or ""
    found: list[PartitionPlanned] = []
    for connector, owners in owned.items():
        fold, at_ms = _read_fold(configuration, connector), now_ms()
        view = fold.view()
        reporting = {owner for owner, each in fold.others.items() if is_reporting(each, at_ms)}
        living = tuple(each for each in view.living if each.owner in reporting)
        near = configuration.preferred_by(connector)
        joined = [replace(each, near=near) for each in joining]
        view = replace(view, living=_as_planned(connector, living, joined, leaving))
        found += planned_of(connector, owners, view, frozenset(each.name for each in joining))
    return found


def _as_planned(
    connector: str, living: Sequence[Member], joining: Sequence[Member], leaving: Collection[str]
) -> tuple[Member, ...]:
    """Those that live, those that join, and of some that they leave."""
    names = {each.name for each in living}
    reports = f"those that report to connector {connector}: {', '.join(sorted(names)) or 'none'}"
    for name in sorted(set(leaving) - names):
        raise ConfigurationError(f'no member "{name}" reports', f"Name one of {reports}.")
    for name in sorted({each.name for each in joining} & names):
        raise ConfigurationError(f'a member "{name}" reports already', f"Not of {reports}.")
    # Who joins loads by what the others load by.
    specs = Counter(each.spec for each in living).most_common(1)
    joined = [replace(each, spec=specs[0][0] if specs else "") for each in joining]
    stay = [replace(e, is_leaving=e.is_leaving or e.name in leaving) for e in living]
    return tuple(sorted([*stay, *joined], key=lambda each: each.owner))


def planned_of(
    connector: str,
    owners: Mapping[TopicPartition, str],
    view: View,
    joining: frozenset[str] = frozenset(),
) -> list[PartitionPlanned]:
    """Who has each partition, and who would, as members see this view. Pure.

    :param owners: by partition, the id that its record names; "": it has none.
    :param joining: names of those that are not there yet.
    """
    members = {each.owner: each for each in view.living}
    named = {source: owner or GENESIS for source, owner in owners.items()}
    homes, calm = planned(view, named), planned(replace(view, busy={}), named)

    def why(source: TopicPartition) -> str:
        owner, to = owners[source], homes[source]
        if owner == to:
            return ""
        if owner not in members:
            return "no driver reports as its owner" if owner else "it has no record yet"
        if members[owner].is_leaving:
            return f"{members[owner].name} leaves"
        if to in members and members[to].name in joining:
            return f"{members[to].name} joins"
        near = members[owner].near
        if near and members[owner].data_center != near:
            return f"{near} is preferred"
        if calm[source] == owner:
            return "busy partitions are shared evenly"
        return "it is on its way"

    return [
        PartitionPlanned(
            connector,
            source.topic,
            source.partition,
            owner,
            members[owner].name if owner in members else None,
            members[homes[source]].name if homes[source] else None,
            why(source),
        )
        for source, owner in sorted(owners.items())
    ]


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
                state="reports" if is_reporting(last, at_ms) else "silent",
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
                busy=report.busy,
            )
        )
    order = get_args(MemberState)
    return sorted(found, key=lambda each: (order.index(each.state), each.member or "", each.owner))
