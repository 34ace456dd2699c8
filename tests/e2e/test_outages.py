"""ClickHouse away, Kafka away: Sluice waits, and every row lands once."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.world import Truth, World, assert_dead_letters, assert_exact, order, wait_for


@pytest.mark.long
def test_clickhouse_is_stopped_for_30_s(fragile_world: World) -> None:
    world = fragile_world
    world.create_topic("orders")
    world.create_table("orders")
    truth = Truth()
    world.produce("orders", 200_000, truth, bad_every=5000)
    configuration = world.configure({"orders": ["orders"]}, max_messages=5_000, lease='"10s"')
    driver = world.run(configuration, "--until-caught-up")
    world.wait_for_rows("orders", 1, driver)
    world.clickhouse.kill()
    time.sleep(30)
    assert driver.process.poll() is None, driver.text()[-4000:]
    world.clickhouse.start()
    assert driver.wait() == 0, driver.text()[-4000:]
    assert "waits: " in driver.text()
    assert_exact(world, "orders", truth)
    assert_dead_letters(world, truth)


def test_broker_is_stopped_for_20_s(fragile_world: World) -> None:
    world = fragile_world
    world.create_topic("orders")
    world.create_table("orders")
    truth = Truth()
    world.produce("orders", 100_000, truth, bad_every=2500)
    configuration = world.configure({"orders": ["orders"]}, max_messages=5_000)
    driver = world.run(configuration)
    world.wait_for_rows("orders", 1, driver)
    world.broker.stop()
    time.sleep(20)
    assert driver.process.poll() is None, driver.text()[-4000:]
    world.broker.start()
    # Whatever it had loaded before, it goes on.
    world.produce("orders", 20_000, truth, bad_every=2500, first=100_000)
    world.wait_for_rows("orders", truth.rows, driver)
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "orders", truth)
    assert_dead_letters(world, truth)


def test_clickhouse_is_killed_again_and_again_while_rows_flow(fragile_world: World) -> None:
    """Every kill loses acknowledgements of inserts that may have been committed."""
    world = fragile_world
    world.create_topic("orders")
    world.create_table("orders")
    truth = Truth()
    producing = threading.Thread(
        target=lambda: [
            (world.produce("orders", 20_000, truth, first=n * 20_000), time.sleep(0.5))
            for n in range(10)
        ],
        daemon=True,
    )
    configuration = world.configure({"orders": ["orders"]}, max_messages=4_000, lease='"5s"')
    driver = world.run(configuration)
    producing.start()
    for rows in (1, 40_000, 80_000):
        world.wait_for_rows("orders", rows, driver)
        world.clickhouse.kill()
        world.clickhouse.start()
    producing.join()
    world.wait_for_rows("orders", truth.rows, driver)
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "orders", truth)


@pytest.mark.long
@pytest.mark.parametrize("reader", ["librdkafka", "native"])
def test_messages_that_grow_keep_workers_below_a_gigabyte(world: World, reader: str) -> None:
    """R12: the estimate was made on 200 bytes, then messages of 50 KB come."""
    table, topic = f"growing_{reader}", f"orders-growing-{reader}"
    world.create_topic(topic, 2)
    world.create_table(table)
    truth = Truth()
    world.produce(topic, 40_000, truth, partitions=2)
    note = "".join(chr(97 + (7 * i) % 26) for i in range(50_000))
    world.produce(topic, 8_000, truth, 2, make=lambda n: order(n, note), first=40_000)
    configuration = world.configure(
        {table: [topic]},
        max_messages=250_000,
        max_bytes='"64MiB"',
        connector=f'reader = "{reader}"',
    )
    driver = world.run(configuration)
    peak = 0

    def is_loaded() -> bool:
        nonlocal peak
        assert driver.process.poll() is None, driver.text()[-4000:]
        peak = max([peak, *(_resident_bytes(pid) for pid in driver.workers())])
        return world.count(table) >= truth.rows

    wait_for(is_loaded, 180, f"{truth.rows} rows")
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, table, truth)
    assert 0 < peak < 1 << 30, f"a worker took {peak / 2**20:.0f} MiB"
    shortened = [e for e in world.ledger() if e.get("kind") == "shorten"]
    assert shortened, "no range was refused as too heavy"


def _resident_bytes(pid: int) -> int:
    from pathlib import Path

    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def test_a_stop_while_everything_is_away_ends_and_loses_nothing(fragile_world: World) -> None:
    """Nothing can be settled any more: the time for it ends, and the exit status says so."""
    world = fragile_world
    world.create_topic("orders")
    world.create_table("orders")
    truth = Truth()
    world.produce("orders", 60_000, truth)
    configuration = world.configure({"orders": ["orders"]}, max_messages=1_000, lease='"10s"')
    driver = world.run(configuration, "--grace", "3s")
    # While ranges are on their way: else the windows are found out first, and nothing is intended.
    world.wait_for_rows("orders", 2_000, driver)
    world.clickhouse.kill()
    wait_for(lambda: "is not loaded yet" in driver.text(), 240, "a failed insert")
    world.broker.stop()
    driver.signal(15)
    assert driver.wait() == 3, driver.text()[-4000:]
    world.broker.start()
    world.clickhouse.start()
    assert world.run(configuration, "--until-caught-up").wait() == 0
    assert_exact(world, "orders", truth)
