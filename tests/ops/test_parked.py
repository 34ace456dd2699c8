"""Parked messages that nobody has replayed yet are a metric, whatever is started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import confluent_kafka as ck
import pytest
from prometheus_client import CollectorRegistry

from sluice.kafka.errors import KafkaTerminalError
from sluice.kafka.waiting import Waiting
from sluice.ops import parked
from sluice.ops.dead_letters import DeadLetterSelection
from sluice.ops.dead_letters_purging import plan_purge, purge
from sluice.ops.parked import ParkedCollector
from tests.ops.dead_letters import DeadLetters
from tests.ops.http.scene import run_of
from tests.support.kafka import Kafka
from tests.support.world import wait_for


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> DeadLetters:
    return DeadLetters(kafka, tmp_path)


def test_parked_messages_count_until_they_are_replayed(pipeline: DeadLetters) -> None:
    """The topic of dead letters plays that of the parked ones: both hold the same."""

    def counted(waiting: Waiting) -> dict[str, int]:
        read: list[ck.Message] = []

        def through(messages: object) -> object:
            for message in messages:  # type: ignore[attr-defined]
                read.append(message)
                yield message

        waiting.look(through)  # type: ignore[arg-type]
        reads.append(len(read))
        return dict(waiting.by_table())

    reads: list[int] = []
    name = f"{pipeline.pipeline}.dc1"
    access = pipeline.kafka.access()
    running = Waiting(access, pipeline.dead_letters, name)
    assert counted(running) == {}
    pipeline.write(0, 1, 2, table="orders")
    pipeline.write(3, table="clicks")
    pipeline.write(4, connector="another.dc1")
    assert counted(running) == {"orders": 3, "clicks": 1}
    assert counted(running) == {"orders": 3, "clicks": 1} and reads[-1] == 0
    only = DeadLetterSelection(offset=1)
    assert pipeline.replay(only).replayed == 1
    assert counted(running) == {"orders": 2, "clicks": 1} and reads[-1] == 1
    started = Waiting(access, pipeline.dead_letters, name)
    assert counted(started) == {"orders": 2, "clicks": 1}
    # Those that stand first go, the one whose mark stays among them.
    first = DeadLetterSelection(table="orders")
    purge(pipeline.configuration, first, plan_purge(pipeline.configuration, first), why="a test")
    assert counted(running) == counted(Waiting(access, pipeline.dead_letters, name))
    assert counted(running) == {"clicks": 1}


def test_what_is_not_sluices_ends_a_look_in_words_and_leaves_the_count(
    pipeline: DeadLetters,
) -> None:
    """Before, it was a bug's error, which nobody heard of; and what came before it counted anew at
    each look."""
    waiting = Waiting(pipeline.kafka.access(), pipeline.dead_letters, f"{pipeline.pipeline}.dc1")
    pipeline.write(0, 1, table="orders")
    waiting.look(iter)
    pipeline.write(2, table="orders")
    producer = ck.Producer({"bootstrap.servers": pipeline.kafka.brokers})
    foreign: list[tuple[str, str | bytes | None]] = [("sluice.topic", b"\xff")]
    producer.produce(pipeline.dead_letters, b"x", headers=foreign, partition=0)
    assert producer.flush(30) == 0
    for _ in range(2):
        with pytest.raises(KafkaTerminalError, match="at offset 3 that is no dead letter: Unicode"):
            waiting.look(iter)
    assert waiting.by_table() == {"orders": 2}


def test_the_metric_goes_by_what_is_applied(
    pipeline: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there from the first look after a table entry may be parked: before, only if the file
    had said so at the start."""
    configuration = pipeline.configuration
    (table,) = configuration.tables
    parking = replace(
        configuration,
        tables=(replace(table, on_error="park"),),
        parking_topic=pipeline.dead_letters,
    )
    monkeypatch.setattr(parked, "EVERY_SECONDS", 0.1)
    run = run_of(None, configuration=configuration)
    registry = CollectorRegistry()
    registry.register(ParkedCollector([run]))
    labels = {"connector": f"{pipeline.pipeline}.dc1", "table": table.name}

    def value() -> float | None:
        return registry.get_sample_value("sluice_parked_waiting_messages", labels)

    pipeline.write(0, 1, table=table.name)
    assert value() is None
    run.configuration = parking
    wait_for(lambda: value() == 2, 30, "the count")
    run.configuration = configuration
    wait_for(lambda: value() is None, 30, "the end of the count")
