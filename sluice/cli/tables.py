"""Text tables on stdout, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def render(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns; numbers to the right with thousands separators, None as `-`.

    :param rows: each as long as the headers. Control characters are shown escaped, so that
        data cannot steer the terminal.
    """
    table = [list(row) for row in rows]
    cells = [[cell_text(value) for value in row] for row in table]
    widths = [
        max([len(header), *(len(row[index]) for row in cells)])
        for index, header in enumerate(headers)
    ]
    is_number = [
        any(_is_number(row[index]) for row in table)
        and all(_is_number(row[index]) or row[index] is None for row in table)
        for index in range(len(headers))
    ]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), *(line(row) for row in cells)])


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
