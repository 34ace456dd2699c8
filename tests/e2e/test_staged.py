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


def test_a_table_without_a_window_is_loaded_and_nothing_is_left(world: World) -> None:
    create(world, "bare", "ReplacingMergeTree")
    world.create_topic("orders-bare")
    truth = Truth()
    world.produce("orders-bare", 20_000, truth, bad_every=500)
    refused = world.sluice("doctor", str(world.configure({"bare": ["orders-bare"]})))
    assert refused.returncode == 1 and 'delivery = "staged" in [[table]] bare' in refused.stdout

    configuration = world.configure(
        {"bare": ["orders-bare"]}, table_settings=STAGED, lease='"5s"', max_messages=2_000
    )
    assert world.sluice("doctor", str(configuration)).returncode == 0
    driver = world.run(configuration)
    world.wait_for_rows("bare", truth.rows, driver)
    assert_exact(world, "bare", truth)
    wait_for(lambda: not staged(world, "bare"), 60, "the staging tables to go")
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert world.sluice("audit", str(configuration)).returncode == 0


def test_a_table_that_feeds_views_is_refused_with_words(world: World) -> None:
    create(world, "seen")
    world.execute(
        "CREATE MATERIALIZED VIEW seer ENGINE = MergeTree ORDER BY id AS SELECT id FROM seen"
    )
    world.create_topic("orders-seen", 1)
    driver = world.run(
        world.configure({"seen": ["orders-seen"]}, table_settings=STAGED), "--until-caught-up"
    )
    assert driver.wait() == 1 and "it feeds default.seer" in driver.text()
    world.execute("DROP TABLE seer")


@pytest.mark.long
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
