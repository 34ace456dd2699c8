"""A server in another time zone, or another table in a target's place, while blocks wait."""

from __future__ import annotations

import pytest

from sluice.testbed.local.running import ClickHouse
from tests.support.cutting import run_link
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

MESSAGES = 100
#: For a machine on which ten others work.
PATIENCE = 300.0


def evening(number: int) -> bytes:
    """In New Zealand it is the next day already."""
    return b'{"id":%d,"ts":"2026-01-02 20:00:00"}' % number


@pytest.mark.slow
def test_a_server_that_starts_again_in_another_time_zone_stores_no_block_twice(
    fragile_world: World,
) -> None:
    """Its rows would lie in another ClickHouse partition, where the token is unknown."""
    world = fragile_world
    world.create_topic("orders-zone", 1)
    world.execute(
        f"CREATE TABLE zoned ({COLUMNS}, {LINEAGE}) ENGINE = MergeTree PARTITION BY toYYYYMMDD(ts) "
        "ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
    )
    truth = Truth()
    world.produce("orders-zone", MESSAGES, truth, partitions=1, make=evening)
    with run_link(world.clickhouse.url) as link:
        path = world.configure({"zoned": ["orders-zone"]}, url=link.url, lease='"10s"')
        link.lose()
        driver = world.run(path, "--until-caught-up")
        wait_for(lambda: link.lost > 0, PATIENCE, "a lost acknowledgement")
        assert isinstance(world.clickhouse, ClickHouse)
        world.clickhouse.stop()
        world.clickhouse.zone = "Pacific/Auckland"
        world.clickhouse.start()
        link.heal()
        # It stops for the zone, or the range was probed before, since the server started again.
        assert driver.wait(PATIENCE) in (0, 1)
        assert world.count("zoned") == MESSAGES
        second = world.drain(path, PATIENCE)
    assert "was probed" in driver.text() + second.text()
    assert_exact(world, "zoned", truth)


@pytest.mark.long
def test_a_table_that_takes_the_place_of_one_that_is_in_doubt_is_looked_into(world: World) -> None:
    """It holds the rows of the one before it, and not its tokens; its insert counter is no less."""
    world.create_topic("orders-place", 1)
    world.execute("CREATE DATABASE swapping ENGINE = Atomic")  # tables with uuids, as servers have
    world.create_table("swapping.placed")
    truth = Truth()
    world.produce("orders-place", MESSAGES, truth, partitions=1)
    with run_link(world.clickhouse.url) as link:
        path = world.configure({"placed": ["orders-place"]}, url=link.url, lease='"10s"')
        path.write_text(path.read_text().replace('database = "default"', 'database = "swapping"'))
        link.lose()
        driver = world.run(path, "--until-caught-up")
        wait_for(lambda: link.lost > 0, PATIENCE, "a lost acknowledgement")
        world.create_table("swapping.other")
        for _ in range(20):
            world.execute("INSERT INTO swapping.other (id, _topic) SELECT 1, 'foreign'")
        world.execute("INSERT INTO swapping.other SELECT * FROM swapping.placed")
        world.execute("EXCHANGE TABLES swapping.placed AND swapping.other")
        link.heal()
        assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
        away = "DELETE WHERE _topic = 'foreign' SETTINGS mutations_sync = 1"
        world.execute(f"ALTER TABLE swapping.placed {away}")
        assert_exact(world, "swapping.placed", truth)
        assert "was probed" in driver.text()
        # What comes then is loaded under a text of the table that is there now.
        world.produce("orders-place", MESSAGES, truth, partitions=1, first=MESSAGES)
        world.drain(path, PATIENCE)
    assert_exact(world, "swapping.placed", truth)
    world.execute("DROP DATABASE swapping")
