"""Reads where the columns of a [[table]] come from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, TypeAdapter

from sluice.config.findings import RefusedError
from sluice.config.values import Text, a_text, shown
from sluice.core.load_spec import KAFKA_COLUMNS, Mapped
from sluice.core.suggestions import suggest

#: Ways to say where a column comes from, and what each is called in the text.
_WAYS = ("field", "path", "value", "kafka", "header", "key", "sql")
_KAFKA = tuple(name.removeprefix("_") for name in KAFKA_COLUMNS)


def a_mapping(written: object) -> tuple[Mapped, ...]:
    """`[table.columns]`: `column = "field"`, or `column = { path = "a.b" }` and so on."""
    sources = _COLUMNS.validate_python(written)
    return tuple(Mapped(column, *sources[column]) for column in sorted(sources))


def some_fields(written: object) -> tuple[tuple[str, str], ...]:
    """`[table.fields]`: types of fields that are no columns, as ClickHouse writes them."""
    return tuple(sorted(_FIELDS.validate_python(written).items()))


def _a_source(value: Any) -> tuple[Any, str]:
    if not isinstance(value, dict):
        return "field", a_text(value)
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
    return way, text


def _a_constant(value: object) -> str:
    """A constant as text; the column's type decides how it is read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise RefusedError(f"must be a text, a number, true or false, not {shown(value)}")


_COLUMNS: TypeAdapter[dict[str, tuple[Any, str]]] = TypeAdapter(
    dict[str, Annotated[tuple[str, str], PlainValidator(_a_source)]]
)
_FIELDS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, Text])
