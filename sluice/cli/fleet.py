"""`sluice fleet`: the drivers of a pipeline."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from sluice.cli.arguments import (
    Command,
    config_argument,
    json_option,
    load_configuration,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json, print_table

_HEADERS = (
    *("connector", "member", "owner", "state", "partitions", "since", "reported s ago"),
    *("data center", "slots", "out", "rows/s", "oldest wait s", "version", "loads by"),
)


@click.command(
    "fleet", cls=Command, example="sluice fleet sluice.toml\nsluice fleet sluice.toml --json"
)
@config_argument
@json_option
def fleet(config: Path, as_json: bool) -> int:
    """Show who reports, who is silent, and who owns how many partitions. Changes nothing.

    No driver has to run.
    """
    configuration = load_configuration(config)
    from sluice.ops.fleet import read_members

    found = read_members(configuration)
    if as_json:
        print_json(found)
        return ExitStatus.DONE
    rows = []
    for each in found:
        since = None
        if each.started_ms is not None:
            since = f"{datetime.fromtimestamp(each.started_ms // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
        state = "leaves" if each.is_leaving else each.state
        rows.append(
            (
                *(each.connector, each.member, each.owner, state, each.partitions, since),
                *(each.reported_seconds, each.data_center or None, each.slots, each.out),
                *(each.rows_per_second, each.oldest_wait_seconds),
                *(each.software or None, each.applied or None),
            )
        )
    print_table(_HEADERS, rows)
    print_table(
        ("connector", "member", "window", "floor"),
        (
            (each.connector, each.member, window, floor)
            for each in found
            for window, floor in sorted(each.floors.items())
        ),
    )
    return ExitStatus.DONE
