"""Types, keys and tables for what was seen, on real engines."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerErrorFacts, TerminalServerError
from sluice.clickhouse.schema import describe_table
from sluice.config import TableConfiguration
from sluice.core.errors import TerminalError
from sluice.core.load_spec import LINEAGE_TYPES, Delivery
from sluice.driver.delivery import require_delivery
from sluice.ops import init_table
from sluice.ops.init_table import (
    ASSUMED,
    ServerFacts,
    ask_server,
    create_table,
    fitted,
    sorting_key,
)
from sluice.ops.init_types import SampledColumn, columns_of_lines, columns_of_records

RECORD = {
    "id": 1,
    "amount": 1.5,
    "paid": True,
    "at": "2026-01-02T03:04:05.123Z",
    "day": "2026-01-02",
    "note": "x",
    "`odd` name": {"a": [1]},
}


def types(records: list[dict[str, Any]]) -> dict[str, str]:
    return {column.name: column.type for column in columns_of_records(records)}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1, 2], "Int64"),
        ([1, 2.5], "Float64"),
        ([2**63, 1], "UInt64"),
        ([-1, 2**63], "String"),
        ([10**30], "String"),
        ([True, False], "Bool"),
        ([1, "x"], "String"),
        ([1, None], "Nullable(Int64)"),
        ([None], "Nullable(String)"),
        (["2026-01-02", "2026-01-03"], "Date32"),
        (["2026-01-02T03:04:05Z"], "DateTime64(3)"),
        (["2026-01-02 03:04:05", "2026-01-02"], "DateTime64(3)"),
        (["2026-01-02T03:04:05.123456+01:00"], "DateTime64(6)"),
        (["2026-01-02T03:04:05Z", "no"], "String"),
        ([{"a": 1}, "x"], "String"),
        ([[1], ["x"]], "Array(String)"),
        ([[1, None]], "Array(Nullable(Int64))"),
        ([{"a": 1}, {"b": "x"}], "Tuple(`a` Nullable(Int64), `b` Nullable(String))"),
        ([{"a b": {"c": []}}], "Tuple(`a b` Tuple(`c` Array(String)))"),
        ([{f"k{n}": n} for n in range(30)], "Map(String, Int64)"),
        (["DE", "FR"] * 20, "LowCardinality(String)"),
        (["DE", None] * 40, "LowCardinality(Nullable(String))"),
        ([f"name {n}" for n in range(40)], "String"),
    ],
)
def test_types(values: list[Any], wanted: str) -> None:
    assert types([{"v": value} for value in values]) == {"v": wanted}


def test_an_absent_field_is_nullable_and_a_nameless_one_is_none() -> None:
    records: list[dict[str, Any]] = [{"a": 1, "": 1, "x\ny": 1}, {"b": "x"}]
    assert types(records) == {"a": "Nullable(Int64)", "b": "Nullable(String)"}


def test_text_between_delimiters() -> None:
    lines = [["1", "x", "", "true", "1.5", "007"], ["2", "y", "3", "false", "2", "008"]]
    columns = columns_of_lines(("a", "b", "c", "d", "e", "f"), lines)
    assert [column.type for column in columns] == [
        *("Int64", "String", "Nullable(Int64)", "Bool", "Float64", "String")
    ]


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (("order_id Int64 100", "user_id Int64 20", "at DateTime64(3) 100"), ["user_id", "at"]),
        (("at DateTime64(3) 100", "order_id Int64 100"), ["at", "order_id"]),
        (("birth Date32 50", "created_at DateTime64(3) 100"), ["created_at"]),
        (("ts Int64 100", "deviceId String 10"), ["deviceId", "ts"]),
        (("order_id Int64 100", "amount Float64 3"), ["order_id"]),
        (("paid String 2", "tags Array(String) 2"), ["_partition", "_offset"]),
    ],
)
def test_sorting_key(columns: tuple[str, ...], wanted: list[str]) -> None:
    made = []
    for column in columns:
        name, text, distinct = column.split(" ")
        made.append(SampledColumn(name, text, 100, int(distinct)))
    assert sorting_key(made) == wanted


def test_a_column_that_lacks_values_is_no_key() -> None:
    assert sorting_key([SampledColumn("id", "Int64", 90, 9, lacking=True)])[0] == "_partition"


def test_the_statement_makes_a_table_that_deduplicates(server: Server, database: str) -> None:
    """On the newest engine, and on 18.16 with ZooKeeper: types and engine that it has."""
    facts = ask_server(server, database, "odd-name")
    assert (facts.has_database, facts.has_table) == (True, False)
    columns = fitted(columns_of_records([RECORD, {**RECORD, "note": None}]), facts.version)
    server.execute(create_table(database, "odd-name", columns, facts))
    made = describe_table(server, database, "odd-name")
    assert made.window_blocks == 10_000
    assert made.replicated == (facts.version < (22, 2))
    assert [column.name for column in made.columns] == [
        *RECORD,
        *("_topic", "_partition", "_offset", "_row", "_source"),
    ]
    by_name = {column.name: column.type for column in made.columns}
    assert by_name["note"] == "Nullable(String)"
    assert by_name["at"] == ("DateTime" if facts.version < (20, 1) else "DateTime64(3)")
    assert ask_server(server, database, "odd-name").has_table
    assert not ask_server(server, "nowhere", "x").has_database


def test_without_a_server_it_is_a_plain_table_of_today() -> None:
    statement = create_table("shop", "orders", [SampledColumn("index", "Int64", 1, 1)], ASSUMED)
    assert "CREATE TABLE `shop`.`orders` (\n    `index` Int64,\n    _topic Low" in statement
    assert statement.endswith(
        "ENGINE = MergeTree\nORDER BY (_partition, _offset)\n"
        "SETTINGS non_replicated_deduplication_window = 10000"
    )


def test_a_table_that_keeps_one_of_equal_rows(server: Server, database: str) -> None:
    """Also where plain tables cannot deduplicate at all."""
    facts = ask_server(server, database, "kept", "replacing")
    columns = fitted(columns_of_records([RECORD]), facts.version)
    server.execute(create_table(database, "kept", columns, facts, "replacing"))
    made = describe_table(server, database, "kept")
    assert made.engine == facts.engine.partition("(")[0].replace("Merge", "ReplacingMerge")
    entry = TableConfiguration("kept", f"{database}.kept", ("t",), delivery="replacing")
    require_delivery(entry, made, tuple(LINEAGE_TYPES), 1, 1)


class Asked:
    """A server by its answers: to what holds these words, these rows, or this error's code."""

    url = "http://ch:8123"

    def __init__(self, **answers: list[dict[str, str]] | int) -> None:
        self.answers = answers

    def query(self, text: str, parameters: object = None) -> list[dict[str, str]]:
        rows = next((rows for words, rows in self.answers.items() if words in text), [])
        if isinstance(rows, int):
            facts = ServerErrorFacts(rows, "NAME", self.url, "stop")
            raise TerminalServerError("no", "none", facts)
        return rows


