"""Reads where the columns of a [[table]] come from."""

from __future__ import annotations

from typing import Any

from sluice.config.findings import RefusedError, suggest
from sluice.config.interpolation import BROKEN
from sluice.config.section import Section
from sluice.config.values import a_text, shown
from sluice.core.text import KAFKA_COLUMNS, Mapped

#: Ways to say where a column comes from, and what each is called in the text.
_WAYS = ("field", "path", "value", "kafka", "header", "sql")
_KAFKA = tuple(name.removeprefix("_") for name in KAFKA_COLUMNS)


def read_mapping(section: Section) -> tuple[Mapped, ...]:
    """`[table.columns]`: `column = "field"`, or `column = { path = "a.b" }` and so on."""
    mapped = []
    for column, value in section.raw("columns").items():
        if value is BROKEN:
            continue
        try:
            mapped.append(_mapped(column, value))
        except RefusedError as refusal:
            section.refuse_inside("columns", column, str(refusal))
    return tuple(sorted(mapped, key=lambda one: one.column))


def read_fields(section: Section) -> tuple[tuple[str, str], ...]:
    """`[table.fields]`: types of fields that are no columns, as ClickHouse writes them."""
    fields = []
    for name, value in section.raw("fields").items():
        try:
            fields.append((name, a_text(value)))
        except RefusedError as refusal:
            section.refuse_inside("fields", name, str(refusal))
    return tuple(sorted(fields))


def _mapped(column: str, value: Any) -> Mapped:
    if not isinstance(value, dict):
        return Mapped(column, "field", a_text(value))
    ways = [way for way in _WAYS if way in value]
    if len(ways) != 1 or len(value) != 1:
        raise RefusedError(
            f'says one of {", ".join(_WAYS)}, like {{ path = "address.city" }}, or only the '
            "field's name"
        )
    (way,) = ways
    text = _a_constant(value[way]) if way == "value" else a_text(value[way])
    if way == "kafka":
        if text not in _KAFKA:
            if text in ("now", "ingested", "ingestion_time"):
                raise RefusedError(
                    "the time of loading differs from one attempt to the next; give the column "
                    "DEFAULT now() in ClickHouse and leave it out here"
                )
            raise RefusedError(f"{shown(text)} is no part of a message; {suggest(text, _KAFKA)}")
        text = f"_{text}"
    return Mapped(column, way, text)  # type: ignore[arg-type]


def _a_constant(value: object) -> str:
    """A constant as text; the column's type decides how it is read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise RefusedError(f"must be a text, a number, true or false, not {shown(value)}")
