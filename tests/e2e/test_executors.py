"""Spark's own executors come with the work and go without it, on a cluster of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.testbed.chaos.spark_cluster import LOOPBACK, SparkCluster, running_spark, spark_settings
from sluice.testbed.local.processes import command_of, descendants
from tests.support.world import Truth, World, assert_exact, use_cluster, wait_for

PARTITIONS, ROWS, RANGE = 16, 160_000, 1_000
#: More than twice as many as a driver knows of before there are any (Spark says two then).
EXECUTORS_MAX = 6
#: What a view behind the table takes for each block, so that tasks wait for slots.
INSERT_SECONDS = 1.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with running_spark(tmp_path / "spark", (LOOPBACK,) * 3) as made:
        yield made


def executors(cluster: SparkCluster) -> list[int]:
    """Process ids."""
    below = (child.pid for worker in cluster.workers for child in descendants(worker))
    return [pid for pid in below if "CoarseGrainedExecutorBackend" in command_of(pid)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_executors_come_with_the_work_and_go_without_it(
    world: World, cluster: SparkCluster
) -> None:
    """The driver gives Spark as much as its executors of now can do, and a little more; so Spark
    asks for more of them. One is killed meanwhile."""
    truth, topic = Truth(), "orders-executors"
    world.create_topic(topic, PARTITIONS)
    world.create_table("executors")
    world.execute(
        "CREATE TABLE executors_seen (id UInt64, slept UInt8) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    world.execute(
        "CREATE MATERIALIZED VIEW executors_view TO executors_seen AS "
        f"SELECT id, sleep({INSERT_SECONDS}) AS slept FROM executors"
    )
    world.produce(topic, ROWS, truth, partitions=PARTITIONS)
    settings = spark_settings() | {
        "spark.cores.max": str(EXECUTORS_MAX),
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": str(EXECUTORS_MAX),
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "10s",
    }
    path = world.configure({"executors": [topic]}, max_messages=RANGE)
    use_cluster(path, cluster.master, settings)
    driver = world.run(path)
    wait_for(lambda: len(executors(cluster)) == EXECUTORS_MAX, 180, "all executors")
    killed = executors(cluster)[0]
    os.kill(killed, signal.SIGKILL)

    def is_replaced() -> bool:
        now = executors(cluster)
        return len(now) == EXECUTORS_MAX and killed not in now

    wait_for(is_replaced, 120, "an executor after that one")
    world.wait_for_rows("executors", truth.rows, driver, 400)
    wait_for(lambda: len(executors(cluster)) <= 1, 120, "the end of executors without work")
    world.produce(topic, PARTITIONS * RANGE, truth, partitions=PARTITIONS, first=truth.rows)
    world.wait_for_rows("executors", truth.rows, driver, 200)
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "executors", truth)
