"""`sluice chaos`: real faults on the real stack, and every row compared afterwards."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, TextIO

from sluice.cli.arguments import (
    Subparsers,
    UsageError,
    a_positive_number,
    add_command,
    add_json,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json

if TYPE_CHECKING:
    from sluice.testbed.chaos.layout import Layout
    from sluice.testbed.chaos.report import ChaosReport
    from sluice.testbed.chaos.survivors import SurvivorReport


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "chaos",
        execute,
        "break a real pipeline on purpose for some minutes, then compare every row",
        "sluice chaos --minutes 10 --seed 7",
    )
    parser.add_argument(
        "--minutes",
        type=some_minutes,
        default=10.0,
        help="how long faults strike (default: 10); start and drain come on top",
    )
    parser.add_argument(
        "--seed", type=a_positive_number, default=1, help="of the schedule (default: 1)"
    )
    parser.add_argument(
        "--rate",
        type=a_positive_number,
        default=5_000,
        help="messages produced a second (default: 5,000)",
    )
    parser.add_argument(
        "--spark",
        choices=("local", "standalone"),
        default="local",
        help="local[2] (default), or a cluster of a master and two workers, which die too",
    )
    parser.add_argument(
        "--shards",
        type=a_positive_number,
        help="a cluster of installed ClickHouse servers with ZooKeeper (default: 1 shard)",
    )
    parser.add_argument(
        "--replicas", type=a_positive_number, help="of each shard of it (default: 2)"
    )
    parser.add_argument(
        "--data-centers",
        type=a_positive_number,
        default=1,
        help="of it: each has a broker, a connector and as many of the replicas (default: 1)",
    )
    parser.add_argument(
        "--turns",
        action="store_true",
        help="of it: workers take turns at a table by ZooKeeper, over a link that breaks, too",
    )
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="of a cluster: no faults but half of the replicas killed, for a third of the time, "
        "under full load; --rate times the time is the backlog",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the folder with logs and data behind"
    )
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Run; faults go to stderr if the report is JSON."""
    stream = sys.stderr if arguments.json else sys.stdout
    report = _survivors(arguments, stream) if arguments.survivors else _chaos(arguments, stream)
    if arguments.json:
        print_json(report.fields())
    else:
        print("\n".join(report.lines()))
    return ExitStatus.DONE if report.is_exact else ExitStatus.BROKEN


def _survivors(arguments: argparse.Namespace, stream: TextIO) -> SurvivorReport:
    from sluice.testbed.chaos.survivors import run_survivors

    layout, seconds = _layout(arguments), arguments.minutes * 60
    if layout is None or layout.replicas < 2:
        raise UsageError("--survivors needs replicas", "sluice chaos --survivors --replicas 4")
    rows = int(arguments.rate * seconds)
    return run_survivors(layout, seconds, rows, keep=arguments.keep, stream=stream)


def _chaos(arguments: argparse.Namespace, stream: TextIO) -> ChaosReport:
    from sluice.testbed.chaos.runner import ChaosPlan, run_chaos

    plan = ChaosPlan(
        seconds=arguments.minutes * 60,
        seed=arguments.seed,
        rate=arguments.rate,
        standalone=arguments.spark == "standalone",
        layout=_layout(arguments),
    )
    return run_chaos(plan, keep=arguments.keep, stream=stream)


def _layout(arguments: argparse.Namespace) -> Layout | None:
    """The cluster, if there shall be one."""
    from sluice.testbed.chaos.layout import Layout

    shards, replicas, centers = arguments.shards, arguments.replicas, arguments.data_centers
    if shards is None and replicas is None and centers == 1 and not arguments.turns:
        return None
    return Layout(shards or 1, replicas or max(2, centers), centers, arguments.turns)


def some_minutes(text: str) -> float:
    """A number of minutes above 0; a fraction is fine."""
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text, re.ASCII) or float(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return float(text)
