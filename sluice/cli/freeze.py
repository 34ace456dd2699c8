"""`sluice freeze`, `resume`, `drain` and `reload`: what a driver that runs is told by a person."""

from __future__ import annotations

import getpass
from pathlib import Path

import click

from sluice.cli.arguments import (
    by_option,
    command,
    config_argument,
    load_configuration,
    together,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import cell_text

_said = together(
    click.option("--why", required=True, metavar="TEXT", help="the reason, which everybody sees"),
    by_option,
)
_selected = together(
    config_argument,
    click.option("--connector", default="", metavar="NAME", help="only this connector"),
    click.option("--table", default="", metavar="ENTRY", help="only this table entry"),
    click.option("--replica", default="", metavar="HOST:PORT", help="only blocks to this replica"),
    click.option("--data-center", default="", metavar="NAME", help="only blocks to its replicas"),
    _said,
)


@command("freeze", 'sluice freeze sluice.toml --table orders --why "a disk is changed"')
@_selected
def freeze(config: Path, why: str, by: str | None, **named: str) -> int:
    """Let a pipeline, a connector or a table stand still, until it is resumed.

    What is out is settled. Then nothing of it is loaded, whatever is started again. To a replica or
    a data center go no blocks; the other replicas take them, where there are any.
    """
    configuration = load_configuration(config)
    from sluice.ops import driver_decisions as decisions

    who = by or getpass.getuser()
    for line in decisions.freeze(configuration, by=who, why=why, **named):
        print(cell_text(line))
    return ExitStatus.DONE


@command("resume", 'sluice resume sluice.toml --table orders --why "the disk is new"')
@_selected
def resume(config: Path, why: str, by: str | None, **named: str) -> int:
    """Let go on what was frozen, with the same words as it was frozen by."""
    configuration = load_configuration(config)
    from sluice.ops import driver_decisions as decisions

    who = by or getpass.getuser()
    lines = decisions.resume(configuration, by=who, why=why, **named)
    for line in lines or ["nothing is frozen"]:
        print(cell_text(line))
    return ExitStatus.DONE


@command("drain", 'sluice drain sluice.toml --why "the machine is changed"')
@config_argument
@_said
def drain(config: Path, why: str, by: str | None) -> int:
    """Have the driver that runs settle what is out, and end, as SIGTERM does.

    One that is started later goes on loading.
    """
    configuration = load_configuration(config)
    from sluice.ops import driver_decisions as decisions

    for line in decisions.drain(configuration, by=by or getpass.getuser(), why=why):
        print(cell_text(line))
    return ExitStatus.DONE


@command("reload", 'sluice reload sluice.toml --why "a column was added"')
@config_argument
@_said
def reload(config: Path, why: str, by: str | None) -> int:
    """Have the driver that runs look at tables' columns, topics and replicas now.

    The configuration file is not read: that is what `sluice apply` does.
    """
    configuration = load_configuration(config)
    from sluice.ops import driver_decisions as decisions

    for line in decisions.reload(configuration, by=by or getpass.getuser(), why=why):
        print(cell_text(line))
    return ExitStatus.DONE
