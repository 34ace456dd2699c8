"""`sluice quorum` where no quorum is: bad input, tables that are not Replicated, servers that are
away. Real quorums are in tests/e2e/test_stuck_quorum.py."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sluice.cli.exit import ExitStatus
from sluice.clickhouse.http import Server
from sluice.testbed.local.children import free_ports
from tests.cli.support import Ended, run


def configure(folder: Path, url: str, database: str) -> Path:
    path = folder / "quorum.toml"
    path.write_text(
        '[pipeline]\nname = "p"\n[spark]\nmaster = "local[1]"\n[[connector]]\nname = "dc1"\n'
        f'brokers = "127.0.0.1:1"\ntopics = ["a"]\n[clickhouse]\ndatabase = "{database}"\n'
        f'shards = {{ s1 = ["{url}"], s2 = ["{url}"] }}\ndurability = "single"\n'
        '[[table]]\nname = "plain"\ntopics = ["a"]\nformat = "JSONEachRow"\nshards = ["s1"]\n'
        '[[table]]\nname = "missing"\ntopics = ["a"]\nformat = "JSONEachRow"\nshards = ["s2"]\n'
    )
    return path


@pytest.fixture
def nothing_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Kafka here, which else would be waited for."""
    monkeypatch.setattr("sluice.driver.applying.loaded", lambda configuration, _: configuration)


@pytest.mark.usefixtures("nothing_applied")
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--shard", "s9"], 'shard: none is named "s9"', "Name one of: s1, s2."),
        (["--table", "x"], 'table: none is named "x"', "Name one of: plain, missing."),
        (["--table", "plain", "--shard", "s2"], 'has no rows in shard "s2"', "Leave --shard or"),
    ],
)
def test_what_is_not_configured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
    hint: str,
) -> None:
    path = configure(tmp_path, "http://127.0.0.1:1", "d")
    done = run(capsys, "quorum", str(path), *words)
    assert done.status == ExitStatus.CONFIGURATION
    assert message in done.err and hint in done.err


def test_yes_without_fix_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = configure(tmp_path, "http://127.0.0.1:1", "d")
    done = run(capsys, "quorum", str(path), "--yes")
    assert done.status == ExitStatus.CONFIGURATION and "--fix" in done.err


@pytest.mark.usefixtures("nothing_applied")
def test_tables_that_are_not_replicated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], embedded_url: str
) -> None:
    database = f"quorum_{uuid.uuid4().hex[:8]}"
    with Server(embedded_url) as server:
        server.execute(f"CREATE DATABASE {database}")
        server.execute(f"CREATE TABLE {database}.plain (id UInt64) ENGINE = MergeTree ORDER BY id")
    path = configure(tmp_path, embedded_url, database)

    def ended(*words: str) -> Ended:
        return run(capsys, "quorum", str(path), *words)

    done = ended("--table", "plain")
    assert done.status == ExitStatus.DONE
    assert done.out == "No table is Replicated: no insert waits for a quorum.\n"
    assert ended("--table", "plain", "--json").out == "[]\n"
    assert ended("--table", "plain", "--fix").status == ExitStatus.DONE
    unknown = ended("--shard", "s2")
    assert unknown.status == ExitStatus.BROKEN
    assert "no server of the shard describes" in unknown.out
    assert "there is no table" in unknown.out
    with Server(embedded_url) as server:
        server.execute(f"DROP DATABASE {database}")


@pytest.mark.slow
def test_servers_that_are_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the brokers, so that nobody says what is applied: the file counts."""
    path = configure(tmp_path, f"http://127.0.0.1:{free_ports(1)[0]}", "d")
    done = run(capsys, "quorum", str(path), "--shard", "s1", "--table", "plain")
    assert done.status == ExitStatus.BROKEN
    assert "shard s1 d.plain: stuck" in done.out
    assert "Connection refused" in done.out
