"""The story of an operator at night: a replica dies, an alert fires, the page says why, a person
freezes the table, mends the replica and resumes; then the replica alone is frozen for a while."""

from __future__ import annotations

import json
import re
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.testbed.local.children import free_ports
from sluice.testbed.local.cluster.cluster import Cluster
from sluice.testbed.local.running import Broker
from tests.e2e.test_replica_killed import PLAIN, receipts
from tests.ops.http.scene import ALICE
from tests.support.browser import chromium
from tests.support.prometheus import Prometheus
from tests.support.world import Truth, World, assert_exact, wait_for

#: How long a minute of the alert rules takes here.
MINUTE_SECONDS = 2
PATIENCE = 300.0


@pytest.fixture
def world(tmp_path: Path, shared_broker: Broker, cluster: Cluster) -> Iterator[World]:
    """Looks at the second replica, which lives through all."""
    made = World(tmp_path, shared_broker, cluster.servers[1], name=f"o{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        made.close()


class Operator:
    """Who has a browser, a token, and Prometheus; and produces meanwhile."""

    def __init__(self, world: World, cluster: Cluster, folder: Path) -> None:
        self.world, self.cluster, self.folder = world, cluster, folder
        self.table, self.topic = f"orders_{world.name}", f"orders-{world.name}"
        world.create_topic(self.topic, 2)
        cluster.execute(
            f"CREATE TABLE {self.table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
            f"'/clickhouse/tables/{self.table}', '{{replica}}') ORDER BY (user_id, ts)"
        )
        first, second = cluster.servers
        self.path = world.configure({self.table: [self.topic]}, url=f'{first.url}", "{second.url}')
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        (folder / "tokens").write_text(f"alice {ALICE}\n")
        text = self.path.read_text().replace('durability = "single"', 'durability = "quorum"')
        self.path.write_text(
            f'{text}[http]\nlisten = "127.0.0.1:{port}"\ntokens_file = "{folder}/tokens"\n'
        )
        self.prometheus = Prometheus(folder, f"127.0.0.1:{port}", MINUTE_SECONDS)
        self.truth, self.driver = Truth(), world.run(self.path)

    def produce(self, rows: int = 500) -> None:
        self.world.produce(self.topic, rows, self.truth, partitions=2, first=self.truth.rows)

    def wait_until_loaded(self) -> None:
        self.world.wait_for_rows(self.table, self.truth.rows, self.driver, PATIENCE)

    def wait_until_settled(self) -> None:
        """Rows are there before the ledger says so: the next round writes it."""

        def are_settled() -> bool:
            entries = [each for each in self.world.ledger() if each["type"] == "settled"]
            return sum(each["rows"] for each in entries) == self.truth.rows

        self.wait(are_settled, "the settles")

    def page(self) -> str:
        """What a browser shows, without tags."""
        words = ("--virtual-time-budget=4000", "--dump-dom", f"{self.url}/")
        return re.sub(r"<[^>]*>", " ", chromium(self.folder / "chromium", *words))

    def connector(self) -> dict[str, Any]:
        """What `/status` says."""
        with urllib.request.urlopen(f"{self.url}/status", timeout=60) as answer:
            (found,) = json.load(answer)["connectors"]
        return dict(found)

    def decide(self, path: str, **said: str) -> list[str]:
        headers = {"Authorization": f"Bearer {ALICE}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(said).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.load(answer)
        assert told["by"] == "alice"
        return list(told["frozen"])

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            assert self.driver.process.poll() is None, self.driver.text()[-4000:]
            return condition()

        wait_for(holds, PATIENCE, what)

    def fires(self, alert: str) -> bool:
        return any(alert in each for each in self.prometheus.firing())


@pytest.fixture
def operator(world: World, cluster: Cluster, tmp_path: Path) -> Iterator[Operator]:
    made = Operator(world, cluster, tmp_path)
    made.produce()
    made.wait_until_loaded()
    made.prometheus.start()
    yield made
    made.prometheus.stop()


@pytest.mark.long
def test_a_replica_dies_and_a_person_gets_by(operator: Operator) -> None:
    first, second = operator.cluster.servers
    first.kill()
    operator.produce()
    operator.wait(
        lambda: operator.fires("SluiceReplicaAway") and operator.fires("SluiceTableBehind"),
        "the alerts",
    )
    operator.wait(
        lambda: operator.connector()["tables"][0]["verdict"] == "waits", "the end of an insert"
    )
    shown = operator.page()
    assert f"replica {first.url} of s1: it does not answer" in shown
    assert re.search(r"failed (once|\d+ times), now by .*(285|286|319)", shown), shown

    said = {"table": operator.table, "why": "the replica's disk is changed"}
    (line,) = operator.decide("/freeze", **said)
    operator.wait(lambda: not operator.fires("SluiceTableBehind"), "the end of the alert")
    assert line.removeprefix("connector dc1: ") in operator.page()
    assert operator.connector()["tables"][0]["verdict"] == "frozen"
    operator.produce()
    first.start()
    operator.wait(
        lambda: all(each["answers"] for each in operator.connector()["replicas"]),
        "an answer of the replica",
    )
    settled = len(receipts(operator.world))
    time.sleep(5)  # it is well, and nothing goes on by itself
    assert len(receipts(operator.world)) == settled
    assert operator.decide("/resume", **said | {"why": "the disk is new"}) == []
    operator.wait_until_loaded()
    operator.wait(lambda: not operator.prometheus.firing(), "the end of all alerts")
    _freeze_the_replica_alone(operator, first.url, second.url)

    operator.driver.signal(15)
    assert operator.driver.wait(PATIENCE) == 0, operator.driver.text()[-4000:]
    operator.cluster.execute(f"SYSTEM SYNC REPLICA {operator.table}")
    for each in operator.cluster.servers:
        operator.world.clickhouse = each
        assert_exact(operator.world, operator.table, operator.truth)
    decided = [
        (entry["type"], entry["what"], entry["by"], entry["why"])
        for entry in operator.world.ledger()
        if entry["type"] in ("freeze", "resume")
    ]
    assert decided == [
        ("freeze", "table", "alice", "the replica's disk is changed"),
        ("resume", "table", "alice", "the disk is new"),
        ("freeze", "replica", "alice", "it is moved"),
        ("resume", "replica", "alice", "it is there"),
    ]


def _freeze_the_replica_alone(operator: Operator, first: str, second: str) -> None:
    """Loading goes on at the other one, until it is resumed."""

    def wait_for_blocks_at(url: str) -> set[str]:
        """Until one came there; where those since have gone."""
        settled, found = len(receipts(operator.world)), set[str]()

        def is_there() -> bool:
            operator.produce(100)
            found.update(each["replica"] for each in receipts(operator.world)[settled:])
            return url in found

        operator.wait(is_there, f"a block at {url}")
        return found

    wait_for_blocks_at(first)
    operator.decide("/freeze", replica=first, why="it is moved")
    operator.wait(
        lambda: any(each["frozen"] for each in operator.connector()["replicas"]), "the driver"
    )
    operator.wait_until_settled()  # what was out
    for _ in range(3):
        assert wait_for_blocks_at(second) == {second}
    assert "2 replicas, 1 frozen" in operator.page()
    operator.decide("/resume", replica=first, why="it is there")
    wait_for_blocks_at(first)
    operator.wait_until_loaded()
