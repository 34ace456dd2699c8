"""Keys of rows that replicas of the oldest server have: all that any of them acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from urllib.parse import urlencode

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.core.errors import TransientError
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.keys.hashing import RowKeys
from sluice.driver.probing import ReplicaMissingError, StillRunningError
from sluice.verify.stored_keys import stored_keys
from tests.clickhouse.conftest import replicated
from tests.decode.keys.support import keyed_table
from tests.support.world import wait_for

__all__ = ["replicated"]

COLUMNS = "id UInt64, _topic String, _partition UInt32, _offset UInt64, _row UInt32, _source String"


@pytest.fixture
def table(old: Server, second: Server, replicated: str) -> Iterator[TableSpec]:
    """A table of two replicas."""
    for number, server in enumerate((old, second)):
        server.execute(
            f"CREATE TABLE {replicated}.t ({COLUMNS}) ENGINE = "
            f"ReplicatedMergeTree('/{replicated}/t', 'r{number}') ORDER BY id"
        )
    lineage = tuple(
        Column(*each.split(" ")) for each in COLUMNS.split(", ") if each.startswith("_")
    )
    text = keyed_table(Column("id", "UInt64"), key=("id",), lineage=lineage)
    yield replace(text, database=replicated, table="t", shards=("s1",))
    for server in (old, second):
        server.execute("SYSTEM START FETCHES")


def access_of(*servers: Server) -> ClickHouseAccess:
    return ClickHouseAccess({"s1": tuple(each.url for each in servers)}, "", "", "single")


def insert(server: Server, table: TableSpec, first: int, count: int) -> None:
    server.execute(
        f"INSERT INTO {table.target} SELECT number + {first}, 't', 0, number, 0, 'by hand' "
        f"FROM system.numbers LIMIT {count}"
    )


@contextmanager
def slow_insert(server: Server, table: TableSpec, query_id: str) -> Iterator[Callable[[], None]]:
    """An insert of three rows that runs until what is given is called: its last byte comes then.
    The server begins with it when it has filled a buffer of a megabyte."""
    rows = b"".join(b"%d\tt\t0\t%d\t0\t%s\n" % (n, n, b"x" * 1_000_000) for n in range(3))
    keys = {"query": f"INSERT INTO {table.target} FORMAT TSV", "query_id": query_id}
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=120)

    def end() -> None:
        connection.send(rows[-1:])
        assert connection.getresponse().status == 200

    connection.putrequest("POST", f"/?{urlencode(keys)}")
    connection.putheader("Content-Length", str(len(rows)))
    connection.endheaders(rows[:-1])
    try:
        yield end
    finally:
        connection.close()


def rows_of(access: ClickHouseAccess, table: TableSpec) -> int:
    row_keys = RowKeys(table, [column.name for column in table.columns])
    return sum(len(keys) for keys, _ in stored_keys(access, table, row_keys))


@pytest.mark.slow
def test_a_replica_that_is_behind_is_not_read(
    old: Server, second: Server, table: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(second, table, 0, 10)
    old.execute("SYSTEM STOP FETCHES")
    insert(second, table, 100, 5)
    assert rows_of(access_of(old, second), table) == 15
    monkeypatch.setattr("sluice.clickhouse.probe.SYNC_SECONDS", 1.0)
    second.execute("SYSTEM STOP FETCHES")
    insert(old, table, 200, 1)
    with pytest.raises(TransientError):
        rows_of(access_of(old, second), table)


def test_every_replica_has_to_answer(old: Server, table: TableSpec) -> None:
    away = Server("http://127.0.0.1:1")
    with pytest.raises(ReplicaMissingError, match=table.target):
        rows_of(access_of(old, away), table)


@pytest.mark.slow
def test_what_an_insert_stores_that_runs_is_read(
    old: Server, second: Server, table: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow_insert(second, table, "sluice-0") as end:
        text = "SELECT count() AS n FROM system.processes WHERE query_id = 'sluice-0'"
        monkeypatch.setattr("sluice.verify.stored_keys._ENDED_SECONDS", 0.0)
        wait_for(lambda: second.query(text) == [{"n": 1}], 60, "the insert's start")
        with pytest.raises(StillRunningError, match="sluice-0"):
            rows_of(access_of(old, second), table)
        monkeypatch.setattr("sluice.verify.stored_keys._ENDED_SECONDS", 60.0)
        ending = threading.Timer(1.0, end)
        ending.start()
        assert rows_of(access_of(old, second), table) == 3
        ending.join()
