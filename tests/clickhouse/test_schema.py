"""Facts of tables on the oldest and the newest server."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import check_header, describe_table, table_settings
from sluice.clickhouse.topology import refuse_async_inserts
from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.testbed.local.running import running_program
from tests.support.guarded import GuardedClickHouse


def test_columns_and_keys(server: Server, database: str) -> None:
    server.execute(
        f"CREATE TABLE {database}.t (id UInt64, day Date DEFAULT toDate('2020-01-01'), "
        "twice UInt64 MATERIALIZED id * 2, thrice UInt64 ALIAS id * 3, s Nullable(String)) "
        "ENGINE = MergeTree PARTITION BY toYYYYMM(day) ORDER BY (day, id)"
    )
    facts = describe_table(server, database, "t")
    columns = [
        ("id", "UInt64", ""),
        ("day", "Date", "DEFAULT"),
        ("twice", "UInt64", "MATERIALIZED"),
        ("thrice", "UInt64", "ALIAS"),
        ("s", "Nullable(String)", ""),
    ]
    if server.version() < (19,):  # 18.16 itself keeps them by kind
        columns.insert(2, columns.pop())
    assert [(c.name, c.type, c.kind) for c in facts.columns] == columns
    assert facts.columns[1].expression == "toDate('2020-01-01')"
    assert (facts.partition_key, facts.sorting_key) == ("toYYYYMM(day)", "day, id")
    assert (facts.engine, facts.replicated, facts.replicas_total) == ("MergeTree", False, 1)
    assert (facts.window_blocks, facts.window_seconds, facts.deduplicates) == (0, None, False)
    assert (facts.dependents, facts.async_insert, facts.url) == ((), False, server.url)


def test_embedded_window_uuid_and_async_insert(embedded: Server, embedded_database: str) -> None:
    embedded.execute(
        f"CREATE TABLE {embedded_database}.t (id UInt64) ENGINE = ReplacingMergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 77, async_insert = 1 COMMENT 'a, b = 3'"
    )
    facts = describe_table(embedded, embedded_database, "t")
    assert (facts.window_blocks, facts.window_seconds, facts.async_insert) == (77, None, True)
    assert len(facts.uuid) == 36


@pytest.mark.parametrize(
    ("version", "blocks"),
    [((26, 1, 9), 77), ((26, 2), 38), ((26, 5, 3), 38), ((26, 6), 77), ((22, 2), 77)],
)
def test_versions_that_keep_two_entries_of_each_block(
    embedded: Server,
    embedded_database: str,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, ...],
    blocks: int,
) -> None:
    embedded.execute(
        f"CREATE TABLE {embedded_database}.t (id UInt64) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 77"
    )
    monkeypatch.setattr(embedded, "version", lambda: version)
    assert describe_table(embedded, embedded_database, "t").window_blocks == blocks


def test_tables_that_a_servers_configuration_lets_queue_inserts(tmp_path: Path) -> None:
    """Such a table's own description says nothing of it."""
    program = GuardedClickHouse(tmp_path / "clickhouse" / "data")
    program.more = "<merge_tree><async_insert>1</async_insert></merge_tree>"
    with running_program(program) as own, Server(own.url) as client:
        client.execute("CREATE TABLE default.t (id UInt64) ENGINE = MergeTree ORDER BY id")
        facts = describe_table(client, "default", "t")
        assert "async_insert" not in facts.engine_full and facts.async_insert
        with pytest.raises(TerminalError, match="<merge_tree> of the server's") as caught:
            refuse_async_inserts(facts)
        client.execute(caught.value.hint)
        refuse_async_inserts(describe_table(client, "default", "t"))


def test_replicated_on_18_16(old: Server, second: Server, replicated: str) -> None:
    create = "(id UInt64) ENGINE = ReplicatedMergeTree('/{0}/{1}', '{{replica}}') ORDER BY id{2}"
    for name, settings in (
        ("defaults", ""),
        (
            "own",
            " SETTINGS replicated_deduplication_window = 33, "
            "replicated_deduplication_window_seconds = 44",
        ),
    ):
        for each in (old, second):
            each.execute(
                f"CREATE TABLE {replicated}.{name} " + create.format(replicated, name, settings)
            )
    facts = describe_table(old, replicated, "defaults")
    assert (facts.window_blocks, facts.window_seconds) == (100, 604800)
    assert (facts.replicated, facts.is_readonly) == (True, False)
    assert facts.zookeeper_path == f"/{replicated}/defaults"
    assert (facts.replicas_total, facts.replicas_active) == (2, 2)
    own = describe_table(second, replicated, "own")
    assert (own.window_blocks, own.window_seconds) == (33, 44)


def test_views_behind_views(server: Server, database: str) -> None:
    for name in ("t", "`second table`", "third"):
        server.execute(f"CREATE TABLE {database}.{name} (a UInt64) ENGINE = MergeTree ORDER BY a")
    server.execute(
        f"CREATE MATERIALIZED VIEW {database}.v1 TO {database}.`second table` "
        f"AS SELECT a FROM {database}.t"
    )
    server.execute(
        f"CREATE MATERIALIZED VIEW {database}.v2 ENGINE = SummingMergeTree ORDER BY a "
        f"AS SELECT a FROM {database}.t"
    )
    server.execute(
        f"CREATE MATERIALIZED VIEW {database}.v3 TO {database}.third "
        f"AS SELECT a FROM {database}.`second table`"
    )
    facts = describe_table(server, database, "t")
    assert [d.view for d in facts.dependents] == [f"{database}.v1", f"{database}.v2"]
    first, inner = (d.target for d in facts.dependents)
    assert first.table == "second table"
    assert [d.target.table for d in first.dependents] == ["third"]
    assert inner.engine == "SummingMergeTree"
    assert [c.name for c in inner.columns] == ["a"]
    assert [d.view.rpartition(".")[2] for d in facts.all_dependents()] == ["v1", "v3", "v2"]


