"""What a probe sees: running inserts, lagging replicas, offsets that are present."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import query_id_of, query_id_prefix
from sluice.clickhouse.probe import (
    PresentOffsets,
    StoredRun,
    present_offsets,
    running_query_ids,
    stored_rows,
    why_not_in_sync,
)
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.sql import literal
from sluice.clickhouse.vanishing import CannotTellError
from sluice.core.errors import InDoubtError
from sluice.core.ranges import Range, TopicPartition
from sluice.core.tokens import source_number
from tests.clickhouse.helpers import count, insert
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.running_query import running_query
from tests.support.world import wait_for

LINEAGE = "_topic String, _partition UInt32, _offset UInt64, _row UInt32, _source String"
NAMES = ["_topic", "_partition", "_offset", "_row", "_source"]
ME = "p/dc1/topic/entry/0"


def table(server: Server, database: str, columns: str = LINEAGE) -> TableFacts:
    server.execute(f"CREATE TABLE {database}.t ({columns}) ENGINE = MergeTree ORDER BY _offset")
    return describe_table(server, database, "t")


def offsets(begin: int, end: int, topic: str = "o's", partition: int = 1) -> Range:
    return Range(TopicPartition(topic, partition), begin, end)


def add(
    server: Server,
    database: str,
    begin: int,
    end: int,
    row: int = 0,
    partition: int = 1,
    source: str = ME,
) -> None:
    select = (
        f"SELECT 'o''s' AS _topic, toUInt32({partition}) AS _partition, "
        f"number + {begin} AS _offset, toUInt32({row}) AS _row, {literal(source)} AS _source "
        f"FROM numbers({end - begin})"
    )
    insert(server, f"{database}.t", NAMES, select, f"{begin}-{end}-{row}-{time.monotonic_ns()}")


def test_present_offsets(server: Server, database: str) -> None:
    facts = table(server, database)
    add(server, database, 0, 10)
    add(server, database, 20, 30)
    add(server, database, 24, 26)  # doubled
    add(server, database, 28, 29, row=1)  # a second row of the message
    add(server, database, 30, 31)
    add(server, database, 5, 100, partition=2)  # another partition
    add(server, database, 0, 1000, source="other/dc1/topic/entry/0")  # another pipeline
    add(server, database, 0, 1000, source="p/dc1/topic/entry/1")  # after a rewind
    found = present_offsets(server, facts, offsets(3, 1000), ME)
    assert found == [
        PresentOffsets(3, 10, 1, 1),
        PresentOffsets(20, 24, 1, 1),
        PresentOffsets(24, 26, 2, 1),
        PresentOffsets(26, 28, 1, 1),
        PresentOffsets(28, 29, 2, 2),
        PresentOffsets(29, 31, 1, 1),
    ]
    assert [each.begin for each in found if each.doubled] == [24]
    assert present_offsets(server, facts, offsets(10, 20), ME) == []
    assert present_offsets(server, facts, offsets(9, 21), ME) == [
        PresentOffsets(9, 10, 1, 1),
        PresentOffsets(20, 21, 1, 1),
    ]


def test_stored_rows(server: Server, database: str) -> None:
    facts = table(server, database)
    for row in (0, 1, 2, 5):
        add(server, database, 3, 5, row=row)
    add(server, database, 7, 8, row=9)
    add(server, database, 7, 8, row=9)  # doubled
    add(server, database, 3, 5, row=4, source="other/dc1/topic/entry/0")
    add(server, database, 3, 5, row=4, partition=2)
    assert stored_rows(server, facts, offsets(0, 100), ME) == [
        StoredRun(3, 0, 3, False),
        StoredRun(3, 5, 6, False),
        StoredRun(4, 0, 3, False),
        StoredRun(4, 5, 6, False),
        StoredRun(7, 9, 10, True),
    ]
    assert [r.offset for r in stored_rows(server, facts, offsets(4, 7), ME)] == [4, 4]


def test_present_offsets_without_row_numbers(server: Server, database: str) -> None:
    facts = table(
        server, database, "_topic String, _partition UInt32, _offset UInt64, _source UInt64"
    )
    select = (
        "SELECT 't' AS _topic, toUInt32(0) AS _partition, number AS _offset, "
        f"toUInt64({source_number(ME)}) AS _source FROM numbers(5)"
    )
    for token in ("a", "b"):
        insert(server, f"{database}.t", [*NAMES[:3], "_source"], select, token)
    found = present_offsets(server, facts, offsets(0, 3, "t", 0), ME)
    assert found == [PresentOffsets(0, 3, 2, 1)]
    assert found[0].doubled


def test_rows_that_do_not_say_whose_they_are(server: Server, database: str) -> None:
    """As they are in a table that got the column later: neither ours nor foreign."""
    facts = table(server, database)
    add(server, database, 0, 10, source="")
    add(server, database, 10, 20)
    assert present_offsets(server, facts, offsets(10, 30), ME) == [PresentOffsets(10, 20, 1, 1)]
    with pytest.raises(CannotTellError, match="nobody can tell who loaded them"):
        present_offsets(server, facts, offsets(9, 30), ME)


def test_a_million_offsets_are_compressed_on_the_server(
    server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = table(server, database)
    add(server, database, 1_000, 1_001_000)
    ask, answers = server.query, list[int]()

    def query(*question: Any) -> list[dict[str, Any]]:
        rows = ask(*question)
        answers.append(len(rows))
        return rows

    monkeypatch.setattr(server, "query", query)
    found = present_offsets(server, facts, offsets(1_000, 1_001_000), ME)
    assert found == [PresentOffsets(1_000, 1_001_000, 1, 1)]
    assert set(answers) == {1}


def test_running_query_ids(server: Server) -> None:
    prefix = query_id_prefix("some/token/%")
    assert running_query_ids(server, prefix) == []
    query_id = query_id_of("some/token/%", "1")
    with running_query(server, query_id):
        assert running_query_ids(server, prefix) == [query_id]
        assert running_query_ids(server, query_id_prefix("another")) == []


@pytest.fixture
def pair(old: Server, second: Server, replicated: str) -> str:
    for each in (old, second):
        each.execute(
            f"CREATE TABLE {replicated}.t (a UInt64) "
            f"ENGINE = ReplicatedMergeTree('/{replicated}/t', '{{replica}}') ORDER BY a"
        )
    return replicated


def test_identical_block_twice_on_two_replicas(old: Server, second: Server, pair: str) -> None:
    for each in (old, second, old):
        insert(each, f"{pair}.t", ["a"], "SELECT number AS a FROM numbers(100)", "token")
    facts = describe_table(second, pair, "t")
    for each in (old, second):
        wait_for(lambda each=each: not why_not_in_sync(each, facts), 60, f"all rows at {each.url}")
    assert (count(old, f"{pair}.t"), count(second, f"{pair}.t")) == (100, 100)


def test_a_quorum_that_cannot_be_reached_is_in_doubt(
    old: Server, second: Server, pair: str
) -> None:
    capabilities = read_capabilities(old)
    quorum = insert_settings(capabilities, 2, quorum_timeout_seconds=1)
    target, select = f"{pair}.t", "SELECT number AS a FROM numbers(100)"
    insert(old, target, ["a"], select, "token", insert_settings(capabilities, 2))
    second.execute(f"DETACH TABLE {target}")
    try:
        with pytest.raises(InDoubtError) as caught:
            insert(old, target, ["a"], "SELECT number AS a FROM numbers(99)", "other", quorum)
        assert (caught.value.code, caught.value.action) == (285, "back-off")
    finally:
        second.execute(f"ATTACH TABLE {target}")


@pytest.mark.slow
def test_replicas_in_sync(old: Server, second: Server, pair: str) -> None:
    facts = describe_table(second, pair, "t")
    assert why_not_in_sync(second, facts) == ""
    second.execute(f"SYSTEM STOP FETCHES {pair}.t")
    insert(old, f"{pair}.t", ["a"], "SELECT number AS a FROM numbers(100)", "token")
    assert f"{pair}.t on {second.url}" in why_not_in_sync(second, facts)
    second.execute(f"SYSTEM START FETCHES {pair}.t")


def test_a_plain_table_is_its_only_replica(
    server: Server, database: str, clickhouse_url: str
) -> None:
    assert why_not_in_sync(server, table(server, database)) == ""


@pytest.mark.slow
def test_a_dead_replica_is_not_in_sync(
    old: Server, second: Server, pair: str, clickhouse_18_second: ClickHouseServer
) -> None:
    facts = describe_table(old, pair, "t")
    second.execute(f"DETACH TABLE {pair}.t")
    try:
        assert "1 of 2 replicas" in why_not_in_sync(old, facts)
    finally:
        second.execute(f"ATTACH TABLE {pair}.t")
