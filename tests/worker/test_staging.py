"""Blocks on the staged way (R21), at both real servers: leases, tables that are altered, what is
refused. What all deliveries are held to is in `test_delivery_conformance.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.staging import StagingTable, staging_tables, why_not_staged
from sluice.core.errors import InDoubtError, TerminalError
from sluice.core.lease import LeaseOverError
from sluice.worker import sealed, staging
from sluice.worker.errors import BlockRefusedError, SealedError
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.delivered import PARTITIONS, ROWS, DeliveredTable

#: Create, insert, seal, claim, move each partition, done, drop.
STATEMENTS = 6 + PARTITIONS
_SEAL, _CLAIM, _DONE = 2, 3, STATEMENTS - 2


@pytest.fixture
def table(clickhouse_url: str) -> Iterator[DeliveredTable]:
    made = DeliveredTable(clickhouse_url)
    made.create()
    yield made
    made.drop()


def stored_blocks(table: DeliveredTable) -> list[str]:
    return [name for name in table.staged() if "_" in name]


def test_a_repeat_of_what_is_done_changes_nothing(table: DeliveredTable) -> None:
    table.attempt()
    table.attempt()
    assert table.server.statements == []


def test_a_stored_block_that_a_look_misses_is_not_gone(
    table: DeliveredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may list a table under neither name while another attempt renames it."""
    table.killed(_CLAIM, is_done=False)
    looks = []

    def look(server: Server, database: str, prefix: str) -> list[StagingTable]:
        looks.append(staging_tables(server, database, prefix))
        is_missed = len(looks) < 3
        return [each for each in looks[-1] if each.name == prefix or not is_missed]

    for module in (staging, sealed):
        monkeypatch.setattr(module, "staging_tables", look)
    table.attempt()
    assert table.rows() == (ROWS, ROWS)
    assert len(looks) == 3


def test_a_stored_block_that_has_lost_rows_is_not_taken_for_moved(table: DeliveredTable) -> None:
    """As after a power failure: the range is not settled, and Kafka still has it."""
    table.killed(_SEAL, is_done=True)
    (stored,) = stored_blocks(table)
    name = f"{table.name}__sluice_{stored}"
    with Server(table.url) as server:
        server.execute(f"ALTER TABLE {name} DROP PARTITION 1")
    for _ in range(2):
        with pytest.raises(
            BlockRefusedError, match=f"has {ROWS - ROWS // PARTITIONS} of the {ROWS}"
        ):
            table.attempt()
    assert table.rows() == (0, 0)


@pytest.mark.parametrize("at", [_SEAL, _CLAIM, _DONE - 1])
def test_a_stored_block_that_is_gone_is_not_taken_for_moved(table: DeliveredTable, at: int) -> None:
    """Whoever moves it does not drop it before the marker says so."""
    table.killed(at, is_done=True)
    (stored,) = stored_blocks(table)
    before = table.rows()
    with Server(table.url) as server:
        server.execute(f"DROP TABLE {table.name}__sluice_{stored}")
    for _ in range(2):
        with pytest.raises(BlockRefusedError, match="does not say that the block was moved") as why:
            table.attempt()
        assert not why.value.is_unstored
    assert table.rows() == before


def test_what_is_moved_is_done_whatever_becomes_of_its_tables(table: DeliveredTable) -> None:
    for number, at in enumerate((_DONE, STATEMENTS - 1)):
        table.killed(at, is_done=True, number=number)
        for stored in stored_blocks(table):
            with Server(table.url) as server:
                server.execute(f"DROP TABLE {table.name}__sluice_{stored}")
        table.attempt(number)
        table.assert_once(number + 1)


def test_what_is_fed_and_not_seen_refuses_staging(table: DeliveredTable) -> None:
    with Server(table.url) as server:
        facts = describe_table(server, "default", table.name)
    assert why_not_staged(facts, table.spec.lineage, "one", moves=True) is None
    hidden = replace(facts, fed_unseen=("other.seer",))
    why = why_not_staged(hidden, table.spec.lineage, "one", moves=True)
    assert why is not None and "it feeds other.seer" in why


def test_an_attempt_whose_lease_ends_begins_nothing_more(table: DeliveredTable) -> None:
    """What is sealed then is in doubt: nobody may plan its messages anew."""

    def end_of_lease(at: int) -> None:
        def step(number: int, is_done: bool) -> None:
            if number == at and not is_done:
                raise LeaseOverError("its lease is over")

        table.attempt(step=step)

    with pytest.raises(LeaseOverError):
        end_of_lease(_SEAL - 1)
    for at in (_SEAL, _CLAIM - 1, STATEMENTS - 4):
        with pytest.raises((LeaseOverError, SealedError)) as raised:
            end_of_lease(at)
        assert isinstance(raised.value, SealedError), raised.value
    table.attempt()
    assert table.rows() == (ROWS, ROWS)


def test_another_load_specs_rows_are_refused_once_some_are_sealed(table: DeliveredTable) -> None:
    table.killed(_SEAL, is_done=True)
    with pytest.raises(BlockRefusedError) as raised:
        table.attempt(salt=1_000_000)
    assert "load spec was changed" in str(raised.value.error)
    assert not raised.value.is_unstored and table.rows() == (0, 0)
    table.attempt()
    table.assert_once()


def test_before_anything_is_sealed_other_rows_are_another_attempts(table: DeliveredTable) -> None:
    table.killed(_SEAL, is_done=False)
    table.attempt(salt=1_000_000)
    assert table.rows() == (ROWS, ROWS)


def test_what_has_other_rows_than_were_sent_is_never_sealed(table: DeliveredTable) -> None:
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


