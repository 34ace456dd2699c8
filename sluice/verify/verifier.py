"""The runtime verifier: reads what was committed and says where it cannot be right.

It shares nothing with the loader but the format of its records: what it reads is what Kafka
keeps, from one of two sources (`sluice.verify.history`), and the judgement is pure
(`sluice.core.anomalies`, which also says how gaps are found). Two instances that contradict each
other lie in one log, so each log is judged by itself, in its own order: a clock that was set back
turns no history round. It writes nothing, fences nobody and joins no group, so it may run beside
the pipeline for as long as one likes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from sluice.config import Configuration
from sluice.core.anomalies import Anomaly, AnomalyKind, Chain, Forgotten, Instance, Judge
from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition
from sluice.driver.specs import kafka_access
from sluice.kafka.offsets_topic import OFFSETS_TOPIC
from sluice.verify.history import History, open_ledger, open_offsets
from sluice.verify.pace import Pace

_logger = logging.getLogger("sluice.verify")

Source = Literal["offsets", "ledger"]

_POLL_SECONDS = 0.2
#: A connector that does not answer, or has no log yet, is asked again so often.
_RETRY_SECONDS = 5.0
_ASK_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PartitionVerified:
    """One partition's history.

    :param steps: how often each kind of step was seen.
    :param messages: messages of settled ranges that are accounted for; the ledger's only.
    :param rows: rows of their receipts, by table entry; the ledger's only.
    """

    connector: str
    topic: str
    partition: int
    first: Instance | None
    last: Instance | None
    steps: dict[str, int]
    messages: int
    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class LogVerified:
    """One log that was read, from offset `begin` to `end`."""

    connector: str
    topic: str
    partition: int
    begin: int
    end: int
    instances: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a look at the whole history found.

    :param unjudged: contradictions whose first instance was compacted away meanwhile: the
        history is not complete there, so nothing is said.
    """

    source: Source
    logs: tuple[LogVerified, ...]
    partitions: tuple[PartitionVerified, ...]
    anomalies: tuple[Anomaly, ...]
    unjudged: tuple[Anomaly, ...]


@dataclass(slots=True)
class _ConnectorCheck:
    """One connector: its history and its judge, None while its log cannot be opened.

    :param unconfirmed: what the judge found, and what compaction may still explain.
    """

    connector: str
    history: History | None = None
    judge: Judge | None = None
    instances: int = 0
    unconfirmed: list[Anomaly] = field(default_factory=list)
    retry_at: float = 0.0
    ask_end_at: float = 0.0
    missed: bool = False

    @property
    def lag(self) -> int:
        """Messages of its log that were not read yet, as last asked for; 0 without a log."""
        tail = self.history and self.history.tail
        return max(0, tail.stable_end - tail.position) if tail else 0


@dataclass(slots=True)
class Totals:
    """Counters for as long as the verifier runs."""

    anomalies: dict[tuple[AnomalyKind, str, TopicPartition], int] = field(default_factory=dict)
    unjudged: int = 0

    def count(self, anomaly: Anomaly) -> None:
        """Count an anomaly."""
        key = (anomaly.kind, anomaly.connector, anomaly.source)
        self.anomalies[key] = self.anomalies.get(key, 0) + 1


