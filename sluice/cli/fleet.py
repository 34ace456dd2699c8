"""`sluice fleet`: the drivers of a pipeline, and how several would share it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from sluice.cli.arguments import (
    Group,
    UsageError,
    a_duration_seconds,
    a_positive_number,
    config_argument,
    json_option,
    load_configuration,
    parameter_type,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import cell_text, print_json, print_table

MEMBERS_MAX = 100


_HEADERS = (
    *("connector", "member", "owner", "state", "partitions", "since", "reported s ago"),
    *("data center", "slots", "out", "rows/s", "oldest wait s", "version"),
)


class _Fleet(Group):
    """`sluice fleet CONFIG` is `sluice fleet members CONFIG`."""

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_command = words[0] in self.commands
        return super().resolve_command(context, words if is_command else [_MEMBERS, *words])


_MEMBERS = "members"


@click.group(
    "fleet",
    cls=_Fleet,
    no_args_is_help=True,
    example="sluice fleet sluice.toml\nsluice fleet plan sluice.toml --members 3",
)
def fleet() -> None:
    """See the drivers of a pipeline, and how several would share it."""


@fleet.command(
    _MEMBERS, example="sluice fleet sluice.toml\nsluice fleet members sluice.toml --json"
)
@config_argument
@json_option
def members(config: Path, as_json: bool) -> int:
    """Show who reports, who is silent, and who owns how many partitions. Changes nothing.

    `sluice fleet CONFIG` does the same. No driver has to run.
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
                *(each.rows_per_second, each.oldest_wait_seconds, each.software or None),
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


@parameter_type("N,N,…")
def slots_of_members(text: str) -> tuple[int, ...]:
    """Slots of each member, with commas between them."""
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() and int(number) > 0 for number in numbers):
        raise ValueError("is not a list of numbers from 1, like 8,8,4")
    return tuple(map(int, numbers))


@fleet.command(
    "plan",
    example="sluice fleet plan sluice.toml --members 3\n"
    "sluice fleet plan sluice.toml --slots 8,8,4 --measure 30s",
)
@config_argument
@click.option("--members", type=a_positive_number, help="so many drivers, all alike  [default: 2]")
@click.option("--slots", type=slots_of_members, help="a driver for each, with so many slots")
@click.option(
    "--measure",
    type=a_duration_seconds,
    default=5.0,
    show_default="5s",
    help="measure for so long how much comes",
)
@json_option
def plan(
    config: Path,
    members: int | None,
    slots: tuple[int, ...] | None,
    measure: float,
    as_json: bool,
) -> int:
    """Plan which driver would get which partition, and why. Changes nothing.

    Partitions stay with who owns them today as far as the work can be balanced so. Work is what
    comes, what waits, and what ranges cost.
    """
    if members is not None and slots is not None:
        raise UsageError("--slots names each member already", "Leave --members out.")
    each = slots or (1,) * (members or 2)
    if len(each) > MEMBERS_MAX:
        raise UsageError(f"{len(each)} members are too many", f"Name {MEMBERS_MAX} at most.")
    configuration = load_configuration(config)
    from sluice.ops.fleet import read_plans

    plans = read_plans(configuration, each, measure)
    if as_json:
        print_json(plans)
        return ExitStatus.DONE
    for found in plans:
        said = (
            f"connector {found.connector}: {len(found.moves)} partitions would move. The worst "
            f"member would be {found.uneven_after:.0f} % away from its share of the work, and "
            f"{found.uneven_before:.0f} % without a move between members"
        )
        print(cell_text(said))
        print_table(
            ("member", "slots", "partitions now", "then", "messages/s", "lag", "work %", "brokers"),
            (
                (
                    *(share.member, share.slots, share.partitions_now, share.partitions),
                    *(share.messages_a_second, share.lag, share.work_percent, share.brokers),
                )
                for share in found.shares
            ),
        )
        print_table(
            ("topic", "partition", "from", "to", "messages/s", "lag", "why"),
            (
                (
                    *(move.topic, move.partition, move.before or None, move.after),
                    *(move.messages_a_second, move.lag, move.why),
                )
                for move in found.moves
            ),
        )
    return ExitStatus.DONE
