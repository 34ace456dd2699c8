"""A table that is not replicated may know a block and not have it: the engine writes down that it
knows it, and then gives the part its name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import SluiceError
from sluice.local.running import Broker
from tests.support.broken_renames import Breakage, BreakingServer, run_breaking
from tests.support.driver import Driver
from tests.support.world import COLUMNS, Truth, World, assert_exact, wait_for

PATIENCE = 180.0
ROWS = 100


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
    world: World, server: BreakingServer, how: Breakage, configuration: Path, *more: str
) -> tuple[Driver, Truth]:
    """A driver whose first block's part does not get its name; the engine is there again then."""
    truth = Truth()
    server.break_next(how)
    world.produce(world.topics[-1], ROWS, truth, partitions=1)
    driver = world.run(configuration, *more)
    wait_for(lambda: server.is_broken, PATIENCE, "a rename that fails")
    if how == "killed":
        server.stop()
        server.start()
    return driver, truth


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


@pytest.mark.parametrize("how", ["killed", "fails"])
def test_a_lost_part_is_loaded_again(
    breaking: World, server: BreakingServer, how: Breakage
) -> None:
    topic = f"orders-lost-{how}"
    breaking.create_topic(topic, 1)
    configuration = breaking.configure({"parts": [topic]}, lease='"5s"')
    driver, truth = lose_part(breaking, server, how, configuration)
    breaking.wait_for_rows("parts", ROWS, driver, PATIENCE)
    assert "a table that is not replicated may know a block" in driver.text()
    assert_exact(breaking, "parts", truth)


@pytest.mark.parametrize("how", ["killed", "fails"])
def test_a_lost_part_is_loaded_again_by_the_next_driver(
    breaking: World, server: BreakingServer, how: Breakage
) -> None:
    """All that it knows is in the ledger."""
    topic = f"orders-next-{how}"
    breaking.create_topic(topic, 1)
    configuration = breaking.configure({"parts": [topic]}, lease='"20s"')
    driver, truth = lose_part(breaking, server, how, configuration)
    said = "is probed before it is loaded again" if how == "fails" else ""
    wait_for(lambda: said in driver.text(), PATIENCE, "what the driver heard of it")
    driver.kill()
    assert breaking.count("parts") == 0
    breaking.drain(configuration)
    assert_exact(breaking, "parts", truth)


@pytest.mark.parametrize("how", ["killed", "fails"])
def test_what_views_made_of_a_lost_part_is_for_a_person(
    breaking: World, server: BreakingServer, how: Breakage
) -> None:
    """Whether the table of a view has its block nobody can tell: not the server, since it would
    say so of a part that is lost, and not a probe."""
    topic = f"orders-seen-{how}"
    breaking.create_topic(topic, 1)
    breaking.execute(
        f"CREATE TABLE seen ({COLUMNS}) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    names = ", ".join(column.split()[0] for column in COLUMNS.split(", "))
    breaking.execute(f"CREATE MATERIALIZED VIEW to_seen TO seen AS SELECT {names} FROM parts")
    configuration = breaking.configure({"parts": [topic]}, lease='"5s"')
    driver, _ = lose_part(breaking, server, how, configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert "sluice resolve" in driver.text()
    assert "default.parts" in driver.text()
    assert breaking.count("seen") <= ROWS