class Verifier:
    """Verifies all connectors of a configuration. One thread uses it; counters may be read
    from others.

    :param since_ms: only what was written since then; the first record of each partition is taken
        as it is.
    """

    def __init__(
        self, configuration: Configuration, source: Source, since_ms: int | None = None
    ) -> None:
        self.source: Source = source
        self._since_ms = since_ms
        self.totals = Totals()
        self.unjudged: list[Anomaly] = []
        self._configuration = configuration
        self._checks = [_ConnectorCheck(connector.name) for connector in configuration.connectors]

    # Looking once

    def look(self, pace: Pace | None = None) -> list[Anomaly]:
        """Judge everything up to the stable ends as they are now; the next look goes on from there.

        :param pace: it may end before; then `lags` says what is left.
        :raises SluiceError: a log cannot be read; then the verifier is of no use any more.
        """
        pace = pace or Pace()
        for check in self._checks:
            self._renew(check)
        found: list[Anomaly] = []
        while not pace.is_over and any(check.lag for check in self._checks):
            for check in self._checks:
                if check.lag:
                    found += self._read(check)
            pace.rest()
        return sorted(found, key=lambda anomaly: anomaly.after.at_ms)

    def report(self, anomalies: list[Anomaly]) -> VerifyReport:
        """What was read and found so far."""
        return VerifyReport(
            source=self.source,
            logs=tuple(
                LogVerified(
                    check.connector,
                    history.tail.topic,
                    history.tail.partition,
                    history.tail.log_begin,
                    history.tail.position,
                    check.instances,
                )
                for check in self._checks
                if (history := check.history) is not None
            ),
            partitions=tuple(
                _verified(connector, source, chain)
                for check in self._checks
                if check.judge is not None and check.history is not None
                for (connector, source), chain in sorted(check.judge.chains.items())
                if source.topic != check.history.tail.topic  # what was no entry at all
            ),
            anomalies=tuple(anomalies),
            unjudged=tuple(self.unjudged),
        )

    # Following

    def follow(self, stop: threading.Event) -> Iterator[Anomaly]:
        """Judge for ever: gives each anomaly as it comes, until stopped.

        What does not answer is asked again.

        :raises TerminalError: a log cannot be read for good.
        """
        caught_up = False
        while not stop.is_set():
            for check in self._checks:
                yield from self._attend(check)
            if not caught_up and all(check.history and not check.lag for check in self._checks):
                caught_up = True
                instances = sum(check.instances for check in self._checks)
                _logger.info("caught up", extra={"instances": instances})
            now = time.monotonic()
            if not any(check.lag and now >= check.retry_at for check in self._checks):
                stop.wait(_POLL_SECONDS)

    def _attend(self, check: _ConnectorCheck) -> Iterator[Anomaly]:
        """Read a little of a connector's log; trouble is logged, and waits."""
        now = time.monotonic()
        if now < check.retry_at:
            return
        try:
            if now >= check.ask_end_at:
                self._renew(check)
                check.ask_end_at = now + _ASK_END_SECONDS
            yield from self._read(check)
        except TransientError as error:
            check.retry_at = time.monotonic() + _RETRY_SECONDS
            _logger.warning("connector %s: %s", check.connector, error)

    # Both

    def _renew(self, check: _ConnectorCheck) -> None:
        """Ask how far a connector's log goes now; it is opened first where that was not done."""
        if check.history is None:
            self._open(check)
        else:
            check.history.tail.ask_end()

    def _open(self, check: _ConnectorCheck) -> None:
        configuration = self._configuration
        access = kafka_access(configuration, check.connector)
        if self.source == "ledger":
            topic = configuration.ledger_topic
            check.history = open_ledger(access, topic, self._since_ms)
        else:
            topic, group = OFFSETS_TOPIC, configuration.group(check.connector)
            check.history = open_offsets(access, group, self._since_ms)
        if check.history is None:
            if not check.missed:
                _logger.warning(
                    "connector %s: there is no topic %s yet, so there is nothing to verify",
                    check.connector,
                    topic,
                )
            check.missed = True
            return
        check.judge = Judge(
            self._tables_of,
            has_receipts=self.source == "ledger",
            complete=check.history.complete,
        )

    def _read(self, check: _ConnectorCheck) -> Iterator[Anomaly]:
        """Judge what comes next of a connector's log: gives the anomalies that are certain. Those
        that cannot be confirmed now are tried again."""
        if check.history is None:
            return
        assert check.judge is not None
        for event in check.history.poll(_POLL_SECONDS):
            check.instances += isinstance(event, Instance | Forgotten)
            check.unconfirmed += check.judge.take(event)
        while check.unconfirmed:
            anomaly = check.unconfirmed[0]
            certain = _is_certain(check.history, anomaly)
            check.unconfirmed.pop(0)
            if certain:
                self.totals.count(anomaly)
                yield anomaly
            else:
                self.totals.unjudged += 1
                self.unjudged = [*self.unjudged, anomaly][-1000:]

    def _tables_of(self, connector: str, topic: str) -> tuple[str, ...]:
        return tuple(table.name for table in self._configuration.tables_of(topic))

    # For metrics

    def instances(self) -> dict[str, int]:
        """Instances read so far, by connector."""
        return {check.connector: check.instances for check in self._checks}

    def lags(self) -> dict[str, int]:
        """Messages of each connector's log that were not read yet, as last asked for."""
        return {check.connector: check.lag for check in self._checks if check.history is not None}

    def close(self) -> None:
        """Close the clients."""
        for check in self._checks:
            if check.history is not None:
                check.history.close()


def verify(configuration: Configuration, source: Source) -> VerifyReport:
    """Judge the whole history once.

    :raises SluiceError: a log cannot be read.
    """
    with closing(Verifier(configuration, source)) as verifier:
        return verifier.report(verifier.look())


def follow(verifier: Verifier, stop: threading.Event, report: Callable[[Anomaly], None]) -> int:
    """Judge until stopped; gives the number of anomalies.

    :raises TerminalError: a log cannot be read for good.
    """
    count = 0
    with closing(verifier):
        for anomaly in verifier.follow(stop):
            report(anomaly)
            count += 1
    return count


def _is_certain(history: History, anomaly: Anomaly) -> bool:
    """Whether nothing between the two instances can have been compacted away."""
    if anomaly.before is None or anomaly.after.record is None:
        return True
    return history.still_holds(anomaly.before.place)


def _verified(connector: str, source: TopicPartition, chain: Chain) -> PartitionVerified:
    return PartitionVerified(
        connector,
        source.topic,
        source.partition,
        chain.begun,
        chain.last,
        dict(chain.steps),
        chain.messages,
        dict(chain.rows),
    )
