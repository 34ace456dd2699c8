"""How many parts a table has, as both engines say."""

from __future__ import annotations

import uuid

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.window import crowding


@pytest.fixture(params=["embedded_url", "clickhouse_18_url"])
def server(request: pytest.FixtureRequest) -> Server:
    """One of each."""
    if request.param == "clickhouse_18_url":
        return Server(request.getfixturevalue("clickhouse_18").url)
    return Server(request.getfixturevalue(request.param))


def create(server: Server, more: str = "") -> str:
    table = f"t{uuid.uuid4().hex[:8]}"
    # Parts of so many bytes are not merged, so that their number stays what it is.
    server.execute(
        f"CREATE TABLE {table} (id UInt64, day UInt8) ENGINE = MergeTree PARTITION BY day "
        f"ORDER BY id SETTINGS index_granularity = 8192, max_bytes_to_merge_at_max_space_in_pool "
        f"= 1{more}"
    )
    return table


def share(server: Server, table: str) -> float:
    return crowding(server, describe_table(server, "default", table))


def test_the_fullest_partition_counts(server: Server) -> None:
    table = create(server, ", parts_to_delay_insert = 20")
    assert share(server, table) == 0
    for day in (1, 1, 1, 1, 1, 2, 2):
        server.execute(f"INSERT INTO {table} VALUES ({day}, {day})")
    assert share(server, table) == 5 / 20
    server.execute(f"DROP TABLE {table}")


def test_the_servers_own_limit_where_the_table_has_none(server: Server) -> None:
    table = create(server)
    server.execute(f"INSERT INTO {table} VALUES (1, 1)")
    limits = server.query(
        "SELECT value FROM system.merge_tree_settings WHERE name = 'parts_to_delay_insert'"
    )
    assert share(server, table) == 1 / int(limits[0]["value"])
    server.execute(f"DROP TABLE {table}")


def test_a_crowded_target_of_a_view_counts(server: Server) -> None:
    table, target = create(server), create(server, ", parts_to_delay_insert = 2")
    server.execute(f"CREATE MATERIALIZED VIEW {table}_v TO {target} AS SELECT * FROM {table}")
    for number in range(2):
        server.execute(f"INSERT INTO {table} VALUES ({number}, 1)")
    assert share(server, table) == 1
    for name in (f"{table}_v", table, target):
        server.execute(f"DROP TABLE {name}")
