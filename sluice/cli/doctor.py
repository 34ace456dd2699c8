"""`sluice doctor`: what would break the promise, before the first row."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.cli.arguments import (
    Subparsers,
    add_command,
    add_configuration,
    add_json,
    load_configuration,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json
from sluice.cli.tables import cell_text

if TYPE_CHECKING:
    from sluice.ops.doctor import Finding


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "doctor",
        execute,
        "check Kafka, ClickHouse and the tables before the first row",
        "sluice doctor sluice.toml",
    )
    add_configuration(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    from sluice.ops.doctor import examine

    findings = examine(configuration)
    if arguments.json:
        print_json(findings)
    else:
        _print_text(findings)
    return ExitStatus.BROKEN if breaking(findings) else ExitStatus.DONE


def breaking(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with which exactly once cannot be promised."""
    return [finding for finding in findings if finding.level == "error"]


def _print_text(findings: Sequence[Finding]) -> None:
    for finding in findings:
        head = f"{finding.level:8}{finding.check}: {finding.where}: {finding.what}"
        print(cell_text(head))
        if finding.level != "ok":
            print(f"        mend: {cell_text(finding.mend)}")
    counts = {
        level: sum(finding.level == level for finding in findings)
        for level in ("error", "warning", "ok")
    }
    print(f"{counts['error']} errors, {counts['warning']} warnings, {counts['ok']} in order")
    print("`sluice prove --config CONFIG` tries on the servers what all this rests on.")
