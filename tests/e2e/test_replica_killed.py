"""`sluice run` into one shard of two replicas, of which one is killed and comes back."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.insert import query_id_prefix
from sluice.core.replicas import REST_SECONDS_FIRST, REST_SECONDS_MAX
from sluice.testbed.chaos.proxy import Proxy
from sluice.testbed.chaos.requests import Posts
from sluice.testbed.local.cluster.cluster import Cluster
from sluice.testbed.local.running import Broker
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
ROWS = 20_000
#: Of Spark's Python workers, see `World.configure`.
WORKERS = 2


@pytest.fixture
def world(tmp_path: Path, shared_broker: Broker, cluster: Cluster) -> Iterator[World]:
    """Looks at the second replica, which lives through all."""
    made = World(tmp_path, shared_broker, cluster.servers[1], name=f"r{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def posts() -> Posts:
    return Posts()


@pytest.fixture
def ways(cluster: Cluster, posts: Posts) -> Iterator[list[str]]:
    """URLs of both replicas, behind which the attempts to insert are counted."""
    with ExitStack() as stack:
        yield [
            f"http://127.0.0.1:{stack.enter_context(Proxy(posts.watch, at)).port}"
            for at in (("127.0.0.1", each.settings.ports[0]) for each in cluster.servers)
        ]


def receipts(world: World) -> list[dict[str, Any]]:
    return [entry for entry in world.ledger() if entry["type"] == "receipt"]


def test_loading_goes_on_at_the_other_replica(
    world: World, cluster: Cluster, posts: Posts, ways: list[str]
) -> None:
    first = cluster.servers[0]
    first_url, second_url = ways
    table, topic = f"killed_{world.name}", f"orders-{world.name}"
    world.create_topic(topic)
    cluster.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{table}', '{{replica}}') ORDER BY (user_id, ts)"
    )
    configuration = world.configure(
        {table: [topic]}, max_messages=1_000, url=f'{first_url}", "{second_url}'
    )
    truth = Truth()
    world.produce(topic, ROWS, truth)
    driver = world.run(configuration)
    world.wait_for_rows(table, 3_000, driver)
    first.kill()
    killed_at = time.monotonic()
    before = world.count(table)
    world.produce(topic, ROWS, truth, first=ROWS)
    # What only the first has seen is missing here, at most what it had acknowledged by then.
    world.wait_for_rows(table, before + ROWS, driver)
    settled = len(receipts(world))
    first.start()

    def first_has_its_turn() -> bool:
        # Rows go on: a worker's rest and the driver's next look may outlast any batch of them.
        world.produce(topic, 1_000, truth, first=truth.rows)
        return any(each["replica"] == first_url for each in receipts(world)[settled:])

    wait_for(first_has_its_turn, 180, "the turn of the first replica")
    away_seconds = time.monotonic() - killed_at
    world.wait_for_rows(table, truth.rows, driver)
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]

    cluster.execute(f"SYSTEM SYNC REPLICA {table}")
    for each in cluster.servers:
        world.clickhouse = each
        assert_exact(world, table, truth)
    assert sum(int(each["rows"]) for each in receipts(world)) == truth.rows
    # A bundle's block has a receipt for each of its ranges, the first of which counts it.
    found = [each for each in receipts(world) if not each.get("is_shared")]
    assert len({each["token"] for each in found}) == len(found)
    passed = [each for each in found if "failed_over" in each]
    assert passed and all(each["replica"] == second_url for each in passed)
    assert all(
        len(each["failed_over"]) == 1 and each["failed_over"][0].startswith(f"{first_url} ")
        for each in passed
    )
    assert "went to" in driver.text() and first_url in driver.text()
    # A replica that failed costs a block one attempt more at most, and no block any other.
    for each in found:
        sent = posts.of_block[query_id_prefix(each["token"])]
        assert 1 <= len(sent) <= 1 + len(each.get("failed_over", ())), each
    # A worker asks a dead replica once in each of its rests, which double, not for each block.
    rests = 2 + math.log2(1 + away_seconds / REST_SECONDS_FIRST)
    assert len(passed) <= WORKERS * rests + away_seconds / REST_SECONDS_MAX
    shown = world.sluice("ledger", str(configuration)).stdout
    assert f"past {first_url} " in shown
    for command in ("audit", "verify"):
        judged = world.sluice(command, str(configuration))
        assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.long
def test_a_driver_starts_while_the_first_replica_is_down(world: World, cluster: Cluster) -> None:
    first, second = cluster.servers
    table, topic = f"down_{world.name}", f"down-{world.name}"
    world.create_topic(topic)
    cluster.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{table}', '{{replica}}') ORDER BY (user_id, ts)"
    )
    configuration = world.configure({table: [topic]}, url=f'{first.url}", "{second.url}')
    truth = Truth()
    world.produce(topic, 4_000, truth)
    first.kill()
    try:
        examined = world.sluice("doctor", str(configuration))
        assert "blocks go to the other servers meanwhile" in examined.stdout + examined.stderr
        world.drain(configuration)
        assert_exact(world, table, truth)
        assert {each["replica"] for each in receipts(world)} == {second.url}
    finally:
        first.start()
    cluster.execute(f"SYSTEM SYNC REPLICA {table}")
    world.clickhouse = first
    assert_exact(world, table, truth)