def test_a_target_that_gets_a_column_after_the_seal(table: DeliveredTable) -> None:
    for number, at in enumerate((_SEAL, _CLAIM, STATEMENTS - 4)):
        table.killed(at, is_done=True, number=number)
        with Server(table.url) as server:
            server.execute(f"ALTER TABLE {table.name} ADD COLUMN c{number} UInt8 AFTER id")
        table.attempt(number)
        table.assert_once(number + 1)


def test_a_target_that_gets_a_column_between_two_moves(table: DeliveredTable) -> None:
    def alter(number: int, is_done: bool) -> None:
        if (number, is_done) == (STATEMENTS - 4, False):
            with Server(table.url) as server:
                server.execute(f"ALTER TABLE {table.name} ADD COLUMN later UInt8")

    table.attempt(step=alter)
    table.assert_once()


def test_a_target_that_lost_a_column_after_the_seal_is_for_a_person(table: DeliveredTable) -> None:
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


def test_a_ttl_takes_no_rows_before_they_are_in_the_target(embedded_url: str) -> None:
    """A server would take them from a part of any table within milliseconds."""
    unmerged = "max_number_of_merges_with_ttl_in_pool = 0"
    expired = "TTL toDateTime(id) + toIntervalDay(1)"
    for settings in (f"{expired} SETTINGS {unmerged}", expired):
        table = DeliveredTable(embedded_url, settings=settings)
        table.create()
        assert table.killed(_SEAL, is_done=True)
        (stored,) = stored_blocks(table)
        with Server(embedded_url) as server:
            created = server.query(f"SHOW CREATE TABLE {table.name}__sluice_{stored}")
            assert unmerged in str(created) and expired in str(created)
        table.attempt()
        if unmerged in settings:
            table.assert_once()
        assert all("_" not in name for name in table.staged())
        table.drop()


@pytest.fixture
def viewed(embedded_url: str) -> Iterator[DeliveredTable]:
    """Views read it, and one reads what another one makes."""
    made = DeliveredTable(embedded_url, has_views=True)
    made.create()
    yield made
    made.drop()


def test_views_that_change_count_from_the_next_block_on(viewed: DeliveredTable) -> None:
    """A worker keeps what it knows of a table; each fill looks whether that is still so."""
    name = viewed.name
    with Server(viewed.url) as server:
        viewed.attempt(0)
        server.execute(
            f"CREATE MATERIALIZED VIEW {name}_later ENGINE = MergeTree ORDER BY k AS "
            f"SELECT k, now() AS at FROM {name}_sums"
        )
        viewed.attempt(1)
        server.execute(f"DROP TABLE {name}_to_copies")
        viewed.attempt(2)
        assert server.query(f"SELECT count() AS n FROM {name}_later") == [{"n": 6}]
        assert server.query(f"SELECT sum(n) AS n FROM {name}_copies") == [{"n": 2 * ROWS}]
        assert server.query(f"SELECT sum(n) AS n FROM {name}_sums") == [{"n": 3 * ROWS}]


def test_a_view_target_that_goes_after_the_seal_is_for_a_person(viewed: DeliveredTable) -> None:
    statements = viewed.attempt(1) and viewed.server.statements
    seal = next(at for at, sql in enumerate(statements) if "ENGINE = Null" in sql)
    assert viewed.killed(seal, is_done=True)
    with Server(viewed.url) as server:
        server.execute(f"DROP TABLE {viewed.name}_to_copies")
        server.execute(f"RENAME TABLE {viewed.name}_copies TO {viewed.name}_away")
        with pytest.raises(BlockRefusedError, match=f"no table default.{viewed.name}_copies"):
            viewed.attempt()
        server.execute(f"RENAME TABLE {viewed.name}_away TO {viewed.name}_copies")
    viewed.attempt()
    viewed.assert_once(2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("ENGINE = Memory AS SELECT id FROM {}", "writes to a Memory"),
        (
            "ENGINE = MergeTree ORDER BY id AS SELECT id FROM {} WHERE id IN (SELECT id FROM {})",
            "does not name default.* exactly once",
        ),
    ],
)
def test_views_that_cannot_be_copied_are_refused_with_words(
    embedded_url: str, more: str, words: str
) -> None:
    table = DeliveredTable(embedded_url)
    table.create()
    with Server(table.url) as server:
        server.execute(f"CREATE MATERIALIZED VIEW {table.name}_v {more.replace('{}', table.name)}")
        with pytest.raises(BlockRefusedError, match=f"it feeds default.{table.name}_v, .*{words}"):
            table.attempt()
    assert table.staged() == [] and table.rows() == (0, 0)
    table.drop()


@pytest.mark.slow
def test_what_views_made_is_counted_before_it_is_moved(viewed: DeliveredTable) -> None:
    statements = viewed.attempt(1) and viewed.server.statements
    seal = next(at for at, sql in enumerate(statements) if "ENGINE = Null" in sql)
    assert viewed.killed(seal, is_done=True)
    (stored,) = (name for name in viewed.staged() if name.endswith("_t1"))
    name = f"{viewed.name}__sluice_{stored}"
    with Server(viewed.url) as server:
        server.execute(f"ALTER TABLE {name} DETACH PARTITION 1")
        for _ in range(2):
            with pytest.raises(BlockRefusedError, match=r"has 2 of the 3 rows that were sealed"):
                viewed.attempt()
        server.execute(f"ALTER TABLE {name} ATTACH PARTITION 1")
    viewed.attempt()
    viewed.assert_once(2)


def test_views_are_refused_where_servers_copy(clickhouse_18: ClickHouseServer) -> None:
    table = DeliveredTable(clickhouse_18.url, has_views=True)
    table.create()
    with pytest.raises(BlockRefusedError, match="copies partitions between tables"):
        table.attempt()
    assert table.staged() == [] and table.rows() == (0, 0)
    table.drop()
