"""What an audit makes of dead letters of another log of the name, of before a rewind, and of those
that stand behind an open transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record, encode
from sluice.core.topics import NO_TOPIC_ID
from sluice.kafka.errors import StalledError
from sluice.kafka.log import SourceLog
from sluice.verify.audit import audit
from tests.support.kafka import Kafka, numbered
from tests.verify.test_audit import Scene, only, sums


@pytest.fixture
def scene(tmp_path: Path, kafka: Kafka, server: Server, database: str) -> Iterator[Scene]:
    yield Scene(tmp_path, kafka, server, database)


def record(
    scene: Scene, topic: str, begin: int, topic_id: str, generation: int = 0, why: str = ""
) -> None:
    """The ledger says that everything below is settled."""
    said = Record(Kind.SETTLE, 1, 0, begin, begin, "run-1", generation, topic_id, "text", 0, 0)
    scene.record(topic, begin, why=why, metadata=encode(said))


def rewind(scene: Scene, topic: str, to: int, end: int) -> None:
    """The ledger says that what was settled was loaded again up to the end."""
    identity = SourceLog(scene.kafka.admin).topics([topic])[topic][0]
    record(scene, topic, to, identity, 1, f"rewind --to {to}")
    record(scene, topic, end, identity, 1)


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


def test_a_topic_that_has_come_to_an_id_is_the_same_topic(scene: Scene) -> None:
    """Before, such dead letters were of another topic, and what was lost below the new id was
    given up."""
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    scene.load(topic, [o for o in range(10) if o not in (1, 2, 5, 6)])
    scene.settle(topic, 0)
    record(scene, topic, 0, NO_TOPIC_ID)
    record(scene, topic, 4, NO_TOPIC_ID)
    scene.dead_letter(topic, 1, topic_id=NO_TOPIC_ID, generation=0)
    scene.settle(topic, 10, start=4)
    # It has no id in the records yet, and the brokers know one.
    report = audit(scene.configuration(topic))
    assert only(report).missing_at == [(2, 3), (5, 7)]
    identity = SourceLog(scene.kafka.admin).topics([topic])[topic][0]
    record(scene, topic, 10, identity)
    scene.dead_letter(topic, 5, topic_id=identity, generation=0)
    report = audit(scene.configuration(topic))
    assert sums(report) == (10, 6, 2, 0, 2, 0, 0)
    assert only(report).missing_at == [(2, 3), (6, 7)]


def test_dead_letters_behind_an_open_transaction_are_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The settle of their messages is seen already. Before, these were missing, until another
    driver's transaction had ended. One that stays open is told of: nobody knew what an audit
    waited for."""
    scene.create()
    topic, dead_letters = scene.kafka.topic(), f"sluice.{scene.name}.dead-letters"
    scene.kafka.produce(topic, numbered(4))
    scene.load(topic, [0, 2, 3])
    scene.append(dead_letters, [])
    other = scene.kafka.open_transaction(dead_letters, [b"of another driver"])
    scene.dead_letter(topic, 1)
    scene.settle(topic, 4)
    begin = scene.kafka.stable_end(dead_letters)
    with monkeypatch.context() as patched, caplog.at_level("WARNING", "sluice.kafka"):
        patched.setattr("sluice.verify.audit_source.OPEN_SECONDS", 1.5)
        with pytest.raises(StalledError) as stalled:
            audit(scene.configuration(topic))
    where = f"{dead_letters}[0]"
    assert f"{where} cannot be read beyond offset {begin}: a transaction" in str(stalled.value)
    assert "describe-producers" in stalled.value.hint
    assert [text for text in caplog.messages if "is open" in text] == [
        f"{where}: a transaction of another producer is open from offset {begin} on; it is waited "
        "for, for 2 s at most"
    ]
    waits, ending = (
        SourceLog.wait_until_committed,
        threading.Timer(1.0, other.abort_transaction, [30]),
    )

    def wait(log: SourceLog, sources: Iterable[TopicPartition], seconds: float) -> None:
        """The other driver ends after it is waited for."""
        ending.start()
        waits(log, sources, seconds)

    monkeypatch.setattr(SourceLog, "wait_until_committed", wait)
    assert sums(audit(scene.configuration(topic))) == (4, 3, 1, 0, 0, 0, 0)
    ending.join()
