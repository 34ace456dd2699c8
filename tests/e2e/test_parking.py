"""A table that refuses its blocks: its messages wait, its neighbour goes on, all come back once."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.test_owners import is_idle
from tests.support.driver import Driver
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

PATIENCE = 300.0
REFUSED = "ALTER TABLE bad ADD CONSTRAINT nothing CHECK id < 0"


def parked(world: World, configuration: str, table: str = "bad") -> dict[tuple[int, int], int]:
    """How often each message is in the parking topic, by `sluice dead-letters list`."""
    done = world.sluice("dead-letters", "list", configuration, "--parked", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[tuple[int, int], int] = {}
    for entry in json.loads(done.stdout):
        assert (entry["table"], entry["reason"]) == (table, "parked"), entry
        key = (entry["partition"], entry["offset"])
        found[key] = found.get(key, 0) + 1
    return found


def prepared(world: World, topic: str, bad: str, good: str) -> Path:
    """A topic of two tables, of which `bad` may be parked."""
    world.create_topic(topic, 2)
    return world.configure(
        {bad: [topic], good: [topic]},
        max_messages=500,
        lease='"10s"',
        settings_of={bad: 'on_error = "park"'},
    )


def refresh(world: World, path: Path, driver: Driver, until: str) -> None:
    """What a person says, and what the driver says then. The file may be half-made meanwhile."""
    before, text = driver.text().count(until), path.read_text()
    path.write_text(text.replace('on_error = "park"', 'on_error = "stop-partition"'))
    done = world.sluice("reload", str(path), "--by", "alice", "--why", "it is mended")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: driver.text().count(until) > before, PATIENCE, until)
    path.write_text(text)
    done = world.sluice("apply", str(path), "--list")
    assert "alice" not in done.stdout and "SIGHUP" not in done.stdout


def stop(driver: Driver) -> None:
    driver.signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]


@pytest.mark.long
def test_parked_messages_come_back_exactly_once(world: World) -> None:
    """Refused by a constraint, which judges rows; killed meanwhile, fixed, asked."""
    for name in ("bad", "good"):
        world.create_table(name)
    truth = Truth()
    path = prepared(world, "orders-parked", "bad", "good")

    def load(driver: Driver) -> None:
        world.produce("orders-parked", 1_000, truth, partitions=2, first=truth.rows)
        world.wait_for_rows("good", truth.rows, driver, PATIENCE)

    driver = world.run(path)
    load(driver)
    world.wait_for_rows("bad", 1_000, driver, PATIENCE)
    world.execute(REFUSED)
    load(driver)
    wait_for(lambda: "table entry bad is parked" in driver.text(), PATIENCE, "the parking")
    driver.kill()
    driver = world.run(path)  # it tries the table again, and parks it again
    load(driver)
    wait_for(lambda: "table entry bad is parked" in driver.text(), PATIENCE, "the parking")
    wait_for(lambda: len(parked(world, str(path))) == 2_000, PATIENCE, "the parked messages")
    assert set(parked(world, str(path)).values()) == {1}
    assert world.count("bad") == 1_000

    world.execute("ALTER TABLE bad DROP CONSTRAINT nothing")
    refresh(world, path, driver, "is not parked any more")
    load(driver)
    world.wait_for_rows("bad", 2_000, driver, PATIENCE)
    for replayed in (2_000, 0):
        done = world.sluice("dead-letters", "replay", str(path), "--parked", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(rf"^replayed +{replayed:,}$", done.stdout, re.MULTILINE), done.stdout
    world.wait_for_rows("bad", 4_000, driver, PATIENCE)
    stop(driver)
    assert_exact(world, "good", truth)
    ids = "SELECT count() AS n, uniqExact(id) AS u, max(id) AS m FROM bad"
    assert world.query(ids) == [{"n": 4_000, "u": 4_000, "m": 3_999}]
    purge = ("dead-letters", "purge", str(path), "--parked", "--replayed", "--yes")
    for command in (("audit", str(path)), ("verify", str(path)), purge, ("audit", str(path))):
        done = world.sluice(*command)
        assert done.returncode == 0, done.stdout + done.stderr
    assert parked(world, str(path)) == {}


@pytest.mark.long
def test_an_altered_table_is_parked_until_it_is_as_it_was(world: World) -> None:
    """Nobody asks the driver to look: the server refuses the block."""
    for name in ("altered", "unaltered"):
        world.create_table(name)
    truth = Truth()
    path = prepared(world, "orders-altered", "altered", "unaltered")
    driver = world.run(path)

    def waiting() -> int:
        return len(parked(world, str(path), "altered"))

    for column in ("", "DROP COLUMN sku", "ADD COLUMN sku String"):
        if column:
            world.execute(f"ALTER TABLE altered {column}")
        if column.startswith("ADD"):
            refresh(world, path, driver, "is not parked any more")
        world.produce("orders-altered", 500, truth, partitions=2, first=truth.rows)
        world.wait_for_rows("unaltered", truth.rows, driver, PATIENCE)
        if column.startswith("DROP"):
            wait_for(lambda: waiting() == 500, PATIENCE, "the parked messages")
    world.wait_for_rows("altered", 1_000, driver, PATIENCE)
    assert "has no column sku any more, which was String" in driver.text()
    assert waiting() == 500
    stop(driver)
    assert_exact(world, "unaltered", truth)
    assert world.count("altered") == 1_000


@pytest.mark.long
def test_a_table_that_most_messages_do_not_fit_is_parked(world: World) -> None:
    """Nothing of it is a dead letter; and a parked message says how it comes back."""
    world.execute(
        f"CREATE TABLE narrow ({COLUMNS.replace('quantity UInt16', 'quantity UInt8')}, {LINEAGE}) "
        "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )
    world.create_table("wide")
    truth = Truth()
    path = prepared(world, "orders-narrow", "narrow", "wide")
    driver = world.run(path)
    world.produce("orders-narrow", 1_000, truth, partitions=2)
    world.wait_for_rows("wide", 1_000, driver, PATIENCE)
    stop(driver)
    # Of ids 0 to 255, what had landed before the range was judged stays a row.
    waiting, rows = parked(world, str(path), "narrow"), world.count("narrow")
    assert rows <= 256 and len(waiting) == 1_000 - rows and set(waiting.values()) == {1}
    assert world.dead_letters() == []
    partition, offset = next(iter(waiting))
    place = ("--topic", "orders-narrow", "--partition", str(partition), "--offset", str(offset))
    done = world.sluice("dead-letters", "show", str(path), "--parked", *place)
    assert f"replay CONFIG --parked --topic orders-narrow --partition {partition}" in done.stdout


@pytest.mark.long
def test_a_dropped_table_is_parked_and_its_neighbour_goes_on(world: World) -> None:
    """Its blocks are refused before anything is stored, so nobody has to look into it."""
    for name in ("parked_gone", "parked_kept"):
        world.create_table(name)
    truth = Truth()
    path = prepared(world, "orders-parked-gone", "parked_gone", "parked_kept")
    driver = world.run(path)
    world.produce("orders-parked-gone", 1_000, truth, partitions=2)
    world.wait_for_rows("parked_gone", 1_000, driver, PATIENCE)
    world.wait_for_rows("parked_kept", 1_000, driver, PATIENCE)
    wait_for(lambda: is_idle(world), PATIENCE, "the settles")
    world.execute("DROP TABLE parked_gone SYNC")
    world.produce("orders-parked-gone", 1_000, truth, partitions=2, first=1_000)
    world.wait_for_rows("parked_kept", 2_000, driver, PATIENCE)
    wait_for(
        lambda: len(parked(world, str(path), "parked_gone")) == 1_000,
        PATIENCE,
        "the parked messages",
    )
    driver.signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    assert_exact(world, "parked_kept", truth)
    driver = world.run(path)
    assert driver.wait(PATIENCE) == 1
    assert "there is no table default.parked_gone" in driver.text()
