"""Rows that go, or are not shown: what a probe must notice before it believes what it counts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.probe import PresentOffsets, present_offsets
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.vanishing import (
    CannotTellError,
    require_all_rows,
    require_unchanged,
    seeing_all,
    why_rows_go,
    why_tokens_go,
)
from sluice.clickhouse.window import read_insert_counter
from sluice.core.ranges import Range, TopicPartition
from tests.clickhouse.helpers import ProfiledServer, count, insert
from tests.support.world import wait_for

NAMES = ["_topic", "_partition", "_offset", "_row", "_source"]
COLUMNS = (
    "_topic String, _partition UInt32, _offset UInt64, _row UInt32, _source String, "
    "d Date DEFAULT today(), n UInt64, s Int8"
)
KEY = "(n, _topic, _partition, _offset, _row, _source)"
ME = "p/dc1/topic/entry/0"
ENGINE = "ENGINE = MergeTree ORDER BY s"
ALL = [PresentOffsets(0, 100, 1, 1)]
#: A server cleans a table twice a minute otherwise.
CLEANED = (
    "cleanup_delay_period = 1, cleanup_delay_period_random_add = 0, max_cleanup_delay_period = 1"
)


def made(server: Server, name: str, engine: str = "MergeTree ORDER BY _offset") -> TableFacts:
    server.execute(f"CREATE TABLE {name} ({COLUMNS}) ENGINE = {engine}")
    return describe_table(server, *name.split("."))


def filled(server: Server, name: str, engine: str = "MergeTree ORDER BY _offset") -> TableFacts:
    facts = made(server, name, engine)
    for begin in (0, 50):
        select = (
            f"SELECT 't' AS _topic, toUInt32(1) AS _partition, number + {begin} AS _offset, "
            f"toUInt32(0) AS _row, '{ME}' AS _source FROM numbers(50)"
        )
        insert(server, name, NAMES, select, f"{name}-{begin}")
    return facts


def present(server: Server, facts: TableFacts, settings: Mapping[str, str]) -> list[PresentOffsets]:
    return present_offsets(server, facts, Range(TopicPartition("t", 1), 0, 1000), ME, settings)


@pytest.fixture
def scratch(embedded: Server) -> Iterator[str]:
    """A database of the embedded engine."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    embedded.execute(f"CREATE DATABASE {name}")
    yield name
    embedded.execute(f"DROP DATABASE {name}")


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("MergeTree ORDER BY n", None),
        ("SummingMergeTree ORDER BY n", "merges rows into others"),
        (f"SummingMergeTree ORDER BY {KEY}", "merges rows into others"),
        ("AggregatingMergeTree ORDER BY n", "merges rows into others"),
        ("CollapsingMergeTree(s) ORDER BY n", "merges rows into others"),
        ("VersionedCollapsingMergeTree(s, n) ORDER BY _offset", "merges rows into others"),
        ("ReplacingMergeTree(n) ORDER BY n", "no _topic, _partition, _offset, _row, _source"),
        ("ReplacingMergeTree ORDER BY (_topic, _partition, _offset, _row)", "has no _source"),
        (
            "ReplacingMergeTree ORDER BY (_topic, _partition, intDiv(_offset, 10), _row, _source)",
            "has no _offset",
        ),
        (f"ReplacingMergeTree(n) ORDER BY {KEY}", None),
    ],
)
def test_engines(server: Server, database: str, engine: str, why: str | None) -> None:
    said = why_rows_go(made(server, f"{database}.t", engine))
    assert (said is None) if why is None else (said is not None and why in said), said


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("MergeTree ORDER BY n TTL d + INTERVAL 90 DAY", "deletes rows"),
        ("MergeTree ORDER BY n TTL d + INTERVAL 9 DAY WHERE n = 1", "deletes rows"),
        ("MergeTree ORDER BY n TTL d + INTERVAL 9 DAY RECOMPRESS CODEC(ZSTD(5))", None),
        ("MergeTree ORDER BY n SETTINGS index_granularity = 1024", None),
        ("CoalescingMergeTree ORDER BY n", "merges rows into others"),
    ],
)
def test_newer_ways_to_go(embedded: Server, scratch: str, engine: str, why: str | None) -> None:
    said = why_rows_go(made(embedded, f"{scratch}.t", engine))
    assert (said is None) if why is None else (said is not None and why in said), said


