"""Which replica an audit reads, on the oldest server that has them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition
from sluice.verify.audit_tables import TableReader
from tests.clickhouse.conftest import replicated

__all__ = ["replicated"]

COLUMNS = "_topic String, _partition UInt32, _offset UInt64"


@pytest.fixture
def third(old: Server, second: Server, replicated: str) -> Iterator[str]:
    """A table of three replicas, t at both servers and this one at the second: all that it stores
    is there alone until the others fetch."""
    names = ((old, "t", "r1"), (second, "t", "r2"), (second, "third", "r3"))
    for server, name, replica in names:
        server.execute(
            f"CREATE TABLE {replicated}.{name} ({COLUMNS}) ENGINE = "
            f"ReplicatedMergeTree('/{replicated}/t', '{replica}') ORDER BY _offset"
        )
    yield f"{replicated}.third"
    for server in (old, second):
        server.execute("SYSTEM START FETCHES")


def insert(server: Server, table: str, first: int, count: int) -> None:
    server.execute(
        f"INSERT INTO {table} SELECT 'orders', 0, number + {first} FROM system.numbers "
        f"LIMIT {count}"
    )


def found(database: str, *servers: Server, is_gentle: bool) -> int:
    """Rows that an audit sees."""
    access = ClickHouseAccess({"s1": tuple(each.url for each in servers)}, "", "", "single")
    reader = TableReader(access, database, "t", ["s1"], is_gentle=is_gentle)
    try:
        counts, _ = reader.counts(TopicPartition("orders", 0), 0, 100)
    finally:
        reader.close()
    return int(counts.sum())


@pytest.mark.parametrize("is_gentle", [False, True])
def test_a_replica_that_has_all_is_read_while_another_one_is_away(
    old: Server, second: Server, replicated: str, third: str, is_gentle: bool
) -> None:
    """The first one lacks rows; the second one has them, and knows that the third is away."""
    old.execute(f"SYSTEM STOP FETCHES {replicated}.t")
    second.execute(f"DETACH TABLE {third}")
    try:
        insert(second, f"{replicated}.t", 0, 60)
        assert found(replicated, old, second, is_gentle=is_gentle) == 60
        assert found(replicated, second, old, is_gentle=is_gentle) == 60
    finally:
        second.execute(f"ATTACH TABLE {third}")


@pytest.mark.slow
def test_what_only_a_replica_has_that_is_away_is_said(
    old: Server,
    second: Server,
    replicated: str,
    third: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for server in (old, second):
        server.execute(f"SYSTEM STOP FETCHES {replicated}.t")
    insert(second, third, 0, 60)
    second.execute(f"DETACH TABLE {third}")
    try:
        with pytest.raises(TransientError, match="no replica has all rows"):
            found(replicated, old, second, is_gentle=True)
        with caplog.at_level(logging.WARNING, "sluice.audit"):
            assert found(replicated, old, second, is_gentle=False) == 0
        assert "waits for 1 inserted parts of other replicas" in caplog.text
    finally:
        second.execute(f"ATTACH TABLE {third}")
