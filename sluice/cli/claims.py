"""`sluice claims`: which message made the row of a key, against what is in the tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import (
    Group,
    a_duration_seconds,
    config_argument,
    json_option,
    load_applied,
    load_to_decide,
    together,
)
from sluice.cli.exit import ExitStatus
from sluice.cli.output import Columns, cell_text, print_json, print_objects
from sluice.machine.clock import now_ms

if TYPE_CHECKING:
    from sluice.ops.claims import Checked, Rebuilt

_REBUILT: Columns[Rebuilt] = {
    "table": lambda each: each.target,
    "entries": lambda each: ", ".join(each.entries),
    "rows": lambda each: each.rows,
    "own their key": lambda each: each.claimed,
    "others have it": lambda each: each.others,
}
_CHECKED: Columns[Checked] = {
    "table": lambda each: each.target,
    "rows": lambda each: each.rows,
    "own their key": lambda each: each.claimed,
    "nobody has it": lambda each: each.unclaimed,
    "others have it": lambda each: each.others,
    "older": lambda each: each.older,
}


@click.group(
    "claims",
    cls=Group,
    no_args_is_help=True,
    example="sluice claims check sluice.toml\nsluice claims rebuild sluice.toml",
)
def claims() -> None:
    """Compare claims with tables, or make them again from what is there."""


_which = together(
    config_argument,
    click.option("--connector", help="only of its table entries"),
    click.option("--table", "entry", help="only of this table entry"),
)


@claims.command(
    "rebuild",
    example="sluice claims rebuild sluice.toml\n"
    "sluice claims rebuild sluice.toml --table orders --since 2h",
)
@_which
@click.option(
    "--since",
    "since_seconds",
    type=a_duration_seconds,
    help="only rows that came within the last DURATION (default: of each table's window)",
)
@click.option("--as-asked", hidden=True, is_flag=True, help="what a driver writes to its input")
@json_option
def rebuild(
    config: Path,
    connector: str | None,
    entry: str | None,
    since_seconds: float | None,
    as_asked: bool,
    as_json: bool,
) -> int:
    """Claim the keys of rows in the tables for their messages, where nobody has them.

    Claims that are there stay as they are. A running pipeline does the same by itself when its
    store was started again.
    """
    from sluice.driver.claims_rebuild import RebuildRequest
    from sluice.ops.claims import keyed_tables, rebuild, rebuild_as_asked

    if as_asked:
        # The driver says of which table; it waits, and must not fail where it did not itself.
        rebuild_as_asked(load_applied(config), RebuildRequest.read(sys.stdin.read()))
        return ExitStatus.DONE

    configuration = load_to_decide(config, connector)
    tables = keyed_tables(configuration, connector, entry)
    since_ms = None if since_seconds is None else now_ms() - int(since_seconds * 1000)
    found = rebuild(configuration, tables, since_ms)
    if as_json:
        print_json(found)
        return ExitStatus.DONE
    print_objects(found, _REBUILT)
    return ExitStatus.DONE


@claims.command("check", example="sluice claims check sluice.toml --table orders")
@_which
@json_option
def check(config: Path, connector: str | None, entry: str | None, as_json: bool) -> int:
    """Look whether the message of each row within the window owns the key of its event.

    `sluice claims rebuild` mends keys that nobody has.
    """
    from sluice.ops.claims import check, keyed_tables

    configuration = load_applied(config)

    found = check(configuration, keyed_tables(configuration, connector, entry))
    if as_json:
        print_json(found)
    else:
        _print_checked(found)
    is_wrong = any(each.unclaimed or each.others for each in found)
    return ExitStatus.BROKEN if is_wrong else ExitStatus.DONE


def _print_checked(found: list[Checked]) -> None:
    print_objects(found, _CHECKED)
    for each in found:
        for row in each.examples:
            print(cell_text(f"{each.target}: {row}"))
