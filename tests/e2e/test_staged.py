"""Staged delivery with real drivers and a real server: tables that no window knows anything of."""

from __future__ import annotations

import random

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


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_kills_of_the_driver(world: World, kills: int) -> None:
    """SIGKILL at random moments; its tasks may go on without it, while they are repeated. A view
    counts the rows of one table; two others have the same topic and wait for each other. In the
    end nothing is left beside them."""
    tables = {"bare": ["orders-bare"], "first": ["orders-both"], "second": ["orders-both"]}
    create(world, "bare", "ReplacingMergeTree")
    for name in ("first", "second"):
        create(world, name)
    world.execute(
        "CREATE MATERIALIZED VIEW seen ENGINE = SummingMergeTree ORDER BY place AS "
        "SELECT id % 3 AS place, count() AS n FROM bare GROUP BY place"
    )
    truths = {"orders-bare": Truth(), "orders-both": Truth()}
    for topic, truth in truths.items():
        world.create_topic(topic)
        world.produce(topic, 8_000 * (1 + kills), truth, bad_every=1_000)
    refused = world.sluice("doctor", str(world.configure({"bare": ["orders-bare"]})))
    assert refused.returncode == 1 and 'delivery = "staged" in [[table]] bare' in refused.stdout

    configuration = world.configure(
        tables,
        table_settings=STAGED,
        connector='commit = "bundle"',
        lease='"15s"',
        max_messages=2_000,
    )
    assert world.sluice("doctor", str(configuration)).returncode == 0
    dice, replayed = random.Random(5), 0
    for _ in range(kills):
        before = world.count("bare")
        driver = world.run(configuration)
        world.wait_for_rows("bare", before + 1, driver)
        half = (before + truths["orders-bare"].rows) // 2
        world.load_for(dice.uniform(0, 0.7), "bare", half)
        driver.kill()
        replayed += driver.text().count("is loaded again, identically")
    assert world.count("bare") < truths["orders-bare"].rows, "the kills came too late"
    driver = world.run(configuration)
    for name, (topic,) in tables.items():
        world.wait_for_rows(name, truths[topic].rows, driver)
        assert_exact(world, name, truths[topic])
    assert world.query("SELECT sum(n) AS n FROM seen") == [{"n": truths["orders-bare"].rows}]
    replayed += driver.text().count("is loaded again, identically")
    assert replayed > 0, "no kill left a range in doubt"
    for name in tables:
        wait_for(lambda name=name: not staged(world, name), 120, "the staging tables to go")  # type: ignore[misc]
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert world.sluice("audit", str(configuration)).returncode == 0
