"""What a person decides. `sluice resolve`, `adopt` and `rewind`: of partitions; `freeze`, `resume`,
`drain` and `reload`: what a driver that runs is told."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli.arguments import (
    Command,
    an_offset,
    an_offset_or_time,
    by_option,
    command,
    config_argument,
    decided_options,
    load_applied,
    load_configuration,
    load_to_decide,
    together,
    yes_option,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import cell_text, confirm

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.ops.partition_decisions.resolving import Outcome
    from sluice.ops.partition_decisions.situation import Plan


_WHERE = "--connector dc1 --topic orders --partition 3"


class _Decision(Command):
    """Takes several partitions behind one --partition, as `sluice run` writes them."""

    def parse_args(self, context: click.Context, words: list[str]) -> list[str]:
        single: list[str] = []
        for word in words:
            is_next = single[-2:-1] == ["--partition"] and word.isdecimal()
            single += ["--partition", word] if is_next else [word]
        return super().parse_args(context, single)


_selected = together(
    config_argument,
    click.option("--connector", required=True, help="the connector's name"),
    click.option("--topic", required=True, help="the topic"),
    click.option(
        "--partition",
        "partitions",
        required=True,
        multiple=True,
        type=an_offset,
        help="one or more partitions, like 0 1 2; may be repeated",
    ),
    yes_option,
    click.option(
        "--take-over",
        is_flag=True,
        help="even while the owner's lease runs; the owner is fenced",
    ),
    decided_options,
)


@click.command("resolve", cls=_Decision, example=f"sluice resolve sluice.toml {_WHERE} --as probe")
@_selected
@click.option(
    "--as",
    "outcome",
    required=True,
    type=click.Choice(("loaded", "not-loaded", "probe")),
    help="its rows are all in the table; none are; or look at the lineage columns",
)
def resolve(config: Path, yes: bool, outcome: Outcome, **where: Any) -> int:
    """Say whether a range in doubt was loaded."""
    from sluice.ops.partition_decisions.resolving import plan_resolve

    return _decide(config, yes, partial(plan_resolve, outcome=outcome), **where)


@click.command("adopt", cls=_Decision, example=f"sluice adopt sluice.toml {_WHERE} --offset 1200")
@_selected
@click.option("--offset", required=True, type=an_offset, help="the next offset to load")
def adopt(config: Path, yes: bool, offset: int, **where: Any) -> int:
    """Go on from an offset after a foreign hand changed the group."""
    from sluice.ops.partition_decisions.positions import plan_adopt

    return _decide(config, yes, partial(plan_adopt, offset=offset), **where)


@click.command(
    "rewind", cls=_Decision, example=f"sluice rewind sluice.toml {_WHERE} --to 2026-01-31T00:00:00Z"
)
@_selected
@click.option(
    "--to",
    required=True,
    type=an_offset_or_time,
    help="the next offset to load, or a time with its zone",
)
def rewind(config: Path, yes: bool, to: int | datetime, **where: Any) -> int:
    """Load again from an offset or a time, under new tokens."""
    from sluice.ops.partition_decisions.positions import plan_rewind

    return _decide(config, yes, partial(plan_rewind, to=to), **where)


def _decide(
    config: Path,
    is_agreed: bool,
    plan_for: Callable[..., Plan],
    by: str | None,
    why: str,
    **where: Any,
) -> int:
    from sluice.ops.partition_decisions.carrying_out import apply
    from sluice.ops.partition_decisions.situation import Decider, PartitionSelection

    selection, decider = PartitionSelection(**where), Decider(by or getpass.getuser(), why)
    configuration = load_to_decide(config, selection.connector)
    plan = plan_for(configuration, selection, decider=decider)
    if not confirm(plan.steps, is_agreed):
        return ExitStatus.BROKEN
    apply(configuration, plan)
    return ExitStatus.DONE


_said = together(
    click.option("--why", required=True, metavar="TEXT", help="the reason, which everybody sees"),
    by_option,
)
_scope = together(
    config_argument,
    click.option("--connector", default="", metavar="NAME", help="only this connector"),
    click.option("--table", default="", metavar="ENTRY", help="only this table entry"),
    click.option("--replica", default="", metavar="HOST:PORT", help="only blocks to this replica"),
    click.option("--data-center", default="", metavar="NAME", help="only blocks to its replicas"),
    _said,
)


@command("freeze", 'sluice freeze sluice.toml --table orders --why "a disk is changed"')
@_scope
def freeze(config: Path, why: str, by: str | None, **named: str) -> int:
    """Let a pipeline, a connector or a table stand still, until it is resumed.

    What is out is settled. Then nothing of it is loaded, whatever is started again. To a replica or
    a data center go no blocks; the other replicas take them, where there are any.
    """
    from sluice.ops.driver_decisions import freeze as told

    # A version that does not fit the file must keep nobody from the other freezes.
    load = load_applied if named["table"] else load_configuration
    return _tell(load(config), told, why, by, **named)


@command("resume", 'sluice resume sluice.toml --table orders --why "the disk is new"')
@_scope
def resume(config: Path, why: str, by: str | None, **named: str) -> int:
    """Let go on what was frozen, with the same words as it was frozen by."""
    from sluice.ops.driver_decisions import resume as told

    return _tell(load_configuration(config), told, why, by, **named)


@command("drain", 'sluice drain sluice.toml --why "the machine is changed"')
@config_argument
@click.option("--member", default="", metavar="NAME", help="of a fleet only this member")
@_said
def drain(config: Path, member: str, why: str, by: str | None) -> int:
    """Have each driver that runs settle what is out, and end, as SIGTERM does.

    Of a fleet all end, but for --member. One that is started later goes on loading.
    """
    from sluice.ops.driver_decisions import drain as told
    from sluice.ops.fleet import require_member

    configuration = load_configuration(config)
    if member:
        require_member(configuration, member)
    return _tell(configuration, told, why, by, member=member)


@command("reload", 'sluice reload sluice.toml --why "a column was added"')
@config_argument
@_said
def reload(config: Path, why: str, by: str | None) -> int:
    """Have the driver that runs look at tables' columns, topics and replicas now.

    The configuration file is not read: that is what `sluice apply` does.
    """
    from sluice.ops.driver_decisions import reload as told

    return _tell(load_configuration(config), told, why, by)


def _tell(
    configuration: Configuration,
    decide: Callable[..., list[str]],
    why: str,
    by: str | None,
    **named: str,
) -> int:
    """Decide, and say what holds now."""
    lines = decide(configuration, by=by or getpass.getuser(), why=why, **named)
    for line in lines or ["nothing is frozen"]:
        print(cell_text(line))
    return ExitStatus.DONE
