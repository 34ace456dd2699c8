"""What an audit makes of dead letters of another log of the name, and of before a rewind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.records import Kind, Record, encode
from sluice.kafka.log import SourceLog
from sluice.verify.audit import audit
from tests.support.kafka import Kafka, numbered
from tests.verify.test_audit import Scene, only, sums


@pytest.fixture
def scene(tmp_path: Path, kafka: Kafka, server: Server, database: str) -> Iterator[Scene]:
    yield Scene(tmp_path, kafka, server, database)


def rewind(scene: Scene, topic: str, to: int, end: int) -> None:
    """The ledger says that what was settled was loaded again up to the end."""
    identity = SourceLog(scene.kafka.admin).topics([topic])[topic][0]
    for begin, generation, why in ((to, 1, f"rewind --to {to}"), (end, 1, "")):
        record = Record(
            Kind.SETTLE, 1, 0, begin, begin, "run-1", generation, identity, "text", 0, 0
        )
        scene.record(topic, begin, why=why, metadata=encode(record))


def test_dead_letters_of_another_log_or_generation_are_none_of_these_messages(scene: Scene) -> None:
    """One is lost and one there, of each kind: before, they were a dead letter and doubled."""
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    scene.load(topic, [o for o in range(10) if o not in (1, 5)])
    scene.settle(topic, 10)
    rewind(scene, topic, 4, 10)
    identity = SourceLog(scene.kafka.admin).topics([topic])[topic][0]
    for offset in (1, 2):
        scene.dead_letter(topic, offset, topic_id="another", generation=0)
    for offset in (5, 6):
        scene.dead_letter(topic, offset, topic_id=identity, generation=0)
    report = audit(scene.configuration(topic))
    assert sums(report) == (10, 8, 0, 0, 2, 0, 0)
    assert only(report).missing_at == [(1, 2), (5, 6)]
    scene.dead_letter(topic, 5, topic_id=identity, generation=1)
    scene.dead_letter(topic, 1, topic_id=identity, generation=0)
    assert sums(audit(scene.configuration(topic))) == (10, 8, 2, 0, 0, 0, 0)
