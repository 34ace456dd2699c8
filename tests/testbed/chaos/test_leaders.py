"""Found by chaos: a broker that came back after a kill, or that slept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import ClusterMetadata

from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition
from sluice.kafka.broker_facts import BrokerFacts
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.log import SourceLog
from sluice.kafka.topics import cluster_metadata
from sluice.testbed.local.producing import create_topic
from sluice.testbed.local.running import running_broker
from tests.support.world import wait_for

SOURCES = [TopicPartition("orders", number) for number in range(4)]


@pytest.mark.slow
def test_stable_ends_are_read_again_after_the_broker_was_killed(tmp_path: Path) -> None:
    with running_broker(tmp_path / "kafka") as broker:
        access = KafkaAccess("dc1", broker.brokers)
        create_topic(access, "orders")
        log = SourceLog(make_admin(access))
        wait_for(lambda: _answers(log), 120, "a first answer")
        broker.kill()
        broker.start()
        # Only then is the old client asked, so that it has not seen the broker's start.
        wait_for(lambda: _answers(SourceLog(make_admin(access))), 120, "the broker")
        time.sleep(1)
        wait_for(lambda: _answers(log), 120, "an answer to the client from before")
        assert log.stable_ends(SOURCES) == dict.fromkeys(SOURCES, 0)


class _FencedBroker:
    """Answers as a broker does that has slept and counts as dead: it knows the topics, and names
    no broker. A real one does so for a moment, if at all."""

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> ClusterMetadata:
        return ClusterMetadata()


def test_a_cluster_that_names_no_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector that was being examined just then ended on it."""
    monkeypatch.setattr("sluice.kafka.broker_facts.make_admin", lambda access: _FencedBroker())
    with pytest.raises(TransientError, match="the answer names none yet"):
        BrokerFacts(KafkaAccess("dc1", "a:9092"))
    with pytest.raises(TransientError):
        cluster_metadata(_FencedBroker())  # type: ignore[arg-type]


def _answers(log: SourceLog) -> bool:
    try:
        return log.stable_ends(SOURCES) == dict.fromkeys(SOURCES, 0)
    except TransientError:
        return False
