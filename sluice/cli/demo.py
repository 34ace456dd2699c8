"""`sluice demo`: the whole path on one machine, with the driver killed twice."""

from __future__ import annotations

import click

from sluice.cli.arguments import a_positive_number, command


@command("demo", "sluice demo --rows 200000")
@click.option(
    "--rows", type=a_positive_number, default=1_000_000, help="how many messages to produce"
)
@click.option(
    "--partitions",
    type=a_positive_number,
    default=4,
    show_default=True,
    help="of the topic; small ranges of many are loaded together",
)
@click.option("--keep", is_flag=True, help="leave the folder and its data behind to look further")
def demo(rows: int, partitions: int, keep: bool) -> int:
    """Load a million orders, kill the driver twice, audit every row."""
    from sluice.testbed.local.demo import run_demo

    return int(run_demo(rows=rows, partitions=partitions, keep=keep))
