"""`sluice init`: writes a commented configuration file."""

from __future__ import annotations

import argparse
from pathlib import Path

from sluice.cli.arguments import Subparsers, UsageError, add_command
from sluice.cli.exit import ExitStatus

FILE_NAME = "sluice.toml"


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "init",
        execute,
        f"write a commented {FILE_NAME} into this folder",
        "sluice init",
    )
    parser.add_argument("--force", action="store_true", help="replace the file that is there")


def execute(arguments: argparse.Namespace) -> int:
    from sluice.config.example import EXAMPLE

    path = Path(FILE_NAME)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(EXAMPLE)
    except FileExistsError:
        raise UsageError(
            f"{path}: is there already", "Move it away, or replace it with `sluice init --force`."
        ) from None
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", "Choose a folder that you may write to."
        ) from None
    print(f"Wrote {path}. Edit it, then: sluice doctor {path}")
    return ExitStatus.DONE