def test_refreshable_views_are_not_fed_by_inserts(embedded: Server, embedded_database: str) -> None:
    name = embedded_database
    for table in ("t", "u"):
        embedded.execute(f"CREATE TABLE {name}.{table} (a UInt64) ENGINE = MergeTree ORDER BY a")
    embedded.execute(
        f"CREATE MATERIALIZED VIEW {name}.v REFRESH EVERY 1 HOUR TO {name}.u "
        f"AS SELECT a FROM {name}.t"
    )
    assert describe_table(embedded, name, "t").dependents == ()


@pytest.mark.parametrize("engine", ["Null", "Memory", "Buffer", "Distributed", "View"])
def test_engines_without_a_contract_are_refused(server: Server, database: str, engine: str) -> None:
    server.execute(f"CREATE TABLE {database}.t (a UInt64) ENGINE = MergeTree ORDER BY a")
    statements = {
        "Null": "TABLE {0}.x (a UInt64) ENGINE = Null",
        "Memory": "TABLE {0}.x (a UInt64) ENGINE = Memory",
        "Buffer": "TABLE {0}.x (a UInt64) ENGINE = Buffer({0}, t, 1, 1, 1, 1, 1, 1, 1)",
        "View": "VIEW {0}.x AS SELECT a FROM {0}.t",
        "Distributed": "TABLE {0}.x (a UInt64) ENGINE = Distributed(default, {0}, t)",
    }
    if engine == "Distributed" and not _has_default_cluster(server):
        pytest.skip("this server has no cluster")
    server.execute("CREATE " + statements[engine].format(database))
    with pytest.raises(TerminalError) as caught:
        describe_table(server, database, "x")
    assert f"{database}.x" in str(caught.value)
    assert engine in str(caught.value)
    assert "target" in caught.value.hint


def _has_default_cluster(server: Server) -> bool:
    return bool(server.query("SELECT 1 AS one FROM system.clusters WHERE cluster = 'default'"))


def test_missing_table_and_database(server: Server, database: str) -> None:
    with pytest.raises(TerminalError) as caught:
        describe_table(server, database, "nope")
    assert f"no table {database}.nope on {server.url}" in str(caught.value)
    assert caught.value.hint.startswith(f"CREATE TABLE `{database}`.`nope`")
    with pytest.raises(TerminalError) as caught:
        describe_table(server, "no-such-database", "nope")
    assert caught.value.hint.startswith("CREATE DATABASE `no-such-database`")


def test_a_view_whose_target_is_gone(server: Server, database: str) -> None:
    for name in ("t", "u"):
        server.execute(f"CREATE TABLE {database}.{name} (a UInt64) ENGINE = MergeTree ORDER BY a")
    server.execute(
        f"CREATE MATERIALIZED VIEW {database}.v TO {database}.u AS SELECT a FROM {database}.t"
    )
    server.execute(f"DROP TABLE {database}.u")
    with pytest.raises(TerminalError) as caught:
        describe_table(server, database, "t")
    assert f"{database}.v" in str(caught.value)


def test_check_header(server: Server, database: str) -> None:
    server.execute(
        f"CREATE TABLE {database}.t (id UInt64, m UInt64 MATERIALIZED id, "
        "e Enum8('a' = 1, 'b, c' = 2), added String DEFAULT 'x') ENGINE = MergeTree ORDER BY id"
    )
    facts = describe_table(server, database, "t")
    check_header([Column("e", "Enum8('a' = 1,'b, c' = 2)"), Column("id", "UInt64")], facts)
    for column, words in (
        (Column("extra", "String"), "has no column extra"),
        (Column("id", "UInt32"), "column id is UInt64, the block carries UInt32"),
        (Column("m", "UInt64"), "column m is MATERIALIZED"),
    ):
        with pytest.raises(TerminalError) as caught:
            check_header([Column("id", "UInt64"), column], facts)
        assert words in str(caught.value)
        assert f"{database}.t on {server.url}" in str(caught.value)


@pytest.mark.parametrize(
    ("engine_full", "settings"),
    [
        ("MergeTree ORDER BY a", {}),
        ("MergeTree(d, a, 8192)", {}),
        (
            "MergeTree ORDER BY a SETTINGS x_y = 5, storage_policy = 'a b, c'",
            {"x_y": "5", "storage_policy": "a b, c"},
        ),
        ("MergeTree ORDER BY s = ' SETTINGS x = 1'", {}),
        (
            "MergeTree ORDER BY `SETTINGS` SETTINGS ratio = 0.25, n = -1",
            {"ratio": "0.25", "n": "-1"},
        ),
    ],
)
def test_table_settings(engine_full: str, settings: dict[str, str]) -> None:
    assert table_settings(engine_full) == settings
