"""`sluice dead-letters`: messages that could not become rows. List, show, replay, purge."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sluice.cli.arguments import (
    CommandParser,
    Subparsers,
    UsageError,
    a_positive_number,
    add_command,
    add_configuration,
    add_json,
    an_offset,
    load_configuration,
)
from sluice.cli.confirm import confirm
from sluice.cli.exit import ExitStatus
from sluice.cli.ledger import a_time_or_age
from sluice.cli.output import print_json, print_json_list
from sluice.cli.tables import cell_text, render

if TYPE_CHECKING:
    from sluice.config.model import Configuration
    from sluice.ops.dead_letters import Found, Selection
    from sluice.ops.dead_letters_replaying import ReplayReport

PREVIEW_CHARACTERS = 100
_HEX_BYTES_A_LINE = 16


def add(subparsers: Subparsers) -> None:
    example = "sluice dead-letters list sluice.toml"
    parser = add_command(
        subparsers, "dead-letters", None, "look at messages that could not become rows", example
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = add_command(
        actions,
        "list",
        execute_list,
        "list them: origin, reason, payload preview",
        f"{example} --table orders --since 1h",
    )
    _add_filters(listing)
    _add_since(listing)
    listing.add_argument(
        "--limit", metavar="N", type=a_positive_number, help="only the oldest so many"
    )
    which = listing.add_mutually_exclusive_group()
    which.add_argument("--replayed", action="store_true", help="only those that were replayed")
    which.add_argument("--waiting", action="store_true", help="only those that were not")
    listing.add_argument(
        "--summary", action="store_true", help="only how many of which table and reason"
    )
    add_json(listing)
    place = "--topic orders --partition 3 --offset 1200"
    show = add_command(
        actions,
        "show",
        execute_show,
        "show all of one message: headers, payload, error, what to do",
        f"sluice dead-letters show sluice.toml {place}",
    )
    _add_filters(show, is_place=True)
    show.add_argument("--hex", action="store_true", help="print the payload as hexadecimal")
    add_json(show)
    _add_changes(actions, place)


def _add_changes(actions: Subparsers, place: str) -> None:
    replay = add_command(
        actions,
        "replay",
        execute_replay,
        "put messages back into their topics, each once, for the table that missed them",
        f"sluice dead-letters replay sluice.toml --reason out-of-range\n"
        f"  sluice dead-letters replay sluice.toml {place}",
    )
    _add_filters(replay)
    _add_since(replay)
    replay.add_argument("--offset", metavar="N", type=an_offset, help="only of this offset")
    replay.add_argument(
        "--limit", metavar="N", type=a_positive_number, help="only the oldest so many"
    )
    purge = add_command(
        actions,
        "purge",
        execute_purge,
        "delete dead letters for good, from the oldest on",
        "sluice dead-letters purge sluice.toml --before 720h\n"
        "  sluice dead-letters purge sluice.toml --replayed",
    )
    _add_filters(purge)
    purge.add_argument(
        "--before",
        metavar="TIME",
        type=a_time_or_age,
        help="only older ones: than a time like 2026-01-31T00:00:00Z, or an age like 24h",
    )
    purge.add_argument("--replayed", action="store_true", help="only those that were replayed")
    purge.add_argument("--all", action="store_true", help="all of them")
    for parser in (replay, purge):
        parser.add_argument("--yes", action="store_true", help="do it without asking")
        add_json(parser)


def _add_filters(parser: CommandParser, *, is_place: bool = False) -> None:
    add_configuration(parser)
    parser.add_argument(
        "--parked",
        action="store_true",
        help="messages of parked tables instead, which stand in the parking topic",
    )
    parser.add_argument("--connector", metavar="NAME", help="only of this connector")
    parser.add_argument("--table", metavar="ENTRY", help="only of this table entry")
    if not is_place:
        parser.add_argument("--reason", metavar="REASON", help="only of this reason")
    parser.add_argument(
        "--topic", required=is_place, help="only of this topic" if not is_place else "its topic"
    )
    parser.add_argument(
        "--partition",
        metavar="N",
        required=is_place,
        type=an_offset,
        help="only of this partition of the topic" if not is_place else "its partition",
    )
    if is_place:
        parser.add_argument(
            "--offset", metavar="N", required=True, type=an_offset, help="its offset in the topic"
        )


def _configuration(arguments: argparse.Namespace) -> Configuration:
    """The file, with the topic that is meant as that of the dead letters."""
    configuration = load_configuration(arguments)
    if not arguments.parked:
        return configuration
    return replace(configuration, dead_letters_topic=configuration.parking_topic)


def _add_since(parser: CommandParser) -> None:
    parser.add_argument(
        "--since",
        metavar="TIME",
        type=a_time_or_age,
        help="only younger ones: than a time like 2026-01-31T00:00:00Z, or an age like 1h",
    )


def _selection(arguments: argparse.Namespace, **more: Any) -> Selection:
    from sluice.ops.dead_letters import Selection

    given = vars(arguments)
    names = ("connector", "table", "reason", "topic", "partition", "offset")
    return Selection(**{name: given.get(name) for name in names}, **more)


# list


def execute_list(arguments: argparse.Namespace) -> int:
    from sluice.ops.dead_letters import find, summarise

    replayed = True if arguments.replayed else False if arguments.waiting else None
    selection = _selection(arguments, since_ms=arguments.since, replayed=replayed)
    letters = _first(find(_configuration(arguments), selection), arguments.limit)
    if arguments.summary:
        counts = summarise(letters)
        if arguments.json:
            print_json(counts)
            return ExitStatus.DONE
        headers = ("connector", "table", "reason", "letters", "waiting", "first", "last")
        rows = [
            (
                *(each.connector, each.table, each.reason, each.letters, each.waiting),
                *(_time(each.first_ms), _time(each.last_ms)),
            )
            for each in counts
        ]
        print(render(headers, rows))
    elif arguments.json:
        print_json_list(_fields(found) for found in letters)
    else:
        for found in letters:  # not a table: there may be millions
            print(_line(found))
            print(f"    {_preview(found.letter.value)}")
    return ExitStatus.DONE


def _first(letters: Iterator[Found], limit: int | None) -> Iterator[Found]:
    for number, found in enumerate(letters, 1):
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
        "text": letter.text,
        "version": found.stored.version,
        "replayed_at_ms": None if replayed is None else replayed.at_ms,
        "replayed_by": None if replayed is None else replayed.by,
        "key": letter.key,
        "preview": _preview(letter.value),
        "headers": [{"name": name, "value": value} for name, value in letter.headers],
    }


# show


def execute_show(arguments: argparse.Namespace) -> int:
    from sluice.ops.dead_letters import advice, find_one

    found = find_one(_configuration(arguments), _selection(arguments))
    if arguments.json:
        print_json_list(
            {**_fields(each), "value": _payload(each, arguments.hex), "advice": advice(each)}
            for each in found
        )
        return ExitStatus.DONE
    for number, each in enumerate(found):
        if number:
            print()
        for line in _shown(each, advice(each)):
            print(line)
        print(_payload(each, arguments.hex))
    return ExitStatus.DONE


def _shown(found: Found, advice: str) -> Iterator[str]:
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
        ("attempt", str(letter.attempt)),
        ("attempted at", _time(stored.written_at_ms)),
        ("replayed", f"{_time(replayed.at_ms)} by {replayed.by}" if replayed else "no"),
        ("configuration", letter.text or "-"),
        ("version", stored.version),
        ("cut", ", ".join(stored.cut) or "no"),
        ("key", "-" if letter.key is None else letter.key.decode(errors="backslashreplace")),
    ]
    for name, value in letter.headers:
        shown = "-" if value is None else value.decode(errors="backslashreplace")
        named.append((f"header {name}", shown))
    named.append(("what to do", advice))
    width = max(len(name) for name, _ in named)
    for name, content in named:
        yield f"{cell_text(name).ljust(width)}  {cell_text(content)}"
    yield "payload:"


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


# replay and purge


def execute_replay(arguments: argparse.Namespace) -> int:
    from sluice.ops.dead_letters_replaying import ReplayReport, plan_replay, replay

    configuration = _configuration(arguments)
    selection = _selection(arguments, since_ms=arguments.since)
    plan = plan_replay(configuration, selection, arguments.limit)
    report = ReplayReport(replayed_before=plan.replayed_before)
    if plan.letters:
        if not confirm(plan.steps(), arguments.yes):
            return ExitStatus.BROKEN
        done = replay(configuration, plan)
        done.replayed_before += plan.replayed_before
        report = done
    if arguments.json:
        print_json(report)
    else:
        _print_report(report)
    return ExitStatus.BROKEN if report.refused else ExitStatus.DONE


def _print_report(report: ReplayReport) -> None:
    print(f"replayed         {report.replayed:,}")
    print(f"replayed before  {report.replayed_before:,}")
    print(f"refused          {report.refused:,}")
    for refusal in report.refusals:
        first = refusal.stored.letter.first
        where = f"{refusal.connector} {first.topic} {first.partition} {first.offset}"
        print(cell_text(f"{where}  {refusal.why}. Try: {refusal.hint}"))


def execute_purge(arguments: argparse.Namespace) -> int:
    from sluice.ops.dead_letters_purging import plan_purge, purge

    filters: Sequence[str] = ("table", "reason", "topic", "partition", "before")
    is_filtered = arguments.replayed or any(vars(arguments)[name] is not None for name in filters)
    if is_filtered == arguments.all:
        raise UsageError(
            "purge needs to know what: filters, or --all, not both",
            "sluice dead-letters purge --help",
        )
    configuration = _configuration(arguments)
    selection = _selection(
        arguments, before_ms=arguments.before, replayed=True if arguments.replayed else None
    )
    plan = plan_purge(configuration, selection)
    if not confirm(plan.steps(configuration.dead_letters_topic), arguments.yes):
        return ExitStatus.BROKEN
    done = purge(configuration, selection, plan)
    if arguments.json:
        print_json({"purged": done.letters, "kept": plan.kept})
    else:
        print(f"purged  {done.letters:,}")
        print(f"kept    {plan.kept:,}")
    return ExitStatus.DONE


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _preview(payload: bytes | None) -> str:
    """The beginning of a payload on one line; it cannot steer the terminal."""
    if payload is None:
        return "-"
    text = cell_text(payload[: PREVIEW_CHARACTERS * 4].decode(errors="backslashreplace"))
    return text if len(text) <= PREVIEW_CHARACTERS else text[: PREVIEW_CHARACTERS - 1] + "…"
