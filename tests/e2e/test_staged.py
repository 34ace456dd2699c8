"""Staged delivery with real drivers and a real server: tables that no window knows anything of."""

from __future__ import annotations

import random
import time

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.staging import staging_prefix, staging_tables
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

STAGED = 'delivery = "staged"'


def create(world: World, table: str, engine: str = "MergeTree") -> None:
    """Without a window, and with several ClickHouse partitions in each block."""
    world.execute(
        f"CREATE TABLE {table} ({COLUMNS}, {LINEAGE}) ENGINE = {engine} "
        "PARTITION BY id % 3 ORDER BY (id, _topic, _partition, _offset)"
    )


def staged(world: World, table: str) -> list[str]:
    with Server(world.clickhouse.url) as server:
        found = staging_tables(server, "default", staging_prefix(table))
    return [each.name for each in found]


@pytest.mark.long
def test_a_table_without_a_window_is_loaded_and_nothing_is_left(world: World) -> None:
    create(world, "bare", "ReplacingMergeTree")
    world.execute(
        "CREATE MATERIALIZED VIEW seen ENGINE = SummingMergeTree ORDER BY place AS "
        "SELECT id % 3 AS place, count() AS n FROM bare GROUP BY place"
    )
    world.create_topic("orders-bare")
    truth = Truth()
    world.produce("orders-bare", 20_000, truth, bad_every=500)
    refused = world.sluice("doctor", str(world.configure({"bare": ["orders-bare"]})))
    assert refused.returncode == 1 and 'delivery = "staged" in [[table]] bare' in refused.stdout

    configuration = world.configure(
        {"bare": ["orders-bare"]}, table_settings=STAGED, lease='"15s"', max_messages=5_000
    )
    assert world.sluice("doctor", str(configuration)).returncode == 0
    driver = world.run(configuration)
    world.wait_for_rows("bare", truth.rows, driver)
    assert_exact(world, "bare", truth)
    assert world.query("SELECT sum(n) AS n FROM seen") == [{"n": truth.rows}]
    wait_for(lambda: not staged(world, "bare"), 120, "the staging tables to go")
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert world.sluice("audit", str(configuration)).returncode == 0


@pytest.mark.long
def test_two_tables_of_one_topic_wait_for_each_other(world: World) -> None:
    for name in ("first", "second"):
        create(world, name)
    world.create_topic("orders-both")
    truth = Truth()
    world.produce("orders-both", 5_000, truth)
    configuration = world.configure(
        {"first": ["orders-both"], "second": ["orders-both"]},
        table_settings=STAGED,
        connector='commit = "bundle"',
        max_messages=1_000,
    )
    world.drain(configuration)
    for name in ("first", "second"):
        assert_exact(world, name, truth)


def test_kills_of_the_driver(world: World) -> None:
    """SIGKILL at random moments; its tasks may go on without it, while they are repeated."""
    create(world, "killed")
    world.create_topic("orders-killed")
    truth = Truth()
    world.produce("orders-killed", 100_000, truth, bad_every=2500)
    configuration = world.configure(
        {"killed": ["orders-killed"]}, table_settings=STAGED, lease='"20s"', max_messages=3_000
    )
    dice, replayed = random.Random(5), 0
    for _ in range(4):
        before = world.count("killed")
        driver = world.run(configuration)
        world.wait_for_rows("killed", before + 1, driver)
        time.sleep(dice.uniform(0, 0.7))
        driver.kill()
        replayed += driver.text().count("is loaded again, identically")
    assert world.count("killed") < truth.rows, "the kills came too late to prove anything"
    world.drain(configuration)
    assert replayed > 0, "no kill left a range in doubt"
    assert_exact(world, "killed", truth)
