"""What Kafka and the ledger say of partitions, read from outside: nothing is fenced or written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.config import Configuration
from sluice.core.ledger import Background, CommittedOffset, LedgerView
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.driver.discovering import topics_today
from sluice.driver.specs import kafka_access
from sluice.driver.start import spec_needed
from sluice.kafka.clients import make_admin
from sluice.kafka.ledger import read_view
from sluice.kafka.log import SourceLog
from sluice.kafka.offsets import GroupOffsets, look, record_in
from sluice.kafka.topics import sees

#: A driver's own transactions take milliseconds; what is open for longer hangs.
OPEN_PATIENCE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition.

    :param found: what the group holds; with an open transaction, what it held before.
    :param is_open: a transaction that may replace `found` stays open.
    :param record: the group's record, None without a valid one.
    :param recorded: metadata of the ledger's last record, None if it has none.
    :param last: that record, None if it cannot be read.
    :param background: what the ledger knows besides.
    :param log_begin: -1, as `stable_end`: no leader tells; only where it was asked for partially.
    """

    source: TopicPartition
    found: CommittedOffset | None
    is_open: bool
    record: Record | None
    recorded: str | None
    last: Record | None
    background: Background
    topic_id: str
    log_begin: int
    stable_end: int

    @property
    def records(self) -> tuple[Record, ...]:
        """Every valid record that is known: the group's, the ledger's."""
        return tuple(record for record in (self.record, self.last) if record is not None)

    @property
    def agrees(self) -> bool:
        """Whether group and ledger hold the same record (H3)."""
        return self.found is not None and self.recorded == self.found.metadata


class ConnectorReader:
    """Reads one connector's partitions.

    :raises ConfigurationError: there is no connector of this name.
    """

    def __init__(self, configuration: Configuration, connector: str) -> None:
        self._ledger_topic = configuration.ledger_topic
        self._configuration, self._connector = configuration, connector
        self.access = kafka_access(configuration, connector)
        self.group = configuration.group(connector)
        self._admin = make_admin(self.access)
        self.log = SourceLog(self._admin)

    def partitions(self) -> dict[str, tuple[str, int]]:
        """Short id and number of partitions of each topic that the connector loads.

        :raises TopicMissingError: one of them does not exist.
        """
        return self.log.topics(topics_today(self._configuration, self._connector, self.log))

    def ledger(self, sources: Iterable[TopicPartition]) -> LedgerView:
        """The ledger's view of these partitions; an empty one if there is no ledger yet."""
        wanted = list(sources)
        if not wanted or not sees(self.access, self._ledger_topic):
            return LedgerView(complete=True)
        return read_view(self.access, self._ledger_topic, wanted, spec_needed, None)

    def offsets(self, sources: Sequence[TopicPartition]) -> GroupOffsets:
        """What the group holds; waits a little while a transaction is open."""
        return look(self.access, self.group, sources, OPEN_PATIENCE_SECONDS)

    def facts(
        self,
        sources: Sequence[TopicPartition],
        topic_ids: dict[str, str],
        view: LedgerView | None,
        *,
        partial: bool = False,
    ) -> list[PartitionFacts]:
        """Everything that is known of each partition.

        :param view: None reads the ledger only for partitions without a valid record.
        :param partial: also of those whose log no leader tells of, unless none does.
        """
        offsets = self.offsets(sources)
        decoded = {source: record_in(offsets.found[source]) for source in sources}
        if view is None:
            view = self.ledger(source for source, record in decoded.items() if record is None)
        begins = self.log.begins(sources, partial=partial)
        ends = self.log.stable_ends(sources, partial=partial)
        return [
            PartitionFacts(
                source=source,
                found=offsets.found[source],
                is_open=source in offsets.unstable,
                record=decoded[source],
                recorded=view.metadata(source),
                last=_last(view, source),
                background=view.background(source),
                topic_id=topic_ids[source.topic],
                log_begin=begins.get(source, -1),
                stable_end=ends.get(source, -1),
            )
            for source in sources
        ]


def _last(view: LedgerView, source: TopicPartition) -> Record | None:
    entry = view.records.get(source)
    if entry is None:
        return None
    return record_in(CommittedOffset(int(entry["begin"]), str(entry["metadata"])))
