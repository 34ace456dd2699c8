"""Adding columns for new fields, on the newest and on the oldest server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sluice.clickhouse import adding
from sluice.clickhouse.adding import ColumnsRefusedError, add_columns
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import read_structures
from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import TransientError
from sluice.testbed.local.children import free_ports
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.fixtures import fresh_database

RULES = DynamicColumns(allow=("a.*",), columns_max=4)
KINDS = {"a`\\'\" ü東": "Int", "ab": "Bool", "at": "Time6", "ar": "Array(Float)"}


def connect(url: str) -> Server:
    return Server(url)


def types(server: Server, database: str) -> dict[str, str]:
    found = read_structures(server, [(database, "t")])[database, "t"]
    return {column.name: column.type for column in found.columns}


def create(server: Server, database: str) -> None:
    server.execute(f"CREATE TABLE {database}.t (id UInt64) ENGINE = MergeTree ORDER BY id")


def test_columns_of_every_kind_and_name(server: Server, database: str) -> None:
    create(server, database)
    where = (database, "t")
    added = add_columns(connect, [server.url], where, KINDS, RULES)
    is_old = server.version() < (20,)
    expected = {
        "a`\\'\" ü東": "Nullable(Int64)",
        "ab": "Nullable(UInt8)" if is_old else "Nullable(Bool)",
        "at": "Nullable(String)" if is_old else "Nullable(DateTime64(6, 'UTC'))",
        "ar": "Array(Nullable(Float64))",
    }
    assert added == expected
    assert types(server, database) == {"id": "UInt64", **expected}
    assert add_columns(connect, [server.url], where, KINDS, RULES) == {}, "all are there"


def test_there_is_room_for_so_many(server: Server, database: str) -> None:
    create(server, database)
    server.execute(f"ALTER TABLE {database}.t ADD COLUMN a0 String")
    kinds = {f"a{number}": "Int" for number in range(9, 0, -1)}
    added = add_columns(connect, [server.url], (database, "t"), kinds, RULES)
    assert list(added) == ["a9", "a8", "a7"], "in the order in which they were asked for"
    assert add_columns(connect, [server.url], (database, "t"), {"ax": "Int"}, RULES) == {}


def test_two_that_add_the_same_columns_at_once(server: Server, database: str) -> None:
    """Each has all of them in the end, whoever was first; also where the server says that one is
    there already."""
    create(server, database)
    rules = DynamicColumns(allow=("a.*",), columns_max=100)
    failures: list[BaseException] = []

    def add(names: list[str]) -> None:
        try:
            for name in names:
                more = dict.fromkeys([name, f"{name}x", f"{name}y"], "Int")
                add_columns(connect, [server.url], (database, "t"), more, rules)
        except BaseException as error:
            failures.append(error)

    names = [f"a{number}" for number in range(10)]
    threads = [threading.Thread(target=add, args=(names,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(types(server, database)) == 31


class Overtaken(Server):
    """Another one adds the first column just before."""

    is_overtaken = False

    def execute(self, sql: str, *parts: Any, **more: Any) -> str:
        if sql.startswith("ALTER") and not Overtaken.is_overtaken:
            Overtaken.is_overtaken = True
            super().execute(sql.partition(",")[0])
        return super().execute(sql, *parts, **more)


def test_a_column_that_somebody_else_has_just_added(old: Server) -> None:
    """A server that knows no IF NOT EXISTS refuses the whole statement."""
    for database in fresh_database(old.url):
        create(old, database)
        kinds = {"a1": "Int", "a2": "Int"}
        add_columns(Overtaken, [old.url], (database, "t"), kinds, RULES)
        assert Overtaken.is_overtaken
        assert types(old, database).keys() == {"id", "a1", "a2"}


def test_every_server_of_a_table_that_is_not_replicated(embedded: Server, old: Server) -> None:
    """Two servers with nothing in common but the table's name."""
    for database in fresh_database(embedded.url, old.url):
        create(embedded, database)
        create(old, database)
        where = (database, "t")
        add_columns(connect, [embedded.url, old.url], where, {"a1": "Int"}, RULES)
        assert "a1" in types(embedded, database) and "a1" in types(old, database)
        nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
        with pytest.raises(TransientError):
            add_columns(connect, [embedded.url, nobody], where, {"a2": "Int"}, RULES)


def test_all_replicas_have_the_columns_when_it_is_done(
    clickhouse_18: ClickHouseServer, clickhouse_18_second: ClickHouseServer
) -> None:
    one, two = clickhouse_18.url, clickhouse_18_second.url
    for database in fresh_database(one, two):
        for url in (one, two):
            with Server(url) as server:
                server.execute(
                    f"CREATE TABLE {database}.t (id UInt64) ENGINE = ReplicatedMergeTree("
                    f"'/clickhouse/tables/{database}', '{{replica}}') ORDER BY id"
                )
        where = (database, "t")
        nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
        assert add_columns(connect, [one, two, nobody], where, {"a1": "Int"}, RULES)
        assert add_columns(connect, [nobody, two, one], where, {"a2": "Int"}, RULES)
        for url in (one, two):
            with Server(url) as server:
                assert types(server, database).keys() == {"id", "a1", "a2"}
        with pytest.raises(TransientError):
            add_columns(connect, [nobody], where, {"a3": "Int"}, RULES)


def test_a_replica_that_lags_is_waited_for_and_named(
    embedded: Server, old: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for database in fresh_database(embedded.url, old.url):
        create(embedded, database)
        create(old, database)
        monkeypatch.setattr(adding, "_is_replicated", lambda server, where: True)
        monkeypatch.setattr(adding, "REPLICAS_SECONDS", 0.5)
        with pytest.raises(TransientError, match="has no column a1 yet"):
            add_columns(connect, [embedded.url, old.url], (database, "t"), {"a1": "Int"}, RULES)


def test_what_is_refused_is_said_with_what_to_do(embedded: Server) -> None:
    for database in fresh_database(embedded.url):
        create(embedded, database)
        where = (database, "t")
        embedded.execute(f"DROP TABLE {database}.t")
        with pytest.raises(TransientError, match="does not exist"):
            add_columns(connect, [embedded.url], where, {"a1": "Int"}, RULES)
        embedded.execute(f"CREATE VIEW {database}.t AS SELECT 1 AS id")
        with pytest.raises(ColumnsRefusedError) as refused:
            add_columns(connect, [embedded.url], where, {"a1": "Int"}, RULES)
        assert f"columns cannot be added to {database}.t" in str(refused.value)
        assert "GRANT ALTER ADD COLUMN" in refused.value.hint
        assert "ADD COLUMN IF NOT EXISTS `a1` Nullable(Int64)" in refused.value.hint