@pytest.mark.parametrize(
    ("engine", "goes"),
    [
        ("MergeTree ORDER BY n", False),
        ("AggregatingMergeTree ORDER BY n", False),
        ("CollapsingMergeTree(s) ORDER BY n", True),
        ("CollapsingMergeTree(s) ORDER BY n SETTINGS remove_empty_parts = 0", False),
        ("VersionedCollapsingMergeTree(s, n) ORDER BY _offset", True),
        ("SummingMergeTree ORDER BY n", True),
        ("SummingMergeTree ORDER BY (n, s)", False),
        ("ReplacingMergeTree(n) ORDER BY _offset", False),
        (
            "ReplacingMergeTree(n, gone) ORDER BY _offset SETTINGS "
            "allow_experimental_replacing_merge_with_cleanup = 1, "
            "enable_replacing_merge_with_cleanup_for_min_age_to_force_merge = 1",
            True,
        ),
        ("MergeTree ORDER BY n TTL d + INTERVAL 90 DAY", False),
    ],
)
def test_tables_that_forget_what_their_windows_know(
    embedded: Server, scratch: str, engine: str, goes: bool
) -> None:
    embedded.execute(f"CREATE TABLE {scratch}.t ({COLUMNS}, gone UInt8) ENGINE = {engine}")
    why = why_tokens_go(describe_table(embedded, scratch, "t"))
    assert (why is not None) == goes, why


def test_a_block_is_forgotten_with_a_part_that_merged_to_no_row(
    embedded: Server, scratch: str
) -> None:
    """What is sent again then stays alone. The insert counter says nothing of it."""
    names = [f"{scratch}.keeps", f"{scratch}.forgets"]
    rows = "SELECT number AS n, toInt8({}) AS s FROM numbers(5)"
    for name in names:
        own = ", remove_empty_parts = 0" if name == names[0] else ""
        embedded.execute(
            f"CREATE TABLE {name} (n UInt64, s Int8) ENGINE = CollapsingMergeTree(s) ORDER BY n "
            f"SETTINGS non_replicated_deduplication_window = 100, old_parts_lifetime = 1{own}, "
            f"{CLEANED}"
        )
        for sign in (1, -1):
            insert(embedded, name, ["n", "s"], rows.format(sign), f"{name} {sign}")
        embedded.execute(f"OPTIMIZE TABLE {name} FINAL")
    active = (
        "SELECT count() AS n FROM system.parts WHERE database = {d:String} AND table = 'forgets' "
        "AND active"
    )
    wait_for(lambda: embedded.query(active, {"d": scratch}) == [{"n": 0}], 90, "its removal")
    for name in names:
        insert(embedded, name, ["n", "s"], rows.format(-1), f"{name} -1")
    assert [count(embedded, name) for name in names] == [0, 5]
    facts = [describe_table(embedded, *name.split(".")) for name in names]
    assert [why_tokens_go(each) is None for each in facts] == [True, False]
    assert max(read_insert_counter(embedded, each) for each in facts) < 5


def test_a_column_that_forgets(embedded: Server, scratch: str) -> None:
    for column, forgets in (("n", False), ("_offset", True)):
        columns = COLUMNS.replace(f"{column} UInt64", f"{column} UInt64 TTL d + INTERVAL 1 DAY")
        embedded.execute(f"CREATE TABLE {scratch}.t{column} ({columns}) {ENGINE}")
        why = why_rows_go(describe_table(embedded, scratch, f"t{column}"))
        assert (why is not None) == forgets, why


@pytest.mark.parametrize(
    "profile",
    [
        {"max_rows_to_group_by": "10", "group_by_overflow_mode": "any"},
        {"max_rows_to_read": "10", "max_block_size": "10", "read_overflow_mode": "break"},
        {"max_result_rows": "1", "result_overflow_mode": "break"},
        {"limit": "1", "offset": "1"},
        {"additional_table_filters": "{'DATABASE.t': '_offset < 5'}"},
    ],
)
def test_profiles_that_hide_rows(server: Server, database: str, profile: dict[str, str]) -> None:
    known = {row["name"] for row in server.query("SELECT name FROM system.settings")}
    if not known >= profile.keys():
        pytest.skip(f"{server.url} knows no {', '.join(sorted(profile.keys() - known))}")
    facts = filled(server, f"{database}.t")
    with ProfiledServer(server.url) as user:
        user.profile = {
            name: value.replace("DATABASE", database) for name, value in profile.items()
        }
        settings = seeing_all(user)
        assert settings.keys() >= profile.keys() - {"max_block_size"}
        require_all_rows(user, facts, settings)
        assert present(user, facts, settings) == ALL


