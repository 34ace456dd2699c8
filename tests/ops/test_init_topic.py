"""Looking at a real topic, and the file that comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.config import load
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.ops.init_formats import recognise
from sluice.ops.init_topic import Proposal, Sample, Wanted, propose, spots, take_sample, try_out
from sluice.ops.init_types import columns_of_records
from tests.support.kafka import Kafka, Message

EVENTS: list[Message] = [json.dumps({"id": n, "name": f"n{n}"}).encode() for n in range(200)]


def proposal(kafka: Kafka, topic: str, **more: object) -> Proposal:
    return propose(Wanted(topic, kafka.brokers, **more))  # type: ignore[arg-type]


def test_spots() -> None:
    assert spots(10, 10, 5) == []
    assert spots(10, 25, 5) == [(10, 25)]
    assert spots(0, 1000, 10) == [(0, 10), (495, 505), (990, 1000)]


@pytest.mark.slow
def test_a_sample_comes_from_all_over_the_topic(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, [*EVENTS, None])
    kafka.produce(topic, EVENTS[:1], 1)
    sample = take_sample(kafka.access(), topic, 30)
    seen = [json.loads(value)["id"] for value in sample.values]
    assert seen == [*range(5), *range(98, 103), *range(196, 200), 0]
    assert (sample.partitions, sample.messages, sample.tombstones) == (2, 202, 1)


def test_an_empty_topic_and_one_that_is_not_there(kafka: Kafka) -> None:
    topic = kafka.topic()
    with pytest.raises(TerminalError, match="holds no message"):
        proposal(kafka, topic)
    kafka.produce(topic, [None])
    with pytest.raises(TerminalError, match="only 1 tombstones"):
        proposal(kafka, topic)
    with pytest.raises(ConfigurationError, match="does not exist") as caught:
        proposal(kafka, topic[:-1])
    assert f"Did you mean {topic}?" in caught.value.hint


def test_the_file_loads_and_holds_what_was_said(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.produce(topic, EVENTS)
    said = {"client.rack": "${RACK}"}
    made = proposal(
        kafka,
        topic,
        database="shop",
        table="t" * 60,
        written=said,
        properties={"client.rack": "r1"},
        user="loader",
        password="secret",
    )
    assert "secret" not in made.configuration
    path = tmp_path / "sluice.toml"
    path.write_text(made.configuration)
    read = load(path, {"CLICKHOUSE_PASSWORD": "secret", "RACK": "r1"})
    assert read.connectors[0].brokers == kafka.brokers
    assert read.connectors[0].properties() == {"client.rack": "r1"}
    assert (read.clickhouse.user, read.clickhouse.password.reveal()) == ("loader", "secret")
    assert read.tables[0].target == f"shop.{'t' * 60}"
    assert read.tables[0].topics == (topic,)
    assert f"CREATE TABLE `shop`.`{'t' * 60}`" in made.statement


def test_a_column_that_a_value_does_not_fit_becomes_text(kafka: Kafka) -> None:
    """An array cannot be null: the decoder refuses what the inference let pass."""
    topic = kafka.topic()
    values = [b'{"id":%d,"tags":%s}' % (n, b"[1]" if n % 9 else b"null") for n in range(200)]
    kafka.produce(topic, list(values))
    assert "    tags Nullable(String)" in proposal(kafka, topic).statement


def test_what_would_become_dead_letters_is_told(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [*EVENTS, *[b'{"id":'] * 20])
    with caplog.at_level("INFO", logger="sluice.init"):
        made = proposal(kafka, topic)
    assert "    name String" in made.statement
    assert "20 of the messages would become dead letters: not-one-object" in caplog.text


def test_records_that_may_be_null_become_text_also_with_texts_inside() -> None:
    events = [{"old": None, "new": {"id": 1, "name": "a"}}, {"old": {"name": "a"}, "new": None}]
    values = tuple(json.dumps(event).encode() for event in events * 5)
    found = recognise("t", values)
    sample = Sample("t", values, partitions=1, messages=len(values), tombstones=0)
    _, columns = try_out(sample, found, columns_of_records(found.records))
    types = {column.name: column.type for column in columns}
    assert types == {"old": "Nullable(String)", "new": "Nullable(String)"}


@pytest.mark.parametrize("has_schema", [False, True], ids=["event alone", "in Connect's envelope"])
def test_events_of_debezium_are_loaded_row_by_row(
    kafka: Kafka, caplog: pytest.LogCaptureFixture, has_schema: bool
) -> None:
    events: list[dict[str, object]] = [
        {"before": None, "after": {"id": 1, "name": "a"}, "op": "c", "ts_ms": 1},
        {"before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}, "op": "u", "ts_ms": 2},
        {"before": {"id": 1, "name": None}, "after": None, "op": "d", "ts_ms": 3},
    ]
    wrapped = [{"schema": None, "payload": event} for event in events]
    topic = kafka.topic()
    kafka.produce(topic, [json.dumps(e).encode() for e in (wrapped if has_schema else events)])
    with caplog.at_level("WARNING", logger="sluice.init"):
        made = proposal(kafka, topic)
    assert 'envelope = "debezium"' in made.configuration
    for column in ("id Int64", "name Nullable(String)", "__op String"):
        assert f"    {column}" in made.statement, made.statement
    assert "dead letters" not in caplog.text


def test_what_connect_wraps_is_loaded_without_its_schema(kafka: Kafka) -> None:
    schema = {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}
    topic = kafka.topic()
    values = [json.dumps({"schema": schema, "payload": {"id": n}}).encode() for n in range(5)]
    kafka.produce(topic, list(values))
    made = proposal(kafka, topic)
    assert 'envelope = "connect"' in made.configuration and "    id Int64" in made.statement
    assert "payload" not in made.statement
