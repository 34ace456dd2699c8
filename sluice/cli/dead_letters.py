"""`sluice dead-letters`: messages that could not become rows. List, show, replay, purge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sluice.cli.arguments import (
    Group,
    UsageError,
    a_positive_number,
    a_time_or_age,
    an_offset,
    config_argument,
    decided_options,
    json_option,
    load_configuration,
    load_to_decide,
    together,
    yes_option,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import (
    Columns,
    cell_text,
    confirm,
    print_json,
    print_json_list,
    print_objects,
    print_table,
)
from sluice.core.moments import shown_time

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.ops.dead_letters import Count, Found
    from sluice.ops.dead_letters_replaying import ReplayReport

_COUNTS: Columns[Count] = {
    "connector": lambda each: each.connector,
    "table": lambda each: each.table,
    "reason": lambda each: each.reason,
    "dead letters": lambda each: each.dead_letters,
    "waiting": lambda each: each.waiting,
    "first": lambda each: shown_time(each.first_ms),
    "last": lambda each: shown_time(each.last_ms),
}
PREVIEW_CHARACTERS = 100
_HEX_BYTES_A_LINE = 16


_EXAMPLE = "sluice dead-letters list sluice.toml"
_PLACE = "--topic orders --partition 3 --offset 1200"

_which = together(
    config_argument,
    click.option(
        "--parked",
        "of",
        flag_value="parking",
        help="messages of parked tables instead, which stand in the parking topic",
    ),
    click.option(
        "--duplicates",
        "of",
        flag_value="duplicates",
        help="copies of duplicates instead, which stand in the topic of [deduplication]",
    ),
    click.option("--connector", metavar="NAME", help="only of this connector"),
    click.option("--table", metavar="ENTRY", help="only of this table entry"),
)
_filters = together(
    _which,
    click.option("--reason", metavar="REASON", help="only of this reason"),
    click.option("--topic", metavar="TOPIC", help="only of this topic"),
    click.option("--partition", type=an_offset, help="only of this partition of the topic"),
)
_since = click.option(
    "--since",
    "since_ms",
    type=a_time_or_age,
    help="only younger ones: than a time like 2026-01-31T00:00:00Z, or an age like 1h",
)
_limit = click.option("--limit", type=a_positive_number, help="only the oldest so many")
_replayed = click.option("--replayed", is_flag=True, help="only those that were replayed")


@click.group(
    "dead-letters", cls=Group, subcommand_metavar="ACTION", no_args_is_help=False, example=_EXAMPLE
)
def dead_letters() -> None:
    """Look at messages that could not become rows."""


def _configuration(path: Path, of: str | None) -> Configuration:
    """The file, with the topic that is meant as that of the dead letters."""
    from sluice.ops.dead_letters import with_topic

    return with_topic(load_configuration(path), of)


@dead_letters.command("list", example=f"{_EXAMPLE} --table orders --since 1h")
@_filters
@_since
@_limit
@_replayed
@click.option("--waiting", is_flag=True, help="only those that were not")
@click.option("--summary", is_flag=True, help="only how many of which table and reason")
@json_option
def list_dead_letters(
    config: Path,
    of: str | None,
    limit: int | None,
    replayed: bool,
    waiting: bool,
    summary: bool,
    as_json: bool,
    **selected: Any,
) -> int:
    """List them: origin, reason, payload preview."""
    from sluice.ops.dead_letters import DeadLetterSelection, find, summarise

    if replayed and waiting:
        raise UsageError("--waiting contradicts --replayed", "Leave one of them out.")
    selection = DeadLetterSelection(**selected, replayed=replayed if replayed or waiting else None)
    dead_letters = _first(find(_configuration(config, of), selection), limit)
    if summary:
        counts = summarise(dead_letters)
        if as_json:
            print_json(counts)
            return ExitStatus.DONE
        print_objects(counts, _COUNTS)
    elif as_json:
        print_json_list(_fields(found) for found in dead_letters)
    else:
        for found in dead_letters:  # not a table: there may be millions
            print(_line(found))
            print(f"    {_preview(found.letter.value)}")
    return ExitStatus.DONE


def _first(dead_letters: Iterator[Found], limit: int | None) -> Iterator[Found]:
    for number, found in enumerate(dead_letters, 1):
        yield found
        if number == limit:
            return


def _line(found: Found) -> str:
    letter, first = found.letter, found.letter.first
    where = f"{letter.table}.{letter.column}" if letter.column else letter.table
    said = f"{found.connector} {first.topic} {first.partition} {first.offset}"
    if letter.attempt > 1:
        said += f" (attempt {letter.attempt})"
    if found.replayed is not None:
        said += f" (replayed {_time(found.replayed.at_ms)})"
    return cell_text(f"{said}  {letter.reason}: {where}: {letter.error}")


def _fields(found: Found) -> dict[str, object]:
    letter, first, replayed = found.letter, found.letter.first, found.replayed
    return {
        "connector": found.connector,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp_ms": letter.timestamp_ms,
        "origin": {
            "topic": first.topic,
            "partition": first.partition,
            "offset": first.offset,
            "timestamp_ms": first.timestamp_ms,
        },
        "attempt": letter.attempt,
        "attempted_at_ms": found.stored.written_at_ms,
        "reason": letter.reason,
        "error": letter.error,
        "table": letter.table,
        "column": letter.column,
        "truncated": letter.truncated,
        "load_spec": letter.spec,
        "version": found.stored.version,
        "replayed_at_ms": None if replayed is None else replayed.at_ms,
        "replayed_by": None if replayed is None else replayed.by,
        **{name.replace("-", "_"): value for name, value in letter.facts},
        "key": letter.key,
        "preview": _preview(letter.value),
        "headers": [{"name": name, "value": value} for name, value in letter.headers],
    }


@dead_letters.command("show", example=f"sluice dead-letters show sluice.toml {_PLACE}")
@_which
@click.option("--topic", required=True, help="its topic")
@click.option("--partition", required=True, type=an_offset, help="its partition")
@click.option("--offset", required=True, type=an_offset, help="its offset in the topic")
@click.option("--hex", "is_hex", is_flag=True, help="print the payload as hexadecimal")
@json_option
def show(config: Path, of: str | None, is_hex: bool, as_json: bool, **selected: Any) -> int:
    """Show all of one message: headers, payload, error, what to do."""
    from sluice.ops.dead_letters import DeadLetterSelection, advice, find_one

    found = find_one(_configuration(config, of), DeadLetterSelection(**selected))
    if as_json:
        print_json_list(
            {**_fields(each), "value": _payload(each, is_hex), "advice": advice(each)}
            for each in found
        )
        return ExitStatus.DONE
    for number, each in enumerate(found):
        if number:
            print()
        print_table(("", ""), _named(each, advice(each)))
        print("payload:")
        print(_payload(each, is_hex))
    return ExitStatus.DONE


def _named(found: Found, advice: str) -> list[tuple[str, object]]:
    letter, first, stored = found.letter, found.letter.first, found.stored
    named: list[tuple[str, object]] = [
        ("origin", f"{first.topic}[{first.partition}] offset {first.offset}"),
        ("timestamp", _time(first.timestamp_ms)),
    ]
    if letter.origin is not None:
        named.append(("replayed to", f"{letter.topic}[{letter.partition}] offset {letter.offset}"))
    replayed = found.replayed
    named += [
        ("table", letter.table or "-"),
        ("column", letter.column or "-"),
        ("reason", letter.reason),
        ("error", letter.error),
        *((name.replace("-", " "), value) for name, value in letter.facts),
        ("attempt", str(letter.attempt)),
        ("attempted at", _time(stored.written_at_ms)),
        ("replayed", f"{_time(replayed.at_ms)} by {replayed.by}" if replayed else "no"),
        ("load spec", letter.spec or "-"),
        ("version", stored.version),
        ("cut", ", ".join(stored.cut) or "no"),
        ("key", "-" if letter.key is None else letter.key.decode(errors="backslashreplace")),
    ]
    for name, value in letter.headers:
        shown = "-" if value is None else value.decode(errors="backslashreplace")
        named.append((f"header {name}", shown))
    return [*named, ("what to do", advice)]


def _payload(found: Found, is_hex: bool) -> str:
    """The whole payload: as text where it is text, which cannot steer the terminal."""
    value = found.letter.value
    if value is None:
        return "-"
    if not is_hex:
        try:
            return "\n".join(cell_text(line) for line in value.decode().split("\n"))
        except UnicodeDecodeError:
            pass
    return "\n".join(
        f"{at:08x}  {value[at : at + _HEX_BYTES_A_LINE].hex(' ')}"
        for at in range(0, len(value), _HEX_BYTES_A_LINE)
    )


@dead_letters.command(
    "replay",
    example="sluice dead-letters replay sluice.toml --reason out-of-range\n"
    f"sluice dead-letters replay sluice.toml {_PLACE}",
)
@_filters
@_since
@click.option("--offset", type=an_offset, help="only of this offset")
@_limit
@decided_options
@yes_option
@json_option
def replay(
    config: Path,
    of: str | None,
    limit: int | None,
    by: str | None,
    why: str,
    yes: bool,
    as_json: bool,
    **selected: Any,
) -> int:
    """Put messages back into their topics, each once.

    They are loaded for the table that missed them.
    """
    from sluice.ops import dead_letters_replaying as replaying
    from sluice.ops.dead_letters import DeadLetterSelection, with_topic

    # A copy is loaded by the newest version, and so are the keys of its claims those of it.
    configuration = with_topic(load_to_decide(config, selected["connector"]), of)
    plan = replaying.plan_replay(configuration, DeadLetterSelection(**selected), limit)
    report = replaying.ReplayReport(replayed_before=plan.replayed_before)
    if plan.dead_letters:
        if not confirm(plan.steps(), yes):
            return ExitStatus.BROKEN
        done = replaying.replay(configuration, plan, by=by, why=why)
        done.replayed_before += plan.replayed_before
        report = done
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    return ExitStatus.BROKEN if report.refused else ExitStatus.DONE


def _print_report(report: ReplayReport) -> None:
    rows = [
        ("replayed", report.replayed),
        ("replayed before", report.replayed_before),
        ("refused", report.refused),
    ]
    print_table(("", ""), rows)
    for refusal in report.refusals:
        first = refusal.stored.letter.first
        where = f"{refusal.connector} {first.topic} {first.partition} {first.offset}"
        print(cell_text(f"{where}  {refusal.why}. Try: {refusal.hint}"))


@dead_letters.command(
    "purge",
    example="sluice dead-letters purge sluice.toml --before 720h\n"
    "sluice dead-letters purge sluice.toml --replayed",
)
@_filters
@click.option(
    "--before",
    "before_ms",
    type=a_time_or_age,
    help="only older ones: than a time like 2026-01-31T00:00:00Z, or an age like 24h",
)
@_replayed
@click.option("--all", "is_all", is_flag=True, help="all of them")
@decided_options
@yes_option
@json_option
def purge(
    config: Path,
    of: str | None,
    replayed: bool,
    is_all: bool,
    by: str | None,
    why: str,
    yes: bool,
    as_json: bool,
    **selected: Any,
) -> int:
    """Delete dead letters for good, from the oldest on."""
    from sluice.ops import dead_letters_purging as purging
    from sluice.ops.dead_letters import DeadLetterSelection

    filters = {name for name, value in selected.items() if value is not None} - {"connector"}
    if bool(filters or replayed) == is_all:
        raise UsageError(
            "purge needs to know what: filters, or --all, not both",
            "sluice dead-letters purge --help",
        )
    configuration = _configuration(config, of)
    selection = DeadLetterSelection(**selected, replayed=True if replayed else None)
    plan = purging.plan_purge(configuration, selection)
    if not confirm(plan.steps(configuration.dead_letters_topic), yes):
        return ExitStatus.BROKEN
    done = purging.purge(configuration, selection, plan, by=by, why=why)
    if as_json:
        print_json({"purged": done.dead_letters, "kept": plan.kept})
    else:
        print_table(("", ""), [("purged", done.dead_letters), ("kept", plan.kept)])
    return ExitStatus.DONE


def _time(at_ms: int | None) -> str:
    return "-" if at_ms is None else shown_time(at_ms)


def _preview(payload: bytes | None) -> str:
    """The beginning of a payload on one line; it cannot steer the terminal."""
    if payload is None:
        return "-"
    text = cell_text(payload[: PREVIEW_CHARACTERS * 4].decode(errors="backslashreplace"))
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"
