"""Spark's workers on two hosts, each with an address of its own; the network of one goes away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sluice.testbed.chaos.spark_cluster import SparkCluster, running_spark, spark_settings
from sluice.testbed.local.processes import command_of, descendants
from tests.support.hosts import HERE, Host, running_hosts
from tests.support.world import Truth, World, assert_exact, use_cluster, wait_for

PARTITIONS, ROWS, RANGE = 8, 160_000, 1_000
#: Longer than Spark waits for an executor that says nothing.
CUT_SECONDS = 40.0


@pytest.fixture
def hosts(world: World) -> Iterator[list[Host]]:
    if os.geteuid():
        pytest.skip("makes no network namespaces here")
    addresses = (f"//{world.broker.brokers}", world.clickhouse.url)
    with running_hosts(2, [urlsplit(each).port or 0 for each in addresses]) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, hosts: list[Host]) -> Iterator[SparkCluster]:
    with running_spark(tmp_path / "spark", (), address=HERE) as made:
        for host in hosts:
            made.add_worker(host.address, inside=host.inside)
        made.wait_for_workers()
        yield made


def executors(cluster: SparkCluster, number: int) -> list[int]:
    """Process ids below a worker."""
    below = [child.pid for child in descendants(cluster.workers[number])]
    return [pid for pid in below if "CoarseGrainedExecutorBackend" in command_of(pid)]


@pytest.mark.long
def test_a_host_that_is_cut_off_under_load_loses_and_doubles_nothing(
    world: World, cluster: SparkCluster, hosts: list[Host]
) -> None:
    truth, topic = Truth(), "orders-hosts"
    world.create_topic(topic, PARTITIONS)
    world.create_table("hosts")
    settings = spark_settings() | {
        "spark.driver.host": HERE,
        "spark.driver.bindAddress": HERE,
    }
    path = world.configure({"hosts": [topic]}, max_messages=RANGE)
    use_cluster(path, cluster.master, settings)
    driver = world.run(path)
    world.produce(topic, ROWS // 4, truth, partitions=PARTITIONS)
    world.wait_for_rows("hosts", truth.rows // 2, driver)
    wait_for(
        lambda: [len(executors(cluster, number)) for number in range(2)] == [1, 1],
        120,
        "one executor on each of them",
    )
    hosts[0].cut()
    cut_at = time.monotonic()
    world.produce(topic, ROWS // 2, truth, partitions=PARTITIONS, first=truth.rows)
    before = world.count("hosts")
    wait_for(lambda: world.count("hosts") > before + RANGE, 120, "rows by way of the other host")
    time.sleep(max(0.0, CUT_SECONDS - (time.monotonic() - cut_at)))
    hosts[0].mend()
    world.produce(topic, ROWS // 4, truth, partitions=PARTITIONS, first=truth.rows)
    world.wait_for_rows("hosts", truth.rows, driver, 400)
    wait_for(lambda: len(executors(cluster, 0)) == 1, 120, "an executor on that host")
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "hosts", truth)
    assert world.sluice("audit", str(path)).returncode == 0
