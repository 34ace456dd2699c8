"""Quorums that are stuck on purpose, on real replicas (18.16.1 with ZooKeeper): explained by
`sluice quorum`, fixed by what it does or prints, and loaded on, every replica compared."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.config import Configuration, load
from sluice.core.errors import SluiceError
from sluice.ops.quorum import QuorumSelection, Report, apply_fixes, look
from sluice.spark.java import require_java
from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.cluster.server import ClickHouseServer
from sluice.testbed.local.cluster.zookeeper import ZooKeeper, class_path
from sluice.testbed.local.running import Broker
from tests.support.driver import Driver
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
#: What a quorum is waited for that does not come, and one that comes as soon as the machine can.
LATE_MILLISECONDS, QUORUM_MILLISECONDS = 1_000, 60_000
#: For what takes a driver some seconds: it starts in several times that beside other tests.
SECONDS = 300.0
#: What an action may take to help: replicas try to fetch a part again after a pause.
FIX_SECONDS = 120.0
DELETE = re.compile(r"zkCli\.sh -server ZOOKEEPER:2181 delete '([^']+)'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(1, 3) as running:
        yield running


@dataclass
class Table:
    """A Replicated table on some servers, and inserts into it."""

    servers: list[ClickHouseServer]
    name: str
    configuration: Configuration
    columns: str = "id UInt64"
    order: str = "id"

    @property
    def path(self) -> str:
        return f"/tables/{self.name}"

    def create_on(self, each: ClickHouseServer) -> None:
        with Server(each.url) as server:
            server.execute(
                f"CREATE TABLE {self.name} ({self.columns}) ENGINE = "
                f"ReplicatedMergeTree('{self.path}', '{{replica}}') ORDER BY {self.order}"
            )

    def insert(
        self, each: ClickHouseServer, number: int, wait_ms: int = QUORUM_MILLISECONDS
    ) -> int:
        """The same block for the same number; gives the error's code, 0 for OK."""
        settings = {"insert_quorum": "2", "insert_quorum_timeout": str(wait_ms)}
        insert = f"INSERT INTO {self.name} SELECT {number} AS id"
        try:
            with Server(each.url) as server:
                server.execute(insert, settings=settings, timeout_seconds=120)
        except SluiceError as error:
            return int(getattr(error, "code", -1))
        return 0

    def insert_late(self, each: ClickHouseServer, number: int) -> None:
        """A block whose quorum does not come."""
        assert self.insert(each, number, LATE_MILLISECONDS) == 319

    def system(self, what: str, servers: list[ClickHouseServer]) -> None:
        for each in servers:
            with Server(each.url) as server:
                server.execute(f"SYSTEM {what} {self.name}")

    def look(self) -> Report:
        (report,) = look(self.configuration, QuorumSelection())
        return report

    def apply_fixes(self) -> Report:
        (report,) = apply_fixes(self.configuration, QuorumSelection(), bool, FIX_SECONDS)
        return report

    def wait_until_stuck(self) -> Report:
        wait_for(lambda: self.look().judgement.is_stuck, SECONDS, "a quorum that is late")
        return self.look()

    def assert_everywhere(self, *numbers: int) -> None:
        for each in self.servers:
            with Server(each.url) as server:
                server.execute(f"SYSTEM SYNC REPLICA {self.name}", timeout_seconds=60)
                rows = server.query(f"SELECT id FROM {self.name} ORDER BY id")
            assert [row["id"] for row in rows] == list(numbers), each.url


def table_on(servers: list[ClickHouseServer], folder: Path) -> Table:
    name = f"t{uuid.uuid4().hex[:8]}"
    urls = '", "'.join(each.url for each in servers)
    path = folder / "quorum.toml"
    path.write_text(
        '[pipeline]\nname = "p"\n[spark]\nmaster = "local[1]"\n[[connector]]\nname = "dc1"\n'
        'brokers = "127.0.0.1:1"\ntopics = ["a"]\n[clickhouse]\ndatabase = "default"\n'
        f'shards = {{ s1 = ["{urls}"] }}\ndurability = "quorum"\n'
        f'[[table]]\nname = "{name}"\ntopics = ["a"]\nformat = "JSONEachRow"\n'
    )
    table = Table(servers, name, load(path, {}))
    for each in servers:
        table.create_on(each)
    return table


def shown(report: Report) -> str:
    return "\n".join(finding.what for finding in report.judgement.findings)


def wait_until_writable(table: Table, each: ClickHouseServer) -> None:
    def is_writable() -> bool:
        with Server(each.url) as server:
            rows = server.query(
                f"SELECT is_readonly FROM system.replicas WHERE table = '{table.name}'"
            )
        return rows == [{"is_readonly": 0}]

    wait_for(is_writable, SECONDS, "the replica's session")


