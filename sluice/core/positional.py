"""Messages whose values are told apart by nothing but their order: that of the option `columns`, or
else that of the table's columns, which an ALTER changes without the producers. Pure.
"""

from __future__ import annotations

import re

from sluice.core.formats import FORMATS
from sluice.core.load_spec import Column, TableSpec

_PLAIN = re.compile(r"\w+", re.ASCII)


def order_of_table(table: TableSpec) -> tuple[Column, ...]:
    """The columns that the values of a message fill, in their order, where nothing but the table
    says it; none where the option `columns` does, or names in messages."""
    if not FORMATS[table.format].is_positional or dict(table.options).get("columns", "").strip():
        return ()
    return tuple(
        column
        for column in table.columns
        if column.kind in ("", "DEFAULT") and column.name not in table.lineage
    )


def order_option(table: TableSpec) -> str:
    """What the option `columns` has to say for the order that the table has; of an entry whose
    columns are made of fields only that it names these."""
    if table.mapping or table.fields:
        return "columns, with the names of the fields"
    order = order_of_table(table)
    names = [one.name if _PLAIN.fullmatch(one.name) else f"`{one.name}`" for one in order]
    if not FORMATS[table.format].is_text:
        names = [f"{name} {one.type}" for name, one in zip(names, order, strict=True)]
    return f'columns = "{", ".join(names)}"'
