"""Status on a real broker: what it shows, and that it touches nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sluice.cli.output import json_text
from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.kafka import topics as topics_module
from sluice.kafka.log import TopicMissingError
from sluice.ops import partitions as partitions_module
from sluice.ops.status import IntentStatus, PartitionStatus, read_status
from tests.kafka.groups import intend
from tests.ops.pipelines import Pipeline, settled
from tests.support.kafka import Kafka


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(kafka, tmp_path)
    yield made
    made.close()


def only(configuration: Configuration) -> PartitionStatus:
    (status,) = read_status(configuration)
    return status


def test_nothing_was_ever_recorded(pipeline: Pipeline) -> None:
    pipeline.fill(100)
    pipeline.kafka.delete_records(pipeline.topic, 30)
    assert only(pipeline.configuration) == PartitionStatus(
        "dc1", pipeline.topic, 0, None, None, 100, 70, None, None, ("s1",)
    )


def test_there_is_no_ledger_yet(pipeline: Pipeline) -> None:
    pipeline.kafka.delete_topic(pipeline.ledger)
    assert only(pipeline.configuration).intent is None


def test_settled_and_in_doubt(kafka: Kafka, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka, tmp_path, partitions=2)
    pipeline.fill(100)
    pipeline.drive(settled(40, batch=3))
    pipeline.drive(replace(intend("", 0, 10), batch=9), owner="other", partition=1)
    first, second = read_status(pipeline.configuration)
    assert first.intent == IntentStatus("settle", 40, 40, "settled")
    assert (first.committed, first.stable_end, first.lag) == (40, 100, 60)
    assert (first.batch, first.owner) == (3, "driver")
    assert second.intent == IntentStatus("intend", 0, 10, "in doubt")
    assert (second.committed, second.stable_end, second.lag) == (0, 0, 0)
    assert (second.batch, second.owner) == (9, "other")
    assert list(json.loads(json_text(first))) == [
        "connector",
        "topic",
        "partition",
        "committed",
        "intent",
        "stable_end",
        "lag",
        "batch",
        "owner",
        "shards",
        "frozen",
        "frozen_replicas",
    ]
    assert list(asdict(first)["intent"]) == ["kind", "begin", "end", "state"]
    pipeline.close()


def test_a_foreign_commit(pipeline: Pipeline) -> None:
    pipeline.fill(100)
    pipeline.drive(settled(40))
    pipeline.kafka.commit_as_consumer(pipeline.name, pipeline.topic, 3)
    status = only(pipeline.configuration)
    assert status.committed == 3
    assert status.intent == IntentStatus("settle", 40, 40, "foreign")
    assert (status.lag, status.owner) == (60, "driver")


def test_a_foreign_commit_where_nothing_was_recorded(pipeline: Pipeline) -> None:
    pipeline.fill(100)
    pipeline.kafka.commit_as_consumer(pipeline.name, pipeline.topic, 3, "S1|forged")
    status = only(pipeline.configuration)
    assert status.intent == IntentStatus(None, None, None, "foreign")
    assert (status.committed, status.lag, status.owner) == (3, None, None)


def test_lost_offsets(pipeline: Pipeline) -> None:
    pipeline.fill(100)
    pipeline.drive(intend("", 40, 60))
    pipeline.kafka.admin.delete_consumer_groups([pipeline.name])[pipeline.name].result(20)
    status = only(pipeline.configuration)
    assert status.intent == IntentStatus("intend", 40, 60, "lost")
    assert (status.committed, status.lag) == (None, 60)


def test_an_open_transaction_is_told(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(partitions_module, "OPEN_PATIENCE_SECONDS", 0.3)
    driver = pipeline.drive(settled(0))
    producer = driver.own_producer()
    producer.begin_transaction()
    from sluice.kafka.transactions import _split

    (part,) = _split({pipeline.sources[0]: intend("driver", 0, 10)})
    metadata = driver._reader.consumer_group_metadata()
    producer.send_offsets_to_transaction(part, metadata, 10)
    with caplog.at_level(logging.WARNING):
        status = only(pipeline.configuration)
    assert status.intent == IntentStatus("settle", 0, 0, "open transaction")
    assert f"{pipeline.topic}[0]" in caplog.text and "hangs" in caplog.text
    producer.commit_transaction(10)
    pipeline.kafka.until(
        lambda: only(pipeline.configuration).intent == IntentStatus("intend", 0, 10, "in doubt")
    )


def test_it_fences_nobody_and_writes_nothing(pipeline: Pipeline) -> None:
    driver = pipeline.drive(settled(0))
    pipeline.kafka.until(lambda: pipeline.kafka.stable_end(pipeline.ledger) == 2)
    before = pipeline.kafka.written_end(pipeline.ledger)
    read_status(pipeline.configuration)
    assert pipeline.kafka.written_end(pipeline.ledger) == before
    record = replace(intend("driver", 0, 10), topic_id=pipeline.topic_id)
    driver.record(pipeline.commit(record), {})
    assert pipeline.holds(record)


def test_one_cluster_is_down(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topics_module, "ADMIN_TIMEOUT_SECONDS", 1.0)
    alive = pipeline.configuration.connectors[0]
    dead = replace(alive, name="dc2", brokers="127.0.0.1:1")
    both = replace(pipeline.configuration, connectors=(dead, alive))
    with caplog.at_level(logging.ERROR):
        assert [status.connector for status in read_status(both)] == ["dc1"]
    assert "connector dc2" in caplog.text
    with pytest.raises(SluiceError):
        read_status(replace(both, connectors=(dead,)))


def test_a_missing_topic(pipeline: Pipeline) -> None:
    pipeline.kafka.delete_topic(pipeline.topic)
    with pytest.raises(TopicMissingError):
        read_status(pipeline.configuration)


def test_many_partitions_are_sorted(kafka: Kafka, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka, tmp_path, partitions=12)
    assert [status.partition for status in read_status(pipeline.configuration)] == list(range(12))
    pipeline.close()
