"""A consumer group with its topics, as recorders of one connector share it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from sluice.core.ledger import Background, Commit, CommittedOffset, record_entry
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.core.records import Kind, Record
from sluice.core.transaction_size import TransactionSize
from sluice.kafka.recorder import Recorder, RecorderNames
from tests.support.kafka import Kafka

#: Later than any machine's clock, as what some tests ask for by the time of today needs it: 2100.
NOW = 4_102_444_800_000

SETTLED = Record(
    kind=Kind.SETTLE,
    batch=1,
    attempt=0,
    begin=0,
    end=0,
    owner="",
    generation=0,
    topic_id="abcdefghijk",
    spec="0123456789abcdef",
    reservation=0,
    deadline_ms=0,
)


class Group:
    """One group on one topic.

    :param partitions: of the source topic.
    """

    def __init__(
        self, kafka: Kafka, partitions: int = 1, dead_letters_max: int = 1_000_000
    ) -> None:
        self.kafka = kafka
        self.pipeline = f"test-{uuid.uuid4().hex[:8]}"
        self.name = f"sluice.{self.pipeline}.dc1"
        self.topic = kafka.topic(partitions)
        self.ledger = kafka.own_topic()
        self.dead_letters = kafka.topic(max_message_bytes=str(dead_letters_max))
        self.dead_letters_max = dead_letters_max
        self.sources = [TopicPartition(self.topic, number) for number in range(partitions)]
        self._recorders: list[Recorder] = []
        self._reader: Recorder | None = None

    def recorder(
        self,
        owner: str,
        timeout_ms: int = 60_000,
        *,
        is_shared: bool = False,
        size: TransactionSize | None = None,
    ) -> Recorder:
        """A driver's recorder."""
        names = RecorderNames(
            group=self.name,
            ledger_topic=self.ledger,
            dead_letter_topic=self.dead_letters,
            owner=owner,
            dead_letter_bytes_max=self.dead_letters_max,
            transaction_timeout_ms=timeout_ms,
            is_shared=is_shared,
            size=size or TransactionSize(),
        )
        recorder = Recorder(self.kafka.access(), names, now_ms=lambda: NOW)
        self._recorders.append(recorder)
        return recorder

    def owning(self, owner: str, timeout_ms: int = 60_000, **more: Any) -> Recorder:
        """A recorder that has taken everything over; each partition is settled where it was."""
        recorder = self.recorder(owner, timeout_ms, **more)
        taken = recorder.take_over(self.sources)
        recorder.finish_take_over(taken, self.first(recorder))
        return recorder

    def first(self, recorder: Recorder) -> Commit:
        """The first records of a new owner."""
        return self.commit(replace(SETTLED, owner=recorder.names.owner))

    def commit(self, record: Record, *dead_letters: DeadLetter) -> Commit:
        """The same record for every partition, with its ledger entries."""
        return Commit(
            dict.fromkeys(self.sources, record),
            tuple(record_entry(source, record, Background()) for source in self.sources),
            dead_letters,
        )

    def committed(self, partition: int = 0) -> CommittedOffset | None:
        """What the group holds, stably."""
        self._reader = self._reader or self.recorder("reader")
        source = self.sources[partition]
        return self._reader.committed([source])[source]

    def holds(self, record: Record) -> bool:
        """Whether the group holds this record."""
        return self.committed() == CommittedOffset.of(record)

    def ledger_kinds(self) -> list[tuple[str, str]]:
        """Owner and kind of the ledger's committed records, in order."""
        import json

        bodies = [json.loads(message.value()) for message in self.kafka.read(self.ledger)]
        return [(body["owner"], body["kind"]) for body in bodies if body["type"] == "record"]

    def close(self) -> None:
        """Close the clients."""
        for recorder in self._recorders:
            recorder.close()


def intend(owner: str, begin: int, end: int, **changes: object) -> Record:
    """An intent of an owner."""
    made = replace(
        SETTLED,
        kind=Kind.INTEND,
        owner=owner,
        begin=begin,
        end=end,
        attempt=1,
        reservation=1,
        deadline_ms=NOW + 600_000,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def letter(offset: int = 3, value: bytes | None = b"{", **changes: object) -> DeadLetter:
    """A dead letter."""
    made = DeadLetter(
        topic="events",
        partition=0,
        offset=offset,
        timestamp_ms=NOW,
        key=b"key",
        value=value,
        headers=(("trace", b"t"), ("empty", None)),
        reason="syntax",
        error="not an object",
        table="orders",
        column="id",
    )
    return made._replace(**changes)  # type: ignore[arg-type]
