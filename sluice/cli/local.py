"""`sluice local kafka`, `clickhouse` and `cluster`: the real parts on one machine; and `demo`: the
whole path on them, with the driver killed twice."""

from __future__ import annotations

from pathlib import Path

import click

from sluice.cli.arguments import Group, a_port, a_positive_number, command

_data = click.option(
    "--data", type=click.Path(path_type=Path), required=True, help="where its data is kept"
)
_port = click.option("--port", type=a_port, help="on 127.0.0.1 (default: a free one)")


@click.group(
    "local",
    cls=Group,
    subcommand_metavar="SERVER",
    no_args_is_help=False,
    example="sluice local kafka --data .local/kafka --port 9092",
)
def local() -> None:
    """Run a broker, ClickHouse or a cluster on this machine."""


@local.command("kafka", example="sluice local kafka --data .local/kafka --port 9092")
@_data
@_port
def kafka(data: Path, port: int | None) -> int:
    """Run a real Kafka broker.

    Prints {"brokers": …} once it is ready.
    """
    from sluice.testbed.local.broker import run_kafka

    return int(run_kafka(data, port))


@local.command("clickhouse", example="sluice local clickhouse --data .local/clickhouse --port 8123")
@_data
@_port
def clickhouse(data: Path, port: int | None) -> int:
    """Run ClickHouse's engine behind its HTTP protocol.

    Prints {"url": …} once it is ready.
    """
    from sluice.testbed.local.embedded.server import run_clickhouse

    return int(run_clickhouse(data, port))


@local.command("cluster", example="sluice local cluster --shards 1 --replicas 2")
@click.option("--shards", type=a_positive_number, default=1, help="shards")
@click.option("--replicas", type=a_positive_number, default=2, help="replicas of each shard")
def cluster(shards: int, replicas: int) -> int:
    """Run installed ClickHouse servers as shards of replicas, with ZooKeeper.

    Prints URLs, a [clickhouse] section and a table, and runs until it is interrupted.
    """
    from sluice.testbed.local.cluster.cluster import run_cluster

    return run_cluster(shards, replicas)


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
