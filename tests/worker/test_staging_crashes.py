"""Blocks on the staged way whose server is killed: between the steps, and inside of a move, where a
part is in both tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import SluiceError
from sluice.worker.errors import BlockRefusedError
from tests.support.broken_renames import BreakingServer, run_breaking
from tests.support.delivered import PARTITIONS, DeliveredTable
from tests.support.world import wait_for

_MOVES = range(4, 4 + PARTITIONS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakingServer]:
    with run_breaking(tmp_path_factory.mktemp("moves") / "clickhouse", "tmp_move_from_") as server:
        yield server


def restart(server: BreakingServer) -> None:
    server.kill()
    server.start()


#: Parts that were merged into others are forgotten at once. A server looks for them ever more
#: seldom, unless it is told.
_FORGETFUL = (
    "SETTINGS old_parts_lifetime = 0, merge_tree_clear_old_parts_interval_seconds = 1, "
    "cleanup_delay_period = 1, max_cleanup_delay_period = 1, cleanup_delay_period_random_add = 0"
)


def made(server: BreakingServer, engine: str = "MergeTree", lineage: bool = True) -> DeliveredTable:
    table = DeliveredTable(server.url, "staged", engine, lineage, _FORGETFUL)
    table.create()
    return table


def crash_in(server: BreakingServer, table: DeliveredTable, move: int) -> None:
    """The server is killed in this statement, which moves, when the target has the part."""

    def step(number: int, is_done: bool) -> None:
        if (number, is_done) == (move, False):
            server.break_next("after")

    with pytest.raises(SluiceError):
        table.attempt(step=step)
    assert server.is_broken
    restart(server)


def merge(table: DeliveredTable) -> None:
    """Parts become others; those that they were are gone."""
    with Server(table.url) as client:
        client.execute(f"OPTIMIZE TABLE {table.name} FINAL")
        old = f"SELECT count() AS n FROM system.parts WHERE table = '{table.name}' AND NOT active"
        wait_for(lambda: client.query(old) == [{"n": 0}], 60, "old parts to go")


def test_the_engine_has_a_part_twice_whose_move_it_did_not_survive(server: BreakingServer) -> None:
    """What this is against (H25)."""
    with Server(server.url) as client:
        client.execute("CREATE TABLE a (id UInt64) ENGINE = MergeTree ORDER BY id")
        client.execute("CREATE TABLE b AS a")
        client.execute("INSERT INTO a SELECT number FROM numbers(10)")
        server.break_next("after")
        with pytest.raises(SluiceError):
            client.execute("ALTER TABLE a MOVE PARTITION ID 'all' TO TABLE b")
    restart(server)
    with Server(server.url) as client:
        for name in ("a", "b"):
            assert client.query(f"SELECT count() AS n FROM {name}") == [{"n": 10}]
            client.execute(f"DROP TABLE {name}")


@pytest.mark.parametrize("engine", ["MergeTree", "SummingMergeTree"])
@pytest.mark.parametrize("move", range(PARTITIONS))
def test_a_server_that_is_killed_in_a_move(server: BreakingServer, move: int, engine: str) -> None:
    """Its parts say whether it was done, whatever the engine makes of rows."""
    table = made(server, engine)
    crash_in(server, table, _MOVES[move])
    table.attempt()
    table.assert_once()


@pytest.mark.slow
@pytest.mark.parametrize(("behind", "move"), [(1, 0), (1, 1), (2, 0)])
def test_a_server_that_is_killed_in_a_move_behind_a_view(
    server: BreakingServer, behind: int, move: int
) -> None:
    """Two blocks of which views make the same rows; their parts have other uuids."""
    table = DeliveredTable(server.url, has_views=True, has_lineage=False)
    table.create()
    table.attempt(1)
    moves = [at for at, sql in enumerate(table.server.statements) if " MOVE " in sql]
    crash_in(server, table, moves[PARTITIONS + 2 * (behind - 1) + move])
    table.attempt()
    table.assert_once(2)


def test_a_move_that_was_not_survived_and_merged_since_is_told_by_its_rows(
    server: BreakingServer,
) -> None:
    table = made(server)
    table.attempt(1)
    crash_in(server, table, _MOVES[1])
    merge(table)
    table.attempt()
    table.assert_once(2)


@pytest.mark.parametrize(
    ("engine", "lineage"), [("ReplacingMergeTree", True), ("MergeTree", False)]
)
def test_what_nobody_can_tell_is_for_a_person(
    server: BreakingServer, engine: str, lineage: bool
) -> None:
    """Merged since, or without lineage: rows of other blocks may be the same."""
    table = made(server, engine, lineage)
    table.attempt(1)
    crash_in(server, table, _MOVES[1])
    merge(table)
    with pytest.raises(BlockRefusedError, match="nobody can tell whether 1 were moved") as raised:
        table.attempt()
    assert not raised.value.is_unstored
    (stored,) = [name for name in table.staged() if "_" in name]
    name = f"{table.name}__sluice_{stored}"
    with Server(server.url) as client:  # as the hint says
        client.execute(f"ALTER TABLE {name} DROP PARTITION ID '1'")
        client.execute(f"ALTER TABLE {name} MOVE PARTITION ID '2' TO TABLE {table.name}")
    table.attempt()
    table.assert_once(2)


def test_a_part_that_was_moved_and_lost_with_its_server_is_missed(server: BreakingServer) -> None:
    """What a claimed table lacks counts as moved only as long as its server runs."""
    table = made(server)
    crash_in(server, table, _MOVES[2])
    with Server(server.url) as client:
        client.execute(f"ALTER TABLE {table.name} DETACH PARTITION ID '0'")
    for _ in range(2):
        with pytest.raises(BlockRefusedError, match="has 60 rows of a block of 90, of which 0 are"):
            table.attempt()
    with Server(server.url) as client:
        client.execute(f"ALTER TABLE {table.name} ATTACH PARTITION ID '0'")
    table.attempt()
    table.assert_once()


def test_without_lineage_a_move_that_left_nothing_was_not_done(server: BreakingServer) -> None:
    table = made(server, "SummingMergeTree", lineage=False)

    def step(number: int, is_done: bool) -> None:
        if (number, is_done) == (_MOVES[0], False):
            server.break_next("killed")

    with pytest.raises(SluiceError):
        table.attempt(step=step)
    restart(server)
    table.attempt()
    table.assert_once()
