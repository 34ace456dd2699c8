"""`sluice quorum`: why inserts with a quorum do not go on, and fixing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import (
    UsageError,
    command,
    config_argument,
    json_option,
    load_applied,
    yes_option,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import cell_text, confirm, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.ops.quorum import Report


@command("quorum", "sluice quorum sluice.toml --shard s1 --table orders --fix")
@config_argument
@click.option("--shard", metavar="NAME", help="only this shard")
@click.option("--table", metavar="ENTRY", help="only the table of this entry")
@click.option(
    "--fix",
    is_flag=True,
    help="take what actions are safe, after asking, and wait whether they help",
)
@yes_option
@json_option
def quorum(
    config: Path, shard: str | None, table: str | None, fix: bool, yes: bool, as_json: bool
) -> int:
    """Explain which replicas inserts with a quorum wait for, and fix it."""
    if yes and not fix:
        raise UsageError("--yes agrees to what --fix does", "Add --fix, or leave --yes out.")
    configuration = load_applied(config)
    from sluice.ops.quorum import QuorumSelection, apply_fixes, look

    selection = QuorumSelection(shard, table)
    if fix:
        reports = apply_fixes(configuration, selection, lambda steps: confirm(steps, yes))
    else:
        reports = look(configuration, selection)
    if as_json:
        print_json(reports)
    else:
        _print_text(reports)
    is_stuck = any(report.judgement.is_stuck for report in reports)
    return ExitStatus.BROKEN if is_stuck else ExitStatus.DONE


def _print_text(reports: Sequence[Report]) -> None:
    if not reports:
        print("No table is Replicated: no insert waits for a quorum.")
    for report in reports:
        judgement = report.judgement
        state = "stuck" if judgement.is_stuck else "not stuck"
        print(cell_text(f"{report.where}: {state}"))
        for finding in judgement.findings:
            print(f"  {finding.level:8}{cell_text(finding.what)}")
        for action in judgement.actions:
            print(f"  fix:   {cell_text(f'{action.statement} on {action.url} ({action.why})')}")
        for step in judgement.by_hand:
            print(f"  by hand: {cell_text(step)}")
        for number, line in enumerate(judgement.last_resort):
            if number == 0:
                print("  LAST RESORT, never taken by Sluice; each step as it stands:")
            print(f"    {cell_text(line)}")
    if any(report.judgement.actions for report in reports):
        print("`sluice quorum CONFIG --fix` takes what stands behind `fix:`, and nothing else.")
