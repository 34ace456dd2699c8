"""Secrets from files and from commands."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.core.errors import ConfigurationError
from sluice.machine import secret_source
from sluice.machine.secret_source import SecretSource
from tests.support.world import wait_for

Command = Callable[[str], SecretSource]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """What is run, as the text of a script; each is a file of its own, so none was run before."""

    def made(script: str) -> SecretSource:
        file = tmp_path / "vault"
        file.write_text(script)
        return SecretSource("password", command=("sh", str(file)))

    return made


@pytest.mark.parametrize("text", ["s3 crét", "s3 crét\n", "s3 crét\r\nmore"])
def test_the_first_line_of_a_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(text.encode())
    source = SecretSource("password", file=str(tmp_path / "password"))
    assert source.latest() == "s3 crét"
    (tmp_path / "password").write_text("another")
    assert source.latest() == source.other_than("another") == "another"


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file"), (b"\nx", "empty first line"), (b"\xff", "not UTF-8")],
)
def test_a_file_that_holds_none(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^password: {file} .*{words}"):
        SecretSource("password", file=str(file)).latest()


@pytest.mark.parametrize(
    ("printed", "secret"), [("a b\\n", "a b"), ("a\\r\\n", "a"), ("a\\n\\n", "a\n"), (" a", " a")]
)
def test_what_a_command_prints(command: Command, printed: str, secret: str) -> None:
    assert command(f"printf '{printed}'; echo more >&2").latest() == secret


def test_no_shell_reads_the_arguments() -> None:
    given = ("printf", "%s|", "$HOME", "`id`", "a b;c")
    assert SecretSource("password", command=given).latest() == "$HOME|`id`|a b;c|"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo hunter2; echo hunter2 >&2; exit 3", "ended with exit code 3"),
        ("kill -9 $$", "ended with exit code -9"),
        ("echo", "printed nothing"),
        ("printf 'hunter2\\377'", "printed what is not UTF-8"),
        ("read line && echo $line || exit 4", "ended with exit code 4"),  # nothing comes to stdin
    ],
)
def test_a_command_that_fails(command: Command, script: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        command(script).latest()
    assert str(caught.value) == f"password: the command sh {words}"
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_program_that_there_is_not() -> None:
    source = SecretSource("token", command=("/nowhere/vault", "read"))
    with pytest.raises(ConfigurationError, match=r"^token: the command /nowhere/vault cannot be"):
        source.latest()


def test_what_takes_too_long_is_killed_with_its_children(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_source, "TIME_LIMIT_SECONDS", 2.0)
    source = command(f"sleep 600 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(ConfigurationError, match=r"did not end within 2 s and was killed"):
        source.latest()
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")

    def has_ended() -> bool:
        try:
            return state.read_text().split()[2] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_for(has_ended, 60, "the end of the child")


def test_a_command_is_run_when_it_is_refused_and_not_too_often(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_source, "REST_SECONDS", 3600.0)
    runs = tmp_path / "runs"
    source = command(f"echo >> {runs}; wc -l < {runs} | tr -d ' '")
    assert source.latest() == source.latest() == "1"
    assert source.other_than("0") == "1"  # another thread was refused what stood before
    assert source.other_than("1") == "1"  # it was run just now
    monkeypatch.setattr(secret_source, "REST_SECONDS", 0.0)
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(source.other_than, ["1"] * 8)) == {"2"}
    assert source.latest() == "2"
