"""Reads `dynamic_columns` of a [[table]], and says what does not go with it."""

from __future__ import annotations

from sluice.config.findings import RefusedError
from sluice.config.model import TableConfiguration
from sluice.config.section import Section
from sluice.config.values import a_pattern, shown
from sluice.core.dynamic import COLUMNS_MAX, DynamicColumns

_KEY = "dynamic_columns"
_MAX = 50


def read_dynamic(section: Section) -> DynamicColumns | None:
    """`{ allow = ["attr_.*"], deny = ["attr_tmp.*"], max = 50 }`; None if it is left out."""
    if not section.has(_KEY):
        return None
    inner = section.table(_KEY)
    dynamic = DynamicColumns(
        allow=inner.required_list("allow", a_pattern),
        deny=inner.optional_list("deny", a_pattern),
        columns_max=inner.optional("max", _a_number_of_columns, _MAX),
    )
    inner.finish()
    return dynamic


def refuse_with_dynamic(section: Section, table: TableConfiguration) -> None:
    """Report what keeps Sluice from seeing new fields, or from knowing what they are."""
    if table.dynamic is None:
        return
    if table.format != "JSONEachRow":
        section.refuse(
            _KEY, f'needs format = "JSONEachRow": a message in {table.format} names no new fields'
        )
        return
    if table.unknown_fields != "refuse":
        section.refuse(
            _KEY,
            'needs unknown_fields = "refuse": fields that are ignored are not seen; name in deny '
            "what is to be passed over",
        )
    if table.bad_rows == "drop-row":
        section.refuse(
            _KEY, 'needs bad_rows = "dead-letter": a row with a new field would be dropped'
        )
    if table.mapping or table.fields:
        section.refuse(
            _KEY,
            "does not go with [table.columns] and [table.fields]: a new column is the field of its "
            "name",
        )


def _a_number_of_columns(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COLUMNS_MAX:
        raise RefusedError(f"must be a number from 1 to {COLUMNS_MAX}, not {shown(value)}")
    return value
