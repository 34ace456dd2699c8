"""What the commands' argument parsers share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from sluice.config import Configuration

Subparsers = Any  # argparse's own type is private


class UsageError(Exception):
    """The command line cannot be used. The command ends with status 2."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports errors like everything else here."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """:raises UsageError: always."""
        raise UsageError(message, f"{self.prog} --help")


def add_command(
    subparsers: Subparsers,
    name: str,
    execute: Callable[[argparse.Namespace], int] | None,
    summary: str,
    example: str,
) -> CommandParser:
    """A subcommand with its summary, an example in its help, and the shared options."""
    description = summary[0].upper() + summary[1:] + "."
    parser: CommandParser = subparsers.add_parser(
        name, help=summary, description=description, epilog=f"example:\n  {example}"
    )
    add_shared_options(parser)
    if execute is not None:
        parser.set_defaults(execute=execute)
    return parser


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Options that stand before or after the command's name."""
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="log more, and print tracebacks",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default=argparse.SUPPRESS,
        help="of the log on stderr (default: text on a terminal, json otherwise)",
    )


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """CONFIG, the file that most commands read."""
    parser.add_argument("config", metavar="CONFIG", type=Path, help="the configuration file")


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json, for commands that print a table otherwise."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def load_configuration(arguments: argparse.Namespace) -> Configuration:
    """The configuration that CONFIG names.

    :raises ConfigurationError: it cannot be used.
    """
    from sluice.config import load

    return load(arguments.config, os.environ)


def a_positive_number(text: str) -> int:
    """A whole number from 1; underscores and commas may group it."""
    digits = re.sub(r"[_,]", "", text)
    if not re.fullmatch(r"[0-9]{1,18}", digits, re.ASCII) or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(digits)


def an_offset(text: str) -> int:
    """An offset or a partition: a whole number from 0."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return int(text)


def a_port(text: str) -> int:
    """A TCP port to listen on."""
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use 1 to 65535")
    return int(text)


def a_duration_seconds(text: str) -> float:
    """A duration with its unit, like 30s."""
    from sluice.config.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None


def an_offset_or_time(text: str) -> int | datetime:
    """An offset, or a moment with its time zone."""
    if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an offset nor a time like 2026-01-31T00:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone; add Z or +01:00")
    return moment


def a_server(text: str) -> str:
    """ "embedded", or the URL of a ClickHouse server."""
    if text == "embedded":
        return text
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname and parts.port)
    except ValueError:
        is_url = False
    if not is_url:
        raise argparse.ArgumentTypeError('not a server; use "embedded" or http://host:8123')
    return text
