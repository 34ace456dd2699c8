"""`sluice status`: where each partition stands, and how each replica is doing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sluice.cli.arguments import (
    Subparsers,
    add_command,
    add_configuration,
    add_json,
    load_configuration,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json
from sluice.cli.tables import render

if TYPE_CHECKING:
    from sluice.config import Configuration

_HEADERS = (
    "connector",
    "topic",
    "partition",
    "committed",
    "intent",
    "begin",
    "end",
    "state",
    "stable end",
    "lag",
    "batch",
    "owner",
    "shards",
)
_REPLICA_HEADERS = (
    "shard",
    "replica",
    "data center",
    "turn",
    "delay s",
    "queue",
    "active",
    "of",
    "why",
)


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "status",
        execute,
        "show where each partition stands",
        "sluice status sluice.toml --json",
    )
    add_configuration(parser)
    add_json(parser)
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="show how each replica is doing instead: behind or not, its delay and queue",
    )


def execute(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    if arguments.replicas:
        return _show_replicas(configuration, as_json=arguments.json)
    from sluice.ops.status import read_status

    partitions = read_status(configuration)
    if arguments.json:
        print_json(partitions)
        return ExitStatus.DONE
    rows = []
    for partition in partitions:
        intent = partition.intent
        shown_intent = (
            (None, None, None, None)
            if intent is None
            else (intent.kind, intent.begin, intent.end, intent.state)
        )
        rows.append(
            (
                partition.connector,
                partition.topic,
                partition.partition,
                partition.committed,
                *shown_intent,
                partition.stable_end,
                partition.lag,
                partition.batch,
                partition.owner,
                " ".join(partition.shards),
            )
        )
    print(render(_HEADERS, rows))
    return ExitStatus.DONE


def _show_replicas(configuration: Configuration, *, as_json: bool) -> int:
    from sluice.ops.replicas import read_replicas

    replicas = read_replicas(configuration)
    if as_json:
        print_json(replicas)
        return ExitStatus.DONE
    rows = [
        (
            each.shard,
            each.replica,
            each.data_center,
            "last" if each.why else "its own",
            each.delay_seconds,
            each.queue,
            each.active,
            each.total,
            each.why,
        )
        for each in replicas
    ]
    print(render(_REPLICA_HEADERS, rows))
    return ExitStatus.DONE
