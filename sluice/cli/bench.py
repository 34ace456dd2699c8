"""`sluice bench`: rows a second, and where the time goes."""

from __future__ import annotations

import argparse

from sluice.cli.arguments import (
    Subparsers,
    a_positive_number,
    a_server,
    add_command,
    add_json,
)


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "bench",
        execute,
        "measure rows a second and CPU microseconds a row by process",
        "sluice bench --rows 3000000 --server embedded",
    )
    parser.add_argument(
        "--rows",
        type=a_positive_number,
        default=3_000_000,
        help="messages in each round (default: 3,000,000)",
    )
    parser.add_argument(
        "--server",
        type=a_server,
        default="embedded",
        metavar="embedded|URL",
        help="where the rows go (default: embedded)",
    )
    parser.add_argument(
        "--rounds", type=a_positive_number, default=3, help="medians are over these (default: 3)"
    )
    parser.add_argument(
        "--unsafe-no-dedup",
        action="store_true",
        help="load a table that cannot deduplicate; for comparison only",
    )
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from sluice.local.bench import run_bench

    return int(
        run_bench(
            rows=arguments.rows,
            server=arguments.server,
            rounds=arguments.rounds,
            unsafe_no_dedup=arguments.unsafe_no_dedup,
            as_json=arguments.json,
        )
    )
