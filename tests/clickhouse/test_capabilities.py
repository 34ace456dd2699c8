"""Settings by capability, and what they do on the real servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.capabilities import Capabilities, insert_settings, read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import error_from_reply
from sluice.clickhouse.schema import zone_of
from sluice.core.errors import ConfigurationError, InDoubtError
from sluice.testbed.local.running import running_program
from tests.clickhouse.helpers import ProfiledServer, count, insert, native
from tests.support.guarded import GuardedClickHouse


def make(**settings: str) -> Capabilities:
    return Capabilities("http://h:1", (24, 8), "UTC", "h", settings, frozenset())


def test_18_16(old: Server) -> None:
    capabilities = read_capabilities(old)
    assert capabilities.version == (18, 16, 1)
    assert capabilities.version_text == "18.16.1"
    assert capabilities.time_zone == "Etc/UTC"
    assert capabilities.host_name
    assert not capabilities.tokens
    settings = insert_settings(capabilities, 2)
    assert settings["insert_quorum"] == "2"
    assert settings["insert_quorum_timeout"] == "25000"
    assert "async_insert" not in settings
    assert "insert_quorum" not in insert_settings(capabilities)


class ReservedServer(Server):
    """Keeps `system.server_settings` from this user (select_from_system_db_requires_grant), which
    the engine shows to everybody."""

    def query(self, text: str, *rest: Any, **more: Any) -> list[dict[str, Any]]:
        if "system.server_settings" in text:
            raise error_from_reply(
                url=self.url,
                what="query",
                status=403,
                header_code="497",
                text="Code: 497. DB::Exception: Not enough privileges",
                read_only=True,
            )
        return super().query(text, *rest, **more)


def test_who_may_not_read_by_which_hash_a_server_knows_blocks_loads_all_the_same(
    embedded: Server,
) -> None:
    """A block in doubt there is offered to no other replica; none is said to have such hashes."""
    shown = read_capabilities(embedded)
    with ReservedServer(embedded.url) as reserved:
        found = read_capabilities(reserved)
    assert embedded.url in found.hashes
    assert replace(found, hashes=shown.hashes) == shown


def test_embedded(embedded: Server) -> None:
    capabilities = read_capabilities(embedded)
    assert capabilities.version >= (26, 9)
    assert capabilities.tokens
    settings = insert_settings(capabilities)
    wanted = {
        "async_insert": "0",
        "wait_for_async_insert": "1",
        "async_insert_deduplicate": "1",
        "insert_deduplicate": "1",
        "deduplicate_insert": "enable",
        "max_partitions_per_insert_block": "0",
        "deduplicate_blocks_in_dependent_materialized_views": "1",
    }
    assert wanted.items() <= settings.items()


@pytest.mark.parametrize("limit", ["1", "3"])
def test_a_profile_that_limits_results_makes_no_setting_look_unknown(
    embedded: Server, limit: str
) -> None:
    """Blocks went without tokens."""
    with ProfiledServer(embedded.url) as user:
        user.profile = {"limit": limit}
        found = read_capabilities(user)
    assert found.tokens and found.settings.keys() == read_capabilities(embedded).settings.keys()


def test_a_profile_with_a_time_limit_is_overruled() -> None:
    limited = insert_settings(make(max_execution_time="60"))
    assert limited["max_execution_time"] == "0"


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [
        ("limit", "0", "5"),
        ("offset", "0", "5"),
        ("group_by_overflow_mode", "throw", "any"),
        ("join_overflow_mode", "throw", "break"),
        ("timeout_overflow_mode", "throw", "break"),
        ("ignore_materialized_views_with_dropped_target_table", "0", "1"),
        ("input_format_native_decode_types_in_binary_format", "0", "1"),
    ],
)
def test_what_a_profile_would_leave_out_is_overruled(name: str, default: str, other: str) -> None:
    assert insert_settings(make(**{name: other})) == {name: default}


def test_a_view_leaves_nothing_out_by_its_definers_profile(tmp_path: Path) -> None:
    """Sluice's own profile is as it should be, and 134,591 of the rows were missing behind the
    view. What an insert says counts for the definer, too."""
    program = GuardedClickHouse(tmp_path / "clickhouse" / "data")
    program.profiles = {"writer": {"max_rows_in_set": "5", "set_overflow_mode": "break"}}
    window = "SETTINGS non_replicated_deduplication_window = 100"
    with running_program(program) as own, Server(own.url) as client:
        for table in "tv":
            client.execute(
                f"CREATE TABLE default.{table} (a UInt64) ENGINE = MergeTree ORDER BY a {window}"
            )
        client.execute(
            "CREATE MATERIALIZED VIEW default.w TO default.v DEFINER = writer SQL SECURITY DEFINER "
            "AS SELECT a FROM default.t WHERE a IN (SELECT number FROM numbers(200000))"
        )
        with pytest.raises(InDoubtError, match="Limit for IN-set exceeded"):
            insert(client, "default.t", ["a"], "SELECT number AS a FROM numbers(200000)", "token")
        assert count(client, "default.v") == 0


def test_the_zone_of_a_profiles_sessions_is_overruled(embedded: Server) -> None:
    """Expressions of the table are worked out in the server's own zone, which the text names."""
    assert insert_settings(make(session_timezone="Asia/Tokyo")) == {"session_timezone": ""}
    assert insert_settings(read_capabilities(embedded))["session_timezone"] == ""
    zone = embedded.query(
        f"SELECT timezone() AS zone, {zone_of(embedded)} AS own",
        settings={"session_timezone": "Asia/Tokyo"},
    )[0]
    assert zone["zone"] == "Asia/Tokyo" != zone["own"]


