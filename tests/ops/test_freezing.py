"""Freezing and resuming on a real broker: what is written, what a driver hears, what is shown."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.errors import ConfigurationError
from sluice.core.freezes import FREEZE, Frozen, Subject, after, decision_entry
from sluice.core.ledger import encode_entry
from sluice.driver.freezing import FreezeWatch
from sluice.driver.ports import FreezesRead
from sluice.kafka.errors import KafkaTerminalError
from sluice.kafka.tail import LogMessage
from sluice.ops.deciding import DecisionRefusedError
from sluice.ops.freezing import freeze, read_frozen, resume
from sluice.ops.ledger_view import LedgerSelection, read_ledger
from sluice.ops.status import read_status
from sluice.verify.history import Place, ledger_events
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka

TABLE = Subject("table", "orders")


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(kafka, tmp_path)
    yield made
    made.close()


def test_a_freeze_is_in_the_ledger_and_whoever_runs_hears_of_it(pipeline: Pipeline) -> None:
    configuration, kafka = pipeline.configuration, pipeline.kafka
    assert read_frozen(configuration, "dc1") == ()
    said = {"by": "alice", "why": "a disk is changed"}
    (line,) = freeze(configuration, connector="", table="orders", **said)
    assert "table orders is frozen by alice since 20" in line and line.endswith("a disk is changed")
    heard: queue.SimpleQueue[FreezesRead] = queue.SimpleQueue()
    watch = FreezeWatch(kafka.access(), configuration.decisions_topic, heard.put)
    standing = watch.start()
    try:
        assert [each.subject for each in standing] == [TABLE]
        freeze(configuration, connector="dc1", table="", by="bob", why="a broker moves")
        subjects = [each.subject for each in heard.get(timeout=30).standing]
        assert subjects == [TABLE, Subject("connector")]
        with pytest.raises(DecisionRefusedError, match="the pipeline is not frozen") as refused:
            resume(configuration, connector="", table="", **said)
        assert "table orders of connector dc1, the connector of connector dc1" in refused.value.hint
        (left,) = resume(configuration, connector="", table="orders", by="bob", why="it is done")
        assert "the connector is frozen by bob" in left
        assert [each.by for each in heard.get(timeout=30).standing] == ["bob"]
    finally:
        watch.stop()
    (status,) = read_status(configuration)
    assert len(status.frozen) == 1 and "by bob" in status.frozen[0]
    for offset, message in enumerate(pipeline.kafka.read(pipeline.ledger)):
        found = LogMessage(offset, 0, message.key(), message.value())
        assert ledger_events("dc1", Place(pipeline.ledger, 0, offset), found) == []
    entries = [
        (entry["type"], entry["what"], entry["table"], entry["by"], entry["why"])
        for entry in read_ledger(configuration, LedgerSelection(table="orders"))
    ]
    assert entries == [
        ("freeze", "table", "orders", "alice", "a disk is changed"),
        ("freeze", "connector", "", "bob", "a broker moves"),
        ("resume", "table", "orders", "bob", "it is done"),
    ]


def test_what_is_refused_writes_nothing(pipeline: Pipeline) -> None:
    configuration = pipeline.configuration
    said = {"by": "alice", "why": "because"}
    for named in ({"connector": "dc9", "table": ""}, {"connector": "", "table": "nobody"}):
        with pytest.raises(ConfigurationError, match="named"):
            freeze(configuration, **named, **said)
    for by, why in (("", "x"), ("a\nb", "x"), ("a", "x" * 501)):
        with pytest.raises(DecisionRefusedError, match="is refused: the "):
            freeze(configuration, connector="", table="", by=by, why=why)
    assert read_frozen(configuration, "dc1") == ()


def test_what_is_no_decision_is_told_with_its_place(pipeline: Pipeline) -> None:
    topic = pipeline.configuration.decisions_topic
    freeze(pipeline.configuration, connector="", table="", by="alice", why="because")
    pipeline.kafka.produce(topic, [b"{"])
    with pytest.raises(KafkaTerminalError, match="at offset 2 that is no decision"):
        read_frozen(pipeline.configuration, "dc1")


def test_decisions_of_other_connectors_and_hostile_texts() -> None:
    entry = decision_entry(FREEZE, TABLE, "a\x1b[31m", "line\nbreak" + "x" * 900)
    body = {"connector": "dc1", "at_ms": 7, **entry.body}
    (frozen,) = after((), body)
    assert frozen == Frozen(TABLE, "a [31m", ("line break" + "x" * 900)[:500], 7)
    assert after((frozen,), body | {"at_ms": 8}) == (Frozen(TABLE, frozen.by, frozen.why, 8),)
    assert after((frozen,), body | {"type": "resume"}) == ()
    assert after((frozen,), {"type": "receipt"}) == (frozen,)
    with pytest.raises(ValueError, match="cannot be frozen"):
        after((), body | {"what": "world"})
    assert encode_entry("dc1", 7, entry)[0] == b"dc1"
