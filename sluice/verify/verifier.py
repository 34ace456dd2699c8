"""The runtime verifier: reads what was committed and says where it cannot be right.

It shares nothing with the loader but the format of its records: what it reads is what Kafka
keeps, from one of two sources (`sluice.verify.history`), and the judgement is pure
(`sluice.core.anomalies`, which also says how gaps are found). It writes nothing, fences
nobody and joins no group, so it may run beside the pipeline for as long as one likes.
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
from sluice.core.anomalies import Anomaly, AnomalyKind, Chain, Judge
from sluice.core.errors import TransientError
from sluice.core.instances import Event, Forgotten, Instance
from sluice.core.ranges import TopicPartition
from sluice.driver.specs import kafka_access
from sluice.kafka.offsets_topic import OFFSETS_TOPIC
from sluice.verify.history import History, open_ledger, open_offsets
from sluice.verify.merging import SKEW_ALLOWANCE_MS, Merge

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
class _Lane:
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
    from others."""

    def __init__(self, configuration: Configuration, source: Source) -> None:
        self.source: Source = source
        self.totals = Totals()
        self.unjudged: list[Anomaly] = []
        self._configuration = configuration
        self._lanes = [_Lane(connector.name) for connector in configuration.connectors]
        self._merge = Merge()
        self._unconfirmed: list[Anomaly] = []

    # Looking once

    def look(self) -> list[Anomaly]:
        """Judge everything up to the stable ends as they are now.

        :raises SluiceError: a log cannot be read.
        """
        for lane in self._lanes:
            self._open(lane)
        found: list[Anomaly] = []
        while any(lane.history and not lane.history.tail.caught_up for lane in self._lanes):
            for lane in self._lanes:
                if lane.history is not None and not lane.history.tail.caught_up:
                    self._poll(lane)
            found += self._judge_ready(following=False)
        return found + self._judge_ready(following=False)

    def report(self, anomalies: list[Anomaly]) -> VerifyReport:
        """What was read and found so far."""
        return VerifyReport(
            source=self.source,
            logs=tuple(
                LogVerified(
                    lane.connector,
                    history.tail.topic,
                    history.tail.partition,
                    history.tail.log_begin,
                    history.tail.position,
                    lane.instances,
                )
                for lane in self._lanes
                if (history := lane.history) is not None
            ),
            partitions=tuple(
                _verified(connector, source, chain)
                for lane in self._lanes
                if lane.judge is not None and lane.history is not None
                for (connector, source), chain in sorted(lane.judge.chains.items())
                if source.topic != lane.history.tail.topic  # what was no entry at all
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
            for lane in self._lanes:
                self._attend(lane)
            try:
                yield from self._judge_ready(following=True)
            except TransientError as error:
                _logger.warning("%s", error)
            if not caught_up and all(lane.waiting and lane.history for lane in self._lanes):
                caught_up = True
                instances = sum(lane.instances for lane in self._lanes)
                _logger.info("caught up", extra={"instances": instances})
            if all(lane.waiting for lane in self._lanes):
                stop.wait(_POLL_SECONDS)

    def _attend(self, lane: _Lane) -> None:
        """Read a little of a lane's log; trouble is logged, and waits."""
        now = time.monotonic()
        if now < lane.retry_at:
            return
        try:
            if lane.history is None:
                self._open(lane)
            if lane.history is None:
                lane.waiting, lane.retry_at = True, now + _RETRY_SECONDS
                return
            if now >= lane.ask_end_at:
                lane.history.tail.ask_end()
                lane.ask_end_at = now + _ASK_END_SECONDS
            read = self._poll(lane)
            lane.waiting = lane.history.tail.caught_up and not read
        except TransientError as error:
            lane.waiting, lane.retry_at = True, time.monotonic() + _RETRY_SECONDS
            _logger.warning("connector %s: %s", lane.connector, error)

    # Both

    def _open(self, lane: _Lane) -> None:
        configuration = self._configuration
        access = kafka_access(configuration, lane.connector)
        if self.source == "ledger":
            topic = configuration.ledger_topic
            lane.history = open_ledger(access, topic)
        else:
            topic = OFFSETS_TOPIC
            lane.history = open_offsets(access, configuration.group(lane.connector))
        if lane.history is None:
            if not lane.missed:
                _logger.warning(
                    "connector %s: there is no topic %s yet, so there is nothing to verify",
                    lane.connector,
                    topic,
                )
            lane.missed = True
            return
        lane.judge = Judge(
            self._tables_of,
            has_receipts=self.source == "ledger",
            complete=lane.history.complete,
        )

    def _poll(self, lane: _Lane) -> int:
        assert lane.history is not None
        number = self._lanes.index(lane)
        events = lane.history.poll(_POLL_SECONDS)
        for event in events:
            lane.instances += isinstance(event, Instance | Forgotten)
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
        judge = self._lane_of(event.connector).judge
        assert judge is not None
        return judge.take(event)

    def _is_certain(self, anomaly: Anomaly) -> bool:
        """Whether nothing between the two instances can have been compacted away."""
        if anomaly.before is None or anomaly.after.record is None:
            return True
        history = self._lane_of(anomaly.connector).history
        assert history is not None
        return history.still_holds(anomaly.before.place)

    def _read_up_to(self, *, following: bool) -> dict[int, float]:
        """For each log, the time before which nothing of it is to come."""
        skew_end_ms = time.time() * 1000 - SKEW_ALLOWANCE_MS
        bounds: dict[int, float] = {}
        for number, lane in enumerate(self._lanes):
            bounds[number] = self._merge.last_ms(number)
            if following and lane.waiting:
                bounds[number] = max(bounds[number], skew_end_ms)
            elif not following and (lane.history is None or lane.history.tail.caught_up):
                bounds[number] = float("inf")
        return bounds

    def _lane_of(self, connector: str) -> _Lane:
        return next(lane for lane in self._lanes if lane.connector == connector)

    def _tables_of(self, connector: str, topic: str) -> tuple[str, ...]:
        return tuple(table.name for table in self._configuration.tables_of(topic))

    # For metrics

    def instances(self) -> dict[str, int]:
        """Instances read so far, by connector."""
        return {lane.connector: lane.instances for lane in self._lanes}

    def lags(self) -> dict[str, int]:
        """Messages of each connector's log that were not read yet, as last asked for."""
        return {
            lane.connector: max(0, lane.history.tail.stable_end - lane.history.tail.position)
            for lane in self._lanes
            if lane.history is not None
        }

    def close(self) -> None:
        """Close the clients."""
        for lane in self._lanes:
            if lane.history is not None:
                lane.history.close()


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
