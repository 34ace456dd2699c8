"""`sluice verify`: whether what was committed can be right."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli.arguments import (
    UsageError,
    a_port,
    command,
    config_argument,
    json_option,
    load_configuration,
)
from sluice.cli.exit import ExitStatus, stop_on_signals
from sluice.cli.output import Columns, cell_text, json_text, print_json, print_objects, print_table
from sluice.core.moments import shown_time

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.core.anomalies import Anomaly, Instance
    from sluice.verify.verifier import PartitionVerified, Source, VerifyReport

log = logging.getLogger(__name__)

_PARTITIONS: Columns[PartitionVerified] = {
    "connector": lambda each: each.connector,
    "topic": lambda each: each.topic,
    "partition": lambda each: each.partition,
    "from": lambda each: each.first and each.first.offset,
    "settled": lambda each: each.last and each.last.offset,
    "steps": lambda each: "  ".join(f"{n} {step}" for step, n in sorted(each.steps.items())),
    "messages": lambda each: each.messages or None,
    "rows": lambda each: "  ".join(f"{t} {n:,}" for t, n in sorted(each.rows.items())) or None,
}


@command("verify", "sluice verify sluice.toml --source ledger")
@config_argument
@click.option(
    "--source",
    type=click.Choice(("offsets", "ledger")),
    default="offsets",
    help="Kafka's own __consumer_offsets, or the ledger, which has receipts too",
)
@click.option("--follow", is_flag=True, help="go on as records come, until told to stop")
@click.option(
    "--metrics-port",
    type=a_port,
    help="with --follow: serve counters of anomalies for Prometheus",
)
@json_option
def verify(
    config: Path, source: Source, follow: bool, metrics_port: int | None, as_json: bool
) -> int:
    """Look for ranges that went backward, overlapped or left a gap."""
    if metrics_port is not None and not follow:
        raise UsageError("--metrics-port needs --follow", "sluice verify CONFIG --follow")
    configuration = load_configuration(config)
    if follow:
        return _follow(configuration, source, metrics_port, as_json=as_json)
    from sluice.verify import verifier

    report = verifier.verify(configuration, source)
    if as_json:
        print_json(report_fields(report))
    else:
        _print(report)
    return ExitStatus.BROKEN if report.anomalies else ExitStatus.DONE


def _follow(
    configuration: Configuration, source: Source, metrics_port: int | None, *, as_json: bool
) -> int:
    from sluice.verify.verifier import Verifier, follow

    def show(anomaly: Anomaly) -> None:
        if as_json:
            print(json_text(fields_of(anomaly)))
        else:
            _print_anomaly(anomaly)
        sys.stdout.flush()

    verifier = Verifier(configuration, source)
    if metrics_port is not None:
        from sluice.ops.verify_metrics import serve

        host = "127.0.0.1" if configuration.http is None else configuration.http.host
        port = serve(metrics_port, verifier, host)
        log.info("metrics", extra={"url": f"http://{host}:{port}/metrics"})
    with stop_on_signals() as stop:
        count = follow(verifier, stop, show)
    return ExitStatus.BROKEN if count else ExitStatus.DONE


def _print(report: VerifyReport) -> None:
    print_objects(report.partitions, _PARTITIONS)
    for each in report.logs:
        log.info(
            "read",
            extra={
                "connector": each.connector,
                "log": f"{each.topic}[{each.partition}]",
                "begin": each.begin,
                "end": each.end,
                "instances": each.instances,
            },
        )
    for anomaly in report.anomalies:
        print()
        _print_anomaly(anomaly)
    if report.unjudged:
        print(
            f"\nnot judged: {len(report.unjudged)} steps whose first record was compacted away "
            "while this was read; run the command again"
        )
    print(f"\n{_verdict(report)}")


def _verdict(report: VerifyReport) -> str:
    instances = sum(each.instances for each in report.logs)
    kinds: dict[str, int] = {}
    for anomaly in report.anomalies:
        kinds[anomaly.kind.value] = kinds.get(anomaly.kind.value, 0) + 1
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    seen = f"{instances:,} instances from {report.source}"
    return f"anomalies in {seen}: {found}" if found else f"clean: {seen}, no anomaly"


def _print_anomaly(anomaly: Anomaly) -> None:
    """What it is, and the two instances side by side."""
    tables = ", ".join(anomaly.tables) or "-"
    where = f"{anomaly.connector} {anomaly.source}, tables {tables}"
    print(cell_text(f"{anomaly.kind.value}: {where}: {anomaly.what}"))
    before, after = _cells(anomaly.before), _cells(anomaly.after)
    rows = [(name, before.get(name), after.get(name)) for name in after | before]
    print_table(("", "before", "after"), rows)


def _cells(instance: Instance | None) -> dict[str, str]:
    """What identifies an instance, in words."""
    if instance is None:
        return {}
    committed = shown_time(instance.at_ms, with_ms=True)
    cells = {"read at": str(instance.place), "committed at": committed}
    record = instance.record
    if record is None:
        return cells | {"offset": str(instance.offset), "metadata": str(instance.metadata)[:80]}
    cells |= {
        "kind": record.kind.word,
        "range": f"[{record.begin}, {record.end})",
        "batch": f"{record.batch}, attempt {record.attempt}",
        "owner": record.owner,
        "generation": str(record.generation),
        "load_spec": record.spec,
    }
    return cells | {"decided": instance.why} if instance.why else cells


def report_fields(report: VerifyReport) -> dict[str, Any]:
    """The report as JSON has it."""
    return {
        "source": report.source,
        "logs": report.logs,
        "partitions": [
            {
                "connector": partition.connector,
                "topic": partition.topic,
                "partition": partition.partition,
                "first": _instance_fields(partition.first),
                "last": _instance_fields(partition.last),
                "steps": partition.steps,
                "messages": partition.messages,
                "rows": partition.rows,
            }
            for partition in report.partitions
        ],
        "anomalies": [fields_of(anomaly) for anomaly in report.anomalies],
        "unjudged": [fields_of(anomaly) for anomaly in report.unjudged],
    }


def fields_of(anomaly: Anomaly) -> dict[str, Any]:
    """An anomaly as JSON has it."""
    return {
        "kind": anomaly.kind.value,
        "connector": anomaly.connector,
        "topic": anomaly.source.topic,
        "partition": anomaly.source.partition,
        "tables": anomaly.tables,
        "what": anomaly.what,
        "before": _instance_fields(anomaly.before),
        "after": _instance_fields(anomaly.after),
    }


def _instance_fields(instance: Instance | None) -> dict[str, Any] | None:
    if instance is None:
        return None
    record = instance.record
    said: dict[str, Any] = {
        "log": instance.place.topic,
        "log_partition": instance.place.partition,
        "log_offset": instance.place.offset,
        "at_ms": instance.at_ms,
        "offset": instance.offset,
        "metadata": instance.metadata,
    }
    if record is not None:
        said |= {
            "kind": record.kind.word,
            "begin": record.begin,
            "end": record.end,
            "batch": record.batch,
            "attempt": record.attempt,
            "owner": record.owner,
            "generation": record.generation,
            "load_spec": record.spec,
        }
    return said
