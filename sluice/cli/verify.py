"""`sluice verify`: whether what was committed can be right."""

from __future__ import annotations

import argparse
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sluice.cli.arguments import (
    Subparsers,
    UsageError,
    a_port,
    add_command,
    add_configuration,
    add_json,
    load_configuration,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import json_text, print_json
from sluice.cli.stopping import stop_on_signals
from sluice.cli.tables import render

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.core.anomalies import Anomaly
    from sluice.core.instances import Instance
    from sluice.verify.verifier import PartitionVerified, VerifyReport

log = logging.getLogger(__name__)

_HEADERS = ("connector", "topic", "partition", "from", "settled", "steps", "messages", "rows")


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "verify",
        execute,
        "look for ranges that went backward, overlapped or left a gap",
        "sluice verify sluice.toml --source ledger",
    )
    add_configuration(parser)
    parser.add_argument(
        "--source",
        choices=("offsets", "ledger"),
        default="offsets",
        help="Kafka's own __consumer_offsets (default), or the ledger, which has receipts too",
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on as records come, until told to stop"
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=a_port,
        help="with --follow: serve counters of anomalies for Prometheus",
    )
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    if arguments.metrics_port is not None and not arguments.follow:
        raise UsageError("--metrics-port needs --follow", "sluice verify CONFIG --follow")
    configuration = load_configuration(arguments)
    if arguments.follow:
        return _follow(configuration, arguments)
    from sluice.verify.verifier import verify

    report = verify(configuration, arguments.source)
    if arguments.json:
        print_json(report_fields(report))
    else:
        _print(report)
    return ExitStatus.BROKEN if report.anomalies else ExitStatus.DONE


def _follow(configuration: Configuration, arguments: argparse.Namespace) -> int:
    from sluice.verify.verifier import Verifier, follow

    def show(anomaly: Anomaly) -> None:
        print(json_text(fields_of(anomaly)) if arguments.json else shown(anomaly))
        sys.stdout.flush()

    verifier = Verifier(configuration, arguments.source)
    if arguments.metrics_port is not None:
        from sluice.ops.verify_metrics import serve

        host = "127.0.0.1" if configuration.metrics is None else configuration.metrics.host
        port = serve(arguments.metrics_port, verifier, host)
        log.info("metrics", extra={"url": f"http://{host}:{port}/metrics"})
    with stop_on_signals() as stop:
        count = follow(verifier, stop, show)
    return ExitStatus.BROKEN if count else ExitStatus.DONE


def _print(report: VerifyReport) -> None:
    print(render(_HEADERS, [_row(partition) for partition in report.partitions]))
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
        print(f"\n{shown(anomaly)}")
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


def _row(partition: PartitionVerified) -> tuple[object, ...]:
    first, last = partition.first, partition.last
    return (
        partition.connector,
        partition.topic,
        partition.partition,
        None if first is None else first.offset,
        None if last is None else last.offset,
        "".join(f"{count} {step}  " for step, count in sorted(partition.steps.items())).strip(),
        partition.messages or None,
        "  ".join(f"{name} {count:,}" for name, count in sorted(partition.rows.items())) or None,
    )


def shown(anomaly: Anomaly) -> str:
    """An anomaly for people: what it is, and the two instances side by side."""
    tables = ", ".join(anomaly.tables) or "-"
    where = f"{anomaly.connector} {anomaly.source}, tables {tables}"
    before, after = _cells(anomaly.before), _cells(anomaly.after)
    rows = [(name, before.get(name), after.get(name)) for name in after | before]
    return f"{anomaly.kind.value}: {where}: {anomaly.what}\n" + render(
        ("", "before", "after"), rows
    )


def _cells(instance: Instance | None) -> dict[str, str]:
    """What identifies an instance, in words."""
    if instance is None:
        return {}
    cells = {"read at": str(instance.place), "committed at": _time(instance.at_ms)}
    record = instance.record
    if record is None:
        return cells | {"offset": str(instance.offset), "metadata": str(instance.metadata)[:80]}
    cells |= {
        "kind": record.kind.name.lower(),
        "range": f"[{record.begin}, {record.end})",
        "batch": f"{record.batch}, attempt {record.attempt}",
        "owner": record.owner,
        "generation": str(record.generation),
        "text": record.text,
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
            "kind": record.kind.name.lower(),
            "begin": record.begin,
            "end": record.end,
            "batch": record.batch,
            "attempt": record.attempt,
            "owner": record.owner,
            "generation": record.generation,
            "text": record.text,
        }
    return said


def _time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
