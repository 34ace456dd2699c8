"""The entry point: finds the command, runs it, and turns what it raises into a status."""

from __future__ import annotations

import argparse
import os
import select
import sys
import traceback
from collections.abc import Sequence

from sluice import __version__
from sluice.cli import (
    audit,
    bench,
    chaos,
    dead_letters,
    decisions,
    demo,
    doctor,
    init,
    ledger,
    local,
    logs,
    prove,
    quorum,
    run,
    simulate,
    status,
    verify,
)
from sluice.cli.arguments import CommandParser, UsageError, add_shared_options
from sluice.cli.exit import ExitStatus
from sluice.core.errors import ConfigurationError, OwnerChangedError, SluiceError

_EXAMPLE = """\
example:
  sluice init
  sluice doctor sluice.toml
  sluice run sluice.toml

exit status:
  0 done and settled; 1 a promise is broken or a partition stopped; 2 configuration;
  3 stopped cleanly with intents in doubt; 4 another owner took over
"""

#: In the order of the help.
_COMMANDS = (
    run,
    doctor,
    prove,
    status,
    decisions,
    audit,
    verify,
    ledger,
    quorum,
    dead_letters,
    init,
    local,
    demo,
    bench,
    simulate,
    chaos,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    :param argv: the arguments without the program's name; those of the process if None.
    :returns: the exit status. Never raises, apart from bugs in this function.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status_of_command = _dispatch(words)
        sys.stdout.flush()
        return status_of_command
    except KeyboardInterrupt:
        print("sluice: interrupted", file=sys.stderr)
        return ExitStatus.INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_reader_gone():
            return ExitStatus.BROKEN_PIPE
        if "--debug" in words:
            traceback.print_exc()
        return _report(error)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = CommandParser(
        prog="sluice",
        description="Kafka topics into ClickHouse, every row exactly once.",
        epilog=_EXAMPLE,
    )
    parser.add_argument("--version", action="version", version=f"sluice {__version__}")
    add_shared_options(parser)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in _COMMANDS:
        command.add(subparsers)
    return parser


def _dispatch(words: list[str]) -> int:
    parser = build_parser()
    try:
        arguments = parser.parse_args(words)
    except SystemExit:  # argparse ends --help and --version so; errors are raised
        return ExitStatus.DONE
    if not hasattr(arguments, "execute"):
        parser.print_help(sys.stderr)
        return ExitStatus.CONFIGURATION
    logs.configure(
        getattr(arguments, "log_format", None), is_debug=getattr(arguments, "debug", False)
    )
    return int(arguments.execute(arguments))


def _report(error: Exception) -> ExitStatus:
    """What happened, one line each, and as the last line what to do."""
    message, hint = str(error), SluiceError.hint
    if isinstance(error, SluiceError | UsageError):
        hint = error.hint
    elif isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("sluice"):
        message = f"the package {error.name} is missing"
        hint = "Install Sluice with its dependencies: pip install ."
    else:
        message = f"unexpected {type(error).__name__}: {error}"
    for line in message.splitlines() or [type(error).__name__]:
        print(f"sluice: error: {line}", file=sys.stderr)
    print(f"Try: {hint}", file=sys.stderr)
    if isinstance(error, ConfigurationError | UsageError):
        return ExitStatus.CONFIGURATION
    if isinstance(error, OwnerChangedError):
        return ExitStatus.OWNER_CHANGED
    return ExitStatus.BROKEN


def _is_reader_gone() -> bool:
    """Whether it is stdout that broke, not a connection to a server.

    Stdout is then turned away, since Python flushes it once more at its end.
    """
    try:
        stdout = sys.stdout.fileno()
    except OSError:  # something that only looks like a file
        return False
    poll = select.poll()
    poll.register(stdout, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
    return True
