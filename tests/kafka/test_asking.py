"""To ask about a topic makes none, also where the broker makes those that it is asked for: that is
Kafka's default (auto.create.topics.enable). And what is said of one that may not be seen."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from sluice.core.errors import SluiceError
from sluice.core.ranges import TopicPartition
from sluice.driver.applying import newest_version
from sluice.kafka.clients import KafkaAccess, make_admin, make_consumer, make_producer
from sluice.kafka.errors import KafkaDeniedError
from sluice.kafka.log import SourceLog
from sluice.kafka.topics import (
    OWN_TOPIC_SETTINGS,
    cluster_metadata,
    describe_topic,
    ensure_own_topic,
    partition_count,
    sees,
)
from sluice.testbed.local.broker import PROPERTIES_VARIABLE
from sluice.testbed.local.running import Broker, running_program
from tests.support.guarded import PASSWORD, USER, GuardedBroker
from tests.support.kafka import Kafka


class MakingBroker(Broker):
    """A broker that makes topics that it is asked for."""

    @property
    def environment(self) -> dict[str, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "making.properties"
        file.write_text("auto.create.topics.enable=true\n")
        return {PROPERTIES_VARIABLE: str(file)}


@pytest.fixture(scope="module")
def making() -> Iterator[Kafka]:
    with (
        tempfile.TemporaryDirectory(prefix="sluice-kafka-") as folder,
        running_program(MakingBroker(Path(folder) / "kafka")) as broker,
    ):
        yield Kafka(broker)


def is_there(kafka: Kafka, name: str) -> bool:
    return name in cluster_metadata(kafka.admin).topics


def stable_end(access: KafkaAccess, name: str) -> None:
    """Of a topic that is not there, which makes it ask for the leader again."""
    try:
        SourceLog(make_admin(access)).stable_ends([TopicPartition(name, 0)])
    except SluiceError:
        return
    raise AssertionError(f"{name} has an end")


WAYS: dict[str, Callable[[KafkaAccess, str], object]] = {
    "partitions": lambda access, name: partition_count(access, name) == 0,
    "sight": lambda access, name: not sees(access, name),
    "facts": lambda access, name: describe_topic(make_admin(access), name) is None,
    "version": lambda access, name: newest_version(access, name) is None,
    "topics": lambda access, name: SourceLog(make_admin(access)).topics([name], partial=True) == {},
    "end": stable_end,
    # Whatever else asks for a topic by its name asks by one of these.
    "admin": lambda access, name: make_admin(access).list_topics(name, timeout=15),
    "consumer": lambda access, name: make_consumer(access).list_topics(name, timeout=15),
    "producer": lambda access, name: make_producer(access, name, 10_000, name).list_topics(
        name, timeout=15
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_to_ask_for_a_topic_does_not_make_it(making: Kafka, way: str) -> None:
    name = f"asked-{way}"
    assert WAYS[way](making.access(), name) is not False
    making.topic()  # what was to be made before is there by now
    assert not is_there(making, name)


def test_a_topic_of_ones_own_has_its_settings_although_it_was_asked_for(making: Kafka) -> None:
    """A driver's first start reads what is decided before it makes the topics."""
    assert newest_version(making.access(), "decisions") is None
    admin = make_admin(making.access())
    assert ensure_own_topic(admin, "decisions")
    making.until(lambda: describe_topic(admin, "decisions") is not None)
    facts = describe_topic(admin, "decisions")
    assert facts is not None
    assert {key: facts.settings[key] for key in OWN_TOPIC_SETTINGS} == OWN_TOPIC_SETTINGS


def test_this_broker_makes_what_others_ask_for(making: Kafka) -> None:
    """Else the tests above would see nothing."""
    other = AdminClient({"bootstrap.servers": making.brokers})
    other.list_topics("asked-by-others", timeout=15)
    making.until(lambda: is_there(making, "asked-by-others"))


def test_a_topic_that_its_user_may_not_see(tmp_path: Path) -> None:
    """Kafka does not say whether it exists; who needs none asks whether there is one to see."""
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    with running_program(GuardedBroker(tmp_path / "kafka")) as broker:
        name = Kafka(broker).topic()
        everybody = KafkaAccess("dc1", broker.brokers)
        assert (partition_count(everybody, name), sees(everybody, name)) == (1, True)
        nobody = KafkaAccess("dc1", broker.logins, login)
        for asked in (name, "does-not-exist"):
            with pytest.raises(KafkaDeniedError, match=f"describing topic {asked}") as denied:
                partition_count(nobody, asked)
            assert "--grants" in denied.value.hint
            assert not sees(nobody, asked)
            assert describe_topic(make_admin(nobody), asked) is None