@pytest.mark.long
def test_stopped_fetches_are_found_and_started(cluster: Cluster, tmp_path: Path) -> None:
    table = table_on(cluster.servers, tmp_path)
    first, *others = cluster.servers
    assert table.insert(first, 1) == 0
    assert not table.look().judgement.is_stuck
    table.system("STOP FETCHES", others)
    table.insert_late(first, 2)
    assert table.insert(first, 3) == table.insert(others[0], 2) == 286
    report = table.wait_until_stuck()
    assert "part all_1_1_0 waits for its quorum" in shown(report)
    assert f"r1 ({first.url}) has it" in shown(report)
    assert "r2" in shown(report) and "Fetching of part was cancelled" in shown(report)
    assert {action.url for action in report.judgement.actions} == {each.url for each in others}
    report = table.apply_fixes()
    assert not report.judgement.is_stuck and report.facts.pending == ()
    assert table.insert(first, 2) == table.insert(others[1], 3) == 0
    table.assert_everywhere(1, 2, 3)


@pytest.mark.long
def test_a_replaced_replica_is_counted_when_it_is_restarted(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It copies the part, and that it has it counts for nothing until its next start."""
    first, second, _ = cluster.servers
    table = table_on([first, second], tmp_path)
    table.system("STOP FETCHES", [second])
    table.insert_late(first, 1)
    with Server(second.url) as server:
        server.execute(f"DROP TABLE {table.name}")
    table.create_on(second)
    wait_for(lambda: "and is not counted" in shown(table.look()), SECONDS, "the copy of the part")
    (action,) = table.look().judgement.actions
    assert action.url == second.url and "RESTART REPLICA" in action.statement
    assert not table.apply_fixes().judgement.is_stuck
    table.assert_everywhere(1)


@pytest.mark.long
def test_sends_that_are_stopped_take_a_restart_of_the_replica(
    cluster: Cluster, tmp_path: Path
) -> None:
    """18.16 does not start them again by SYSTEM START REPLICATED SENDS."""
    first, second, _ = cluster.servers
    table = table_on([first, second], tmp_path)
    table.system("STOP REPLICATED SENDS", [first])
    table.insert_late(first, 1)
    report = table.wait_until_stuck()
    assert "r2" in shown(report) and "to fetch it failed" in shown(report)
    steps: list[str] = []
    (report,) = apply_fixes(
        table.configuration, QuorumSelection(), lambda each: bool(steps.extend(each) or True), 5.0
    )
    assert not report.judgement.is_stuck
    assert any(step.startswith("SYSTEM START REPLICATED SENDS") for step in steps)
    assert any(step.startswith("SYSTEM RESTART REPLICA") for step in steps)
    table.assert_everywhere(1)


def test_the_only_holder_is_killed_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    table = table_on(cluster.servers, tmp_path)
    first, *others = cluster.servers
    table.system("STOP REPLICATION QUEUES", others)
    table.insert_late(first, 1)
    first.kill()
    try:
        wait_for(
            lambda: "only r1 has it, without a session" in shown(table.look()), SECONDS, "its end"
        )
        report = table.look()
        assert "its queue does not run (SYSTEM STOP REPLICATION QUEUES)" in shown(report)
        assert any(f"start the server {first.url}" in each for each in report.judgement.by_hand)
    finally:
        first.start()
    wait_until_writable(table, first)
    report = table.apply_fixes()
    assert not report.judgement.is_stuck and report.facts.failed_parts == ()
    assert table.insert(others[0], 1) == 0  # known: the part was kept
    table.assert_everywhere(1)


def lose(*tables: Table) -> list[Report]:
    """The parts of pending quorums go with the disk of the only replica that had them, and the
    other one was made anew, so that nothing in its queue counts for the quorum."""
    first, second = tables[0].servers
    lost = []
    for table in tables:
        (pending,) = table.look().facts.pending
        with Server(second.url) as server:
            server.execute(f"DROP TABLE {table.name}")
        table.create_on(second)
        lost.append(first.folder / "data/data/default" / table.name / pending.part)
    first.kill()
    for part in lost:
        shutil.rmtree(part)
    first.start()
    for table in tables:
        wait_until_writable(table, first)
        wait_for(lambda t=table: bool(t.look().judgement.last_resort), SECONDS, "its end")  # type: ignore[misc]
    return [table.look() for table in tables]


def delete_nodes(zookeeper: ZooKeeper, paths: list[str]) -> None:
    """As zkCli.sh does."""
    for path in paths:
        done = subprocess.run(
            [
                *(str(require_java()), "-cp", class_path(), "org.apache.zookeeper.ZooKeeperMain"),
                *("-server", f"127.0.0.1:{zookeeper.port}", "delete", path),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_lost_part_and_the_last_resort(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes the status alone loses the block: its repeat is taken for stored."""
    monkeypatch.setattr("sluice.ops.quorum._SECOND_LOOK_SECONDS", 1.0)
    first, second, _ = cluster.servers
    tables = followed, other = [table_on([first, second], tmp_path) for _ in range(2)]
    for table in tables:
        assert table.insert(first, 1) == 0
        table.system("STOP REPLICATED SENDS", [first])
        table.insert_late(first, 2)
    for table, report in zip(tables, lose(*tables), strict=True):
        assert "no replica has it" in shown(report) and report.judgement.actions == ()
        assert table.apply_fixes().judgement.is_stuck  # nothing is deleted by Sluice
        paths = DELETE.findall("\n".join(report.judgement.last_resort))
        assert [each.removeprefix(table.path).split("/")[1] for each in paths] == [
            "blocks",
            "quorum",
        ]
        delete_nodes(cluster.zookeeper, paths if table is followed else paths[1:])
        assert not table.look().judgement.is_stuck
        assert table.insert(first, 2) == 0
    followed.assert_everywhere(1, 2)
    other.assert_everywhere(1)


@pytest.fixture
def world(tmp_path: Path, shared_broker: Broker, cluster: Cluster) -> Iterator[World]:
    made = World(tmp_path, shared_broker, cluster.servers[0], name=f"q{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        made.close()


@dataclass
class Pipeline:
    """A driver that has loaded all of a topic."""

    table: Table
    topic: str
    path: Path
    truth: Truth
    driver: Driver


def pipeline(world: World, servers: list[ClickHouseServer], partitions: int) -> Pipeline:
    name, topic = f"orders_{world.name}", f"orders-{world.name}"
    world.create_topic(topic, partitions)
    path = world.configure(
        {name: [topic]}, max_messages=1_000, url='", "'.join(each.url for each in servers)
    )
    path.write_text(path.read_text().replace('durability = "single"', 'durability = "quorum"'))
    table = Table(servers, name, load(path, {}), PLAIN, "(user_id, ts)")
    for each in servers:
        table.create_on(each)
    truth = Truth()
    world.produce(topic, 4_000, truth, partitions)
    driver = world.run(path)
    world.wait_for_rows(name, truth.rows, driver, SECONDS)
    return Pipeline(table, topic, path, truth, driver)


def assert_exact_everywhere(world: World, table: Table, truth: Truth) -> None:
    for each in table.servers:
        world.clickhouse = each
        world.execute(f"SYSTEM SYNC REPLICA {table.name}")
        assert_exact(world, table.name, truth)


@pytest.mark.slow
def test_loading_resumes_after_the_fix(world: World, cluster: Cluster) -> None:
    loading = pipeline(world, cluster.servers, 4)
    table, topic, path = loading.table, loading.topic, loading.path
    truth, driver = loading.truth, loading.driver
    table.system("STOP FETCHES", cluster.servers[1:])
    world.produce(topic, 8_000, truth, 4, first=4_000)
    wait_for(lambda: "(286)" in driver.text(), SECONDS, "the error 286")
    table.wait_until_stuck()
    explained = world.sluice("quorum", str(path), "--shard", "s1", "--table", table.name)
    assert explained.returncode == 1, explained.stdout
    assert "waits for its quorum" in explained.stdout
    assert f"rows of {topic}[" in explained.stdout
    assert "SYSTEM START FETCHES" in explained.stdout
    fixed = world.sluice("quorum", str(path), "--fix", "--yes")
    assert "This will:" in fixed.stderr and "SYSTEM START FETCHES" in fixed.stderr
    for each in cluster.servers:
        world.clickhouse = each
        world.wait_for_rows(table.name, truth.rows, driver, SECONDS)
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact_everywhere(world, table, truth)
    after = world.sluice("quorum", str(path), "--json")
    assert after.returncode == 0, after.stdout


def leave_a_block(world: World, loading: Pipeline) -> None:
    """The driver is killed while a block waits for its quorum."""
    world.produce(loading.topic, 1_000, loading.truth, 1, first=4_000)
    wait_for(lambda: bool(loading.table.look().facts.pending), SECONDS, "a pending quorum")
    loading.driver.kill()


@pytest.mark.long
def test_a_part_that_is_given_up_is_loaded_again(world: World, cluster: Cluster) -> None:
    """Its only holder is dead while the others are fixed: ClickHouse forgets the block."""
    first, *others = cluster.servers
    loading = pipeline(world, cluster.servers, 1)
    table, path, truth = loading.table, loading.path, loading.truth
    table.system("STOP REPLICATION QUEUES", others)
    leave_a_block(world, loading)
    first.kill()
    try:
        wait_for(lambda: "only r1 has it" in shown(table.look()), SECONDS, "the end of its session")
        report = table.apply_fixes()
        assert not report.judgement.is_stuck and len(report.facts.failed_parts) == 1
        world.drain(path)
        assert_exact_everywhere(world, replace(table, servers=others), truth)
    finally:
        first.start()
    wait_until_writable(table, first)
    assert_exact_everywhere(world, table, truth)


@pytest.mark.long
def test_sluice_loads_what_was_lost_after_the_last_resort(world: World, cluster: Cluster) -> None:
    first, second, _ = cluster.servers
    loading = pipeline(world, [first, second], 1)
    table, path, truth = loading.table, loading.path, loading.truth
    table.system("STOP REPLICATED SENDS", [first])
    leave_a_block(world, loading)
    lose(table)
    explained = world.sluice("quorum", str(path))
    assert explained.returncode == 1 and "LAST RESORT" in explained.stdout
    delete_nodes(cluster.zookeeper, DELETE.findall(explained.stdout))
    world.drain(path)
    assert_exact_everywhere(world, table, truth)
    audited = world.sluice("audit", str(path))
    assert audited.returncode == 0, audited.stdout + audited.stderr
