"""The local broker: starts, keeps its data, is told apart from a second one, leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.testbed.local.processes import usage
from sluice.testbed.local.running import Broker, running_broker
from tests.support.world import wait_for

TOPIC = "events"


@pytest.mark.slow
def test_a_broker_over_stop_restart_and_kill(tmp_path: Path) -> None:
    with running_broker(tmp_path / "kafka") as broker:
        _create(broker)
        _produce(broker, b"first")
        _second_start_is_refused(broker)

        jvm, port = broker.serving_pid, broker.port
        assert broker.stop() == 0
        assert usage(jvm) is None

        broker.restart()
        assert broker.port == port
        _produce(broker, b"second")
        assert _consume(broker, 2) == [b"first", b"second"]

        jvm = broker.serving_pid
        broker.kill()  # the keeper; the kernel ends the JVM with it
        wait_for(lambda: usage(jvm) is None, 60, "the JVM's end")


def _second_start_is_refused(broker: Broker) -> None:
    command = [sys.executable, "-m", "sluice", "local", "kafka", "--data", str(broker.folder)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert refused.returncode == 1
    assert f"in use by process {broker.pid}" in refused.stderr


def _create(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.brokers})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        future.result(30)


def _produce(broker: Broker, value: bytes) -> None:
    """In a transaction: its topic needs the single-node settings."""
    producer = Producer({"bootstrap.servers": broker.brokers, "transactional.id": "test"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(TOPIC, value, partition=0)
    producer.commit_transaction(30)


def _consume(broker: Broker, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.brokers, "group.id": "test"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    messages = consumer.consume(count, 20)
    while len(messages) < count and (more := consumer.consume(count - len(messages), 20)):
        messages += more
    consumer.close()
    return [message.value() for message in messages]
