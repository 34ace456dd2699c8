"""A table that is not replicated may know a block and not have it: the engine writes down that it
knows it, and then gives the part its name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import SluiceError
from sluice.testbed.local.running import Broker
from tests.support.broken_renames import Breakage, BreakingServer, run_breaking
from tests.support.driver import Driver
from tests.support.world import COLUMNS, Truth, World, assert_exact, wait_for

PATIENCE = 300.0
ROWS = 100
#: By turns in one world; the engine that was killed is another process then.
HOWS: tuple[Breakage, ...] = ("fails", "killed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BreakingServer]:
    with run_breaking(tmp_path / "clickhouse") as server:
        yield server


@pytest.fixture
def breaking(tmp_path: Path, shared_broker: Broker, server: BreakingServer) -> Iterator[World]:
    world = World(tmp_path, shared_broker, server, name=f"t{uuid.uuid4().hex[:8]}")
    world.create_table("parts")
    yield world
    world.close()


def lose_part(
    world: World, server: BreakingServer, how: Breakage, topic: str, truth: Truth
) -> None:
    """The part of the next block does not get its name; the engine is there again then."""
    server.break_next(how)
    world.produce(topic, ROWS, truth, partitions=1, first=truth.rows)
    wait_for(lambda: server.is_broken, PATIENCE, "a rename that fails")
    if how == "killed":
        server.stop()
        server.start()


def wait_for_words(driver: Driver, *words: str) -> str:
    """Until the driver has logged a line with all of them; gives it."""

    def said() -> list[str]:
        return [line for line in driver.text().splitlines() if all(w in line for w in words)]

    wait_for(lambda: bool(said()), PATIENCE, f"{words} in the log")
    return said()[0]


@pytest.mark.parametrize("how", ["killed", "fails"])
def test_the_engine_knows_a_block_whose_part_it_has_lost(
    breaking: World, server: BreakingServer, how: Breakage
) -> None:
    """What the promise is about: that such a repeat is answered with OK."""
    insert = "INSERT INTO parts (id) SETTINGS insert_deduplication_token = 'a' VALUES (1)"
    server.break_next(how)
    with pytest.raises(SluiceError), Server(server.url) as client:
        client.execute(insert)
    if how == "killed":
        server.stop()
        server.start()
    breaking.execute(insert)
    assert breaking.count("parts") == 0


@pytest.mark.long
def test_a_lost_part_is_loaded_again(breaking: World, server: BreakingServer) -> None:
    topic, truth = "orders-lost", Truth()
    breaking.create_topic(topic, 1)
    driver = breaking.run(breaking.configure({"parts": [topic]}, lease='"5s"'))
    for how in HOWS:
        said = len(driver.text())
        lose_part(breaking, server, how, topic, truth)
        breaking.wait_for_rows("parts", truth.rows, driver, PATIENCE)
        assert "a table that is not replicated may know a block" in driver.text()[said:]
    assert_exact(breaking, "parts", truth)


@pytest.mark.long
def test_a_lost_part_is_loaded_again_by_the_next_driver(
    breaking: World, server: BreakingServer
) -> None:
    """All that it knows is in the ledger."""
    topic, truth = "orders-next", Truth()
    breaking.create_topic(topic, 1)
    configuration = breaking.configure({"parts": [topic]}, lease='"20s"')
    driver = breaking.run(configuration)
    for how in HOWS:
        before = truth.rows
        lose_part(breaking, server, how, topic, truth)
        if how == "fails":
            wait_for_words(driver, "is probed before it is loaded again")
        driver.kill()
        assert breaking.count("parts") == before
        driver = breaking.run(configuration)
        breaking.wait_for_rows("parts", truth.rows, driver, PATIENCE)
    assert_exact(breaking, "parts", truth)


@pytest.mark.long
def test_what_views_made_of_a_lost_part_is_for_a_person(
    breaking: World, server: BreakingServer
) -> None:
    """Whether the table of a view has its block nobody can tell: not the server, since it would
    say so of a part that is lost, and not a probe."""
    names = ", ".join(column.split()[0] for column in COLUMNS.split(", "))
    topics = {f"parts_{how}": [f"orders-seen-{how}"] for how in HOWS}
    for table, (topic,) in topics.items():
        breaking.create_topic(topic, 1)
        breaking.create_table(table)
        breaking.execute(
            f"CREATE TABLE seen_{table} ({COLUMNS}) ENGINE = MergeTree ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 1000"
        )
        view = f"CREATE MATERIALIZED VIEW to_{table} TO seen_{table}"
        breaking.execute(f"{view} AS SELECT {names} FROM {table}")
    driver = breaking.run(breaking.configure(topics, lease='"5s"'))

    for how, (table, (topic,)) in zip(HOWS, topics.items(), strict=True):
        lose_part(breaking, server, how, topic, Truth())
        stop = wait_for_words(driver, f"{topic}[0] of connector", "stops at")
        assert "sluice resolve" in stop and f"default.{table}" in stop
        assert breaking.count(f"seen_{table}") <= ROWS
    driver.signal(15)
    assert driver.wait() == 1, driver.text()[-4000:]
