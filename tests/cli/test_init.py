from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.exit import ExitStatus
from sluice.config import load
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
