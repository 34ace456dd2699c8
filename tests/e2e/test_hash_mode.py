"""ClickHouse 18.16.1 with ZooKeeper: no tokens, the server hashes the rows (H14)."""

from __future__ import annotations

import pytest

from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_dead_letters, assert_exact

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")


@pytest.mark.long
@pytest.mark.parametrize("sort", ["false", "true"])
def test_kills_under_hashed_deduplication(old_world: World, sort: str) -> None:
    """The order of rows decides the hash, so sorted blocks must come back in the same order."""
    world = old_world
    table, topic = f"hashed_{sort}", f"orders-hashed-{sort}"
    world.create_topic(topic)
    world.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{table}', '{{replica}}') ORDER BY (user_id, ts)"
    )
    truth = Truth()
    world.produce(topic, 150_000, truth, bad_every=3000)
    configuration = world.configure(
        {table: [topic]},
        max_messages=10_000,
        lease='"5s"',
        table_settings=f"sort = {sort}",
    )
    replayed = 0
    for _ in range(3):
        before = world.count(table)
        driver = world.run(configuration)
        world.wait_for_rows(table, before + 1, driver)
        driver.kill()
        replayed += driver.text().count("is loaded again, identically")
    assert world.count(table) < truth.rows
    world.drain(configuration)
    assert replayed > 0
    assert_exact(world, table, truth)
    assert_dead_letters(world, truth)


@pytest.mark.long
def test_equal_messages_are_rows_of_their_own(old_world: World) -> None:
    """Two legitimate blocks of equal messages must not collapse: the offset tells them apart."""
    world = old_world
    world.create_topic("heartbeats", 2)
    world.execute(
        f"CREATE TABLE heartbeats ({PLAIN}) ENGINE = ReplicatedMergeTree("
        "'/clickhouse/tables/heartbeats', '{replica}') ORDER BY id"
    )
    truth = Truth()
    world.produce("heartbeats", 4_000, truth, partitions=2, make=lambda number: b'{"id":5}')
    configuration = world.configure({"heartbeats": ["heartbeats"]}, max_messages=500)
    world.drain(configuration)
    assert world.count("heartbeats") == 4_000


@pytest.mark.long
def test_a_table_that_cannot_deduplicate_is_refused_with_the_statement(old_world: World) -> None:
    world = old_world
    world.create_topic("orders-plain", 1)
    world.execute(f"CREATE TABLE plain ({PLAIN}) ENGINE = MergeTree ORDER BY id")
    configuration = world.configure({"plain": ["orders-plain"]})
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert "Replicated" in driver.text(), driver.text()
    assert world.count("plain") == 0
