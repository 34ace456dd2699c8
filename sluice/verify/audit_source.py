"""Kafka's side of an audit: what the logs hold, what is settled, what is a dead letter."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.config.model import Configuration, ConnectorConfiguration
from sluice.core.ranges import Interval, TopicPartition, subtract
from sluice.core.records import InvalidRecordError, decode
from sluice.kafka.clients import make_admin
from sluice.kafka.cluster import Cluster
from sluice.kafka.dead_letters import read_dead_letters
from sluice.kafka.ledger import entries
from sluice.kafka.log import SourceLog
from sluice.kafka.offsets import look
from sluice.spark.discovering import topics_to_load
from sluice.spark.texts import kafka_access

#: A transaction that is open for longer hangs; what was committed before it counts.
_OPEN_PATIENCE_SECONDS = 3.0

#: Decisions of a person that move a partition's position.
_MOVES = ("adopt", "rewind")

Letters = dict[tuple[TopicPartition, str], NDArray[np.uint64]]


@dataclass(slots=True)
class History:
    """What the ledger says of a partition's position.

    :param begin: where the pipeline began.
    :param position: everything below is settled.
    :param skipped: what `sluice adopt` and `rewind` went past.
    """

    begin: int
    position: int
    skipped: list[Interval] = field(default_factory=list)
    #: By table entry, messages that made no row and need not.
    empty: dict[str, list[Interval]] = field(default_factory=dict)

    def take(self, entry: dict[str, Any]) -> None:
        """Take the next record in."""
        begin = int(entry["begin"])
        if str(entry.get("why", "")).startswith(_MOVES):
            if begin > self.position:
                self.skipped.append((self.position, begin))
            else:
                self.begin = min(self.begin, begin)
                self.skipped = [(b, min(e, begin)) for b, e in self.skipped if b < begin]
        self.position = begin

    def assigned(self, settled: int) -> list[Interval]:
        """The offsets whose rows must be there."""
        return list(subtract((self.begin, max(self.begin, settled)), self.skipped))


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's log.

    :param settled: everything below is settled; None if the pipeline never began here.
    :param assigned: the offsets whose rows must be there.
    :param empty: by table entry, offsets of messages that made no row and need not.
    """

    source: TopicPartition
    log_begin: int
    stable_end: int
    settled: int | None
    assigned: list[Interval]
    empty: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)


class SourceReader:
    """Reads one connector.

    :raises TransientError: the brokers do not answer.
    """

    def __init__(self, configuration: Configuration, connector: ConnectorConfiguration) -> None:
        self._configuration = configuration
        self.access = kafka_access(configuration, connector.name)
        self._cluster = Cluster(self.access)
        self._admin = make_admin(self.access)
        self._log = SourceLog(self._admin)
        self._group = configuration.group(connector.name)
        self.counts = {
            topic: count
            for topic, (_, count) in self._log.topics(
                topics_to_load(configuration, connector.name, self._log)
            ).items()
        }

    def logs(self) -> list[PartitionLog]:
        """Every partition, as it is at this moment."""
        sources = [
            TopicPartition(topic, number)
            for topic, count in sorted(self.counts.items())
            for number in range(count)
        ]
        committed = look(self.access, self._group, sources, _OPEN_PATIENCE_SECONDS).found
        begins, ends = self._log.begins(sources), self._log.stable_ends(sources)
        histories = self._histories()
        logs = []
        for source in sources:
            history = histories.get(source)
            settled = None if history is None else history.position
            found = committed[source]
            if found is not None:
                try:
                    settled = decode(found.offset, found.metadata).begin
                except InvalidRecordError:
                    pass  # someone else's; the ledger's last word counts
            assigned: list[Interval] = []
            if settled is not None:
                history = history or History(begins[source], settled)
                assigned = history.assigned(settled)
            empty = {} if history is None else history.empty
            logs.append(
                PartitionLog(
                    source,
                    begins[source],
                    ends[source],
                    settled,
                    assigned,
                    {entry: tuple(intervals) for entry, intervals in empty.items()},
                )
            )
        return logs

    def stable_end(self, source: TopicPartition) -> int:
        """Last stable offset, fresh."""
        return self._log.stable_ends([source])[source]

    def letters(self) -> Letters:
        """Sorted offsets of the dead letters, by partition and table entry."""
        found: dict[tuple[TopicPartition, str], array[int]] = {}
        for topic in (self._configuration.dead_letters_topic, self._configuration.parking_topic):
            if topic not in self._cluster.topics:
                continue
            for letter in read_dead_letters(self.access, topic):
                key = (TopicPartition(letter.topic, letter.partition), letter.table)
                found.setdefault(key, array("Q")).append(letter.offset)
        return {key: np.sort(np.array(offsets, np.uint64)) for key, offsets in found.items()}

    def _histories(self) -> dict[TopicPartition, History]:
        topic = self._configuration.ledger_topic
        if topic not in self._cluster.topics:
            return {}
        return histories_of(
            self.access.connector, (entry for _, entry in entries(self.access, topic))
        )


def histories_of(connector: str, ledger: Iterable[dict[str, Any]]) -> dict[TopicPartition, History]:
    """The positions of a connector's partitions, from the ledger's entries in order."""
    histories: dict[TopicPartition, History] = {}
    for entry in ledger:
        if entry["type"] not in ("record", "settled") or entry["connector"] != connector:
            continue
        source = TopicPartition(str(entry["topic"]), int(entry["partition"]))
        begin = int(entry["begin"])
        history = histories.setdefault(source, History(begin, begin))
        if entry["type"] == "record":
            history.take(entry)
        for name, intervals in entry.get("empty_by_table", {}).items():
            history.empty.setdefault(name, []).extend((int(b), int(e)) for b, e in intervals)
    return histories
