"""ClickHouse's own Python client works against the embedded server, as its defaults have it."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import Any

import clickhouse_connect
import numpy
import pandas
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from sluice.testbed.local.running import ClickHouse

COLUMNS = ["a", "s", "d", "n", "l", "p", "arr", "m"]
ROW = (
    1,
    "é",
    datetime.datetime(2024, 1, 1),
    None,
    "q",
    decimal.Decimal("1.50"),
    ["a"],
    {"k": 1},
)


@pytest.fixture(params=[{}, {"compress": False}, {"compress": "zstd"}, {"compress": "gzip"}])
def connect(request: pytest.FixtureRequest, server: ClickHouse, database: str) -> Iterator[Any]:
    client = clickhouse_connect.get_client(
        host="127.0.0.1",
        port=server.port or 0,
        username="any",
        password="any",
        database=database,
        **request.param,
    )
    client.command(
        "CREATE TABLE t (a UInt64, s String, d DateTime64(3), n Nullable(Int32),"
        " l LowCardinality(String), p Decimal(18, 2), arr Array(String), m Map(String, UInt8),"
        " w String DEFAULT concat('w', s)) ENGINE = MergeTree ORDER BY a"
        " SETTINGS non_replicated_deduplication_window = 100"
    )
    yield client
    client.close()


def test_inserts_and_queries(connect: Any) -> None:
    for _ in range(2):
        summary = connect.insert(
            "t", [ROW, (2, *ROW[1:])], COLUMNS, settings={"insert_deduplication_token": "once"}
        )
        assert summary.written_rows == 2
    rows = connect.query(
        "SELECT * FROM t WHERE a < {a:UInt64} AND s = {s:String}", parameters={"a": 2, "s": "é"}
    ).result_rows
    assert rows == [(*ROW, "wé")]
    assert connect.command("SELECT count() FROM t") == 2
    assert connect.ping()


def test_frames_arrays_and_streams(connect: Any) -> None:
    count = 100_000
    numbers = numpy.arange(count, dtype="uint64")
    connect.insert_df("t", pandas.DataFrame({"a": numbers, "s": ["x"] * count}))
    assert connect.query_df("SELECT a, s FROM t ORDER BY a")["a"].sum() == numbers.sum()
    assert connect.query_np("SELECT a FROM t").shape == (count, 1)
    assert connect.query_arrow("SELECT a FROM t LIMIT 3").num_rows == 3
    with connect.query_row_block_stream("SELECT a FROM t") as stream:
        assert sum(len(block) for block in stream) == count
    connect.raw_insert("t", ["a", "s"], b"7\tseven\n", fmt="TSV")
    assert connect.raw_query("SELECT w FROM t WHERE s = 'seven'", fmt="TSV") == b"wseven\n"


def test_errors_are_the_servers(connect: Any) -> None:
    with pytest.raises(DatabaseError, match="UNKNOWN_IDENTIFIER"):
        connect.query("SELECT nosuch")
    with pytest.raises(DatabaseError, match="UNKNOWN_SETTING"):
        connect.command("SELECT 1", settings={"ch_nosuch": 1})
