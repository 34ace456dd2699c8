"""Runs the command in this process and looks at what it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sluice.cli.main import main


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Ended:
    """Run `sluice WORDS`."""
    capsys.readouterr()
    status = main(words)
    captured = capsys.readouterr()
    return Ended(status, captured.out, captured.err)


def raising(error: BaseException) -> Callable[..., int]:
    """A command body that only raises."""

    def execute(_: object) -> int:
        raise error

    return execute
