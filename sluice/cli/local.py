"""`sluice local kafka`, `clickhouse` and `cluster`: the real parts on one machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from sluice.cli.arguments import Subparsers, a_port, a_positive_number, add_command


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "local",
        None,
        "run a broker, an embedded ClickHouse or a cluster of servers on this machine",
        "sluice local kafka --data .local/kafka --port 9092",
    )
    servers = parser.add_subparsers(dest="server", metavar="SERVER", required=True)
    kafka = add_command(
        servers,
        "kafka",
        execute_kafka,
        'run a real Kafka broker; prints {"brokers": …} once it is ready',
        "sluice local kafka --data .local/kafka --port 9092",
    )
    clickhouse = add_command(
        servers,
        "clickhouse",
        execute_clickhouse,
        'run ClickHouse\'s engine behind its HTTP protocol; prints {"url": …} once it is ready',
        "sluice local clickhouse --data .local/clickhouse --port 8123",
    )
    for server in (kafka, clickhouse):
        server.add_argument(
            "--data", metavar="DIR", type=Path, required=True, help="where its data is kept"
        )
        server.add_argument("--port", type=a_port, help="on 127.0.0.1 (default: a free one)")
    cluster = add_command(
        servers,
        "cluster",
        execute_cluster,
        "run installed ClickHouse servers as shards of replicas, with ZooKeeper; prints URLs, "
        "a [clickhouse] section and a table, and runs until it is interrupted",
        "sluice local cluster --shards 1 --replicas 2",
    )
    for name, default, what in (("shards", 1, "shards"), ("replicas", 2, "replicas of each shard")):
        cluster.add_argument(
            f"--{name}",
            type=a_positive_number,
            metavar="N",
            default=default,
            help=f"{what} (default: {default})",
        )


def execute_kafka(arguments: argparse.Namespace) -> int:
    from sluice.testbed.local.broker import run_kafka

    return int(run_kafka(arguments.data, arguments.port))


def execute_clickhouse(arguments: argparse.Namespace) -> int:
    from sluice.testbed.local.embedded.server import run_clickhouse

    return int(run_clickhouse(arguments.data, arguments.port))


def execute_cluster(arguments: argparse.Namespace) -> int:
    from sluice.testbed.local.cluster.serving import run_cluster

    return run_cluster(arguments.shards, arguments.replicas)