def test_a_filter_that_cannot_be_undone_is_noticed(embedded: Server, scratch: str) -> None:
    facts = filled(embedded, f"{scratch}.t")
    filters = {"additional_table_filters": f"{{'{facts.target}': '_offset < 50'}}"}
    assert present(embedded, facts, filters) == [PresentOffsets(0, 50, 1, 1)]
    with pytest.raises(CannotTellError, match="is shown 0"):
        require_all_rows(embedded, facts, filters)


def test_parts_that_are_merged_meanwhile_are_no_finding(server: Server, database: str) -> None:
    facts = filled(server, f"{database}.t")
    require_all_rows(server, facts, {})
    server.execute(f"OPTIMIZE TABLE {facts.target} FINAL")
    require_all_rows(server, facts, {})


def test_deleted_rows_are_noticed(embedded: Server, scratch: str) -> None:
    facts = filled(embedded, f"{scratch}.t")
    since_ms = time.time_ns() // 1_000_000
    require_unchanged(embedded, facts, since_ms)
    embedded.execute(f"DELETE FROM {facts.target} WHERE _offset = 7")
    with pytest.raises(CannotTellError, match="is shown 49"):
        require_all_rows(embedded, facts, {})
    with pytest.raises(CannotTellError, match="has changed rows"):
        require_unchanged(embedded, facts, since_ms)


def test_what_was_changed_before_the_range_does_not_matter(server: Server, database: str) -> None:
    facts = filled(server, f"{database}.t")
    settings = {"mutations_sync": "1"}
    if server.version() < (20, 1):
        settings = {}
    server.execute(f"ALTER TABLE {facts.target} DELETE WHERE _offset = 7", settings=settings)
    now_ms = time.time_ns() // 1_000_000
    require_unchanged(server, facts, now_ms + 120_000)
    with pytest.raises(CannotTellError, match="DELETE WHERE _offset = 7"):
        require_unchanged(server, facts, now_ms)


def test_a_mutation_that_the_server_has_forgotten(embedded: Server, scratch: str) -> None:
    """It deleted rows, and so many harmless ones came after it that the server lists it no more."""
    kept = f"MergeTree ORDER BY _offset SETTINGS finished_mutations_to_keep = 2, {CLEANED}"
    facts = made(embedded, f"{scratch}.t", kept)
    since_ms = time.time_ns() // 1_000_000

    def mutate(command: str) -> None:
        embedded.execute(f"ALTER TABLE {facts.target} {command} SETTINGS mutations_sync = 1")

    mutate("MATERIALIZE COLUMN d")
    require_unchanged(embedded, facts, since_ms)
    mutate("DELETE WHERE _offset = 7")
    for _ in range(2):
        mutate("MATERIALIZE COLUMN d")
    commands = "SELECT command FROM system.mutations WHERE command LIKE '%DELETE%' AND database = "
    wait_for(lambda: not embedded.query(f"{commands} '{scratch}'"), 60, "that it is forgotten")
    with pytest.raises(CannotTellError, match="keeps the last 2 mutations") as raised:
        require_unchanged(embedded, facts, since_ms)
    assert "finished_mutations_to_keep" in raised.value.hint
    require_unchanged(embedded, facts, since_ms + 120_000)


def test_deletes_by_patch_parts_do_not_say_when_they_were(embedded: Server, scratch: str) -> None:
    """So no table that takes any is believed."""
    numbers = "SETTINGS enable_block_number_column = 1, enable_block_offset_column = 1"
    facts = filled(embedded, f"{scratch}.t", f"MergeTree ORDER BY _offset {numbers}")
    said = why_rows_go(facts)
    assert said is not None and "takes lightweight updates" in said
    since_ms = time.time_ns() // 1_000_000
    patches = {"lightweight_delete_mode": "lightweight_update", "enable_lightweight_update": "1"}
    embedded.execute(f"DELETE FROM {facts.target} WHERE _offset = 7", settings=patches)
    with pytest.raises(CannotTellError, match="is shown 49"):
        require_all_rows(embedded, facts, {})
    embedded.execute(f"OPTIMIZE TABLE {facts.target} FINAL")
    require_all_rows(embedded, facts, {})
    require_unchanged(embedded, facts, since_ms)
    assert present(embedded, facts, {}) != ALL
    only_one = made(
        embedded, f"{scratch}.one", f"MergeTree ORDER BY _offset {numbers.partition(',')[0]}"
    )
    assert why_rows_go(only_one) is None
