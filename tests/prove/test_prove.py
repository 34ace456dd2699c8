"""`sluice prove` on real servers: what holds there, and that each experiment can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.exit import ExitStatus
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.config.example import EXAMPLE
from sluice.prove import forgetting, moves
from sluice.prove.running import EXPERIMENTS
from sluice.prove.scratch import Scratch, look_at_servers, scratch_database
from tests.cli.support import run
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.world import wait_for

NAMES = [experiment.name for experiment in EXPERIMENTS]
#: On the embedded engine, which is one server without ZooKeeper.
FOR_REPLICAS = {
    "other-replica",
    "eviction-by-seconds",
    "quorum",
    "quorum-too-few",
    "quorum-in-doubt",
}


@pytest.fixture
def name() -> str:
    """Of a database that does not exist."""
    return f"prove_{uuid.uuid4().hex[:12]}"


def has_database(url: str, name: str) -> bool:
    with Server(url) as server:
        return bool(server.query(f"SELECT name FROM system.databases WHERE name = '{name}'"))


def verdicts(said: str) -> dict[str, list[str]]:
    """Experiments by their verdict."""
    found: dict[str, list[str]] = {}
    for result in json.loads(said)["results"]:
        assert result["fact"] and result["server_did"] and result["promise"], result
        found.setdefault(result["verdict"], []).append(result["experiment"])
    return found


def _failed(said: str) -> list[dict[str, object]]:
    return [each for each in json.loads(said)["results"] if each["verdict"] == "fails"]


def test_the_embedded_engine_keeps_what_the_promise_rests_on(
    embedded_url: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text(EXAMPLE.replace("http://localhost:8123", embedded_url))
    ended = run(capsys, "prove", "--config", str(config), "--database", name, "--json")
    found = verdicts(ended.out)
    assert "fails" not in found, _failed(ended.out)
    assert ended.status == ExitStatus.DONE
    assert {*found["not applicable"]} == FOR_REPLICAS | {"restart"}
    assert sorted([*found["holds"], *found["not applicable"]]) == sorted(NAMES)
    assert not has_database(embedded_url, name)


def test_two_replicas_of_the_oldest_server_keep_it_without_tokens(
    clickhouse_18: ClickHouseServer,
    clickhouse_18_second: ClickHouseServer,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer ones are tried where it proves too short.
    monkeypatch.setattr(forgetting, "_WINDOW_SECONDS", 2)
    urls = (clickhouse_18.url, clickhouse_18_second.url)
    ended = run(capsys, "prove", *urls, "--database", name, "--json")
    found = verdicts(ended.out)
    assert "fails" not in found, _failed(ended.out)
    assert ended.status == ExitStatus.DONE
    assert sorted(found["not applicable"]) == [
        "added-column",
        "restart",
        "server-run",
        "view-that-failed",
        "views",
    ]
    document = json.loads(ended.out)
    assert [server["tokens"] for server in document["servers"]] == [False, False]
    did = {result["experiment"]: result["server_did"] for result in document["results"]}
    assert "286" in did["quorum-in-doubt"] and "285" in did["quorum-too-few"]
    assert "0, 0 rows where 100 belong" in did["view-that-failed"]
    assert not any(has_database(url, name) for url in urls)
    with Server(clickhouse_18.url) as server:
        left = f"SELECT name FROM system.zookeeper WHERE path = '/clickhouse/{name}'"
        assert server.query(left) == []


@pytest.mark.slow
def test_a_window_of_one_entry_fails_with_words(
    embedded_url: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(capsys, "prove", embedded_url, "--window", "1", "--database", name)
    assert ended.status == ExitStatus.BROKEN
    (line,) = [line for line in ended.out.splitlines() if "blocks-in-doubt" in line]
    assert line.startswith("fails")
    assert "2,000 rows where 1,000 belong" in ended.out
    assert "window keeps 1 entries: too few for so many blocks. Widen it" in ended.out
    assert "fails, " in ended.out.splitlines()[-1]
    assert not has_database(embedded_url, name)


@pytest.fixture
def no_window(request: pytest.FixtureRequest, embedded_url: str, name: str) -> Iterator[Scratch]:
    """A scratch database on the embedded engine whose tables do not deduplicate."""
    yield from scratch_of((embedded_url,), name, 0, replicated=False)


def scratch_of(
    urls: tuple[str, ...], name: str, window: int, *, replicated: bool
) -> Iterator[Scratch]:
    access = ClickHouseAccess({"": urls}, "default", "", "single")
    places = look_at_servers(access, urls)
    with scratch_database(places, name):
        yield Scratch(access, places, name, window, threading.Event(), replicated=replicated)


def seen(scratch: Scratch, experiment: str) -> Any:
    (found,) = [each for each in EXPERIMENTS if each.name == experiment]
    return found.carry_out(scratch)


@pytest.mark.parametrize(
    "experiment",
    [
        "same-block-twice",
        "identity",
        "lost-acknowledgement",
        "half-a-block",
        "one-block",
        "views",
        "view-that-failed",
        "added-column",
        "blocks-in-doubt",
    ],
)
def test_tables_that_do_not_deduplicate_fail(no_window: Scratch, experiment: str) -> None:
    found = seen(no_window, experiment)
    assert found.verdict == "fails"
    assert "window keeps 0" in found.what


@pytest.mark.parametrize(
    ("experiment", "without", "words"),
    [
        ("conversion", "input_format_native_allow_types_conversion", "was stored in a UInt8 as 44"),
        ("views", "deduplicate_blocks_in_dependent_materialized_views", ""),
    ],
)
def test_a_setting_that_is_not_sent_is_missed(
    embedded_url: str, name: str, experiment: str, without: str, words: str
) -> None:
    """As on a server whose meaning of it has changed."""
    for scratch in scratch_of((embedded_url,), name, 1000, replicated=False):
        capabilities = scratch.first.capabilities
        known = {key: value for key, value in capabilities.settings.items() if key != without}
        scratch.places = [
            replace(scratch.first, capabilities=replace(capabilities, settings=known))
        ]
        found = seen(scratch, experiment)
        assert found.verdict == ("not applicable" if experiment == "views" else "fails")
        assert words in found.what


def test_another_time_zone_than_the_server_names_is_noticed(embedded_url: str, name: str) -> None:
    for scratch in scratch_of((embedded_url,), name, 1000, replicated=False):
        elsewhere = replace(scratch.first.capabilities, time_zone="Asia/Kolkata")
        scratch.places = [replace(scratch.first, capabilities=elsewhere)]
        found = seen(scratch, "time-zone")
        assert found.verdict == "fails" and "midnight of Asia/Kolkata" in found.what


def test_a_window_of_replicas_that_is_too_small_fails(
    clickhouse_18: ClickHouseServer, clickhouse_18_second: ClickHouseServer, name: str
) -> None:
    urls = (clickhouse_18.url, clickhouse_18_second.url)
    for scratch in scratch_of(urls, name, 1, replicated=True):
        found = forgetting.blocks_in_doubt(scratch)
        assert found.verdict == "fails"
        assert "MODIFY SETTING replicated_deduplication_window" in found.what


@pytest.mark.parametrize(
    ("experiment", "statement", "made", "words"),
    [
        ("move", "move_statement", "INSERT INTO {to} SELECT * FROM {of} WHERE p = {p}", "twice"),
        ("claim", "move_statement", "ALTER TABLE {to} DROP PARTITION {p}", "not refused"),
        ("claim", "done_statement", "ALTER TABLE {to} ADD COLUMN IF NOT EXISTS done UInt8", "done"),
    ],
)
def test_a_server_that_moves_and_renames_in_another_way_fails(
    no_window: Scratch,
    monkeypatch: pytest.MonkeyPatch,
    experiment: str,
    statement: str,
    made: str,
    words: str,
) -> None:
    def other(*given: Any, **_: Any) -> str:
        if statement == "done_statement":
            return made.format(to=".".join(given))
        source, target, partition = given
        return made.format(of=".".join(source), to=".".join(target), p=partition)

    monkeypatch.setattr(moves, statement, other)
    found = seen(no_window, experiment)
    assert found.verdict == "fails" and words in found.what


def test_an_existing_database_is_left_alone(
    server: Server, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.execute(f"CREATE TABLE {database}.precious (id UInt64) ENGINE = Log")
    ended = run(capsys, "prove", server.url, "--database", database)
    assert ended.status == ExitStatus.CONFIGURATION
    assert f"there is a database {database} on {server.url}" in ended.err
    tables = server.query(f"SELECT name FROM system.tables WHERE database = '{database}'")
    assert tables == [{"name": "precious"}]


def test_a_failure_drops_the_database(embedded_url: str, name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        for scratch in scratch_of((embedded_url,), name, 1000, replicated=False):
            scratch.table()
            assert has_database(embedded_url, name)
            raise ZeroDivisionError
    assert not has_database(embedded_url, name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_drops_the_database(
    embedded_url: str, name: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "sluice", "prove", embedded_url, "--database", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: has_database(embedded_url, name), 120, "the scratch database")
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == ExitStatus.INTERRUPTED, said
    assert not has_database(embedded_url, name)


def test_servers_that_cannot_be_asked(
    embedded_url: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(capsys, "prove", "http://127.0.0.1:1", "--database", name)
    assert ended.status == ExitStatus.BROKEN
    assert "http://127.0.0.1:1" in ended.err and "CONNECTION_REFUSED" not in ended.out
    assert "Connection refused" in ended.err and "Traceback" not in ended.err
    ended = run(capsys, "prove", embedded_url, embedded_url, "--database", name)
    assert ended.status == ExitStatus.CONFIGURATION
    assert "these servers are no replicas of one shard" in ended.err
    assert not has_database(embedded_url, name)


def test_usage(embedded_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "sluice.toml"
    shards = 'shards = { east = ["http://a:8123"], west = ["http://b:8123"] }'
    text = EXAMPLE.replace('shards = { s1 = ["http://localhost:8123"] }', shards)
    of_table = '# shards = ["s1"]  '
    assert shards in text and of_table in text
    config.write_text(text.replace(of_table, 'shards = ["east"] # '))
    for words, said in (
        ((), "no server is named"),
        ((embedded_url, "--config", str(config)), "servers stand beside --config"),
        (("--config", str(config)), "the servers are of several shards"),
        (("--config", str(config), "--shard", "north"), "there is no shard north"),
    ):
        ended = run(capsys, "prove", *words)
        assert ended.status == ExitStatus.CONFIGURATION and said in ended.err
