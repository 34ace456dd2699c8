"""What each command understands. The parsed arguments are looked at, nothing runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.cli.arguments import an_offset_or_time
from sluice.cli.exit import ExitStatus
from sluice.ops.driver_decisions import BY_COMMAND_LINE
from tests.cli.support import parse, run

_WHERE = ["--connector", "dc1", "--topic", "orders", "--partition", "3"]


def test_run() -> None:
    assert parse("run", "s.toml") == {
        "config": Path("s.toml"),
        "until_caught_up": False,
        "grace": 30.0,
    }
    values = parse("run", "s.toml", "--until-caught-up", "--grace", "500ms", "--log-format", "json")
    assert (values["until_caught_up"], values["grace"], values["log_format"]) == (True, 0.5, "json")


@pytest.mark.parametrize(
    ("command", "own"), [("doctor", ["grants"]), ("status", ["replicas", "proof"])]
)
def test_reading_commands(command: str, own: list[str]) -> None:
    said_nothing = {"config": Path("s.toml"), "as_json": False, **dict.fromkeys(own, False)}
    assert parse(command, "s.toml") == said_nothing
    for name in ("json", *own):
        key = "as_json" if name == "json" else name
        assert parse(command, "s.toml", f"--{name}") == said_nothing | {key: True}


def test_what_is_frozen_is_named() -> None:
    words = ("freeze", "s.toml", "--why", "a disk", "--data-center", "east")
    named = dict.fromkeys(("connector", "table", "replica", "data_center"), "")
    said = {"config": Path("s.toml"), "why": "a disk", "by": None}
    assert parse(*words) == said | named | {"data_center": "east"}
    assert parse("resume", *words[1:4], "--replica", "r1:8123")["replica"] == "r1:8123"


def test_an_audit_runs_here_or_on_spark() -> None:
    assert parse("audit", "s.toml") == {
        "config": Path("s.toml"),
        "as_json": False,
        "on_spark": False,
        "proves_duplicates": False,
    }
    assert parse("audit", "s.toml", "--spark", "--json")["on_spark"] is True
    assert parse("audit", "s.toml", "--duplicates")["proves_duplicates"] is True


def test_claims() -> None:
    found = parse("claims", "rebuild", "s.toml", "--since", "2h", "--table", "orders")
    assert (found["since_seconds"], found["entry"], found["connector"]) == (7200.0, "orders", None)
    assert parse("claims", "rebuild", "s.toml", "--as-asked")["as_asked"] is True
    assert parse("claims", "check", "s.toml", "--connector", "dc1") == {
        "config": Path("s.toml"),
        "connector": "dc1",
        "entry": None,
        "as_json": False,
    }


def test_quorum() -> None:
    assert parse("quorum", "s.toml") == {
        "config": Path("s.toml"),
        "shard": None,
        "table": None,
        "fix": False,
        "yes": False,
        "as_json": False,
    }
    values = parse("quorum", "s.toml", "--shard", "s1", "--table", "orders", "--fix", "--yes")
    assert (values["shard"], values["table"]) == ("s1", "orders")
    assert values["fix"] and values["yes"]


def test_dead_letters() -> None:
    none: dict[str, object] = dict.fromkeys(("connector", "table", "reason", "topic", "partition"))
    none["of"] = None
    assert parse("dead-letters", "list", "s.toml", "--json") == {
        **none,
        "config": Path("s.toml"),
        "since_ms": None,
        "limit": None,
        "replayed": False,
        "waiting": False,
        "summary": False,
        "as_json": True,
    }
    place = ("--topic", "orders", "--partition", "3", "--offset", "7")
    assert parse("dead-letters", "show", "s.toml", *place) == {
        "connector": None,
        "table": None,
        "of": None,
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "config": Path("s.toml"),
        "is_hex": False,
        "as_json": False,
    }
    for flag, of in (("--parked", "parking"), ("--duplicates", "duplicates")):
        assert parse("dead-letters", "show", "s.toml", *place, flag)["of"] == of
    who = {"by": None, "why": BY_COMMAND_LINE}
    changes = {"config": Path("s.toml"), "yes": True, "as_json": False, **who}
    assert parse("dead-letters", "replay", "s.toml", "--reason", "r", "--yes") == {
        **none,
        **changes,
        "reason": "r",
        "offset": None,
        "since_ms": None,
        "limit": None,
    }
    purge = parse("dead-letters", "purge", "s.toml", "--before", "2026-01-31T00:00:00Z", "--yes")
    assert purge == {
        **none,
        **changes,
        "before_ms": 1_769_817_600_000,
        "replayed": False,
        "is_all": False,
    }


def test_resolve() -> None:
    values = parse("resolve", "s.toml", *_WHERE, "--partition", "1", "2", "--as", "not-loaded")
    assert values == {
        "config": Path("s.toml"),
        "connector": "dc1",
        "topic": "orders",
        "partitions": (3, 1, 2),
        "outcome": "not-loaded",
        "yes": False,
        "take_over": False,
        "by": None,
        "why": BY_COMMAND_LINE,
    }


def test_adopt_and_rewind() -> None:
    values = parse("adopt", "s.toml", *_WHERE, "--offset", "7", "--yes", "--take-over")
    assert (values["offset"], values["yes"], values["take_over"]) == (7, True, True)
    assert parse("rewind", "s.toml", *_WHERE, "--to", "12")["to"] == 12
    moment = parse("rewind", "s.toml", *_WHERE, "--to", "2026-01-31T00:00:00Z")["to"]
    assert moment == datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    "words",
    [
        ("resolve", "s.toml", *_WHERE),
        ("resolve", "s.toml", *_WHERE, "--as", "maybe"),
        ("adopt", "s.toml", *_WHERE),
        ("adopt", "s.toml", *_WHERE, "--offset", "-1"),
        ("rewind", "s.toml", *_WHERE),
        ("rewind", "s.toml", *_WHERE, "--to", "yesterday"),
        ("rewind", "s.toml", *_WHERE, "--to", "2026-01-31T00:00:00"),
        ("adopt", "s.toml", "--connector", "dc1", "--topic", "orders", "--offset", "1"),
    ],
)
def test_incomplete_decisions(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *words).status == ExitStatus.CONFIGURATION


def test_a_time_keeps_its_zone() -> None:
    moment = an_offset_or_time("2026-01-31T01:00:00+01:00")
    assert moment == datetime(2026, 1, 31, tzinfo=UTC)


def test_bench_and_demo() -> None:
    assert parse("bench") == {
        "rows": 3_000_000,
        "server": "embedded",
        "rounds": 3,
        "replicated": False,
        "message_bytes": None,
        "columns": 9,
        "topics": 1,
        "partitions": 4,
        "tables": 1,
        "bad_share": 0.0,
        "range_messages": 250_000,
        "partial_ranges": False,
        "deduplicate": "",
        "delivery": "block",
        "max_delay": "500ms",
        "sort": False,
        "reader": "auto",
        "format": "JSONEachRow",
        "rates": (1_000,),
        "latency_seconds": 20.0,
        "idle_seconds": 40.0,
        "producer_alone": False,
        "backlog_seconds": 3_600.0,
        "drain": False,
        "flame": None,
        "compare": None,
        "as_json": False,
    }
    values = parse("bench", "--rows", "1_000", "--server", "http://h:8123", "--delivery", "staged")
    told = (values["rows"], values["server"], values["delivery"])
    assert told == (1000, "http://h:8123", "staged")
    values = parse("bench", "--rates", "1000,10_000", "--bad-share", "0.001", "--flame", "f.svg")
    assert (values["rates"], values["bad_share"]) == ((1_000, 10_000), 0.001)
    assert values["flame"] == Path("f.svg")
    assert parse("demo") == {"rows": 1_000_000, "partitions": 4, "keep": False}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--bad-share", "1", "is not a share from 0 to below 1"),
        ("--bad-share", "few", "is not a share from 0 to below 1"),
        ("--rates", "1000,,", "is not a number from 1"),
        ("--max-delay", "0s", "is not above 0"),
        ("--max-delay", "soon", "is not a duration"),
        ("--idle-seconds", "inf", "is not a number of seconds above 0"),
    ],
)
def test_what_bench_does_not_take(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(capsys, "bench", option, value)
    assert done.status == ExitStatus.CONFIGURATION and message in done.err


def test_local_servers() -> None:
    assert parse("local", "kafka", "--data", "d") == {
        "data": Path("d"),
        "port": None,
    }
    assert parse("local", "clickhouse", "--data", "d", "--port", "8123")["port"] == 8123
