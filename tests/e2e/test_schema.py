"""Tables that are altered while the driver runs: no restart, no wrong row, no row twice."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.testbed.local.running import Broker
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.world import (
    COLUMNS,
    LINEAGE,
    Driver,
    Truth,
    World,
    assert_dead_letters,
    assert_exact,
    order,
    wait_for,
)

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
#: For a machine on which ten others work.
PATIENCE = 300.0
TAKEN_UP = "new ranges are loaded under load spec"


def with_field(number: int) -> bytes:
    """A message of the new schema: every second one has the new field."""
    old = order(number)
    return old if number % 2 else old[:-1] + b',"extra":"x%d"}' % number


def refresh(driver: Driver) -> None:
    """Ask the driver to look, and wait until it has taken what it found up."""
    before = driver.text().count(TAKEN_UP)
    driver.signal(signal.SIGHUP)
    wait_for(lambda: driver.text().count(TAKEN_UP) > before, PATIENCE, "the new text")


def stop(driver: Driver) -> None:
    driver.signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]


def assert_texts_are_recorded_first(world: World, least: int, most: int) -> None:
    """Each text stands in the ledger before the first record that names it (R8).

    :param least: so many texts are named at least.
    """
    known: set[object] = set()
    named: set[str] = set()
    for entry in world.ledger():
        if entry["type"] == "load_spec":
            known.add(entry["digest"])
        elif entry["type"] == "record":
            digest = str(entry["metadata"]).split("|")[9]
            named.add(digest)
            assert digest in known, entry
    assert least <= len(named) <= most


@pytest.mark.long
def test_columns_are_added_while_the_driver_runs(world: World) -> None:
    """Added, with defaults that change, computed, compressed otherwise: one driver, all the
    time, and messages with and without the field side by side."""
    world.create_topic("orders-added", 2)
    world.create_table("added")
    truth = Truth()
    driver = world.run(world.configure({"added": ["orders-added"]}, max_messages=500))

    def load(count: int, make: object = with_field) -> None:
        first = truth.rows
        world.produce("orders-added", count, truth, partitions=2, first=first, make=make)  # type: ignore[arg-type]
        world.wait_for_rows("added", truth.rows, driver, PATIENCE)

    load(1_000, order)
    world.execute("ALTER TABLE added ADD COLUMN extra String DEFAULT 'none'")
    refresh(driver)
    load(1_000)
    world.execute("ALTER TABLE added MODIFY COLUMN extra String DEFAULT concat('of ', status)")
    refresh(driver)
    load(1_000)
    world.execute(
        "ALTER TABLE added ADD COLUMN twice UInt64 MATERIALIZED id * 2, "
        "ADD COLUMN thrice UInt64 ALIAS id * 3, ADD COLUMN raw String EPHEMERAL 'r', "
        "ADD COLUMN kept String DEFAULT concat(raw, '!'), MODIFY COLUMN note CODEC(ZSTD)"
    )
    refresh(driver)
    load(1_000)
    stop(driver)
    assert_exact(world, "added", truth)
    wrong = world.query(
        # Rows of before take the default of today whenever they are read.
        "SELECT countIf(id < 1000 AND extra NOT IN ('none', 'of paid')) AS a, "
        "countIf(id >= 1000 AND id % 2 = 0 AND extra != concat('x', toString(id))) AS b, "
        "countIf(id BETWEEN 1000 AND 1999 AND id % 2 AND extra != 'none') AS c, "
        "countIf(id >= 2000 AND id % 2 AND extra != 'of paid') AS d, "
        "countIf(twice != id * 2) AS e, countIf(thrice != id * 3) AS f, "
        "countIf(id >= 3000 AND kept != 'r!') AS g FROM added"
    )
    assert set(wrong[0].values()) == {0}, wrong
    assert_texts_are_recorded_first(world, 4, 4)
    audit = world.sluice("verify", str(world.folder / f"{world.name}.toml"))
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.long
def test_a_column_of_another_type_stops_its_table_with_both_definitions(world: World) -> None:
    """Nobody asks the driver to look: the server refuses the block, and nothing is narrowed."""
    for name in ("retyped", "dropped", "other"):
        world.create_topic(f"orders-{name}", 1)
        world.create_table(name)
    truth = Truth()
    tables = {name: [f"orders-{name}"] for name in ("retyped", "dropped", "other")}
    configuration = world.configure(tables, max_messages=500, lease='"20s"')
    driver = world.run(configuration)
    for name in tables:
        world.produce(f"orders-{name}", 500, truth, partitions=1)
        world.wait_for_rows(name, 500, driver, PATIENCE)
    world.execute(
        "ALTER TABLE retyped MODIFY COLUMN quantity UInt8, MODIFY COLUMN note FixedString(9)"
    )
    world.execute("ALTER TABLE dropped DROP COLUMN sku")
    for name in tables:
        world.produce(f"orders-{name}", 500, truth, partitions=1, first=1000)
    wait_for(lambda: driver.text().count("stops at 500") == 2, PATIENCE, "the stops")
    world.wait_for_rows("other", 1_000, driver, PATIENCE)
    text = driver.text()
    assert "column quantity was UInt16, and is UInt8 now" in text
    assert "column note was String, and is FixedString(9) now" in text
    assert "has no column sku any more, which was String" in text
    assert "start the driver again" in text
    assert world.count("retyped") == world.count("dropped") == 500
    driver.signal(signal.SIGTERM)
    driver.wait()
    # A person looked at it: what follows is loaded as the table is now, narrowed for nobody.
    text = configuration.read_text()
    configuration.write_text(
        f"{text}\n[dead_letters]\nmax_ratio = 1.0  # all of them, on purpose\n"
    )
    world.drain(configuration, PATIENCE)
    assert world.count("dropped") == 1_000
    assert world.count("retyped") == 500
    assert len(world.dead_letters()) == 500  # quantities above 255 do not fit any more


@pytest.mark.long
def test_a_field_that_got_a_column_meanwhile_is_no_dead_letter(world: World) -> None:
    """Nobody asks the driver to look: it holds the range back, and looks before it settles."""
    world.create_topic("orders-refused", 2)
    world.create_table("refused")
    truth = Truth()
    configuration = world.configure(
        {"refused": ["orders-refused"]},
        max_messages=500,
        table_settings='unknown_fields = "refuse"',
    )
    driver = world.run(configuration)
    world.produce("orders-refused", 1_000, truth, partitions=2)
    world.wait_for_rows("refused", 1_000, driver, PATIENCE)
    world.execute("ALTER TABLE refused ADD COLUMN extra String")
    world.produce("orders-refused", 1_000, truth, partitions=2, first=1_000, make=with_field)
    world.wait_for_rows("refused", 2_000, driver, PATIENCE)
    assert "change_spec" in {str(entry.get("kind")) for entry in world.ledger()}
    strange = Truth()

    def with_strange_field(number: int) -> bytes:
        return order(number)[:-1] + b',"strange":1}'

    world.produce("orders-refused", 10, strange, partitions=2, make=with_strange_field)
    wait_for(lambda: len(world.dead_letters()) == 10, PATIENCE, "the dead letters")
    stop(driver)
    assert_exact(world, "refused", truth)
    found = world.query(
        "SELECT countIf(extra != concat('x', toString(id))) AS n FROM refused "
        "WHERE id >= 1000 AND id % 2 = 0"
    )
    assert found == [{"n": 0}]
    assert_texts_are_recorded_first(world, 2, 2)
    report = json.loads(world.sluice("verify", str(configuration), "--json").stdout)
    assert report["anomalies"] == [], report


@pytest.fixture(params=["tokens", "hashes"])
def each_world(
    request: pytest.FixtureRequest, tmp_path: Path, shared_broker: Broker
) -> Iterator[World]:
    """A server that knows tokens, and one that hashes what it stores."""
    name = "embedded_server" if request.param == "tokens" else "clickhouse_18"
    clickhouse = request.getfixturevalue(name)
    world = World(tmp_path, shared_broker, clickhouse, name=f"s{uuid.uuid4().hex[:8]}")
    try:
        yield world
    finally:
        world.close()


def create_on_either(world: World, table: str) -> None:
    if not isinstance(world.clickhouse, ClickHouseServer):
        return world.create_table(table)
    return world.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{table}', '{{replica}}') ORDER BY (user_id, ts)"
    )


@pytest.mark.long
def test_kills_with_a_column_added_before_the_replay(each_world: World) -> None:
    """Killed between insert and settle, altered, started again: in the one mode what is in doubt
    is loaded again under the text of before, in the other it is probed."""
    world, table = each_world, f"altered_{uuid.uuid4().hex[:6]}"
    topic = f"orders-{table}"
    world.create_topic(topic)
    create_on_either(world, table)
    truth = Truth()
    world.produce(topic, 60_000, truth, bad_every=3000)
    configuration = world.configure({table: [topic]}, max_messages=2_000, lease='"20s"')
    hashes = isinstance(world.clickhouse, ClickHouseServer)
    words = "it is probed" if hashes else "is loaded again, identically"
    replayed = 0
    for number in range(2):
        before = world.count(table)
        driver = world.run(configuration)
        world.wait_for_rows(table, before + 1, driver, PATIENCE)
        driver.kill()
        replayed += driver.text().count(words)
        assert number == 0 or hashes or "probed" not in driver.text()
        world.execute(f"ALTER TABLE {table} ADD COLUMN more{number} String DEFAULT 'm'")
    assert world.count(table) < truth.rows, "the kills came too late to prove anything"
    driver = world.drain(configuration, PATIENCE)
    assert replayed + driver.text().count(words) > 0, "no kill left a range in doubt"
    assert_exact(world, table, truth)
    assert_dead_letters(world, truth)
    # A driver that was killed soon may have repeated only what was in doubt.
    assert_texts_are_recorded_first(world, 2, 3)


@pytest.mark.long
def test_columns_are_added_under_a_running_driver(each_world: World) -> None:
    """While ranges are in flight, and without a word to the driver: where rows are hashed, its
    tasks notice it themselves."""
    world, table = each_world, f"flying_{uuid.uuid4().hex[:6]}"
    topic = f"orders-{table}"
    world.create_topic(topic)
    create_on_either(world, table)
    truth = Truth()
    world.produce(topic, 90_000, truth, bad_every=5000)
    configuration = world.configure({table: [topic]}, max_messages=3_000, lease='"20s"')
    driver = world.run(configuration, "--until-caught-up")
    for number in range(3):
        world.wait_for_rows(table, 15_000 * (number + 1), driver, PATIENCE)
        world.execute(f"ALTER TABLE {table} ADD COLUMN more{number} UInt8 DEFAULT 7")
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    if isinstance(world.clickhouse, ClickHouseServer):
        assert driver.text().count(TAKEN_UP) >= 1
    assert_exact(world, table, truth)
    assert_dead_letters(world, truth)
