"""`sluice ledger`: what was intended, acknowledged and settled, as the ledger has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli.arguments import (
    a_time_or_age,
    an_offset,
    command,
    config_argument,
    json_option,
    load_configuration,
)
from sluice.cli.exit import ExitStatus, stop_on_signals
from sluice.cli.output import cell_text, json_text
from sluice.core.moments import shown_time

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = "{:<24}  {:<28}  {:<11}  {:<26}  {:>7}  {:>7}  {}"
_HEADERS = ("time", "partition", "entry", "offsets", "batch", "attempt", "details")


@command("ledger", "sluice ledger sluice.toml --table orders --since 1h")
@config_argument
@click.option("--connector", metavar="NAME", help="only of this connector")
@click.option("--topic", metavar="TOPIC", help="only of this topic")
@click.option("--partition", type=an_offset, help="only of this partition")
@click.option(
    "--table", metavar="ENTRY", help="only receipts of this table entry, and what its topics did"
)
@click.option(
    "--since",
    "since_ms",
    type=a_time_or_age,
    help="only younger entries: a time like 2026-01-31T00:00:00Z, or an age like 1h",
)
@click.option("--follow", is_flag=True, help="go on as entries come, until interrupted")
@json_option
def ledger(config: Path, follow: bool, as_json: bool, **selected: Any) -> int:
    """List what was intended, acknowledged and settled."""
    configuration = load_configuration(config)
    from sluice.ops.ledger_view import LedgerSelection, read_ledger

    selection = LedgerSelection(**selected)
    with stop_on_signals() if follow else nullcontext() as stop:
        for number, entry in enumerate(read_ledger(configuration, selection, stop)):
            if as_json:
                print(json_text(entry))
            else:
                if number == 0:
                    print(_LINE.format(*_HEADERS))
                print(line_of(entry))
            if follow:
                sys.stdout.flush()
    return ExitStatus.DONE


def line_of(entry: Mapping[str, Any]) -> str:
    """An entry as one line for people."""
    partition = entry["connector"]
    if "topic" in entry:
        partition = f"{partition} {entry['topic']}[{entry['partition']}]"
    offsets = f"[{entry['begin']}, {entry['end']})" if "begin" in entry else "-"
    details = ", ".join(_details(entry))
    cells = (
        shown_time(int(entry["at_ms"]), with_ms=True),
        partition,
        entry.get("kind", entry["type"]),
        offsets,
        entry.get("batch", "-"),
        entry.get("attempt", "-"),
        details,
    )
    return _LINE.format(*(cell_text(str(cell)) for cell in cells)).rstrip()


def _details(entry: Mapping[str, Any]) -> Iterator[str]:
    """What an entry says besides, in words."""
    kind = entry["type"]
    if kind == "record":
        if entry.get("why"):
            yield f"decided: {entry['why']}"
        yield f"owner {entry['owner']}"
        for name, offsets in entry.get("rest", {}).items():
            from sluice.core import rests  # here, so that the help stays quick

            yield f"{rests.count(offsets)} offsets missing in {name}"
    elif kind == "receipt":
        yield f"{entry['entry']} ({entry['target']}) in shard {entry['shard']}"
        yield f"{entry['rows']} rows, {entry['bytes']} bytes, checksum {entry['checksum']}"
        yield f"{entry['replica']} after {entry['insert_ms']} ms"
        for failed in entry.get("failed_over", ()):
            yield f"past {failed}"
    elif kind == "settled":
        yield f"{entry['messages']} messages, {entry['rows']} rows, {entry['bytes']} bytes"
        yield f"{entry['dead_letters']} dead letters, {entry['skipped']} skipped"
        yield f"{entry['seconds']['total']} s"
    elif kind == "load_spec":
        yield f"{entry['digest']}, {len(entry['text'])} characters"
    elif kind in ("freeze", "resume"):
        from sluice.core.decided import subject_of

        try:
            subject = str(subject_of(entry))
        except (KeyError, ValueError):  # of a newer version
            subject = str(entry["what"])
        yield f"{subject}, by {entry['by']}: {entry['why']}"
    elif kind == "set":
        value = "as at the start" if entry["value"] is None else entry["value"]
        yield f"{entry['name']} is {value}, by {entry['by']}: {entry['why']}"
    elif kind == "apply":
        what = f"version {entry['version']} ({entry['digest']}) after {entry['base']}"
        yield f"{what}, by {entry['by']}: {entry['why'] or 'no reason'}"
    elif kind == "taken":
        yield f"version {entry['version']} by {entry['owner']}: {entry['error'] or 'loads by it'}"
    elif kind in ("drain", "reload", "replay", "purge"):
        member = f"member {entry['member']}, " if entry.get("member") else ""
        yield f"{member}by {entry['by']}: {entry['why']}"
        yield from entry.get("steps", ())
    elif kind == "checkpoint":
        yield f"the last records of {len(entry['records'])} partitions"
    elif kind == "late_insert":
        yield f"may still be inserted until {shown_time(int(entry['deadline_ms']), with_ms=True)}"
    elif kind == "unreadable":
        yield f"no entry of Sluice at ledger offset {entry['offset']}: {entry['value']}"
