"""What commands print: tables for people, JSON for programs, and what they ask before they act."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sluice.cli.arguments import UsageError

Shown = TypeVar("Shown")
#: By its header, what a column shows of an object.
Columns = Mapping[str, Callable[[Shown], object]]


def print_json(value: object) -> None:
    """One JSON document; dataclasses become objects, secrets stay masked."""
    print(json_text(value, indent=2))


def print_json_list(values: Iterable[object]) -> None:
    """A JSON list, written while it is read, with a line for each element."""
    separator = "["
    for value in values:
        sys.stdout.write(f"{separator}\n{json_text(value)}")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def json_text(value: object, indent: int | None = None) -> str:
    """The JSON of a value; what JSON does not know is written as its text."""
    return json.dumps(value, default=_plain, indent=indent, ensure_ascii=False)


def _plain(value: object) -> Any:
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}
#: More than any row has.
_WIDTH_UNFOLDED = 1_000_000


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, is_folded: bool = False
) -> None:
    """Aligned columns; numbers to the right with thousands separators, None as `-`.

    :param headers: no line for them if all are empty. What stands below `verdict` is coloured.
    :param rows: each as long as the headers. Control characters are shown escaped, so that
        data cannot steer the terminal.
    :param is_folded: fold long texts to the width of a terminal, if there is one.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    is_folded = is_folded and sys.stdout.isatty()
    table = Table(
        box=box.HORIZONTALS if is_folded else None,
        show_lines=is_folded,
        pad_edge=False,
        show_header=any(headers),
    )
    for index, header in enumerate(headers):
        column = [row[index] for row in cells]
        is_number = any(map(_is_number, column)) and all(
            value is None or _is_number(value) for value in column
        )
        table.add_column(header, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(
            *(
                Text(cell_text(value), _COLOURS.get(str(value), "") if header == "verdict" else "")
                for header, value in zip(headers, row, strict=True)
            )
        )
    console = Console(width=None if is_folded else _WIDTH_UNFOLDED)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def print_objects(
    values: Iterable[Shown], columns: Columns[Shown], *, is_folded: bool = False
) -> None:
    """A table with a row for each object; see `print_table`."""
    rows = [[cell(value) for cell in columns.values()] for value in values]
    print_table(tuple(columns), rows, is_folded=is_folded)


def cell_text(value: object) -> str:
    """One value as a cell shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in str(value)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def confirm(steps: Sequence[str], is_agreed: bool) -> bool:
    """Show what will be done, and ask; on stderr, since stdout is for data.

    :param steps: a line for each thing that will be done.
    :param is_agreed: --yes was given: show, and do not ask.
    :returns: whether to go on.
    :raises UsageError: nobody can be asked, and --yes is missing.
    """
    print("This will:", file=sys.stderr)
    for step in steps:
        print(f"  - {step}", file=sys.stderr)
    if is_agreed:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "nobody can be asked: stdin is not a terminal", "Read the lines above and add --yes."
        )
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    is_yes = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not is_yes:
        print("Nothing was done.", file=sys.stderr)
    return is_yes
