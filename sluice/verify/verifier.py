"""The runtime verifier: reads what was committed and says where it cannot be right.

It shares nothing with the loader but the format of its records: what it reads is what Kafka
keeps, from one of two sources (`sluice.verify.history`), and the judgement is pure
(`sluice.core.anomalies`, which also says how gaps are found). It writes nothing, fences
nobody and joins no group, so it may run beside the pipeline for as long as one likes.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from sluice.config import Configuration
from sluice.core.anomalies import Anomaly, AnomalyKind, Chain, Event, Forgotten, Instance, Judge
from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition
from sluice.driver.specs import kafka_access
from sluice.kafka.offsets_topic import OFFSETS_TOPIC
from sluice.verify.history import History, open_ledger, open_offsets
from sluice.verify.pace import Pace

#: How much later than its timestamp an event of another log may become readable, their clocks'
#: difference included. An event that comes later still is judged all the same, since a chain
#: lies within one log; only the order of what is printed suffers.
SKEW_ALLOWANCE_MS = 10_000


class Merge:
    """Puts the histories of any number of logs, which are known by number, into one order of time.

    A min-heap by commit timestamp, as in the article. Within one log the log's own order counts,
    whatever its timestamps say: a clock that was set back cannot turn a history round. Between
    logs an event is given out once every other log has been read up to its time. A log that has
    nothing new is waited for no longer than the skew allowance.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Event]] = []
        self._last_ms: dict[int, int] = {}
        self._count = 0

    def push(self, log: int, event: Event) -> None:
        """Add the next event of a log."""
        at_ms = max(event.at_ms, self._last_ms.get(log, event.at_ms))
        self._last_ms[log] = at_ms
        self._count += 1
        heapq.heappush(self._heap, (at_ms, log, self._count, event))

    def last_ms(self, log: int) -> int:
        """The time that a log was read up to; 0 before its first event."""
        return self._last_ms.get(log, 0)

    def ready(self, read_up_to_ms: Mapping[int, float]) -> Iterator[Event]:
        """The events that may be given out, oldest first.

        :param read_up_to_ms: for each log, the time before which nothing of it is to come.
        """
        while self._heap:
            at_ms, log, _, event = self._heap[0]
            if any(until < at_ms for other, until in read_up_to_ms.items() if other != log):
                return
            heapq.heappop(self._heap)
            yield event

    def __len__(self) -> int:
        return len(self._heap)


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
    """One connector: its history and its judge, None while its log cannot be opened."""

    connector: str
    history: History | None = None
    judge: Judge | None = None
    instances: int = 0
    retry_at: float = 0.0
    ask_end_at: float = 0.0
    waiting: bool = False
    missed: bool = False


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
        self._merge = Merge()
        self._unconfirmed: list[Anomaly] = []

    # Looking once

    def look(self, pace: Pace | None = None) -> list[Anomaly]:
        """Judge everything up to the stable ends as they are now; the next look goes on from there.

        :param pace: it may end before; then `lags` says what is left.
        :raises SluiceError: a log cannot be read; then the verifier is of no use any more.
        """
        pace = pace or Pace()
        for check in self._checks:
            if check.history is None:
                self._open(check)
            else:
                check.history.tail.ask_end()
        found: list[Anomaly] = []
        while not pace.is_over and any(self.lags().values()):
            for check in self._checks:
                if check.history is not None and not check.history.tail.caught_up:
                    self._poll(check)
            found += self._judge_ready(following=False)
            pace.rest()
        return found + self._judge_ready(following=False)

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
                self._attend(check)
            try:
                yield from self._judge_ready(following=True)
            except TransientError as error:
                _logger.warning("%s", error)
            if not caught_up and all(check.waiting and check.history for check in self._checks):
                caught_up = True
                instances = sum(check.instances for check in self._checks)
                _logger.info("caught up", extra={"instances": instances})
            if all(check.waiting for check in self._checks):
                stop.wait(_POLL_SECONDS)

    def _attend(self, check: _ConnectorCheck) -> None:
        """Read a little of a connector's log; trouble is logged, and waits."""
        now = time.monotonic()
        if now < check.retry_at:
            return
        try:
            if check.history is None:
                self._open(check)
            if check.history is None:
                check.waiting, check.retry_at = True, now + _RETRY_SECONDS
                return
            if now >= check.ask_end_at:
                check.history.tail.ask_end()
                check.ask_end_at = now + _ASK_END_SECONDS
            read = self._poll(check)
            check.waiting = check.history.tail.caught_up and not read
        except TransientError as error:
            check.waiting, check.retry_at = True, time.monotonic() + _RETRY_SECONDS
            _logger.warning("connector %s: %s", check.connector, error)

    # Both

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

    def _poll(self, check: _ConnectorCheck) -> int:
        assert check.history is not None
        number = self._checks.index(check)
        events = check.history.poll(_POLL_SECONDS)
        for event in events:
            check.instances += isinstance(event, Instance | Forgotten)
            self._merge.push(number, event)
        return len(events)

    def _judge_ready(self, *, following: bool) -> list[Anomaly]:
        """Anomalies that are certain. Those that cannot be confirmed now are tried again."""
        for event in self._merge.ready(self._read_up_to(following=following)):
            self._unconfirmed += self._judged(event)
        found: list[Anomaly] = []
        while self._unconfirmed:
            anomaly = self._unconfirmed[0]
            certain = self._is_certain(anomaly)
            self._unconfirmed.pop(0)
            if certain:
                self.totals.count(anomaly)
                found.append(anomaly)
            else:
                self.totals.unjudged += 1
                self.unjudged = [*self.unjudged, anomaly][-1000:]
        return found

    def _judged(self, event: Event) -> list[Anomaly]:
        judge = self._check_of(event.connector).judge
        assert judge is not None
        return judge.take(event)

    def _is_certain(self, anomaly: Anomaly) -> bool:
        """Whether nothing between the two instances can have been compacted away."""
        if anomaly.before is None or anomaly.after.record is None:
            return True
        history = self._check_of(anomaly.connector).history
        assert history is not None
        return history.still_holds(anomaly.before.place)

    def _read_up_to(self, *, following: bool) -> dict[int, float]:
        """For each log, the time before which nothing of it is to come."""
        skew_end_ms = time.time() * 1000 - SKEW_ALLOWANCE_MS
        bounds: dict[int, float] = {}
        for number, check in enumerate(self._checks):
            bounds[number] = self._merge.last_ms(number)
            if following and check.waiting:
                bounds[number] = max(bounds[number], skew_end_ms)
            elif not following and (check.history is None or check.history.tail.caught_up):
                bounds[number] = float("inf")
        return bounds

    def _check_of(self, connector: str) -> _ConnectorCheck:
        return next(check for check in self._checks if check.connector == connector)

    def _tables_of(self, connector: str, topic: str) -> tuple[str, ...]:
        return tuple(table.name for table in self._configuration.tables_of(topic))

    # For metrics

    def instances(self) -> dict[str, int]:
        """Instances read so far, by connector."""
        return {check.connector: check.instances for check in self._checks}

    def lags(self) -> dict[str, int]:
        """Messages of each connector's log that were not read yet, as last asked for."""
        return {
            check.connector: max(0, check.history.tail.stable_end - check.history.tail.position)
            for check in self._checks
            if check.history is not None
        }

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
