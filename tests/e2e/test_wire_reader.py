"""The whole with `reader = "native"`: outages, dead letters, large messages."""

from __future__ import annotations

import time

import pytest

from tests.support.world import Truth, World, assert_dead_letters, assert_exact, order

WIRE = 'reader = "native"\n'


@pytest.mark.long
def test_a_broker_that_goes_and_comes_back(fragile_world: World) -> None:
    world = fragile_world
    world.create_topic("orders")
    world.create_table("orders")
    truth = Truth()
    world.produce("orders", 200_000, truth, bad_every=5000)
    configuration = world.configure({"orders": ["orders"]}, max_messages=5_000, connector=WIRE)
    driver = world.run(configuration, "--until-caught-up")
    world.wait_for_rows("orders", 1, driver)
    world.broker.stop()
    time.sleep(5)
    assert driver.process.poll() is None, driver.text()[-4000:]
    world.broker.start()
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "orders", truth)
    assert_dead_letters(world, truth)


@pytest.mark.long
def test_messages_that_grow(world: World) -> None:
    """Small messages, then messages of 50 KB that shrink to little: too heavy, and shortened."""
    world.create_topic("orders-wire", 2)
    world.create_table("wire")
    truth = Truth()
    world.produce("orders-wire", 40_000, truth, partitions=2, bad_every=3000)
    note = "".join(chr(97 + (7 * i) % 26) for i in range(50_000))
    world.produce("orders-wire", 5_000, truth, 2, make=lambda n: order(n, note), first=40_000)
    configuration = world.configure(
        {"wire": ["orders-wire"]}, max_messages=250_000, max_bytes='"64MiB"', connector=WIRE
    )
    driver = world.run(configuration)
    world.wait_for_rows("wire", truth.rows, driver)
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "wire", truth)
    assert [entry for entry in world.ledger() if entry.get("kind") == "shorten"]
