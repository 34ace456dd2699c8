"""Outside of the deduplication window: look before loading (R10 and R11)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.world import (
    COLUMNS,
    LINEAGE,
    Truth,
    World,
    assert_dead_letters,
    assert_exact,
    wait_for,
)


@pytest.mark.slow
def test_a_replay_after_the_window_was_overrun_is_probed(world: World) -> None:
    """Killed in the middle; then a foreign writer evicts every token; then restarted."""
    world.create_topic("orders-probe")
    world.create_table("probe", window=100)
    truth = Truth()
    world.produce("orders-probe", 120_000, truth, bad_every=2000)
    configuration = world.configure({"probe": ["orders-probe"]}, max_messages=5_000, lease='"5s"')
    driver = world.run(configuration)
    world.wait_for_rows("probe", 10_000, driver)
    driver.kill()
    _overrun(world, "probe", 130)
    second = world.drain(configuration)
    assert "is probed" in second.text()
    assert_exact_besides_foreign(world, "probe", truth)
    assert_dead_letters(world, truth)
    assert any(entry.get("kind") == "probe" for entry in world.ledger())


@pytest.mark.long
def test_without_lineage_only_a_person_can_resolve(world: World) -> None:
    world.create_topic("orders-bare")
    world.execute(
        f"CREATE TABLE bare ({COLUMNS}) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    truth = Truth()
    world.produce("orders-bare", 60_000, truth)
    configuration = world.configure(
        {"bare": ["orders-bare"]},
        max_messages=5_000,
        lease='"5s"',
        table_settings="lineage = false",
    )
    driver = world.run(configuration)
    world.wait_for_rows("bare", 10_000, driver)
    driver.kill()
    quiet_at = time.monotonic() + 16  # the lease and its grace
    _overrun(world, "bare", 130)
    second = world.run(configuration, "--until-caught-up")
    assert second.wait() == 1
    assert "sluice resolve" in second.text()
    wait_for(lambda: time.monotonic() >= quiet_at, 16, "the end of the lease")
    _remove_and_resolve(world, configuration)
    world.drain(configuration)
    rows = world.query("SELECT count() AS n, uniqExact(id) AS u FROM bare WHERE id < 1000000000000")
    assert (rows[0]["n"], rows[0]["u"]) == (60_000, 60_000)


def _remove_and_resolve(world: World, configuration: Path) -> None:
    """What a person does: make sure that nothing of the ranges is there, then say so.

    `id` is produced round robin over four partitions, so it tells partition and offset."""
    status = json.loads(world.sluice("status", str(configuration), "--json").stdout)
    doubtful = [item for item in status if item["intent"]["state"] == "in doubt"]
    assert doubtful
    for item in doubtful:
        intent, partition = item["intent"], item["partition"]
        world.execute(
            f"ALTER TABLE bare DELETE WHERE id % 4 = {partition} AND intDiv(id, 4) >= "
            f"{intent['begin']} AND intDiv(id, 4) < {intent['end']} SETTINGS mutations_sync = 1"
        )
    numbers = [str(item["partition"]) for item in doubtful]
    where = ["--connector", "dc1", "--topic", "orders-bare", "--partition", *numbers]
    answer = world.sluice("resolve", str(configuration), *where, "--as", "not-loaded", "--yes")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.long
def test_a_small_window_slows_down_and_never_doubles(world: World) -> None:
    """Kills under a window of 40 entries: the budget keeps every repeat inside it."""
    world.create_topic("orders-narrow")
    world.create_table("narrow", window=40)
    truth = Truth()
    world.produce("orders-narrow", 100_000, truth)
    configuration = world.configure({"narrow": ["orders-narrow"]}, max_messages=1_000, lease='"4s"')
    for _ in range(2):
        before = world.count("narrow")
        driver = world.run(configuration)
        world.wait_for_rows("narrow", before + 1, driver)
        time.sleep(0.3)
        driver.kill()
    world.drain(configuration)
    assert_exact(world, "narrow", truth)


def test_blocks_over_many_partitions_ask_for_a_reservation(world: World) -> None:
    world.create_topic("orders-days", 1)
    world.execute(
        f"CREATE TABLE days ({COLUMNS}, {LINEAGE}) ENGINE = MergeTree PARTITION BY toDate(ts) "
        "ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )
    truth = Truth()

    def late(number: int) -> bytes:
        day, month = 1 + number % 28, 1 + number % 12
        return b'{"id":%d,"ts":"2025-%02d-%02d 00:00:00"}' % (number, month, day)

    world.produce("orders-days", 5_000, truth, partitions=1, make=late)
    configuration = world.configure({"days": ["orders-days"]})
    world.drain(configuration)
    assert_exact(world, "days", truth)
    reservations = [e for e in world.ledger() if e.get("kind") == "renew" and e.get("attempt") == 2]
    assert reservations, "no reservation was asked for"


@pytest.mark.long
def test_a_block_that_needs_more_than_half_the_window_stops_with_the_statement(
    world: World,
) -> None:
    world.create_topic("orders-wide", 1)
    world.execute(
        f"CREATE TABLE wide ({COLUMNS}, {LINEAGE}) ENGINE = MergeTree PARTITION BY id % 200 "
        "ORDER BY id SETTINGS non_replicated_deduplication_window = 100"
    )
    world.produce("orders-wide", 5_000, Truth(), partitions=1)
    configuration = world.configure({"wide": ["orders-wide"]})
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert "MODIFY SETTING non_replicated_deduplication_window" in driver.text()
    assert world.count("wide") == 0


def _overrun(world: World, table: str, entries: int) -> None:
    """A foreign writer fills the window; its rows are told apart by their topic or id."""
    columns = "id, _topic" if table != "bare" else "id"
    for number in range(entries):
        values = f"{10**12 + number}, 'foreign'" if table != "bare" else f"{10**12 + number}"
        world.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})")


def assert_exact_besides_foreign(world: World, table: str, truth: Truth) -> None:
    world.execute(
        f"ALTER TABLE {table} DELETE WHERE _topic = 'foreign' SETTINGS mutations_sync = 1"
    )
    assert_exact(world, table, truth)