def asked(
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, ...] = (24, 8),
    delivery: Delivery = "block",
    **answers: list[dict[str, str]] | int,
) -> ServerFacts:
    told = SimpleNamespace(
        version=version, tokens=True, host_name="ch-0", version_text=".".join(map(str, version))
    )
    monkeypatch.setattr(init_table, "read_capabilities", lambda _: told)
    server: Any = Asked(**answers)
    return ask_server(server, "shop", "orders", delivery)


def test_a_replicated_database_names_its_tables_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses arguments, from 24.9 on."""
    facts = asked(monkeypatch, databases=[{"name": "shop", "engine": "Replicated"}])
    assert facts.engine == "ReplicatedMergeTree" and facts.has_database
    assert facts.settings == "replicated_deduplication_window = 10000"
    assert '"quorum"' in facts.remarks[0] and "ON CLUSTER" not in facts.remarks[0]


def test_what_a_user_may_not_see_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (remark,) = asked(monkeypatch, zookeeper=497).remarks
    assert "GRANT SELECT ON system.zookeeper" in remark
    assert asked(monkeypatch, zookeeper=60) == replace(ASSUMED, version=(24, 8), has_database=False)


def test_replicas_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = asked(monkeypatch, macros=[{"macro": "shard"}, {"macro": "replica"}])
    path = "/clickhouse/tables/{shard}/shop.orders"
    assert facts.engine == f"ReplicatedMergeTree('{path}', '{{replica}}')"
    (remark,) = facts.remarks
    assert "each replica" in remark and "ON CLUSTER" in remark
    facts = asked(monkeypatch, macros=[])
    assert "'ch-0'" in facts.engine and "'ch-0'" in facts.remarks[1]


def test_blocks_are_remembered_for_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before 25.10, where doctor finds nothing to say of it."""
    facts = asked(monkeypatch, version=(25, 10), macros=[])
    statement = create_table("shop", "orders", [SampledColumn("id", "Int64", 1, 1)], facts)
    assert statement.endswith(
        "SETTINGS replicated_deduplication_window = 10000, "
        "replicated_deduplication_window_seconds = 604800"
    )


def test_the_cloud_takes_one_delivery_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = [{"name": "SharedMergeTree"}]
    with pytest.raises(TerminalError, match="is ClickHouse Cloud") as refused:
        asked(monkeypatch, table_engines=cloud)
    assert "--delivery replacing" in refused.value.hint
    facts = asked(monkeypatch, delivery="replacing", table_engines=cloud)
    assert facts.engine == "MergeTree"
    statement = create_table("d", "t", [SampledColumn("id", "Int64", 1, 1)], facts, "replacing")
    assert "ENGINE = ReplacingMergeTree\n" in statement
