"""`sluice fleet`: the drivers of a pipeline."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import (
    Command,
    config_argument,
    json_option,
    load_configuration,
    parameter_type,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json, print_table

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.core.fleet.view import Member

_HEADERS = (
    *("connector", "member", "owner", "state", "partitions", "since", "reported s ago"),
    *("data center", "slots", "out", "rows/s", "oldest wait s", "version", "loads by"),
)


@parameter_type("NAME[:SLOTS][@DATA_CENTER]")
def _a_member(text: str) -> Member:
    """A member that is not there yet."""
    from sluice.core.fleet.view import Member

    found = re.fullmatch(r"([^:@]+)(?::([1-9][0-9]{0,5}))?(?:@(.+))?", text)
    if found is None:
        raise ValueError("is no member; write it like east-2, east-2:8 or east-2:8@east")
    name, slots, data_center = found.groups()
    return Member(name, name, "", data_center=data_center or "", slots=int(slots or 1))


@click.command(
    "fleet",
    cls=Command,
    example="sluice fleet sluice.toml\n"
    "sluice fleet sluice.toml --plan\n"
    "sluice fleet sluice.toml --join east-2:8 --leave east-1",
)
@config_argument
@click.option("--plan", is_flag=True, help="show which partitions would move, and why")
@click.option("--join", "joining", type=_a_member, multiple=True, help="plan as if it ran, too")
@click.option("--leave", "leaving", metavar="NAME", multiple=True, help="plan as if it stopped")
@json_option
def fleet(
    config: Path, plan: bool, joining: tuple[Member, ...], leaving: tuple[str, ...], as_json: bool
) -> int:
    """Show who reports, who is silent, and who owns how many partitions. Changes nothing.

    No driver has to run.
    """
    configuration = load_configuration(config)
    if plan or joining or leaving:
        return _plan(configuration, joining, leaving, as_json=as_json)
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
    busy = [
        (each.connector, each.member, source, f"{2**level} times")
        for each in found
        for source, level in each.busy.items()
    ]
    if busy:
        print_table(("connector", "member", "busy partition", "brings, of the average"), busy)
    return ExitStatus.DONE


def _plan(
    configuration: Configuration,
    joining: tuple[Member, ...],
    leaving: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    from sluice.ops.fleet import read_plan

    found = read_plan(configuration, joining, leaving)
    if as_json:
        print_json(found)
        return ExitStatus.DONE
    now = Counter((each.connector, each.member or each.owner) for each in found)
    then = Counter((each.connector, each.to or "nobody") for each in found)
    shares = sorted({*now, *then})
    print_table(
        ("connector", "member", "partitions", "planned"),
        ((*share, now[share], then[share]) for share in shares),
    )
    moves = Counter(
        (each.connector, each.topic, each.member or each.owner, each.to, each.why)
        for each in found
        if each.why
    )
    print_table(
        ("connector", "topic", "partitions", "from", "to", "why"),
        (
            (connector, topic, count, before, to, why)
            for (connector, topic, before, to, why), count in sorted(moves.items(), key=str)
        ),
    )
    return ExitStatus.DONE
