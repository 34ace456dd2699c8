"""`sluice status`: where each partition stands."""

from __future__ import annotations

import argparse

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


def execute(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
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
