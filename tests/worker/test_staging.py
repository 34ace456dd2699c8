"""Blocks on the staged way (R21), at both real servers: attempts that end before and after every
statement, and attempts that meet at every pair of statements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.staging import StagingTable, staging_tables
from sluice.core.errors import InDoubtError, TerminalError
from sluice.core.lease import LeaseOverError
from sluice.worker import staging
from sluice.worker.errors import BlockRefusedError, OvertakenError, SealedError
from tests.support.staged_loader import PARTITIONS, ROWS, Paused, StagedTable

#: Create, insert, seal, claim, move each partition, drop.
STATEMENTS = 5 + PARTITIONS
_SEAL, _CLAIM = 2, 3
POINTS = [(at, is_done) for at in range(STATEMENTS) for is_done in (False, True)]


@pytest.fixture
def table(clickhouse_url: str) -> Iterator[StagedTable]:
    yield from made(StagedTable(clickhouse_url))


def made(table: StagedTable) -> Iterator[StagedTable]:
    table.create()
    yield table
    with Server(table.url) as server:
        for name in (table.name, *(f"{table.name}__sluice_{each}" for each in table.staged())):
            server.execute(f"DROP TABLE {name}")


def stored_blocks(table: StagedTable) -> list[str]:
    return [name for name in table.staged() if "_" in name]


def test_a_block_is_there_once_however_often_it_is_sent(table: StagedTable) -> None:
    for number in (0, 0, 1, 0, 1):
        table.attempt(number)
    table.assert_once(2)
    assert len(table.staged()) == 2


def test_a_repeat_of_what_is_done_changes_nothing(table: StagedTable) -> None:
    table.attempt()
    table.attempt()
    assert table.server.statements == []


@pytest.mark.parametrize(("at", "is_done"), POINTS)
def test_an_attempt_that_ends_anywhere_is_finished_by_the_next(
    table: StagedTable, at: int, is_done: bool
) -> None:
    assert table.killed(at, is_done=is_done)
    is_sealed = (at, is_done) >= (_SEAL, True)
    assert table.rows()[0] in range(0, ROWS + 1) if is_sealed else table.rows()[0] == 0
    table.attempt()
    assert table.rows() == (ROWS, ROWS)
    if is_sealed:
        table.assert_once()
    else:
        # What the dead attempt has stored is nobody's; it goes when its lease is over.
        assert len(stored_blocks(table)) == int((at, is_done) != (0, False))


def test_attempts_that_end_one_after_the_other_come_further_each_time(table: StagedTable) -> None:
    for at, is_done in POINTS:
        table.killed(at, is_done=is_done)
    table.attempt()
    assert table.rows() == (ROWS, ROWS)


@pytest.mark.parametrize(("at", "is_done"), POINTS)
def test_an_attempt_that_sleeps_meets_its_repeat(
    table: StagedTable, at: int, is_done: bool
) -> None:
    sleeping = Paused(table, at, is_done=is_done)
    table.attempt()
    assert table.rows() == (ROWS, ROWS)
    error = sleeping.finish()
    assert error is None or isinstance(error, InDoubtError), error
    table.attempt()
    assert table.rows() == (ROWS, ROWS)


@pytest.mark.parametrize("first", POINTS[::2])
def test_two_attempts_that_sleep_wake_in_either_order(
    table: StagedTable, first: tuple[int, bool]
) -> None:
    """The second one sleeps wherever it may be; then both go on, one after the other or at once."""
    expected = 0
    for number, second in enumerate(POINTS[1::5]):
        sleeping = [
            Paused(table, at, is_done=is_done, number=number) for at, is_done in (first, second)
        ]
        for each in sleeping if number % 2 else reversed(sleeping):
            error = each.finish()
            assert error is None or isinstance(error, InDoubtError), error
        table.attempt(number)
        expected += ROWS
        assert table.rows() == (expected, expected), (first, second)


def test_a_stored_block_that_a_look_misses_is_not_gone(
    table: StagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may list a table under neither name while another attempt renames it."""
    table.killed(_CLAIM, is_done=False)
    looks = []

    def look(server: Server, database: str, prefix: str) -> list[StagingTable]:
        looks.append(staging_tables(server, database, prefix))
        is_missed = len(looks) < 3
        return [each for each in looks[-1] if each.name == prefix or not is_missed]

    monkeypatch.setattr(staging, "staging_tables", look)
    table.attempt()
    assert table.rows() == (ROWS, ROWS)
    assert len(looks) == 3


def test_attempts_at_the_same_time(table: StagedTable) -> None:
    for number in range(4):
        at_once = [Paused(table, 0, is_done=False, number=number) for _ in range(4)]
        for each in at_once:
            each.let_go()
        for each in at_once:
            error = each.finish()
            assert error is None or isinstance(error, InDoubtError), error
        table.attempt(number)
        assert table.rows() == ((number + 1) * ROWS, (number + 1) * ROWS)