def test_a_locked_setting_is_left_out_only_where_it_has_our_value() -> None:
    for value, sent in (("0", False), ("1", True)):
        locked = Capabilities(
            "u", (24,), "UTC", "h", {"async_insert": value}, frozenset({"async_insert"})
        )
        assert ("async_insert" in insert_settings(locked)) == sent


def test_quorums_side_by_side_where_the_server_can() -> None:
    """Whatever its default or the user's profile says."""
    modern = make(insert_quorum="0", insert_quorum_timeout="0", insert_quorum_parallel="0")
    assert insert_settings(modern, 3, 1.5) == {
        "insert_quorum": "3",
        "insert_quorum_timeout": "1500",
        "insert_quorum_parallel": "1",
    }
    assert modern.parallel_quorums
    assert insert_settings(modern) == {}
    old = make(insert_quorum="0", insert_quorum_timeout="0")
    assert "insert_quorum_parallel" not in insert_settings(old, 3) and not old.parallel_quorums


def test_no_quorum_without_the_setting() -> None:
    with pytest.raises(ConfigurationError) as caught:
        insert_settings(make(), 2)
    assert "durability" in caught.value.hint


def test_one_native_block_stays_one_part(server: Server, database: str) -> None:
    target = f"{database}.t"
    server.execute(f"CREATE TABLE {target} (a UInt64) ENGINE = MergeTree ORDER BY a")
    capabilities = read_capabilities(server)
    one_block = f"numbers(2000000) SETTINGS max_block_size = 2000000{_threads(capabilities)}"
    insert(server, target, ["a"], f"SELECT number AS a FROM {one_block}", "one")
    assert _parts(server, database) == [2_000_000]


def test_many_native_blocks_of_one_body_become_one_part(server: Server, database: str) -> None:
    target = f"{database}.t"
    server.execute(f"CREATE TABLE {target} (a UInt64) ENGINE = MergeTree ORDER BY a")
    insert(server, target, ["a"], "SELECT number AS a FROM numbers(1500000)", "many")
    assert _parts(server, database) == [1_500_000]


def _threads(capabilities: Capabilities) -> str:
    return ", max_threads = 1" if capabilities.tokens else ""


def _parts(server: Server, database: str) -> list[int]:
    rows = server.query(
        "SELECT rows FROM system.parts WHERE database = {d:String} AND table = 't' AND active",
        {"d": database},
    )
    return [int(row["rows"]) for row in rows]


def test_more_than_100_partitions_in_a_block(server: Server, database: str) -> None:
    target = f"{database}.t"
    server.execute(f"CREATE TABLE {target} (a UInt64) ENGINE = MergeTree PARTITION BY a ORDER BY a")
    insert(server, target, ["a"], "SELECT number AS a FROM numbers(120)", "wide")
    assert count(server, target) == 120


