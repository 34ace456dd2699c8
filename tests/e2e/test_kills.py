"""Killing the driver and the workers: every row once, every dead letter once."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from sluice.testbed.local.children import free_ports
from sluice.testbed.local.processes import command_of, descendants
from tests.support.driver import Driver
from tests.support.world import Truth, World, assert_dead_letters, assert_exact, wait_for


def jvm_of(driver: Driver) -> int:
    """The process id of its Spark."""
    below = [each.pid for each in descendants(driver.process.pid)]
    (jvm,) = [pid for pid in below if "SparkSubmit" in command_of(pid)]
    return jvm


def kill_workers(driver: Driver, kills: int) -> None:
    """Kill so many, one after the other."""
    dice, until = random.Random(3), time.monotonic() + 240
    while kills:
        assert time.monotonic() < until, f"{kills} workers were not there to be killed"
        time.sleep(dice.uniform(0.1, 0.4))
        workers = driver.workers()
        if workers:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(workers), signal.SIGKILL)
                kills -= 1


def create_with_view(world: World, table: str) -> None:
    """A table whose rows are counted by country behind it, by a view that deduplicates, too."""
    world.create_table(table)
    world.execute(
        f"CREATE TABLE {table}_sums (country String, orders UInt64) ENGINE = SummingMergeTree "
        "ORDER BY country SETTINGS non_replicated_deduplication_window = 10000"
    )
    world.execute(
        f"CREATE MATERIALIZED VIEW {table}_view TO {table}_sums AS "
        f"SELECT country, count() AS orders FROM {table} GROUP BY country"
    )


def assert_sums(world: World, table: str, truth: Truth) -> None:
    """The view has counted each row once."""
    sums = world.query(f"SELECT sum(orders) AS n FROM {table}_sums")
    assert int(str(sums[0]["n"])) == truth.rows, "rows behind the view"


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_kills_of_the_driver(world: World, kills: int) -> None:
    """SIGKILL at random moments: while it plans, records, loads or settles."""
    world.create_topic("orders-kills")
    create_with_view(world, "kills")
    truth = Truth()
    world.produce("orders-kills", 60_000 * kills, truth, bad_every=2500)
    configuration = world.configure({"kills": ["orders-kills"]}, max_messages=5_000)
    dice, replayed = random.Random(11), 0
    for _ in range(kills):
        before = world.count("kills")
        driver = world.run(configuration)
        world.wait_for_rows("kills", before + 1, driver)
        world.load_for(dice.uniform(0, 0.7), "kills", (before + truth.rows) // 2)
        driver.kill()
        replayed += driver.text().count("is loaded again, identically")
    assert world.count("kills") < truth.rows, "the kills came too late to prove anything"
    replayed += world.drain(configuration).text().count("is loaded again, identically")
    assert replayed > 0, "no kill left a range in doubt"
    assert_exact(world, "kills", truth)
    assert_sums(world, "kills", truth)
    assert_dead_letters(world, truth)


def test_workers_killed_in_the_middle_of_inserts_and_then_spark(world: World) -> None:
    """Spark's JVM is killed when there is nothing to do. The driver would hear of it with its next
    range only, which may be hours later; and a connector that waits for its Kafka, never."""
    world.create_topic("orders-workers")
    world.create_table("workers")
    truth = Truth()
    world.produce("orders-workers", 120_000, truth, bad_every=5000)
    nowhere = f'brokers = "127.0.0.1:{free_ports(1)[0]}"'
    away = f'[[connector]]\nname = "dc2"\n{nowhere}\ntopics = ["orders-away"]'
    configuration = world.configure(
        {"workers": ["orders-workers", "orders-away"]}, max_messages=2_000
    )
    text = configuration.read_text().replace('"orders-away", ', "", 1)
    configuration.write_text(text.replace("[batch]", f"{away}\n[batch]"))
    driver = world.run(configuration)
    world.wait_for_rows("workers", 1, driver)
    with world.messages_coming("orders-workers", truth):
        kill_workers(driver, 4)
    world.wait_for_rows("workers", truth.rows, driver)
    assert "Spark lost" in driver.text()

    def is_idle() -> bool:
        records = [entry for entry in world.ledger() if entry["type"] == "record"]
        last = {entry["partition"]: entry["kind"] for entry in records}
        return set(last.values()) == {"settle"}

    wait_for(is_idle, 120, "the last settle")
    assert_exact(world, "workers", truth)
    assert_dead_letters(world, truth)
    os.kill(jvm_of(driver), signal.SIGKILL)
    assert driver.wait() == 3, driver.text()[-4000:]
    assert "Spark's driver process or its context has ended" in driver.text()


@pytest.mark.long
def test_a_spark_that_dies_ends_the_driver_in_doubt_and_the_next_one_goes_on(world: World) -> None:
    world.create_topic("orders-jvm")
    world.create_table("jvm")
    truth = Truth()
    world.produce("orders-jvm", 200_000, truth)
    configuration = world.configure({"jvm": ["orders-jvm"]}, max_messages=2_000, lease='"10s"')
    driver = world.run(configuration, "--until-caught-up")
    world.wait_for_rows("jvm", 1, driver)
    os.kill(jvm_of(driver), signal.SIGKILL)
    assert driver.wait() == 3, driver.text()[-4000:]
    assert "This is a bug" not in driver.text() and "unexpected" not in driver.text()
    assert world.run(configuration, "--until-caught-up").wait() == 0
    assert_exact(world, "jvm", truth)
