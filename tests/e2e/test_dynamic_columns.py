"""Messages bring new fields along while the driver runs, is killed, and is started again: each
allowed field gets its column, and each of its values is there, once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.world import (
    COLUMNS,
    LINEAGE,
    Truth,
    World,
    assert_exact,
    order,
    wait_for,
)

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
#: For a machine on which ten others work.
PATIENCE = 300.0
#: So many messages long a new field of its own comes up.
AGE = 4_000
AGES, LATE, KILLS, MAX = 6, 2_000, 2, 6
RULES = (
    'unknown_fields = "refuse"\n'
    f'dynamic_columns = {{ allow = ["attr_.*"], deny = ["attr_tmp.*"], max = {MAX} }}'
)


def with_fields(number: int) -> bytes:
    """Half of the messages have a number; a third of another field is no number; each age has a
    field of its own; some have a field that is denied, and some one that nobody speaks of."""
    fields = [b'"attr_age%d":"v%d"' % (number // AGE, number)]
    if number % 2 == 0:
        fields.append(b'"attr_n":%d' % number)
    fields.append(b'"attr_mixed":%s' % (b'{"x":%d}' if number % 3 == 0 else b"%d") % number)
    if number % 7 == 0:
        fields.append(b'"attr_tmp%d":[{"deep":%d}]' % (number % 5, number))
    if is_stray(number):
        fields.append(b'"other":1')
    return order(number)[:-1] + b"," + b",".join(fields) + b"}"


def is_stray(number: int) -> bool:
    return number % 1000 == 7


def split(world: World, table: str, truth: Truth) -> Truth:
    """The truth, once it is known which fields there was room for."""
    names = {
        str(row["name"])
        for row in world.query(f"SELECT name FROM system.columns WHERE table = '{table}'")
    }
    found = Truth()
    for partition, messages in truth.good.items():
        for offset, number in messages:
            if is_stray(number) or f"attr_age{number // AGE}" not in names:
                found.bad.setdefault(partition, []).append(offset)
            else:
                found.good.setdefault(partition, []).append((offset, number))
    return found


def assert_values(world: World, table: str) -> list[str]:
    """Every value of every new field is there; gives the columns that were added."""
    rows = world.query(
        f"SELECT name, type FROM system.columns WHERE table = '{table}' AND name LIKE 'attr%'"
    )
    types = {str(row["name"]): str(row["type"]) for row in rows}
    assert types.pop("attr_n") == "Nullable(Int64)"
    assert types.pop("attr_mixed") == "Nullable(String)"
    assert set(types.values()) == {"Nullable(String)"}
    tests = [
        "countIf(id % 2 = 0 AND ifNull(attr_n, -1) != id OR id % 2 AND isNotNull(attr_n))",
        "countIf(ifNull(attr_mixed, '') != if(id % 3 = 0, concat('{\"x\":', toString(id), '}'), "
        "toString(id)))",
    ]
    for name in types:
        is_its_age = f"intDiv(id, {AGE}) = {name.removeprefix('attr_age')}"
        right = f"ifNull({name}, '') = if({is_its_age}, concat('v', toString(id)), '')"
        tests.append(f"countIf(NOT ({right}))")
    wrong = world.query(
        f"SELECT {', '.join(f'{t} AS c{i}' for i, t in enumerate(tests))} FROM {table}"
    )
    assert set(wrong[0].values()) == {0}, wrong
    return [*types, "attr_n", "attr_mixed"]


def assert_all(world: World, table: str, truth: Truth, configuration: Path) -> None:
    expected = split(world, table, truth)
    assert_exact(world, table, expected)
    assert len(assert_values(world, table)) == min(MAX, 2 + ages(expected))
    dead_letters = sorted((p, offset) for p, offsets in expected.bad.items() for offset in offsets)
    assert sorted(world.dead_letters()) == dead_letters
    for command in ("audit", "verify"):
        judged = world.sluice(command, str(configuration))
        assert judged.returncode == 0, judged.stdout + judged.stderr


def ages(truth: Truth) -> int:
    return len({number // AGE for rows in truth.good.values() for _, number in rows})


def configure(world: World, table: str, topic: str, lease: str) -> Path:
    configuration = world.configure(
        {table: [topic]}, max_messages=1_000, lease=f'"{lease}"', table_settings=RULES
    )
    # Once there is no room, whole ranges are dead letters, on purpose.
    text = configuration.read_text()
    configuration.write_text(f"{text}\n[dead_letters]\nmax_ratio = 1.0\n")
    return configuration


def kill_while_it_loads(world: World, table: str, configuration: Path, kills: int) -> None:
    dice = random.Random(5)
    for _ in range(kills):
        before = world.count(table)
        driver = world.run(configuration)
        world.wait_for_rows(table, before + 1, driver, PATIENCE)
        time.sleep(dice.uniform(0, 1))
        driver.kill()


@pytest.mark.long
def test_new_fields_while_the_driver_is_killed_again_and_again(world: World) -> None:
    world.create_topic("orders-dynamic")
    world.create_table("dynamic")
    truth = Truth()
    world.produce("orders-dynamic", AGES * AGE, truth, make=with_fields)
    configuration = configure(world, "dynamic", "orders-dynamic", "1m")
    kill_while_it_loads(world, "dynamic", configuration, KILLS)
    assert world.count("dynamic") < AGE * AGES // 2, "the kills came too late to prove anything"
    driver = world.run(configuration)
    world.wait_for_rows("dynamic", world.count("dynamic") + 1, driver, PATIENCE)
    # They arrive while the driver runs: fields that it knows, and one that there is no room for.
    world.produce("orders-dynamic", LATE, truth, make=with_fields, first=3 * AGE)
    world.produce("orders-dynamic", LATE, truth, make=with_fields, first=AGES * AGE)
    messages = truth.rows
    wait_for(
        lambda: world.count("dynamic") + len(world.dead_letters()) >= messages,
        PATIENCE,
        "the rows and dead letters",
    )
    driver.signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    log = "".join(one.text() for one in world.drivers)
    assert f"dynamic_columns.max = {MAX} is reached" in log
    assert "add_columns" in {str(entry.get("kind")) for entry in world.ledger()}
    assert_all(world, "dynamic", truth, configuration)


@pytest.mark.slow
def test_on_a_server_that_hashes_what_it_stores(old_world: World) -> None:
    """There a block is known again only by what is stored of it, added columns included."""
    world, table = old_world, "dynamic_hashed"
    world.create_topic("orders-dynamic-hashed", 2)
    world.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{table}', '{{replica}}') ORDER BY (user_id, ts)"
    )
    truth = Truth()
    world.produce("orders-dynamic-hashed", AGES * AGE // 2, truth, partitions=2, make=with_fields)
    configuration = configure(world, table, "orders-dynamic-hashed", "5s")
    kill_while_it_loads(world, table, configuration, 1)
    world.drain(configuration, PATIENCE)
    assert_all(world, table, truth, configuration)
