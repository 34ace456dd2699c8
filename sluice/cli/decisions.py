"""`sluice resolve`, `adopt` and `rewind`: what only a person can decide.

Each plans first, shows the plan, asks, and only then acts.
"""

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
    config_argument,
    decided_options,
    load_configuration,
    together,
    yes_option,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import confirm

if TYPE_CHECKING:
    from sluice.ops.partition_decisions import Outcome, Plan


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
    from sluice.ops.partition_decisions import plan_resolve

    return _decide(config, yes, partial(plan_resolve, outcome=outcome), **where)


@click.command("adopt", cls=_Decision, example=f"sluice adopt sluice.toml {_WHERE} --offset 1200")
@_selected
@click.option("--offset", required=True, type=an_offset, help="the next offset to load")
def adopt(config: Path, yes: bool, offset: int, **where: Any) -> int:
    """Go on from an offset after a foreign hand changed the group."""
    from sluice.ops.partition_decisions import plan_adopt

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
    from sluice.ops.partition_decisions import plan_rewind

    return _decide(config, yes, partial(plan_rewind, to=to), **where)


def _decide(
    config: Path,
    is_agreed: bool,
    plan_for: Callable[..., Plan],
    by: str | None,
    why: str,
    **where: Any,
) -> int:
    from sluice.ops.partition_decisions import Decider, apply

    configuration = load_configuration(config)
    plan = plan_for(configuration, **where, decider=Decider(by or getpass.getuser(), why))
    if not confirm(plan.steps, is_agreed):
        return ExitStatus.BROKEN
    apply(configuration, plan)
    return ExitStatus.DONE
