"""Runs the command in this process and looks at what it prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import pytest

from sluice.cli.main import main, sluice


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


def parse(*words: str) -> dict[str, Any]:
    """What `sluice WORDS` understands, without running it; the shared options, too, if given.

    :raises click.UsageError: it does not.
    """
    context = sluice.make_context("sluice", [*words])
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return context.params | context.meta


def raising(error: BaseException) -> Callable[..., int]:
    """A command body that only raises."""

    def execute(**_: object) -> int:
        raise error

    return execute
