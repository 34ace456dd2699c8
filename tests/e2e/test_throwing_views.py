"""A view that throws on one value: a function of the data, so it throws for ever. Its range is not
sent again and again: the partition stops in words, or the entry is parked, and no row is lost."""

from __future__ import annotations

import json

import pytest

from tests.support.world import Truth, World, assert_exact, order

PATIENCE = 300.0
BAD_NUMBER = 1_000_001


def create(world: World, table: str) -> None:
    """With a view that reads notes as times, and throws (code 41) where one is none."""
    world.create_table(table)
    world.execute(
        f"CREATE TABLE {table}_seen (id UInt64, at DateTime) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    world.execute(view(table, "toDateTime(note, 'UTC')"))


def view(table: str, expression: str) -> str:
    return (
        f"CREATE MATERIALIZED VIEW {table}_view TO {table}_seen AS "
        f"SELECT id, {expression} AS at FROM {table}"
    )


def fix(world: World, table: str) -> None:
    world.execute(f"DROP VIEW {table}_view")
    world.execute(view(table, "toDateTimeOrZero(note, 'UTC')"))


def good(number: int) -> bytes:
    return order(number, "2026-01-02 03:04:05")


def bad(number: int) -> bytes:
    return order(number, "no time at all")


@pytest.mark.long
def test_it_stops_its_partition_in_words(world: World) -> None:
    table, topic = f"throwing_{world.name}", f"throwing-{world.name}"
    world.create_topic(topic, 2)
    create(world, table)
    truth, held = Truth(), Truth()
    configuration = world.configure(
        {table: [topic]}, max_messages=50, lease='"2m"', table_settings='on_error = "park"'
    )
    world.produce(topic, 1, held, partitions=1, make=bad, first=BAD_NUMBER)
    for number in range(1, 200, 2):  # odd ones: of partition 1
        world.produce(topic, 1, truth, partitions=2, make=good, first=number)
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait(PATIENCE) == 1, driver.text()[-4000:]
    stops = [line for line in driver.text().splitlines() if "stops at" in line]
    assert len(stops) == 1 and f"{topic}[0]" in stops[0], driver.text()[-4000:]
    told = json.loads(stops[0])["event"]
    assert "(41)" in told and f"default.{table}_view" in told, told
    assert "Cannot parse DateTime" in told, told
    # The table has the row, and the view has not: it stops with park, too, since it would double.
    assert f"default.{table} has 1 rows" in told and "3 times" in told, told
    truth.good |= held.good
    assert_exact(world, table, truth)

    fix(world, table)
    world.drain(configuration, PATIENCE)
    assert_exact(world, table, truth)
    (seen,) = world.query(f"SELECT count() AS n, uniqExact(id) AS ids FROM {table}_seen")
    assert seen == {"n": truth.rows, "ids": truth.rows}


def test_what_is_refused_before_it_is_stored_is_parked_and_comes_back_once(world: World) -> None:
    """Here by a column that is computed."""
    topic, table, other = f"parking-{world.name}", f"v{world.name}", f"w{world.name}"
    world.create_topic(topic, 1)
    for each in (table, other):
        world.create_table(each)
    computed = f"ALTER TABLE {table} ADD COLUMN at DateTime MATERIALIZED"
    world.execute(f"{computed} toDateTime(note, 'UTC')")
    truth = Truth()
    world.produce(topic, 50, truth, partitions=1, make=good)
    world.produce(topic, 1, truth, partitions=1, make=bad, first=BAD_NUMBER)
    world.produce(topic, 50, truth, partitions=1, make=good, first=100)
    path = world.configure(
        {table: [topic], other: [topic]},
        max_messages=500,
        lease='"2m"',
        settings_of={table: 'on_error = "park"'},
    )
    world.drain(path, PATIENCE)
    assert_exact(world, other, truth)
    assert world.count(table) == 0
    listed = world.sluice("dead-letters", "list", str(path), "--parked", "--json")
    assert len(json.loads(listed.stdout)) == truth.rows, listed.stdout + listed.stderr

    world.execute(f"ALTER TABLE {table} DROP COLUMN at")
    world.execute(f"{computed} toDateTimeOrZero(note, 'UTC')")
    back = world.sluice("dead-letters", "replay", str(path), "--parked", "--yes")
    assert back.returncode == 0, back.stdout + back.stderr
    world.drain(path, PATIENCE)
    assert world.count(table) == world.count(other) == truth.rows