def test_same_token_twice_stores_rows_once(embedded: Server, embedded_database: str) -> None:
    target = f"{embedded_database}.t"
    embedded.execute(
        f"CREATE TABLE {target} (a UInt64, d UInt8) ENGINE = MergeTree PARTITION BY d ORDER BY a "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    select = "SELECT number AS a, toUInt8(number % 3) AS d FROM numbers(1000)"
    for _ in range(3):
        insert(embedded, target, ["a", "d"], select, "token/10-20")
    assert count(embedded, target) == 1000
    insert(embedded, target, ["a", "d"], select, "token/20-30")
    assert count(embedded, target) == 2000


def test_same_token_twice_stores_a_views_rows_once(
    embedded: Server, embedded_database: str
) -> None:
    name = embedded_database
    window = "SETTINGS non_replicated_deduplication_window = 100"
    embedded.execute(f"CREATE TABLE {name}.t (a UInt64) ENGINE = MergeTree ORDER BY a {window}")
    embedded.execute(f"CREATE TABLE {name}.v (a UInt64) ENGINE = MergeTree ORDER BY a {window}")
    embedded.execute(f"CREATE MATERIALIZED VIEW {name}.mv TO {name}.v AS SELECT a FROM {name}.t")
    for _ in range(2):
        insert(embedded, f"{name}.t", ["a"], "SELECT number AS a FROM numbers(10)", "token")
    assert (count(embedded, f"{name}.t"), count(embedded, f"{name}.v")) == (10, 10)


def test_blocks_of_two_views_into_one_table_are_two(
    embedded: Server, embedded_database: str
) -> None:
    """Servers from 22.2 to about 24.7 take the second for a repeat of the first; doctor refuses
    such views there. What would tell them apart is by a UUID, which replicas may not share."""
    assert insert_settings(make(**{_APART: "1"})) == {_APART: "0"}
    name = embedded_database
    window = "SETTINGS non_replicated_deduplication_window = 100"
    for table in "tv":
        embedded.execute(
            f"CREATE TABLE {name}.{table} (a UInt64) ENGINE = MergeTree ORDER BY a {window}"
        )
    for view in ("a", "a + 100"):
        embedded.execute(
            f"CREATE MATERIALIZED VIEW {name}.`{view}` TO {name}.v AS SELECT {view} AS a "
            f"FROM {name}.t"
        )
    for _ in range(2):
        insert(embedded, f"{name}.t", ["a"], "SELECT number AS a FROM numbers(10)", "token")
    assert (count(embedded, f"{name}.t"), count(embedded, f"{name}.v")) == (10, 20)


_APART = "update_insert_deduplication_token_in_dependent_materialized_views"


def test_what_a_view_makes_of_a_block_is_one_block_whatever_a_profile_says() -> None:
    """Else it has more entries than were reserved, in another order at a repeat, perhaps. 26.9
    makes one block of it whatever they are [measured]; older servers do not, by their source."""
    names = [f"min_insert_block_size_{what}_for_materialized_views" for what in ("rows", "bytes")]
    assert insert_settings(make(**dict.fromkeys(names, "1"))) == dict.fromkeys(names, "0")


def test_native_helper_gives_bytes(server: Server) -> None:
    assert native(server, "SELECT toUInt8(7) AS a").startswith(b"\x01\x01\x01a\x05UInt8")


def test_past_the_window_a_repeat_is_stored_again(server: Server, database: str) -> None:
    """What a window knows, and may have lost the rows of, is stored all the same (R22)."""
    capabilities = read_capabilities(server)
    past = insert_settings(capabilities, deduplicates=False)
    known = insert_settings(capabilities)
    assert past["insert_deduplicate"] == "0" and known["insert_deduplicate"] == "1"
    engine = "MergeTree" if capabilities.tokens else f"ReplicatedMergeTree('/{database}/t', 'r')"
    window = "non_replicated" if capabilities.tokens else "replicated"
    target = f"{database}.t"
    server.execute(
        f"CREATE TABLE {target} (a UInt64) ENGINE = {engine} ORDER BY a "
        f"SETTINGS {window}_deduplication_window = 100"
    )
    for settings, rows in ((known, 1), (known, 1), (past, 2), (past, 3), (known, 3)):
        insert(server, target, ["a"], "SELECT toUInt64(1) AS a", "token", settings)
        assert count(server, target) == rows
