"""Rights that are taken away while a driver runs, and come back: it waits, says so, and loads each
row once, without a restart. A real broker with an authorizer."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import confluent_kafka as ck
from confluent_kafka.admin import AclBinding, AclOperation, AdminClient, NewTopic

from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.offsets import look, record_in
from sluice.kafka.topics import ensure_own_topics
from sluice.ops.grants import script
from sluice.testbed.local.running import running_clickhouse, running_program
from tests.support.driver import Driver
from tests.support.guarded import GuardedBroker, bindings, give_only
from tests.support.kafka import make_topic
from tests.support.world import COLUMNS, LINEAGE, order, wait_for

NAME = f"t{uuid.uuid4().hex[:8]}"
TOPIC = f"orders-{NAME}"
#: What the driver says of each try that is refused.
REFUSED = "TOPIC_AUTHORIZATION_FAILED"

#: For what a driver takes some seconds for: it starts in several times that beside other tests.
SECONDS = 240.0

CONFIGURATION = """
[pipeline]
name = "{name}"
[spark]
master = "local[2]"
[[connector]]
name = "dc1"
brokers = "{brokers}"
topics = ["{topic}"]
{login}
[batch]
max_delay = "200ms"
lease = "1m"
[clickhouse]
database = "shop"
shards = {{ s1 = ["{url}"] }}
durability = "single"
[[table]]
name = "orders"
topics = ["{topic}"]
"""


def describing(right: AclBinding) -> AclBinding:
    """The right to know of a topic."""
    return AclBinding(
        right.restype,
        right.name,
        right.resource_pattern_type,
        right.principal,
        right.host,
        AclOperation.DESCRIBE,
        right.permission_type,
    )


def settled(broker: GuardedBroker) -> int:
    """Messages."""
    access = KafkaAccess("dc1", broker.brokers)
    sources = [TopicPartition(TOPIC, number) for number in range(2)]
    found = look(access, f"sluice.{NAME}.dc1", sources, 5.0)
    records = [record_in(each) for each in found.found.values()]
    return sum(each.begin for each in records if each and not each.in_doubt)


def test_what_is_refused_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with (
        running_program(GuardedBroker(tmp_path / "kafka")) as broker,
        running_clickhouse(tmp_path / "clickhouse") as clickhouse,
        Server(clickhouse.url) as server,
    ):
        server.execute("CREATE DATABASE shop")
        server.execute(
            f"CREATE TABLE shop.orders ({COLUMNS}, {LINEAGE}) ENGINE = MergeTree ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 1000"
        )
        admin = AdminClient({"bootstrap.servers": broker.brokers})
        make_topic(admin, NewTopic(TOPIC, 2, 1))
        path = tmp_path / "sluice.toml"
        told = {"brokers": broker.logins, "login": broker.properties, "url": clickhouse.url}
        path.write_text(CONFIGURATION.format(name=NAME, topic=TOPIC, **told))
        configuration = load(path, {})
        ensure_own_topics(admin, configuration.own_topics)
        every = bindings(s for s in script(configuration, {}) if s.startswith("kafka-acls.sh"))
        give_only(broker, every)
        producer = ck.Producer({"bootstrap.servers": broker.brokers})
        log = tmp_path / "driver.log"
        with log.open("wb") as output:
            words = [sys.executable, "-m", "sluice", "run", str(path)]
            driver = Driver(subprocess.Popen(words, stdout=output, stderr=output), log)

        def loaded(until: int) -> None:
            def is_loaded() -> bool:
                assert driver.process.poll() is None, driver.text()[-5000:]
                found = server.query("SELECT count() AS n, uniqExact(id) AS ids FROM shop.orders")
                return found == [{"n": until, "ids": until}]

            wait_for(is_loaded, SECONDS, f"{until} rows")

        def refusals() -> int:
            assert driver.process.poll() is None, driver.text()[-5000:]
            return sum(REFUSED in line for line in driver.text().splitlines())

        try:
            sent = 0
            (read,) = (e for e in every if (e.name, e.operation) == (TOPIC, AclOperation.READ))
            # It still hears of messages, and is to load them.
            for left in (every - {read} | {describing(read)}, set[AclBinding]()):
                for _ in range(2):
                    for number in range(sent, sent + 100):
                        producer.produce(TOPIC, order(number), partition=number % 2)
                    assert producer.flush(30) == 0
                    sent += 100
                    if sent % 200 == 100:
                        loaded(sent)
                        # Else what is refused may be the end of this settle.
                        wait_for(lambda n=sent: settled(broker) == n, SECONDS, f"{sent} settled")  # type: ignore[misc]
                        give_only(broker, left)
                before = refusals()
                wait_for(lambda n=before: refusals() >= n + 3, SECONDS, REFUSED)  # type: ignore[misc]
                give_only(broker, every)
                loaded(sent)
            text = driver.text()
            assert "cannot record" in text
            assert " stops at " not in text
            driver.process.terminate()
            assert driver.wait() == 0, driver.text()[-5000:]
        finally:
            if driver.process.poll() is None:
                driver.kill()
