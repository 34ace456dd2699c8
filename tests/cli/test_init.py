from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.exit import ExitStatus
from sluice.clickhouse.reactions import ServerErrorFacts, TerminalServerError
from sluice.config import load
from sluice.core.errors import SluiceError, TerminalError
from sluice.kafka.errors import (
    KafkaDeniedError,
    KafkaRefusedError,
    KafkaUnavailableError,
    RegistryRefusedError,
)
from sluice.ops import init_topic
from tests.cli.support import run


def test_init_writes_a_file_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(capsys, "init")
    assert ended.status == ExitStatus.DONE
    assert "sluice doctor sluice.toml" in ended.out
    assert load(Path("sluice.toml"), {}).pipeline == "orders"


def test_init_does_not_overwrite_without_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sluice.toml"
    path.write_text("mine")
    ended = run(capsys, "init")
    assert ended.status == ExitStatus.CONFIGURATION
    assert ended.err.splitlines()[0] == "sluice: error: sluice.toml: is there already"
    assert "--force" in ended.err.splitlines()[-1]
    assert path.read_text() == "mine"
    assert run(capsys, "init", "--force").status == ExitStatus.DONE
    assert load(path, {}).pipeline == "orders"


def test_init_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sluice.toml").mkdir()
    ended = run(capsys, "init", "--force")
    assert ended.status == ExitStatus.CONFIGURATION
    assert "cannot be written" in ended.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--from-topic", "orders"], "--from-topic needs --brokers"),
        (["--from-topic", "a b", "--brokers", "h:1"], "--from-topic: "),
        (["--from-topic", "orders", "--brokers", "h:99999"], "--brokers: "),
        (["--from-topic", "orders", "--brokers", "h:1", "--clickhouse", "h"], "--clickhouse: "),
        (["--from-topic", "orders", "--brokers", "h:1", "--table", "a.b.c"], "--table: "),
        (["--from-topic", "orders", "--brokers", "h:1", "--property", "x"], "is not NAME=VALUE"),
        (
            ["--from-topic", "orders", "--brokers", "h:1", "--property", "group.id=x"],
            "is not yours to set",
        ),
        (
            ["--from-topic", "orders", "--brokers", "h:1", "--property", "a=${NOT_THERE}"],
            "NOT_THERE is not set",
        ),
    ],
)
def test_init_from_a_topic_checks_its_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = run(capsys, "init", *words)
    assert ended.status == ExitStatus.CONFIGURATION
    assert why in ended.err
    assert list(tmp_path.iterdir()) == []


def test_init_from_a_topic_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    words = ["--from-topic", "orders", "--brokers", "127.0.0.1:1", "--output", str(path)]
    ended = run(capsys, "init", *words)
    assert ended.status == ExitStatus.CONFIGURATION
    assert "is there already" in ended.err
    assert path.read_text() == "mine"


@pytest.mark.slow
def test_init_from_a_broker_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    words = ["--from-topic", "orders", "--brokers", "127.0.0.1:1", "--output", str(path)]
    ended = run(capsys, "init", *words)
    assert ended.status == ExitStatus.BROKEN
    assert "asking 127.0.0.1:1 for the brokers" in ended.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            TerminalServerError("no", "of the file", ServerErrorFacts(516, "X", "u", "stop")),
            "export CLICKHOUSE_PASSWORD",
        ),
        (
            TerminalServerError("no", "of it", ServerErrorFacts(60, "X", "u", "stop")),
            "of it",
        ),
        (KafkaDeniedError("no"), "Describe on the group sluice.reader"),
        (KafkaRefusedError("no"), "--property sasl.username"),
        (KafkaUnavailableError("no", "of the file"), "Check --brokers"),
        (RegistryRefusedError("no"), "Check --registry"),
        (TerminalError("no", "look"), "look"),
    ],
)
def test_hints_are_of_its_options_and_not_of_a_file_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: SluiceError,
    hint: str,
) -> None:
    def fail(wanted: object) -> None:
        raise error

    monkeypatch.setattr(init_topic, "propose", fail)
    words = ["--from-topic", "t", "--brokers", "b:9092", "--output", str(tmp_path / "x.toml")]
    ended = run(capsys, "init", *words)
    assert ended.status == ExitStatus.BROKEN
    assert hint in ended.err.splitlines()[-1]
