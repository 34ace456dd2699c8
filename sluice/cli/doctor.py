"""`sluice doctor`: what would break the promise, before the first row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cli.arguments import command, config_argument, json_option, load_configuration
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json, print_table

if TYPE_CHECKING:
    from sluice.ops.doctor import Finding


@command("doctor", "sluice doctor sluice.toml")
@config_argument
@json_option
def doctor(config: Path, as_json: bool) -> int:
    """Check Kafka, ClickHouse and the tables before the first row.

    `sluice prove --config CONFIG` tries on the servers what all this rests on.
    """
    configuration = load_configuration(config)
    from sluice.ops.doctor import examine

    findings = examine(configuration)
    if as_json:
        print_json(findings)
    else:
        _print_text(findings)
    is_broken = any(finding.level == "error" for finding in findings)
    return ExitStatus.BROKEN if is_broken else ExitStatus.DONE


def _print_text(findings: Sequence[Finding]) -> None:
    rows = [
        (each.check, each.level, f"{each.where}: {each.what}", each.fix or None)
        for each in findings
    ]
    print_table(("check", "verdict", "what was found", "what to do"), rows, is_folded=True)
    counts = {
        level: sum(finding.level == level for finding in findings)
        for level in ("error", "warning", "ok")
    }
    print(f"{counts['error']} errors, {counts['warning']} warnings, {counts['ok']} in order")
    print("`sluice prove --config CONFIG` tries on the servers what all this rests on.")
