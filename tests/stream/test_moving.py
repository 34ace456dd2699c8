"""A server that is killed while it moves parts has some of them in both tables."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import StagedRowsError
from sluice.core.errors import InDoubtError
from sluice.stream.commit import Epoch
from sluice.stream.names import query_prefix
from tests.stream.committing import DiedError, Mortal, Target
from tests.support.broken_renames import BreakingServer, run_breaking

#: Parts stay as they are, unless a test merges them.
_DDL = (
    "CREATE TABLE {name} (id Int64, text String) ENGINE = MergeTree ORDER BY id "
    "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, old_parts_lifetime = 1, "
    "cleanup_delay_period = 1, max_cleanup_delay_period = 1, cleanup_delay_period_random_add = 0"
)


_T = TypeVar("_T")


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakingServer]:
    with run_breaking(tmp_path_factory.mktemp("breaking") / "server", "tmp_move_from_") as server:
        Server(server.url).execute("CREATE DATABASE d")
        yield server


def _killed_in_the_move(
    server: BreakingServer, target: Target, number: int, parts: int, *, are_equal: bool = False
) -> list[int]:
    """An epoch of so many parts is committed, and the server is killed before it renames the nth;
    gives what was staged.

    :param are_equal: all but the first one have the same row.
    """
    epoch = target.stage(0, tasks=1)
    (staged,) = epoch.winners
    for part in range(1, parts):
        row = f"({-1 if are_equal else -part}, 'epoch 0')"
        settings = {"deduplicate_insert": "disable"}
        target.server.execute(f"INSERT INTO d.{staged.table} VALUES {row}", settings=settings)
    epoch = replace(epoch, winners=(staged._replace(rows=epoch.rows + parts - 1),))
    wanted = target.ids_of(epoch)
    server.break_next("killed", number)
    committer = target.committer()
    with pytest.raises(InDoubtError):
        committer.commit(epoch)
    assert server.is_broken
    server.process.wait()
    server.start()
    return wanted


@pytest.mark.parametrize("are_equal", [False, True], ids=["", "equal"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_parts_that_arrived_are_not_moved_again(
    breaking: BreakingServer, number: int, are_equal: bool
) -> None:
    """Nor is one of two parts with the same row taken for the other one."""
    target = Target(breaking.url, "d", _DDL)
    wanted = _killed_in_the_move(breaking, target, number, parts=3, are_equal=are_equal)
    assert len(target.ids()) in ({0} if number == 1 else {1, 2, 7, 8})  # what had a name by then
    target.committer().commit(target.stage(0))
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_a_merge_that_hides_them_stops_with_words(breaking: BreakingServer) -> None:
    """A person says then what is there; nothing is guessed."""
    target = Target(breaking.url, "d", _DDL)
    wanted = _killed_in_the_move(breaking, target, 2, parts=3)
    table = f"d.{target.table}"
    target.server.execute(f"INSERT INTO {table} VALUES (5000, 'other')")
    target.server.execute(f"OPTIMIZE TABLE {table} FINAL")
    before = target.ids()
    inactive = f"SELECT name FROM system.parts WHERE table = '{target.table}' AND NOT active"
    breaking.wait_until(lambda: not target.server.query(inactive))
    with pytest.raises(StagedRowsError) as stopped:
        target.committer().commit(target.stage(0))
    assert "nobody can tell whether all were moved" in str(stopped.value)
    assert target.ids() == before
    (stored,) = re.findall(r"from (d\.sluice_\w+) the partitions", stopped.value.hint)
    there = f"SELECT DISTINCT _part AS part FROM {stored} WHERE id IN (SELECT id FROM {table})"
    for row in target.server.query(there):
        target.server.execute(f"ALTER TABLE {stored} DROP PART '{row['part']}'")  # as the hint says
    target.server.execute(f"ALTER TABLE {stored} MOVE PARTITION ID 'all' TO TABLE {table}")
    target.committer().commit(target.stage(0))
    assert target.ids() == sorted([*wanted, 5000])


class Settling(Mortal):
    """A client that dies when it has claimed a table anew, of which others had moved parts."""

    def _step(self, sql: str, send: Callable[[], _T]) -> _T:
        if sql.startswith("RENAME") and any(each.startswith("RENAME") for each in self.statements):
            self._dies_at = len(self.statements)
        return super()._step(sql, send)


def test_a_part_that_was_taken_out_and_comes_back_is_not_moved_again(
    breaking: BreakingServer, tmp_path: Path
) -> None:
    """It had arrived. With the power, a disk of its own forgets that it went; the claim that came
    later is on another one."""
    target = Target(breaking.url, "d", _DDL)
    wanted = _killed_in_the_move(breaking, target, 2, parts=2)
    arrived = target.ids()
    assert 0 < len(arrived) < len(wanted)
    (stored,) = target.server.query(
        "SELECT any(path) AS path FROM system.parts WHERE active AND database = 'd' AND "
        f"startsWith(table, '{query_prefix(target.query)}') GROUP BY table"
    )
    folder = Path(stored["path"]).parent
    shutil.copytree(folder, tmp_path / "before")
    client = Settling(target.url, after=True)
    with pytest.raises(DiedError):
        target.committer(client).commit(Epoch(1, (), 0, False))
    assert [each.split()[0] for each in client.statements] == ["RENAME", "ALTER", "RENAME"]
    breaking.kill()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "before", folder)
    breaking.start()
    assert target.ids() == arrived
    target.committer().commit(target.stage(0))
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}
