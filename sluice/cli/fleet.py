"""`sluice fleet`: the drivers of a pipeline."""

from __future__ import annotations

import re
from collections import Counter
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
from sluice.cli.output import Columns, print_json, print_objects, print_table
from sluice.core.moments import shown_time

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.core.fleet.view import Member
    from sluice.ops.fleet import MemberShown

_MEMBERS: Columns[MemberShown] = {
    "connector": lambda each: each.connector,
    "member": lambda each: each.member,
    "owner": lambda each: each.owner,
    "state": lambda each: "leaves" if each.is_leaving else each.state,
    "partitions": lambda each: each.partitions,
    "since": lambda each: None if each.started_ms is None else shown_time(each.started_ms),
    "reported s ago": lambda each: each.reported_seconds,
    "data center": lambda each: each.data_center or None,
    "slots": lambda each: each.slots,
    "out": lambda each: each.out,
    "rows/s": lambda each: each.rows_per_second,
    "oldest wait s": lambda each: each.oldest_wait_seconds,
    "version": lambda each: each.software or None,
    "loads by": lambda each: each.applied or None,
}


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
    print_objects(found, _MEMBERS)
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
