"""Where each partition stands, as Kafka has it. Never fences, never writes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal

from sluice.config import Configuration, ConnectorConfiguration
from sluice.core.errors import SluiceError
from sluice.core.freezes import holding
from sluice.core.ranges import TopicPartition
from sluice.ops.driver_decisions import read_decided
from sluice.ops.partitions import ConnectorReader, PartitionFacts

_logger = logging.getLogger("sluice.status")

#: "foreign": an offset without a valid record of ours. "lost": the ledger has a record, the
#: group has no offset. "open transaction": a transaction hangs; the record before it is shown.
State = Literal["settled", "in doubt", "foreign", "lost", "open transaction"]


@dataclass(frozen=True, slots=True)
class IntentStatus:
    """A record. Kind, begin and end are None for a foreign offset that the ledger does not
    know either; else they are the ledger's for states "foreign" and "lost"."""

    kind: str | None
    begin: int | None
    end: int | None
    state: State


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition.

    :param committed: the group's offset, whoever committed it; None if there is none.
    :param intent: None where nothing was ever recorded.
    :param stable_end: last stable offset, exclusive.
    :param shards: that its rows go to as configured: a range is settled when all of them have it.
    :param lag: offsets from the settled position to the last stable offset, holes included; None
        where the settled position is not known. Without any record, what the log holds.
    :param frozen: what a person has frozen that it belongs to, in words.
    """

    connector: str
    topic: str
    partition: int
    committed: int | None
    intent: IntentStatus | None
    stable_end: int
    lag: int | None
    batch: int | None
    owner: str | None
    shards: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()


def read_status(configuration: Configuration) -> list[PartitionStatus]:
    """All partitions of all connectors that answer, sorted.

    A connector that does not answer is logged and left out, since the others still run.

    :raises SluiceError: no connector answers.
    """
    statuses: list[PartitionStatus] = []
    failures: list[SluiceError] = []
    for connector in configuration.connectors:
        try:
            statuses += _of_connector(configuration, connector)
        except SluiceError as error:
            failures.append(error)
            _logger.error("connector %s: %s. Try: %s", connector.name, error, error.hint)
    if failures and len(failures) == len(configuration.connectors):
        raise failures[0]
    return statuses


def _of_connector(
    configuration: Configuration, connector: ConnectorConfiguration
) -> list[PartitionStatus]:
    reader = ConnectorReader(configuration, connector.name)
    topics = reader.partitions()
    sources = [
        TopicPartition(topic, number)
        for topic, (_, count) in sorted(topics.items())
        for number in range(count)
    ]
    facts = reader.facts(sources, {topic: topics[topic][0] for topic in topics}, None)
    hanging = [str(item.source) for item in facts if item.is_open]
    if hanging:
        _logger.warning(
            "a transaction on group %s is open for longer than a driver's takes: %s. What was "
            "committed before it is shown. Its owner hangs, or was killed; then the broker ends "
            "it when its time-out has passed.",
            reader.group,
            ", ".join(hanging),
        )
    standing = read_decided(configuration, connector.name).frozen
    statuses = []
    for item in facts:
        entries = [table.name for table in configuration.tables_of(item.source.topic)]
        frozen = tuple(each.line() for each in holding(standing, entries))
        shards = _shards_of(configuration, item.source.topic)
        statuses.append(replace(status_of(connector.name, item), shards=shards, frozen=frozen))
    return statuses


def _shards_of(configuration: Configuration, topic: str) -> tuple[str, ...]:
    tables = configuration.tables_of(topic)
    return tuple(sorted({shard for table in tables for shard in configuration.shards_of(table)}))


def status_of(connector: str, facts: PartitionFacts) -> PartitionStatus:
    """What is shown of one partition."""
    record = facts.record or facts.last
    state = _state(facts)
    intent: IntentStatus | None = None
    if record is not None:
        intent = IntentStatus(record.kind.word, record.begin, record.end, state)
    elif facts.found is not None or facts.recorded is not None:
        intent = IntentStatus(None, None, None, state)
    lag: int | None = None
    if record is not None:
        lag = max(0, facts.stable_end - record.begin)
    elif intent is None:
        lag = facts.stable_end - facts.log_begin
    return PartitionStatus(
        connector=connector,
        topic=facts.source.topic,
        partition=facts.source.partition,
        committed=None if facts.found is None else facts.found.offset,
        intent=intent,
        stable_end=facts.stable_end,
        lag=lag,
        batch=None if record is None else record.batch,
        owner=None if record is None else record.owner,
    )


def _state(facts: PartitionFacts) -> State:
    if facts.is_open:
        return "open transaction"
    if facts.record is not None:
        return "in doubt" if facts.record.in_doubt else "settled"
    return "lost" if facts.found is None else "foreign"
