"""`sluice doctor`: what would break the promise, before the first row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import command, config_argument, json_option, load_configuration
from sluice.cli.exit import ExitStatus
from sluice.cli.output import Columns, print_json, print_objects

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.ops.doctor import Finding

_FINDINGS: Columns[Finding] = {
    "check": lambda each: each.check,
    "verdict": lambda each: each.level,
    "what was found": lambda each: f"{each.where}: {each.what}",
    "what to do": lambda each: each.fix or None,
}
_logger = logging.getLogger("sluice.doctor")


@command("doctor", "sluice doctor sluice.toml")
@config_argument
@click.option(
    "--grants",
    is_flag=True,
    help="print instead the least rights that are needed, as what gives them",
)
@json_option
def doctor(config: Path, grants: bool, as_json: bool) -> int:
    """Check Kafka, ClickHouse and the tables before the first row.

    `sluice prove --config CONFIG` tries on the servers what all this rests on.
    """
    configuration = load_configuration(config)
    if grants:
        return _print_grants(configuration, as_json=as_json)
    from sluice.ops.doctor import examine

    findings = examine(configuration)
    if as_json:
        print_json(findings)
    else:
        _print_text(findings)
    is_broken = any(finding.level == "error" for finding in findings)
    return ExitStatus.BROKEN if is_broken else ExitStatus.DONE


def _print_text(findings: Sequence[Finding]) -> None:
    print_objects(findings, _FINDINGS, is_folded=True)
    counts = {
        level: sum(finding.level == level for finding in findings)
        for level in ("error", "warning", "ok")
    }
    print(f"{counts['error']} errors, {counts['warning']} warnings, {counts['ok']} in order")
    print("`sluice prove --config CONFIG` tries on the servers what all this rests on.")


def _print_grants(configuration: Configuration, *, as_json: bool) -> int:
    from sluice.ops.doctor_rights import known_tables
    from sluice.ops.grants import clickhouse_rights, kafka_rights, script

    tables, failures = known_tables(configuration)
    for failure in failures:
        _logger.warning("%s. What follows is what any table may need", failure)
    if as_json:
        connectors = configuration.connectors
        kafka = [right for each in connectors for right in kafka_rights(configuration, each)]
        print_json({"kafka": kafka, "clickhouse": clickhouse_rights(configuration, tables)})
    else:
        for line in script(configuration, tables):
            print(line)
    return ExitStatus.DONE
