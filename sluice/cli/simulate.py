"""`sluice simulate`: the real loader over a world in memory that breaks on purpose."""

from __future__ import annotations

from typing import Any

import click

from sluice.cli.arguments import a_positive_number, an_offset, command, json_option, parameter_type


@parameter_type("RATE")
def a_rate(text: str) -> float:
    """A probability."""
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 0.1:
        raise ValueError("is not a number from 0 to 0.1")
    return rate


@command("simulate", "sluice simulate --seeds 500 --steps 4000 --first-seed 1")
@click.option("--seeds", type=a_positive_number, default=100, help="how many runs")
@click.option(
    "--steps",
    type=a_positive_number,
    default=4_000,
    help="steps with faults in each run; then it must drain",
)
@click.option("--first-seed", type=an_offset, default=1, help="seed of the first run")
@click.option(
    "--fault-rate",
    "rate",
    type=a_rate,
    default=0.01,
    help="probability of a fault of weight 1 at a step",
)
@click.option(
    "--late-ms",
    metavar="MS",
    type=an_offset,
    default=7_000,
    help="how long after its lease an insert may land; Sluice covers the default",
)
@click.option(
    "--processes",
    type=a_positive_number,
    default=1,
    help="seeds that run at once, each on one processor",
)
@click.option(
    "--fleet",
    "is_fleet",
    is_flag=True,
    help="other worlds, in which several drivers share the partitions",
)
@click.option("--plant", metavar="NAME", help="plant a bug; a name that does not exist lists them")
@click.option("--until-broken", is_flag=True, help="end with the first seed that breaks a promise")
@click.option("--show", "is_shown", is_flag=True, help="tell on stderr everything that happens")
@json_option
def simulate(**settings: Any) -> int:
    """Run the real loader over a simulated world with faults.

    Kafka, ClickHouse and Spark are simulated, on virtual time.
    """
    from sluice.testbed.simulate import runs as simulating

    return int(simulating.simulate(**settings))
