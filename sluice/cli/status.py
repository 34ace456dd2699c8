"""`sluice status`: where each partition stands, and how each replica is doing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import (
    UsageError,
    command,
    config_argument,
    json_option,
    load_applied,
    load_configuration,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import Columns, cell_text, print_json, print_objects

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.ops.status import PartitionStatus, ReplicaStatus

_PARTITIONS: Columns[PartitionStatus] = {
    "connector": lambda each: each.connector,
    "topic": lambda each: each.topic,
    "partition": lambda each: each.partition,
    "committed": lambda each: each.committed,
    "intent": lambda each: each.intent and each.intent.kind,
    "begin": lambda each: each.intent and each.intent.begin,
    "end": lambda each: each.intent and each.intent.end,
    "state": lambda each: each.intent and each.intent.state,
    "last stable": lambda each: each.stable_end,
    "lag": lambda each: each.lag,
    "batch": lambda each: each.batch,
    "owner": lambda each: each.owner,
    "shards": lambda each: " ".join(each.shards),
}
_REPLICAS: Columns[ReplicaStatus] = {
    "shard": lambda each: each.shard,
    "replica": lambda each: each.replica,
    "data center": lambda each: each.data_center,
    "turn": lambda each: "last" if each.why else "its own",
    "delay s": lambda each: each.delay_seconds,
    "queue": lambda each: each.queue,
    "active": lambda each: each.active,
    "of": lambda each: each.total,
    "why": lambda each: each.why,
}


@command("status", "sluice status sluice.toml --json")
@config_argument
@json_option
@click.option(
    "--replicas",
    is_flag=True,
    help="show how each replica is doing instead: behind or not, its delay and queue",
)
@click.option(
    "--proof",
    is_flag=True,
    help="show instead what the verifier and the audit beside the driver said last, and when",
)
def status(config: Path, as_json: bool, replicas: bool, proof: bool) -> int:
    """Show where each partition stands."""
    if replicas and proof:
        raise UsageError("--replicas and --proof are two questions", "Ask one of them.")
    if replicas:
        return _show_replicas(load_applied(config), as_json=as_json)
    if proof:
        return _show_proof(load_configuration(config), as_json=as_json)
    from sluice.ops.status import read_status

    configuration = load_applied(config)
    partitions = read_status(configuration)
    if as_json:
        print_json(partitions)
        return ExitStatus.DONE
    print_objects(partitions, _PARTITIONS)
    lines = ((each.connector, (*each.frozen, *each.frozen_replicas)) for each in partitions)
    frozen = {(connector, line): None for connector, found in lines for line in found}
    for connector, line in frozen:
        print(cell_text(f"connector {connector}: {line}"))
    _show_members(configuration)
    _show_claims(configuration)
    _show_leftovers(configuration)
    _tell_driver(configuration)
    return ExitStatus.DONE


def _tell_driver(configuration: Configuration) -> None:
    """What only a driver knows: which topics it refuses, and what continuous proof says."""
    from sluice.ops.http.asking import DriverSilentError, read_proof, read_refused

    try:
        lines = read_refused(configuration)
        lines += [each.line() for each in read_proof(configuration)]
    except DriverSilentError as error:
        lines = [f"refused topics and continuous proof are not known: {error}"]
    for line in lines:
        print(cell_text(line))


def _show_proof(configuration: Configuration, *, as_json: bool) -> int:
    from sluice.ops.http.asking import read_proof

    found = read_proof(configuration)
    if as_json:
        print_json(found)
        return ExitStatus.DONE
    for each in found:
        print(cell_text(each.line()))
    if not found:
        print("continuous proof is off: neither [verify] nor [audit] is configured")
    return ExitStatus.DONE


def _show_members(configuration: Configuration) -> None:
    """Who reports, where drivers do."""
    if configuration.fleet is None:
        return
    from sluice.ops.fleet import member_lines

    for line in member_lines(configuration):
        print(cell_text(line))


def _show_claims(configuration: Configuration) -> None:
    """The store of claims, where there is one."""
    if all(table.deduplicate is None for table in configuration.tables):
        return
    from sluice.ops.claims import read_claims_status

    claims = read_claims_status(configuration)
    if claims is not None:
        print(cell_text(claims.line()))


def _show_leftovers(configuration: Configuration) -> None:
    """Staging tables that nobody seems to be at."""
    from sluice.ops.status import read_leftovers

    for leftover in read_leftovers(configuration):
        print(cell_text(leftover.line()))


def _show_replicas(configuration: Configuration, *, as_json: bool) -> int:
    from sluice.ops.status import read_replicas

    replicas = read_replicas(configuration)
    if as_json:
        print_json(replicas)
        return ExitStatus.DONE
    print_objects(replicas, _REPLICAS)
    return ExitStatus.DONE
