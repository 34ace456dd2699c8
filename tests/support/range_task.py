"""One range of a topic, sent to a worker by hand."""

from __future__ import annotations

import queue
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from sluice.config import Configuration
from sluice.core.ledger import Background, Rest, Stored
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import Range, TopicPartition, digest_of_rest
from sluice.core.receipts import TaskReport
from sluice.core.records import Kind, Record
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber
from sluice.driver.specs import access_of, kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.log import SourceLog
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.loading import load_bundle


def time_ms() -> int:
    return time.time_ns() // 1_000_000


def topic_id_of(configuration: Configuration, topic: str) -> str:
    """The short id of a topic."""
    log = SourceLog(make_admin(kafka_access(configuration, "dc1")))
    return log.topics([topic])[topic][0]


@dataclass
class Task:
    """One range of partition 0, sent by hand."""

    configuration: Configuration
    topic: str
    end: int
    spec: LoadSpec
    #: When its range was first intended.
    since_ms: int = field(default_factory=time_ms)
    generation: int = 0

    @property
    def block_range(self) -> Range:
        return Range(TopicPartition(self.topic, 0), 0, self.end)

    @cached_property
    def topic_id(self) -> str:
        """As the broker says it."""
        return topic_id_of(self.configuration, self.topic)

    def record(self, reservation: int = 1, rest: Rest | None = None) -> Record:
        digest, deadline_ms = self.spec.digest(), time_ms() + 60_000
        record = Record(
            Kind.INTEND,
            1,
            1,
            0,
            self.end,
            "a",
            self.generation,
            self.topic_id,
            digest,
            reservation,
            deadline_ms,
        )
        if rest is None:
            return record
        return replace(record, kind=Kind.PROBE, attempt=2, rest=digest_of_rest(rest))

    def load(
        self,
        reservation: int = 1,
        rest: Rest | None = None,
        *,
        is_first: bool = False,
        stored: Stored | None = None,
    ) -> TaskReport:
        configuration = self.configuration
        environment = TaskEnvironment(
            pipeline=configuration.pipeline,
            kafka=kafka_access(configuration, "dc1"),
            clickhouse=access_of(configuration),
            specs={self.spec.digest(): self.spec.canonical()},
        )
        record = self.record(reservation, rest)
        if stored:
            record = replace(record, rest=digest_of_rest(rest or {}, stored=stored))
        assignment = Assignment(
            self.block_range,
            record,
            Background(rest=rest or {}, bytes_max=1 << 26, stored=stored or {}),
            time_ms(),
            is_first=is_first,
        )
        (report,) = load_bundle(environment, [assignment], 0)
        return report

    def probe(self, in_parts: Collection[str] = ()) -> ProbeFound:
        """As when the lease is over.

        :param in_parts: see `ports.Prober`.
        """
        configuration = self.configuration
        found: queue.SimpleQueue[ProbeEnded] = queue.SimpleQueue()
        prober = ClickHouseProber(
            access_of(configuration), configuration.pipeline, kafka_access(configuration, "dc1")
        )
        try:
            record = replace(self.record(), deadline_ms=0)
            sought = Sought(self.block_range, record, in_parts=in_parts)
            prober.submit([sought], self.spec, self.since_ms, found.put)
            return found.get(timeout=60).found[0]
        finally:
            prober.close()
