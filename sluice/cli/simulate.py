"""`sluice simulate`: the real loader over a world in memory that breaks on purpose."""

from __future__ import annotations

import argparse

from sluice.cli.arguments import (
    Subparsers,
    a_positive_number,
    add_command,
    add_json,
    an_offset,
)


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "simulate",
        execute,
        "run the real loader over simulated Kafka, ClickHouse and Spark, with faults",
        "sluice simulate --seeds 500 --steps 4000 --first-seed 1",
    )
    parser.add_argument(
        "--seeds", type=a_positive_number, default=100, help="how many runs (default: 100)"
    )
    parser.add_argument(
        "--steps",
        type=a_positive_number,
        default=4_000,
        help="steps with faults in each run; then it must drain (default: 4,000)",
    )
    parser.add_argument(
        "--first-seed", type=an_offset, default=1, help="seed of the first run (default: 1)"
    )
    parser.add_argument(
        "--fault-rate",
        type=a_rate,
        default=0.01,
        metavar="RATE",
        help="probability of a fault of weight 1 at a step (default: 0.01)",
    )
    parser.add_argument(
        "--late-ms",
        type=an_offset,
        default=7_000,
        metavar="MS",
        help="how long after its lease an insert may land (default: 7,000, what Sluice covers)",
    )
    parser.add_argument(
        "--processes",
        type=a_positive_number,
        default=1,
        help="seeds that run at once, each on one processor (default: 1)",
    )
    parser.add_argument(
        "--plant", metavar="NAME", help="plant a bug; a name that does not exist lists them"
    )
    parser.add_argument(
        "--until-broken",
        action="store_true",
        help="end with the first seed that breaks a promise",
    )
    parser.add_argument(
        "--show", action="store_true", help="tell on stderr everything that happens"
    )
    add_json(parser)


def a_rate(text: str) -> float:
    """A probability."""
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 0.1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 0.1")
    return rate


def execute(arguments: argparse.Namespace) -> int:
    from sluice.testbed.simulate.command import simulate

    return int(
        simulate(
            first_seed=arguments.first_seed,
            seeds=arguments.seeds,
            steps=arguments.steps,
            rate=arguments.fault_rate,
            late_ms=arguments.late_ms,
            processes=arguments.processes,
            plant=arguments.plant,
            is_shown=arguments.show,
            as_json=arguments.json,
            until_broken=arguments.until_broken,
        )
    )
