"""What docs/RUNBOOK.md says of real servers in trouble: one driver that lives through all of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import SluiceError
from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.running import Broker
from tests.support.driver import Driver
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
#: For what takes a driver some seconds: it starts in several times that beside other tests.
SECONDS = 300.0


@dataclass
class Loading:
    """A driver that loads one topic into two replicas."""

    world: World
    cluster: Cluster
    table: str
    topic: str
    path: Path
    truth: Truth
    driver: Driver

    def produce(self, count: int) -> None:
        self.world.produce(self.topic, count, self.truth, 2, first=self.truth.rows)

    def wait_for_text(self, text: str, begin: int) -> None:
        wait_for(lambda: text in self.driver.text()[begin:], SECONDS, text)

    def assert_loaded(self) -> None:
        self.world.wait_for_rows(self.table, self.truth.rows, self.driver, SECONDS)
        for each in self.cluster.servers:
            self.world.clickhouse = each
            self.world.execute(f"SYSTEM SYNC REPLICA {self.table}")
            assert_exact(self.world, self.table, self.truth)


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory, shared_broker: Broker) -> Iterator[Loading]:
    with running_cluster(1, 2) as cluster:
        name = f"b{uuid.uuid4().hex[:8]}"
        folder = tmp_path_factory.mktemp("runbook")
        world = World(folder, shared_broker, cluster.servers[0], name=name)
        table, topic = f"orders_{name}", f"orders-{name}"
        world.create_topic(topic, 2)
        cluster.execute(
            f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
            f"'/tables/{table}', '{{replica}}') ORDER BY (user_id, ts) "
            "SETTINGS parts_to_delay_insert = 10, parts_to_throw_insert = 12"
        )
        urls = '", "'.join(each.url for each in cluster.servers)
        path = world.configure({table: [topic]}, max_messages=500, url=urls)
        path.write_text(path.read_text().replace('"single"', '"quorum"'))
        made = Loading(world, cluster, table, topic, path, Truth(), world.run(path))
        try:
            made.produce(1_000)
            made.assert_loaded()
            yield made
            made.driver.signal(15)
            assert made.driver.wait() == 0, made.driver.text()[-4000:]
        finally:
            world.close()


@pytest.mark.slow
def test_too_many_parts_back_off_until_they_are_merged(loading: Loading) -> None:
    loading.cluster.execute(f"SYSTEM STOP MERGES {loading.table}")
    begin = len(loading.driver.text())
    loading.produce(10_000)
    loading.wait_for_text("TOO_MANY_PARTS (252)", begin)
    loading.cluster.execute(f"SYSTEM START MERGES {loading.table}")
    loading.assert_loaded()


@pytest.mark.slow
def test_zookeeper_is_away_for_a_while(loading: Loading) -> None:
    loading.cluster.zookeeper.kill()
    begin = len(loading.driver.text())
    loading.produce(1_000)
    loading.wait_for_text("waits:", begin)
    explained = loading.world.sluice("quorum", str(loading.path))
    assert explained.returncode == 1, explained.stdout
    assert "nothing can be read from ZooKeeper" in explained.stdout
    loading.cluster.zookeeper.start()

    def is_writable() -> bool:
        try:
            for each in loading.cluster.servers:
                with Server(each.url) as server:
                    rows = server.query(
                        f"SELECT is_readonly FROM system.replicas WHERE table = '{loading.table}'"
                    )
                if rows != [{"is_readonly": 0}]:
                    return False
        except SluiceError:
            return False
        return True

    wait_for(is_writable, SECONDS, "the replicas' sessions")
    loading.assert_loaded()
