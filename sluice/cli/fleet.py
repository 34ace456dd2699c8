"""`sluice fleet`: how several drivers would share a pipeline."""

from __future__ import annotations

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


@click.group(
    "fleet",
    cls=Group,
    no_args_is_help=True,
    example="sluice fleet plan sluice.toml --members 3",
)
def fleet() -> None:
    """See how several drivers would share a pipeline."""


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
