"""What commands are made of: their classes, the parameters that they share, and types of values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

import click
from click.core import augment_usage_errors

from sluice.cli import logs
from sluice.machine.clock import now_ms

if TYPE_CHECKING:
    from sluice.config import Configuration

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


class UsageError(Exception):
    """The command line cannot be used. The command ends with status 2."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class _SharedOptions(click.Command):
    """Has the options that stand before or after a command's name, and an example in its help.

    :param example: command lines.
    """

    def __init__(self, *arguments: Any, example: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._example = example
        self.params += [
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                callback=_remember,
                help="log more, and print tracebacks",
            ),
            click.Option(
                ["--log-format"],
                type=click.Choice(("text", "json")),
                expose_value=False,
                callback=_remember,
                help="of the log on stderr (default: text on a terminal, json otherwise)",
            ),
        ]

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        with augment_usage_errors(context):  # click's parser does not say of which command
            return super().parse_args(context, words)

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first line of the help, never cut."""
        return (self.help or "").partition("\n")[0]

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        lines = "".join(f"\n  {line}" for line in self._example.splitlines())
        formatter.write(f"\nExample:{lines}\n")


class Command(_SharedOptions):
    """A command; its function gives the exit status."""

    def invoke(self, context: click.Context) -> Any:
        logs.configure(context.meta.get("log_format"), is_debug=context.meta.get("debug", False))
        return super().invoke(context)


class Group(_SharedOptions, click.Group):
    """Commands below one name, in the order in which they were added."""

    command_class = Command

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self.commands]


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value:
        context.meta[option.name] = value


def command(name: str, example: str) -> Callable[[Callable[..., int]], Command]:
    """Makes a command of a function, whose docstring is its help."""
    return click.command(name, cls=Command, example=example)


#: CONFIG, the file or folder that most commands read.
config_argument = click.argument(
    "config", type=click.Path(path_type=Path), help="the configuration file, or a folder of them"
)
#: For commands that print a table otherwise.
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
#: For commands that ask.
yes_option = click.option("--yes", is_flag=True, help="do it without asking")

#: Of what is written into the ledger, or shown to everybody.
by_option = click.option("--by", metavar="NAME", help="who decides; default: the user's name")


def together(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Options that several commands have, in the order of the help."""

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def load_configuration(path: Path) -> Configuration:
    """The configuration that CONFIG names.

    :raises ConfigurationError: it cannot be used.
    """
    from sluice.config import load

    return load(path, os.environ)


def load_applied(path: Path) -> Configuration:
    """The same, with what is loaded by the newest version, whatever the file says of it.

    :raises ConfigurationError: it cannot be used, or the version does not fit it.
    """
    from sluice.driver.applying import loaded

    return loaded(load_configuration(path), os.environ)


def load_to_decide(path: Path, connector: str | None) -> Configuration:
    """The same for a command that decides by it: it does not go by the file where the version
    cannot be read.

    :param connector: that it decides about; None: all of them.
    :raises SluiceError: it cannot be used, or nobody knows what is loaded there.
    """
    from sluice.driver.applying import loaded

    configuration = load_configuration(path)
    names = [each.name for each in configuration.connectors if connector in (None, each.name)]
    return loaded(configuration, os.environ, names)


#: For commands that decide something, and ask.
decided_options = together(
    by_option,
    click.option(
        "--why",
        metavar="TEXT",
        default="by the command line",  # ops.driver_decisions.BY_COMMAND_LINE
        show_default=True,
        help="the reason, which the ledger keeps",
    ),
)


class ParameterType(click.ParamType[Value]):
    """The type of a value that a function reads from a word.

    :param name: what stands for the value in the help.
    :param read: raises ValueError that says what the word is not.
    """

    def __init__(self, name: str, read: Callable[[str], Value]) -> None:
        self.name = name
        self._read = read

    def get_metavar(self, *_: Any, **__: Any) -> str:
        return self.name

    def convert(
        self, value: Any, option: click.Parameter | None, context: click.Context | None
    ) -> Value:
        if not isinstance(value, str):
            return cast("Value", value)  # a default
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", option, context)


def parameter_type(name: str) -> Callable[[Callable[[str], Value]], ParameterType[Value]]:
    """Makes a type of values of a function."""
    return lambda read: ParameterType(name, read)


@parameter_type("N")
def a_positive_number(text: str) -> int:
    """A whole number from 1; underscores and commas may group it."""
    digits = re.sub(r"[_,]", "", text)
    if not re.fullmatch(r"[0-9]{1,18}", digits, re.ASCII) or int(digits) == 0:
        raise ValueError("is not a number from 1")
    return int(digits)


@parameter_type("N")
def an_offset(text: str) -> int:
    """An offset or a partition: a whole number from 0."""
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise ValueError("is not a number from 0")
    return int(text)


@parameter_type("PORT")
def a_port(text: str) -> int:
    """A TCP port to listen on."""
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65535:
        raise ValueError("is not a port; use 1 to 65535")
    return int(text)


@parameter_type("DURATION")
def a_duration_seconds(text: str) -> float:
    """A duration with its unit, like 30s."""
    from sluice.config.quantities import parse_duration

    return parse_duration(text)


@parameter_type("OFFSET|TIME")
def an_offset_or_time(text: str) -> int | datetime:
    """An offset, or a moment with its time zone."""
    if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is neither an offset nor a time like 2026-01-31T00:00:00Z") from None
    return _with_zone(moment)


@parameter_type("TIME")
def a_time_or_age(text: str) -> int:
    """Wall time in milliseconds: of a moment with its time zone, or so long ago."""
    from sluice.config.quantities import parse_duration

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now_ms() - int(parse_duration(text) * 1000)
        except ValueError:
            raise ValueError(
                "is neither a time like 2026-01-31T00:00:00Z nor an age like 1h"
            ) from None
    return int(_with_zone(moment).timestamp() * 1000)


def _with_zone(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("has no time zone; add Z or +01:00")
    return moment


@parameter_type("embedded|URL")
def a_server(text: str) -> str:
    """ "embedded", or the URL of a ClickHouse server."""
    if text == "embedded":
        return text
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname and parts.port)
    except ValueError:
        is_url = False
    if not is_url:  # without the text, which may hold a password
        raise click.BadParameter('not a server; use "embedded" or http://host:8123')
    return text
