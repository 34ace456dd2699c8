"""`sluice audit`: the topics against the tables, offset by offset."""

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

_COUNTS = ("produced", "loaded", "dead_lettered", "skipped", "missing", "doubled", "foreign")


if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluice.verify.audit import AuditReport


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "audit",
        execute,
        "compare topics and tables by topic, partition, offset and row",
        "sluice audit sluice.toml --json",
    )
    add_configuration(parser)
    add_json(parser)
    parser.add_argument(
        "--spark",
        action="store_true",
        help="compare on the [spark] master of CONFIG, in parallel; for many millions of messages",
    )


def execute(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    from sluice.verify.audit import audit

    if arguments.spark:
        from functools import partial

        from sluice.spark.class_archive import archive_options
        from sluice.spark.session import start_session
        from sluice.spark.spread import spread

        spark = configuration.spark
        session = start_session(
            f"audit {configuration.pipeline}",
            spark.master,
            spark.properties(),
            archive_options(),
        )
        try:
            report = audit(configuration, spread=partial(spread, session))
        finally:
            session.stop()
    else:
        report = audit(configuration)
    if arguments.json:
        print_json(report)
    else:
        print(render(("what", "rows"), [(_words(name), getattr(report, name)) for name in _COUNTS]))
        for line in _where(report):
            print(line)
    is_broken = report.missing or report.doubled or report.foreign
    return ExitStatus.BROKEN if is_broken else ExitStatus.DONE


def _where(report: AuditReport) -> Iterator[str]:
    """Where the findings are: the first intervals of each partition and table."""
    for partition in report.partitions:
        for table in partition.tables:
            for what in ("missing", "doubled", "foreign"):
                for begin, end in getattr(table, f"{what}_at"):
                    source = f"{partition.connector} {partition.topic}[{partition.partition}]"
                    yield f"{what}: {source} offsets [{begin}, {end}) in {table.target}"
            for who, rows in table.foreign_sources.items():
                source = f"{partition.connector} {partition.topic}[{partition.partition}]"
                yield f"foreign: {rows} rows of {source} in {table.target} were loaded by {who}"
            if table.misplaced:
                source = f"{partition.connector} {partition.topic}[{partition.partition}]"
                yield (
                    f"misplaced: {table.misplaced} rows of {source} in {table.target} stand in "
                    "another shard than its sharding says: a query that skips shards misses them"
                )
    for entry in report.unaudited:
        yield f"not audited: table entry {entry}, whose rows carry no offset (lineage = false)"


def _words(name: str) -> str:
    return name.replace("_", "-")
