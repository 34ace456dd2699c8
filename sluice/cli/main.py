"""The entry point: finds the command, runs it, and turns what it raises into a status."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Sequence

import click

from sluice import __version__
from sluice.cli.apply import apply, rollback
from sluice.cli.arguments import Group, UsageError
from sluice.cli.audit import audit
from sluice.cli.bench import bench
from sluice.cli.chaos import chaos
from sluice.cli.claims import claims
from sluice.cli.completion import COMPLETE, completion
from sluice.cli.dead_letters import dead_letters
from sluice.cli.decisions import adopt, drain, freeze, reload, resolve, resume, rewind
from sluice.cli.doctor import doctor
from sluice.cli.exit import ExitStatus
from sluice.cli.fleet import fleet
from sluice.cli.init import init
from sluice.cli.ledger import ledger
from sluice.cli.local import demo, local
from sluice.cli.output import cell_text
from sluice.cli.prove import prove
from sluice.cli.quorum import quorum
from sluice.cli.run import run
from sluice.cli.simulate import simulate
from sluice.cli.status import status
from sluice.cli.verify import verify
from sluice.core.errors import ConfigurationError, OwnerChangedError, SluiceError


@click.group(
    "sluice",
    cls=Group,
    no_args_is_help=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 100,
    },
    example="sluice init\nsluice doctor sluice.toml\nsluice run sluice.toml",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def sluice() -> None:
    """Kafka topics into ClickHouse, every row exactly once.

    Exit status: 0 done and settled; 1 a promise is broken or a partition stopped; 2 configuration;
    3 stopped cleanly with intents in doubt; 4 another owner took over.
    """


for _command in (
    *(run, apply, rollback, doctor, prove, status, fleet, freeze, resume, drain, reload),
    *(resolve, adopt, rewind, audit, verify, ledger, quorum, dead_letters, claims, init),
    *(completion, local, demo, bench, simulate, chaos),
):
    sluice.add_command(_command)


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


def _dispatch(words: list[str]) -> int:
    instruction = os.environ.get(COMPLETE)
    if instruction:
        from click.shell_completion import shell_complete

        if shell_complete(sluice, {}, "sluice", COMPLETE, instruction) == 0:
            return ExitStatus.DONE
        raise UsageError(
            f"{COMPLETE}: {instruction!r} is no shell's", "sluice completion bash, or zsh, or fish"
        )
    if sys.platform != "linux":
        raise UsageError(
            f"Sluice runs on Linux with glibc, and this is {sys.platform}",
            'Take the container: docs/DEPLOYMENT.md, "In a container".',
        )
    try:
        with sluice.make_context("sluice", [*words]) as context:
            return int(sluice.invoke(context))
    except click.exceptions.Exit as ended:  # --help and --version
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.message, file=sys.stderr)
        return ExitStatus.CONFIGURATION


def _report(error: Exception) -> ExitStatus:
    """What happened, one line each, and as the last line what to do. Data may be quoted."""
    message, hint = str(error), SluiceError.hint
    if isinstance(error, SluiceError | UsageError):
        hint = error.hint
    elif isinstance(error, click.UsageError):
        where = "sluice" if error.ctx is None else error.ctx.command_path
        message, hint = error.format_message(), f"{where} --help"
    elif isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("sluice"):
        message = f"the package {error.name} is missing"
        hint = "Install Sluice with its dependencies: pip install ."
    else:
        message = f"unexpected {type(error).__name__}: {error}"
    for line in message.splitlines() or [type(error).__name__]:
        print(f"sluice: error: {cell_text(line)}", file=sys.stderr)
    print(f"Try: {cell_text(hint)}", file=sys.stderr)
    if isinstance(error, ConfigurationError | UsageError | click.UsageError):
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
