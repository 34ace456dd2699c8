"""`sluice dead-letters list`: messages that could not become rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.cli.arguments import (
    Subparsers,
    add_command,
    add_configuration,
    add_json,
    load_configuration,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json_list
from sluice.cli.tables import cell_text

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.core.receipts import DeadLetter

PREVIEW_CHARACTERS = 100


def add(subparsers: Subparsers) -> None:
    example = "sluice dead-letters list sluice.toml"
    parser = add_command(
        subparsers, "dead-letters", None, "look at messages that could not become rows", example
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = add_command(
        actions, "list", execute, "list them: origin, reason, payload preview", example
    )
    add_configuration(listing)
    add_json(listing)


def execute(arguments: argparse.Namespace) -> int:
    letters = _read(load_configuration(arguments))
    if arguments.json:
        print_json_list(
            {"connector": connector, **_fields(letter)} for connector, letter in letters
        )
        return ExitStatus.DONE
    for connector, letter in letters:  # not a table: there may be millions
        origin = f"{connector} {letter.topic} {letter.partition} {letter.offset}"
        where = f"{letter.table}.{letter.column}" if letter.column else letter.table
        print(cell_text(f"{origin}  {letter.reason}: {where}: {letter.error}"))
        print(f"    {_preview(letter.value)}")
    return ExitStatus.DONE


def _read(configuration: Configuration) -> Iterator[tuple[str, DeadLetter]]:
    """The dead letters of every connector; each has its topic on its own cluster."""
    from sluice.kafka.clients import KafkaAccess
    from sluice.kafka.dead_letters import read_dead_letters

    for connector in configuration.connectors:
        access = KafkaAccess(connector.name, connector.brokers, connector.properties())
        for letter in read_dead_letters(access, configuration.dead_letters_topic):
            yield connector.name, letter


def _fields(letter: DeadLetter) -> dict[str, object]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.timestamp_ms,
        "reason": letter.reason,
        "error": letter.error,
        "table": letter.table,
        "column": letter.column,
        "truncated": letter.truncated,
        "key": letter.key,
        "preview": _preview(letter.value),
        "headers": [{"name": name, "value": value} for name, value in letter.headers],
    }


def _preview(payload: bytes | None) -> str:
    """The beginning of a payload on one line; it cannot steer the terminal."""
    if payload is None:
        return "-"
    text = cell_text(payload[: PREVIEW_CHARACTERS * 4].decode(errors="backslashreplace"))
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"
