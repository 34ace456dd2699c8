"""`sluice apply` and `sluice rollback`: what is loaded is changed while drivers run."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli.arguments import (
    a_duration_seconds,
    a_positive_number,
    command,
    config_argument,
    load_configuration,
    together,
    yes_option,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import Columns, cell_text, confirm, print_objects
from sluice.core.moments import shown_time

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.core.decided import Version
    from sluice.ops.applying import Plan

_VERSIONS: Columns[Version] = {
    "version": lambda each: each.number,
    "applied": lambda each: shown_time(each.at_ms),
    "by": lambda each: each.by,
    "digest": lambda each: each.digest,
    "why": lambda each: each.why or None,
}
_said = together(
    click.option("--dry-run", is_flag=True, help="show what would be done, and change nothing"),
    yes_option,
    click.option("--why", default="", metavar="TEXT", help="the reason, which everybody sees"),
    click.option("--by", metavar="NAME", help="who applies; default: the user's name"),
    click.option(
        "--wait",
        type=a_duration_seconds,
        default="30s",
        help="how long to wait for the drivers to take it up",
    ),
)


@command("apply", 'sluice apply sluice.toml --why "clicks are new"')
@config_argument
@_said
@click.option("--list", "is_list", is_flag=True, help="show instead which versions there are")
@click.option("--show", type=a_positive_number, help="print instead what this version has, as JSON")
def apply(
    config: Path, dry_run: bool, yes: bool, is_list: bool, show: int | None, **said: Any
) -> int:
    """Load other tables and topics, without stopping the rest.

    What has changed is checked as by `sluice doctor`, shown, and asked about. Drivers that run take
    it up; those that are started later begin with it.
    """
    configuration = load_configuration(config)
    from sluice.ops import applying

    if is_list:
        return _list(configuration)
    if show is not None:
        return _show(configuration, show)
    return _carry_out(applying.plan(configuration), is_dry=dry_run, is_agreed=yes, **said)


@command("rollback", "sluice rollback sluice.toml")
@config_argument
@click.argument("version", type=a_positive_number, required=False, help="default: the one before")
@_said
def rollback(config: Path, version: int | None, dry_run: bool, yes: bool, **said: Any) -> int:
    """Apply an older version again, as a new one. Files stay as they are."""
    configuration = load_configuration(config)
    from sluice.ops import applying

    planned = applying.plan_rollback(configuration, version)
    return _carry_out(planned, is_dry=dry_run, is_agreed=yes, **said)


def _carry_out(
    planned: Plan, *, is_dry: bool, is_agreed: bool, why: str, by: str | None, wait: float
) -> int:
    from sluice.ops import applying

    for refusal in planned.refusals:
        print(f"refused: {cell_text(refusal)}", file=sys.stderr)
    if planned.refusals:
        for line in planned.lines:
            print(f"not done: {cell_text(line)}", file=sys.stderr)
        return ExitStatus.BROKEN
    if not planned.does_something:
        print(f"nothing has changed since {cell_text(str(planned.base))}")
        return ExitStatus.DONE
    behind = [f"write version {planned.number} where it is missing: {n}" for n in planned.behind]
    steps = [cell_text(line) for line in (*planned.lines, *behind)]
    if is_dry:
        for step in steps:
            print(step)
        return ExitStatus.DONE
    if not confirm(steps, is_agreed):
        return ExitStatus.DONE
    version = applying.apply(planned, by=by or getpass.getuser(), why=why)
    print(cell_text(str(version)), flush=True)
    return _say_answers(planned.configuration, version.number, wait)


def _say_answers(configuration: Configuration, number: int, seconds: float) -> int:
    from sluice.ops import applying

    status = ExitStatus.DONE
    for name, found in applying.answers(configuration, number, seconds).items():
        lines = [
            f"driver {each.owner} goes on as before: {each.error}"
            if each.error
            else f"driver {each.owner} loads by it"
            for each in found.said
        ]
        lines += [
            f"driver {owner} has not said that it loads by it, after {seconds:g} s"
            for owner in found.missing
        ]
        if not lines:
            lines = [
                f"no driver has said that it loads by it, after {seconds:g} s: one that is "
                "started begins with it"
            ]
        if any(each.error for each in found.said):
            status = ExitStatus.BROKEN
        for line in lines:
            print(cell_text(f"connector {name}: {line}"))
    return status


def _list(configuration: Configuration) -> int:
    from sluice.ops import applying

    print_objects(applying.versions(configuration).versions, _VERSIONS)
    return ExitStatus.DONE


def _show(configuration: Configuration, number: int) -> int:
    from sluice.ops import applying

    for version in applying.versions(configuration).versions:
        if version.number == number:
            print(json.dumps(json.loads(version.document), indent=2, ensure_ascii=False))
            return ExitStatus.DONE
    raise applying.ApplyRefusedError(f"version {number} is not there", "--list shows all.")
