"""A [[connector]]: a Kafka cluster, which topics of it are loaded, and from where on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from sluice.config.findings import RefusedError
from sluice.config.properties import properties_but, refuse_kafka_property
from sluice.config.secret import Secret, known_of, reveal_all
from sluice.config.section import Conflict, Listed, Section
from sluice.config.values import Brokers, Name, Pattern, Text, Topic, shown
from sluice.core.kafka_identity import identity_refusals, login_refusals
from sluice.core.load_spec import Commit

_GROUP_PREFIX, _TIME_PREFIX = "group:", "timestamp:"
_OTHERWISE_EARLIEST = ",earliest"


@dataclass(frozen=True, slots=True)
class GroupStart:
    """Where the consumer group of another loader stands.

    :param earliest: partitions in which that group committed nothing begin at the earliest
        message; else they are refused.
    """

    group: str
    earliest: bool = False


Start = Literal["earliest", "latest"] | datetime | GroupStart
Reader = Literal["auto", "native", "librdkafka"]
Unrouted = Literal["dead-letter", "skip"]


def _a_start(value: object) -> Start:
    """Where a new group begins: an end of the log, a moment with its zone, another's group."""
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    if isinstance(value, str) and value.startswith(_GROUP_PREFIX):
        return _a_group_start(value)
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.removeprefix(_TIME_PREFIX).strip())
        except ValueError:
            moment = None
    if not isinstance(moment, datetime):
        raise RefusedError(
            f'{shown(value)} is not a start; use "earliest", "latest",'
            ' a time like "2026-01-31T00:00:00Z", or "group:NAME" of another loader'
        )
    if moment.tzinfo is None:
        raise RefusedError(f"{shown(value)} has no time zone; write it like 2026-01-31T00:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise RefusedError(f"{shown(value)} is out of range") from None


def _a_group_start(value: str) -> GroupStart:
    """`group:NAME`, or `group:NAME,earliest`."""
    name = value.removeprefix(_GROUP_PREFIX).strip()
    group = name.removesuffix(_OTHERWISE_EARLIEST).strip()
    if not group:
        raise RefusedError(f'{shown(value)} names no consumer group; write it like "group:NAME"')
    return GroupStart(group, earliest=name.endswith(_OTHERWISE_EARLIEST))


@dataclass(frozen=True, slots=True)
class ConnectorConfiguration(Section):
    """One Kafka cluster and the topics to load from it.

    :param start: where a group that never existed begins; a datetime has a zone.
    :param kafka: librdkafka properties for every client of this connector.
    :param reader: what reads the ranges; "auto": the native one, if it can do what `kafka` asks
        for: its security, and no `client.rack`.
    :param unrouted: what becomes of messages that no entry of their topic takes.
    :param topic_pattern: takes further topics; see `Configuration.topics_of`. "": none.
    :param commit: "bundle": nothing of a message is moved before all tables have their blocks.
    :param prefer: the data center whose replicas its blocks go to first, and whose members of a
        fleet have its partitions; "": as [clickhouse] says.
    """

    name: Name
    brokers: Brokers
    topics: Listed[Topic] = ()
    start: Annotated[Start, PlainValidator(_a_start)] = "earliest"
    kafka: Annotated[
        Mapping[str, str | Secret],
        properties_but(lambda name, _: refuse_kafka_property(name)),
    ] = field(default_factory=dict)
    reader: Reader = "auto"
    unrouted: Unrouted = "dead-letter"
    commit: Commit = "table"
    topic_pattern: Pattern = ""
    prefer: Text = ""

    def properties(self) -> dict[str, str]:
        """`kafka` as librdkafka takes it, secrets in the clear."""
        return reveal_all(self.kafka)

    def known_reader(self) -> str:
        """What reads the ranges: "native" or "librdkafka"."""
        if self.reader != "auto":
            return self.reader
        return "librdkafka" if self.beyond_native() else "native"

    def beyond_native(self) -> tuple[str, ...]:
        """Properties that ask for what the native reader does not do."""
        known = known_of(self.kafka)
        rack = ("client.rack",) if known.get("client.rack") else ()
        return (*(name for name, _ in login_refusals(known)), *rack)

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if not self.topics and not self.topic_pattern:
            yield "topics", "is missing"
        for name, reason in identity_refusals(known_of(self.kafka)):
            yield ("kafka", name), reason
        if self.reader == "native":
            for name, reason in login_refusals(known_of(self.kafka)):
                yield ("kafka", name), reason