def test_an_attempt_whose_lease_ends_begins_nothing_more(table: StagedTable) -> None:
    """What is sealed then is in doubt: nobody may plan its messages anew."""

    def end_of_lease(at: int) -> None:
        def step(number: int, is_done: bool) -> None:
            if number == at and not is_done:
                raise LeaseOverError("its lease is over")

        table.attempt(step=step)

    with pytest.raises(LeaseOverError):
        end_of_lease(_SEAL - 1)
    for at in (_SEAL, _CLAIM - 1, STATEMENTS - 3):
        with pytest.raises((LeaseOverError, SealedError)) as raised:
            end_of_lease(at)
        assert isinstance(raised.value, SealedError), raised.value
    table.attempt()
    assert table.rows() == (ROWS, ROWS)


def test_another_load_specs_rows_are_refused_once_some_are_sealed(table: StagedTable) -> None:
    table.killed(_SEAL, is_done=True)
    with pytest.raises(BlockRefusedError) as raised:
        table.attempt(salt=1_000_000)
    assert "load spec was changed" in str(raised.value.error)
    assert not raised.value.is_unstored and table.rows() == (0, 0)
    table.attempt()
    table.assert_once()


def test_before_anything_is_sealed_other_rows_are_another_attempts(table: StagedTable) -> None:
    table.killed(_SEAL, is_done=False)
    table.attempt(salt=1_000_000)
    assert table.rows() == (ROWS, ROWS)


def test_a_table_that_a_view_reads_is_refused_with_words(table: StagedTable) -> None:
    with Server(table.url) as server:
        server.execute(
            f"CREATE MATERIALIZED VIEW v{table.name} ENGINE = MergeTree ORDER BY id "
            f"AS SELECT id FROM {table.name}"
        )
        with pytest.raises(BlockRefusedError, match=f"it feeds default.v{table.name}"):
            table.attempt()
        server.execute(f"DROP TABLE v{table.name}")
    assert table.staged() == [] and table.rows() == (0, 0)


def test_what_has_other_rows_than_were_sent_is_never_sealed(table: StagedTable) -> None:
    def lose_rows(number: int, is_done: bool) -> None:
        if (number, is_done) == (1, True):
            with Server(table.url) as server:
                (name,) = stored_blocks(table)
                stored = f"{table.name}__sluice_{name}"
                server.execute(f"ALTER TABLE {stored} DROP PARTITION ID '1'")

    with pytest.raises(InDoubtError, match="has 60 rows of a block of 90"):
        table.attempt(step=lose_rows)
    assert table.rows() == (0, 0)
    table.attempt()
    assert table.rows() == (ROWS, ROWS)


def test_a_target_that_gets_a_column_after_the_seal(table: StagedTable) -> None:
    for number, at in enumerate((_SEAL, _CLAIM, STATEMENTS - 3)):
        table.killed(at, is_done=True, number=number)
        with Server(table.url) as server:
            server.execute(f"ALTER TABLE {table.name} ADD COLUMN c{number} UInt8 AFTER id")
        table.attempt(number)
        table.assert_once(number + 1)


def test_a_target_that_gets_a_column_between_two_moves(table: StagedTable) -> None:
    def alter(number: int, is_done: bool) -> None:
        if (number, is_done) == (STATEMENTS - 3, False):
            with Server(table.url) as server:
                server.execute(f"ALTER TABLE {table.name} ADD COLUMN later UInt8")

    table.attempt(step=alter)
    table.assert_once()


def test_a_target_that_lost_a_column_after_the_seal_is_for_a_person(table: StagedTable) -> None:
    with Server(table.url) as server:
        server.execute(f"ALTER TABLE {table.name} ADD COLUMN later UInt8")
        table.killed(_SEAL, is_done=True)
        server.execute(f"ALTER TABLE {table.name} DROP COLUMN later")
        with pytest.raises(BlockRefusedError, match="was altered") as raised:
            table.attempt()
        assert isinstance(raised.value.error, TerminalError)
        (name,) = stored_blocks(table)
        server.execute(f"ALTER TABLE {table.name}__sluice_{name} DROP COLUMN later")
    table.attempt()
    table.assert_once()


@pytest.mark.parametrize(
    "engine",
    ["SummingMergeTree", "ReplacingMergeTree", "AggregatingMergeTree", "CoalescingMergeTree"],
)
@pytest.mark.parametrize("has_lineage", [True, False])
def test_engines_that_merge_rows_and_rows_without_lineage(
    embedded_url: str, engine: str, has_lineage: bool
) -> None:
    for at, is_done in itertools.islice(POINTS, 5, None, 4):
        for table in made(StagedTable(embedded_url, engine, has_lineage)):
            table.killed(at, is_done=is_done)
            sleeping = Paused(table, at, is_done=not is_done)
            table.attempt()
            error = sleeping.finish()
            assert error is None or isinstance(error, OvertakenError), error
            assert table.rows() == (ROWS, ROWS)
