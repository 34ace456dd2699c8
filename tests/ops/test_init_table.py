"""Types, keys and tables for what was seen, on real engines."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.config import TableConfiguration
from sluice.core.load_spec import LINEAGE_TYPES
from sluice.driver.delivery import require_delivery
from sluice.ops.init_table import ASSUMED, ask_server, create_table, fitted, sorting_key
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
