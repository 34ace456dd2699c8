"""The drivers of a pipeline: who reports. Reads Kafka only: nothing is fenced or written."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from sluice.config import Configuration
from sluice.core.decided import Decided
from sluice.core.errors import SluiceError
from sluice.core.fleet.fold import Fold, Heard
from sluice.driver.connector import now_ms
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.fleet import FleetTopic, read_to_end
from sluice.kafka.topics import cluster_metadata
from sluice.ops.driver_decisions import read_decided
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
