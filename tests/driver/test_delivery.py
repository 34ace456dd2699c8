"""Which tables a repeated block cannot change (R22)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.config import TableConfiguration
from sluice.core.claims import Deduplicate
from sluice.core.errors import ConfigurationError
from sluice.core.load_spec import LINEAGE_TYPES, Column, Mapped, Sharding
from sluice.driver.delivery import keeps_last_values, require_delivery

LINEAGE = tuple(LINEAGE_TYPES)
TABLE = TableConfiguration("t", "shop.t", ("orders",), delivery="replacing")
COLUMNS = (
    Column("id", "String"),
    Column("value", "UInt64"),
    Column("day", "Date"),
    Column("gone", "UInt8"),
    Column("at", "DateTime", "DEFAULT", "now()"),
    *(Column(name, type_text) for name, type_text in LINEAGE_TYPES.items()),
)


def facts(engine: str, key: str, partition: str = "") -> TableFacts:
    name = engine.partition("(")[0]
    return TableFacts(
        url="http://h:8123",
        database="shop",
        table="t",
        uuid="",
        engine=name,
        engine_full=f"{engine} {partition and f'PARTITION BY {partition}'} ORDER BY ({key})",
        columns=COLUMNS,
        partition_key=partition,
        sorting_key=key,
        replicated=name.startswith("Replicated"),
        zookeeper_path="",
        replicas_total=1,
        replicas_active=1,
        is_readonly=False,
        window_blocks=0,
        window_seconds=None,
        async_insert=False,
        dependents=(),
    )


ALL_ROWS = facts("ReplacingMergeTree", f"id, {', '.join(LINEAGE)}", "toYYYYMM(day)")
LAST = facts("ReplicatedReplacingMergeTree('/a, b', '{replica}', _offset, `gone`)", "id")
DELETING = replace(
    TABLE,
    tombstones="delete",
    columns=(Mapped("id", "kafka", "_key"), Mapped("gone", "sql", "_tombstone OR op = 'd'")),
)


def require(table: TableConfiguration, of: TableFacts, shards: int = 1, loaders: int = 1) -> None:
    require_delivery(table, of, LINEAGE, shards, loaders)


@pytest.mark.parametrize(
    ("table", "of", "last_values"),
    [
        (TABLE, ALL_ROWS, False),
        (TABLE, replace(ALL_ROWS, engine="SharedReplacingMergeTree"), False),
        (TABLE, facts("ReplacingMergeTree(value)", ", ".join(LINEAGE)), False),
        (TABLE, LAST, True),
        (DELETING, LAST, True),
        (TABLE, facts("ReplacingMergeTree(_offset)", "id, day", "toYYYYMM(day)"), True),
        (
            replace(TABLE, columns=(Mapped("value", "kafka", "_offset"),)),
            facts("ReplacingMergeTree(value)", "id"),
            True,
        ),
    ],
)
def test_tables_that_fit(table: TableConfiguration, of: TableFacts, last_values: bool) -> None:
    require(table, of)
    assert keeps_last_values(of) == last_values


VIEW = replace(ALL_ROWS, dependents=(Dependent("shop.v", facts("SummingMergeTree", "id")),))
SHARDED = replace(TABLE, sharding=Sharding("offset"))


@pytest.mark.parametrize(
    ("table", "of", "why"),
    [
        (TABLE, facts("MergeTree", ", ".join(LINEAGE)), "keeps a row that comes twice"),
        (TABLE, replace(ALL_ROWS, engine_full="ReplacingMergeTree(day, id, 8192)"), "old way"),
        (TABLE, VIEW, "feeds the view shop.v again"),
        (TABLE, facts("ReplacingMergeTree", f"at, {', '.join(LINEAGE)}"), "sorted by now"),
        (TABLE, replace(ALL_ROWS, partition_key="toDate(at)"), "partitioned by now"),
        (TABLE, facts("ReplacingMergeTree", "_topic, _partition, _offset"), "lacks _row, _source"),
        (TABLE, facts("ReplacingMergeTree(_offset, gone)", ", ".join(LINEAGE)), "deleted rows out"),
        (DELETING, ALL_ROWS, "a tombstone deletes none"),
        (TABLE, facts("ReplacingMergeTree", "id"), "inserted last, which a repeat changes"),
        (TABLE, facts("ReplacingMergeTree(value)", "id"), "version value, which is not the offset"),
        (TABLE, replace(LAST, partition_key="day"), "partitioned by day, which is not in its"),
        (replace(TABLE, topics=("a", "b")), LAST, "offsets of several topics"),
        (replace(TABLE, topic_pattern="a.*"), LAST, "offsets of several topics"),
        (replace(TABLE, on_error="park"), LAST, "would replace newer ones"),
        (replace(TABLE, deduplicate=Deduplicate(("id",), 600, "")), LAST, "claims cannot be read"),
        (DELETING, facts("ReplacingMergeTree(_offset)", "id"), "says that a key was deleted"),
        (replace(DELETING, columns=DELETING.columns[:1]), LAST, "does not come from tombstones"),
        (replace(DELETING, columns=DELETING.columns[1:]), LAST, "read from the message's value"),
    ],
)
def test_a_table_that_a_repeat_may_change_is_refused(
    table: TableConfiguration, of: TableFacts, why: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        require(table, of)
    assert why in str(refused.value) and refused.value.hint


def test_rows_of_a_key_stay_together() -> None:
    for table in (TABLE, SHARDED, replace(TABLE, sharding=Sharding("key", "value"))):
        with pytest.raises(ConfigurationError, match="may go to two of them"):
            require(table, LAST, shards=2)
    require(replace(TABLE, sharding=Sharding("key", "id")), LAST, shards=2)
    by_hash = Sharding("expression", expression="cityHash64(id)")
    require(replace(TABLE, sharding=by_hash), LAST, shards=2)
    require(SHARDED, ALL_ROWS, shards=2)
    with pytest.raises(ConfigurationError, match="several entries or connectors"):
        require(TABLE, LAST, loaders=2)
    require(TABLE, ALL_ROWS, loaders=2)


def test_all_rows_need_their_lineage() -> None:
    with pytest.raises(ConfigurationError, match="gets no _source"):
        require_delivery(TABLE, ALL_ROWS, LINEAGE[:-1], 1, 1)


def test_a_window_that_cannot_be_observed_is_no_window() -> None:
    block, shared = replace(TABLE, delivery="block"), "SharedReplacingMergeTree"
    require(block, LAST)
    with pytest.raises(ConfigurationError, match="window cannot be observed") as refused:
        require(block, replace(ALL_ROWS, engine=shared))
    assert 'delivery = "replacing"' in refused.value.hint
