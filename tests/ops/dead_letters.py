"""A pipeline with dead letters, on a real broker, for the tests about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from sluice.kafka.dead_letters import read_dead_letters, wrap
from sluice.ops.dead_letters import (
    DeadLetterSelection,
    find,
)
from sluice.ops.dead_letters_replaying import ReplayReport, plan_replay, replay
from tests.kafka.groups import NOW, letter
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka

ALL = DeadLetterSelection()


class DeadLetters(Pipeline):
    """A pipeline with dead letters of its topic's messages."""

    def write(self, *offsets: int, **changes: object) -> None:
        """Dead letters of these messages of partition 0."""
        producer = ck.Producer(
            {"bootstrap.servers": self.kafka.brokers, "enable.idempotence": True}
        )
        for offset in offsets:
            made = letter(
                offset,
                value=b"%d" % offset,
                attempted_at_ms=NOW + offset,
                connector=f"{self.pipeline}.dc1",
                topic=self.topic,
            )
            changed = made._replace(**changes)  # type: ignore[arg-type]
            wrapped = wrap(self.dead_letters, changed, self.dead_letters_max)
            producer.produce(
                wrapped.topic,
                value=wrapped.value,
                key=wrapped.key,
                headers=wrapped.headers,
                partition=0,
            )
        assert producer.flush(30) == 0

    def replay(
        self, selection: DeadLetterSelection = ALL, limit: int | None = None
    ) -> ReplayReport:
        """Plan and carry out."""
        return replay(self.configuration, plan_replay(self.configuration, selection, limit))

    def written(self) -> list[ck.Message]:
        """Committed messages of the source topic."""
        return self.kafka.read(self.topic)

    def audited(self) -> list[int]:
        """Offsets that an audit counts as dead letters."""
        return sorted(
            each.offset for each in read_dead_letters(self.kafka.access(), self.dead_letters)
        )


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[DeadLetters]:
    made = DeadLetters(kafka, tmp_path)
    yield made
    made.close()


def offsets_of(pipeline: DeadLetters, selection: DeadLetterSelection) -> list[int]:
    return [found.letter.offset for found in find(pipeline.configuration, selection)]


# Finding
