"""`sluice audit`: the topics against the tables, offset by offset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import command, config_argument, json_option, load_applied
from sluice.cli.exit import ExitStatus
from sluice.cli.output import cell_text, print_json, print_table

_COUNTS = (
    *("produced", "loaded", "dead_lettered", "skipped", "duplicates"),
    *("missing", "doubled", "foreign"),
)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluice.verify.audit import AuditReport


@command("audit", "sluice audit sluice.toml --json")
@config_argument
@json_option
@click.option(
    "--spark",
    "on_spark",
    is_flag=True,
    help="compare on the [spark] master of CONFIG, in parallel; for many millions of messages",
)
@click.option(
    "--duplicates",
    "proves_duplicates",
    is_flag=True,
    help="prove that what was left out as a duplicate has a row: reads these messages again, and "
    "the keys of all rows",
)
def audit(config: Path, as_json: bool, on_spark: bool, proves_duplicates: bool) -> int:
    """Compare topics and tables by topic, partition and offset.

    Where a message may have several rows, how many there are is compared with the ledger's
    receipts, stretch by stretch.
    """
    from sluice.verify import audit as auditing

    configuration = load_applied(config)

    if on_spark:
        from functools import partial

        from sluice.spark.class_archive import archive_options
        from sluice.spark.context import spread, start_context

        spark = configuration.spark
        context = start_context(
            f"audit {configuration.pipeline}",
            spark.master,
            spark.properties(),
            archive_options(),
            spark.secret_names,
        )
        try:
            report = auditing.audit(
                configuration,
                spread=partial(spread, context),
                proves_duplicates=proves_duplicates,
            )
        finally:
            context.stop()
    else:
        report = auditing.audit(configuration, proves_duplicates=proves_duplicates)
    if as_json:
        print_json(report)
    else:
        rows = [(name.replace("_", "-"), getattr(report, name)) for name in _COUNTS]
        print_table(("what", "rows"), rows)
        for line in _where(report):
            print(cell_text(line))
    return ExitStatus.BROKEN if report.is_broken else ExitStatus.DONE


def _where(report: AuditReport) -> Iterator[str]:
    yield from report.where()
    for partition in report.partitions:
        source = f"{partition.connector} {partition.topic}[{partition.partition}]"
        for table in partition.tables:
            for who, rows in table.foreign_sources.items():
                yield f"foreign: {rows} rows of {source} in {table.target} were loaded by {who}"
            if table.misplaced:
                yield (
                    f"misplaced: {table.misplaced} rows of {source} in {table.target} stand in "
                    "another shard than its sharding says: a query that skips shards misses them"
                )
    for each in report.unproven:
        yield (
            f"unproven: offset {each.offset} of {each.topic}[{each.partition}] was left "
            f"out of {each.target} as a duplicate, and {each.why}"
        )
    if report.uncounted:
        yield (
            f"not counted: {report.uncounted} messages may have several rows, and the ledger has "
            "no receipt that says how many: rows within them may be missing"
        )
    yield from report.not_demanded_where()
    if report.unrecorded:
        yield (
            f"not recorded: {report.unrecorded} settled messages were judged by the table entries "
            "of now, since the ledger has no load spec that says by which they were loaded"
        )
    for loaded in report.former:
        yield f"not audited: table entry {loaded}, which loads these topics there no more"
    for entry in report.unaudited:
        yield f"not audited: table entry {entry}, whose rows carry no offset (lineage = false)"
