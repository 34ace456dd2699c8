"""A cluster that takes no topic with the settings that Sluice wants, by a policy of who runs it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from sluice.core.errors import TransientError
from sluice.kafka.broker_facts import BrokerFacts
from sluice.kafka.errors import KafkaDeniedError
from sluice.kafka.topics import TopicRefusedError, ensure_own_topic
from sluice.ops.doctor_findings import Examination, refusal
from sluice.ops.doctor_kafka import _takes_creation
from tests.support.kafka import Kafka

POLICY = "Config property 'max.message.bytes' with value '16777216' exceeded max limit of 8388608."


class Admin:
    """Of a cluster of three brokers that answers so."""

    def __init__(self, code: int, text: str) -> None:
        self.error = ck.KafkaException(ck.KafkaError(code, text))

    def list_topics(self, topic: str | None, timeout: float) -> Any:
        return SimpleNamespace(brokers={1: 0, 2: 0, 3: 0}, topics={})

    def poll(self, timeout: float) -> int:
        return 0

    def create_topics(self, new: list[Any], **options: object) -> dict[str, Future[None]]:
        future = Future[None]()
        future.set_exception(self.error)
        return {each.topic: future for each in new}


def test_a_policy_is_told_with_the_command_that_makes_the_topic() -> None:
    admin: Any = Admin(ck.KafkaError.POLICY_VIOLATION, POLICY)
    with pytest.raises(TopicRefusedError) as refused:
        ensure_own_topic(admin, "sluice.orders.ledger")
    assert (
        refused.value.message == f"creating topic sluice.orders.ledger: POLICY_VIOLATION: {POLICY}"
    )
    for words in (
        "--create --topic sluice.orders.ledger --partitions 1 --replication-factor 3 ",
        "--config retention.ms=-1",
        "--config min.insync.replicas=2",
        "docs/DEPLOYMENT.md",
    ):
        assert words in refused.value.hint


def test_brokers_that_are_away_are_waited_for() -> None:
    admin: Any = Admin(ck.KafkaError.INVALID_REPLICATION_FACTOR, "larger than available brokers")
    with pytest.raises(TransientError, match="INVALID_REPLICATION_FACTOR"):
        ensure_own_topic(admin, "sluice.orders.ledger")


def test_doctor_says_it_before_a_topic_is_made() -> None:
    def refuse() -> None:
        raise TopicRefusedError("creating topic l: POLICY_VIOLATION: no", "make it by hand")

    def deny() -> bool:
        raise KafkaDeniedError("creating topic l: TOPIC_AUTHORIZATION_FAILED")

    found = Examination("dc1: topic l")
    assert not _takes_creation(found, refuse)
    (finding,) = found.findings
    assert (finding.level, finding.check, finding.fix) == ("error", "creation", "make it by hand")
    assert not isinstance(refusal([finding]), TransientError)
    found = Examination("dc1: topic l")
    assert not _takes_creation(found, deny) and found.findings == [], "the rights say it"
    assert _takes_creation(found, lambda: True) and found.findings == []
    assert not _takes_creation(found, lambda: False) and found.findings == [], "it is there"


def test_a_broker_looks_at_the_settings_and_makes_nothing(kafka: Kafka) -> None:
    cluster = BrokerFacts(kafka.access())
    assert cluster.require_create("not-made")
    with pytest.raises(TopicRefusedError, match="INVALID_CONFIG") as refused:
        cluster.require_create("not-made", {"max.message.bytes": "many"})
    assert "--config max.message.bytes=many" in refused.value.hint
    assert "not-made" not in BrokerFacts(kafka.access()).topics
    assert not cluster.require_create(kafka.topic())  # as by a user who does not see it
