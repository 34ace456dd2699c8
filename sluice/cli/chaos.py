"""`sluice chaos`: real faults on the real stack, and every row compared afterwards."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, TextIO

import click

from sluice.cli.arguments import UsageError, a_positive_number, command, json_option, parameter_type
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json

if TYPE_CHECKING:
    from sluice.core.load_spec import Delivery
    from sluice.testbed.chaos.layout import Layout
    from sluice.testbed.chaos.report import ChaosReport
    from sluice.testbed.chaos.store import StoreKind
    from sluice.testbed.chaos.survivors import SurvivorReport


@parameter_type("MINUTES")
def some_minutes(text: str) -> float:
    """A number of minutes above 0; a fraction is fine."""
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,3})?", text, re.ASCII) or float(text) == 0:
        raise ValueError("is not a number of minutes above 0")
    return float(text)


@parameter_type("SHARE")
def a_share(text: str) -> float:
    """A number above 0 and below 1."""
    if not re.fullmatch(r"0?\.[0-9]{1,3}", text, re.ASCII) or float(text) == 0:
        raise ValueError("is not a share above 0 and below 1, as 0.2")
    return float(text)


@command("chaos", "sluice chaos --minutes 10 --seed 7")
@click.option(
    "--minutes",
    type=some_minutes,
    default=10.0,
    help="how long faults strike; start and drain come on top",
)
@click.option("--seed", type=a_positive_number, default=1, help="of the schedule")
@click.option(
    "--partitions",
    type=a_positive_number,
    default=4,
    show_default=True,
    help="of each topic; small ranges of many are loaded together",
)
@click.option("--rate", type=a_positive_number, default=5_000, help="messages produced a second")
@click.option(
    "--spark",
    type=click.Choice(("local", "standalone")),
    default="local",
    help="local[2], or a cluster of a master and two workers, which die too",
)
@click.option(
    "--shards",
    type=a_positive_number,
    help="a cluster of installed ClickHouse servers with ZooKeeper (default: 1 shard)",
)
@click.option("--replicas", type=a_positive_number, help="of each shard of it (default: 2)")
@click.option(
    "--data-centers",
    type=a_positive_number,
    default=1,
    help="of it: each has a broker, a connector and as many of the replicas",
)
@click.option(
    "--insert-locks",
    is_flag=True,
    help="of it: workers take insert locks in ZooKeeper, over a link that breaks, too",
)
@click.option(
    "--survivors",
    is_flag=True,
    help="of a cluster: no faults but half of the replicas killed, for a third of the time, "
    "under full load; --rate times the time is the backlog",
)
@click.option(
    "--duplicates",
    type=a_share,
    help="so many of the messages come again, as 0.2, and the table deduplicates; the store of "
    "claims is broken, too",
)
@click.option(
    "--store",
    type=click.Choice(("redis", "local")),
    default="redis",
    help="of claims, with --duplicates: an installed redis-server, or a directory",
)
@click.option(
    "--delivery",
    type=click.Choice(("block", "staged", "replacing")),
    default="block",
    help="of the table of one server, which has no window but for blocks",
)
@click.option("--keep", is_flag=True, help="leave the folder with logs and data behind")
@json_option
def chaos(
    minutes: float,
    seed: int,
    partitions: int,
    rate: int,
    spark: str,
    shards: int | None,
    replicas: int | None,
    data_centers: int,
    insert_locks: bool,
    survivors: bool,
    duplicates: float | None,
    store: StoreKind,
    delivery: Delivery,
    keep: bool,
    as_json: bool,
) -> int:
    """Break a real pipeline on purpose, then compare every row.

    Faults are told as they strike; on stderr if the report is JSON.
    """
    from sluice.testbed.chaos.layout import Layout

    seconds, layout = minutes * 60, None
    if shards is not None or replicas is not None or data_centers > 1 or insert_locks:
        layout = Layout(shards or 1, replicas or max(2, data_centers), data_centers, insert_locks)
    if duplicates is not None and (layout is not None or survivors):
        raise UsageError("--duplicates is of one server", "sluice chaos --duplicates 0.2")
    if delivery != "block" and (layout is not None or survivors or duplicates is not None):
        raise UsageError(
            f"--delivery {delivery} is of one server, and of messages that come once",
            f"sluice chaos --delivery {delivery}",
        )
    stream = sys.stderr if as_json else sys.stdout
    report: ChaosReport | SurvivorReport
    if survivors:
        report = _survivors(layout, seconds, int(rate * seconds), keep, stream)
    else:
        from sluice.testbed.chaos.runner import ChaosPlan, run_chaos

        plan = ChaosPlan(
            seconds,
            seed,
            rate,
            standalone=spark == "standalone",
            layout=layout,
            partitions=partitions,
            duplicates=duplicates or 0.0,
            store=store,
            delivery=delivery,
        )
        report = run_chaos(plan, keep=keep, stream=stream)
    if as_json:
        print_json(report.fields())
    else:
        print("\n".join(report.lines()))
    return ExitStatus.DONE if report.is_exact else ExitStatus.BROKEN


def _survivors(
    layout: Layout | None, seconds: float, rows: int, keep: bool, stream: TextIO
) -> SurvivorReport:
    from sluice.testbed.chaos.survivors import run_survivors

    if layout is None or layout.replicas < 2:
        raise UsageError("--survivors needs replicas", "sluice chaos --survivors --replicas 4")
    return run_survivors(layout, seconds, rows, keep=keep, stream=stream)
