"""Dispatch, exit statuses, and what is printed when a command fails."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sluice.cli.exit import ExitStatus
from sluice.cli.init import init
from sluice.cli.main import sluice
from sluice.core.errors import (
    ConfigurationError,
    ForeignHandsError,
    InDoubtError,
    OwnerChangedError,
    TerminalError,
    TransientError,
)
from tests.cli.support import raising, run

COMMANDS = {
    "run",
    "apply",
    "rollback",
    "doctor",
    "prove",
    "quorum",
    "status",
    "fleet",
    "freeze",
    "resume",
    "drain",
    "reload",
    "resolve",
    "adopt",
    "rewind",
    "audit",
    "verify",
    "simulate",
    "chaos",
    "ledger",
    "dead-letters",
    "dead-letters list",
    "dead-letters show",
    "dead-letters replay",
    "dead-letters purge",
    "claims",
    "claims check",
    "claims rebuild",
    "init",
    "completion",
    "local",
    "local kafka",
    "local cluster",
    "local clickhouse",
    "demo",
    "bench",
}

#: What no command may import before it knows that it needs it.
HEAVY = ("pyspark", "chdb", "confluent_kafka", "pyarrow", "pandas", "numpy", "py4j", "rich")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_each_command_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(capsys, *command.split(), "--help")
    assert ended.status == ExitStatus.DONE
    assert f"Usage: sluice {command}" in ended.out
    example = ended.out.split("Example:")[1]
    assert f"sluice {command}" in example


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    below = {
        f"{name} {inner}"
        for name, group in sluice.commands.items()
        if isinstance(group, click.Group)
        for inner in group.commands
    }
    assert {*sluice.commands} | below == COMMANDS
    ended = run(capsys, "--help")
    for command in COMMANDS:
        assert f"\n  {command.split()[0]} " in ended.out
    assert "Exit status" in ended.out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version").out.startswith("sluice 0.")


@pytest.mark.parametrize(
    ("words", "complaint", "hint"),
    [
        (("rum",), "No such command 'rum'", "sluice --help"),
        (("doktor",), "Did you mean 'doctor'?", "sluice --help"),
        (("dead-letters", "lst"), "Did you mean 'list'?", "sluice dead-letters --help"),
        (("run",), "Missing argument 'CONFIG'", "sluice run --help"),
        (("run", "x.toml", "y.toml"), "unexpected extra argument (y.toml)", "sluice run --help"),
        (("run", "x.toml", "--until"), "No such option '--until'", "sluice run --help"),
        (("run", "x.toml", "--grase", "1s"), "Did you mean '--grace'?", "sluice run --help"),
        (("run", "x.toml", "--grace", "30"), "is not a duration", "sluice run --help"),
        (("run", "x.toml", "--grace"), "'--grace' requires an argument", "sluice run --help"),
        (("local",), "Missing command", "sluice local --help"),
        (("local", "kafka"), "Missing option '--data'", "sluice local kafka --help"),
        (("local", "kafka", "--data", "d", "--port", "0"), "not a port", "sluice local kafka"),
        (("local", "cluster", "--replicas", "0"), "not a number from 1", "sluice local cluster"),
        (("bench", "--rows", "0"), "not a number from 1", "sluice bench --help"),
        (("bench", "--server", "there"), "not a server", "sluice bench --help"),
    ],
)
def test_a_wrong_command_line(
    words: tuple[str, ...], complaint: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(capsys, *words)
    assert ended.status == ExitStatus.CONFIGURATION
    lines = ended.err.splitlines()
    assert lines[0].startswith("sluice: error: ")
    assert complaint in lines[0]
    assert lines[-1].startswith(f"Try: {hint}")
    assert ended.out == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(capsys, "completion", shell)
    assert ended.status == ExitStatus.DONE
    assert f"_SLUICE_COMPLETE={shell}_complete" in ended.out


def test_bash_completes_a_command(tmp_path: Path) -> None:
    """As it does for a person who types `sluice dead-letters re`, then TAB."""
    program = tmp_path / "sluice"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sluice "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(sluice completion bash)"
        function=$(complete -p sluice | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
        COMP_WORDS=(sluice dead-letters re) COMP_CWORD=2
        "$function" sluice
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "replay\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("sluice dead-letters re", ["replay"]),
        ("sluice verify --sou", ["--source"]),
        ("sluice verify --source ", ["offsets", "ledger"]),
    ],
)
def test_completions(
    line: str,
    completed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_SLUICE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    ended = run(capsys)
    assert ended.status == ExitStatus.DONE
    assert ended.out.split() == [f"plain,{word}" for word in completed]


def test_a_shell_that_cannot_complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SLUICE_COMPLETE", "csh_source")
    ended = run(capsys)
    assert ended.status == ExitStatus.CONFIGURATION
    assert "'csh_source' is no shell's" in ended.err


def test_no_command_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(capsys)
    assert ended.status == ExitStatus.CONFIGURATION
    assert "Usage: sluice" in ended.err
    assert ended.out == ""


def test_another_system_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    ended = run(capsys, "status", "sluice.toml")
    assert ended.status == ExitStatus.CONFIGURATION
    assert "runs on Linux with glibc, and this is darwin" in ended.err
    assert "In a container" in ended.err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigurationError("what", "do this"), 2),
        (OwnerChangedError("what", "do this"), 4),
        (ForeignHandsError("what", "do this"), 1),
        (TerminalError("what", "do this"), 1),
        (TransientError("what", "do this"), 1),
        (InDoubtError("what", "do this"), 1),
    ],
)
def test_errors_become_statuses_and_two_lines(
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(init, "callback", raising(error))
    ended = run(capsys, "init")
    assert ended.status == status
    assert ended.err == "sluice: error: what\nTry: do this\n"
    assert ended.out == ""


def test_each_finding_has_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "callback", raising(ConfigurationError("one\ntwo \x1b[2J")))
    assert run(capsys, "init").err.splitlines() == [
        "sluice: error: one",
        r"sluice: error: two \x1b[2J",
        f"Try: {ConfigurationError.hint}",
    ]


@pytest.mark.parametrize("words", [("init", "--debug"), ("--debug", "init")])
def test_a_traceback_only_with_debug(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "callback", raising(ValueError("a bug")))
    ended = run(capsys, "init")
    assert ended.status == ExitStatus.BROKEN
    assert ended.err.startswith("sluice: error: unexpected ValueError: a bug\nTry: ")
    assert "Traceback" not in ended.err
    assert "Traceback" in run(capsys, *words).err


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "callback", raising(ModuleNotFoundError("no", name="chdb")))
    ended = run(capsys, "init")
    assert ended.status == ExitStatus.BROKEN
    assert "the package chdb is missing" in ended.err


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(init, "callback", raising(KeyboardInterrupt()))
    ended = run(capsys, "init")
    assert ended.status == ExitStatus.INTERRUPTED
    assert ended.err == "sluice: interrupted\n"


def test_a_reader_that_goes_away() -> None:
    """`sluice … | head`: no traceback, and the shell's status for it."""
    script = (
        "import sys; from sluice.cli.main import init, main\n"
        "def execute(**_):\n"
        "    while True: print('x' * 1000)\n"
        "init.callback = execute\n"
        "sys.exit(main(['init']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(120) == ExitStatus.BROKEN_PIPE


def test_a_reader_of_help_that_goes_away() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "sluice", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert ended.stderr == b""  # nobody reads its help, which is no error of anybody's


def test_a_connection_that_breaks_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "callback", raising(BrokenPipeError("to a server")))
    ended = run(capsys, "init")
    assert ended.status == ExitStatus.BROKEN
    assert "to a server" in ended.err


def test_python_dash_m(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sluice", "doctor", str(tmp_path / "none.toml")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == ExitStatus.CONFIGURATION
    assert "none.toml: there is no such file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from sluice.cli.main import main; main(['--help']);"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stderr == "[]\n"


def test_help_is_quick() -> None:
    """CPU time beside that of an empty program, in turn, so that neither a busy nor a slow machine
    fails it; four to six times as much when this was written."""
    empty, helping = ["-c", "pass"], ["-m", "sluice", "--help"]
    least, used = list[float](), list[float]()
    # Each try may be disturbed: more of them come nearer to what it takes.
    while len(used) < 5 or (len(used) < 30 and min(used) >= 8 * min(least)):
        least.append(_cpu_seconds(empty))
        used.append(_cpu_seconds(helping))
    assert min(used) < 8 * min(least)


def _cpu_seconds(arguments: list[str]) -> float:
    """To the microsecond: an empty program ends within two of the ticks that `os.times` counts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
