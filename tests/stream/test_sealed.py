"""An epoch between its seal and its end: what becomes of its target and of what was staged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.clickhouse.moving import StagedRowsError
from sluice.clickhouse.sql import literal
from sluice.core.errors import TransientError
from sluice.stream.names import mark_name
from tests.stream.committing import DiedError, Mortal, Target, Unlisted
from tests.support.fixtures import fresh_database


@pytest.fixture
def target(embedded_url: str) -> Iterator[Target]:
    for database in fresh_database(embedded_url):
        yield Target(embedded_url, database)


@pytest.mark.parametrize("replaces", [False, True], ids=["append", "replace"])
def test_a_target_that_is_altered_after_the_seal(target: Target, replaces: bool) -> None:
    """Columns that are added do not matter; all else is for a person, who is told what to do."""
    where = f"{target.database}.{target.table}"
    seal = 1 if replaces else 0
    for number, alter in enumerate(("ADD COLUMN n UInt8 DEFAULT 7 AFTER id", "DROP COLUMN n")):
        epoch = replace(target.stage(number), replaces=replaces)
        wanted = sorted(target.ids_of(epoch) + ([] if replaces else target.ids()))
        with pytest.raises(DiedError):
            target.committer(Mortal(target.url, seal, after=True)).commit(epoch)
        target.server.execute(f"ALTER TABLE {where} {alter}")
        if number:
            for _ in range(2):
                with pytest.raises(StagedRowsError, match="was altered after") as raised:
                    target.committer().commit(target.stage(number))
            assert raised.value.hint.count("`sluice_") == (3 if replaces else 1)
            target.server.execute(f"ALTER TABLE {where} ADD COLUMN n UInt8 DEFAULT 7 AFTER id")
        target.committer().commit(target.stage(number))
        assert target.ids("n = 7") == target.ids() == wanted


def test_what_was_staged_and_is_gone_is_never_taken_for_moved(target: Target) -> None:
    epoch = target.stage(0)
    with pytest.raises(DiedError):
        target.committer(Mortal(target.url, 0, after=True)).commit(epoch)
    gone = epoch.winners[1].table
    target.server.execute(f"DROP TABLE {target.database}.{gone} SYNC")
    with pytest.raises(StagedRowsError) as stopped:
        target.committer().commit(target.stage(0))
    assert gone in str(stopped.value)
    assert target.ids() != []
    # As the hint says.
    target.server.execute(f"TRUNCATE TABLE {target.database}.{target.table}")
    (marks,) = re.findall(r"newest of the tables (sluice_\w+_mark_)…", stopped.value.hint)
    target.server.execute(f"DROP TABLE {target.database}.{marks}{1:012d} SYNC")
    again = target.stage(0)
    wanted = target.ids_of(again)
    target.committer().commit(again)
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_what_a_server_has_lost_after_the_seal_stops_and_may_be_attached_again(
    target: Target,
) -> None:
    """As after a power failure: it starts with a broken part detached, and says nothing."""
    epoch = target.stage(0)
    wanted = target.ids_of(epoch)
    with pytest.raises(DiedError):
        target.committer(Mortal(target.url, 0, after=True)).commit(epoch)
    table = f"{target.database}.{epoch.winners[1].table}"
    (part, *_) = target.server.query(f"SELECT DISTINCT _part AS name FROM {table}")
    target.server.execute(f"ALTER TABLE {table} DETACH PART '{part['name']}'")
    for _ in range(2):
        with pytest.raises(StagedRowsError, match="of the 7 rows that were sealed") as stopped:
            target.committer().commit(target.stage(0))
    assert "ATTACH PART" in stopped.value.hint
    target.server.execute(f"ALTER TABLE {table} ATTACH PART '{part['name']}'")
    target.committer().commit(target.stage(0))
    assert target.ids() == wanted


@pytest.mark.parametrize(
    ("replaces", "tasks"), [(False, 2), (True, 2), (True, 0)], ids=["append", "replace", "empty"]
)
def test_nothing_is_sealed_while_a_server_does_not_list_the_target(
    target: Target, replaces: bool, tasks: int
) -> None:
    """A mark that does not know which table it replaces added its rows to the old ones."""
    target.committer().commit(target.stage(0))
    old = target.ids()
    epoch = replace(target.stage(1, tasks), replaces=replaces)
    wanted = target.ids_of(epoch) + ([] if replaces else old)
    client = Unlisted(target)
    with pytest.raises(TransientError, match=f"does not list .*{target.table} now"):
        target.committer(client).commit(epoch)
    latest = target.committer().marks.latest()
    assert latest is not None and latest.epoch == 0 and target.ids() == old
    target.committer(client).commit(epoch)
    assert target.ids() == sorted(wanted) and client.looks == 2
    assert target.tables() == {"mark": 1}


def test_a_mark_that_puts_a_table_in_place_does_so_whatever_it_replaces(target: Target) -> None:
    target.committer().commit(target.stage(0))
    epoch = replace(target.stage(1), replaces=True)
    wanted = target.ids_of(epoch)
    with pytest.raises(DiedError):
        target.committer(Mortal(target.url, 1, after=True)).commit(epoch)
    marks = target.committer().marks
    mark = marks.latest()
    assert mark is not None and mark.replaces and mark.puts and mark.state == "sealed"
    told = literal(replace(mark, replaces="", uuids=("",)).text())
    name = f"{target.database}.{mark_name(marks.prefix, mark.number)}"
    target.server.execute(f"ALTER TABLE {name} MODIFY COMMENT {told}")
    target.committer().commit(epoch)
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_a_target_that_is_exchanged_after_the_seal_gets_no_half_of_an_epoch(
    target: Target,
) -> None:
    epoch = target.stage(0)
    wanted = target.ids_of(epoch)
    mortal = Mortal(target.url, 3, after=True)
    with pytest.raises(DiedError):
        target.committer(mortal).commit(epoch)
    arrived = target.ids()
    assert 0 < len(arrived) < len(wanted), mortal.statements
    names = [f"{target.database}.{name}" for name in (target.table, "other")]
    target.server.execute(f"CREATE TABLE {names[1]} AS {names[0]}")
    target.server.execute(f"EXCHANGE TABLES {names[0]} AND {names[1]}")
    for _ in range(2):
        with pytest.raises(StagedRowsError, match="is another table than the one that epoch 0 was"):
            target.committer().commit(target.stage(0))
    assert target.ids() == []
    target.server.execute(f"EXCHANGE TABLES {names[0]} AND {names[1]}")
    assert target.ids() == arrived
    target.committer().commit(target.stage(0))
    assert target.ids() == wanted
    target.server.execute(f"EXCHANGE TABLES {names[0]} AND {names[1]}")
    target.committer().commit(target.stage(1))
    assert len(target.ids()) == 14
