"""`sluice demo`: the whole path on one machine, with the driver killed twice."""

from __future__ import annotations

import argparse

from sluice.cli.arguments import Subparsers, a_positive_number, add_command


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "demo",
        execute,
        "load a million orders, kill the driver twice, audit every row",
        "sluice demo --rows 200000",
    )
    parser.add_argument(
        "--rows",
        type=a_positive_number,
        default=1_000_000,
        help="how many messages to produce (default: 1,000,000)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the folder and its data behind to look further"
    )


def execute(arguments: argparse.Namespace) -> int:
    from sluice.testbed.local.demo import run_demo

    return int(run_demo(rows=arguments.rows, keep=arguments.keep))
