"""The decoders of the text formats, with their options."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.formats import column_names, delimiter_of, null_text
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.messages.brackets import OBJECTS
from sluice.decode.messages.decoded import TableDecoder
from sluice.decode.text.decoder import Decoder
from sluice.decode.text.lines import ArrayRows, LineRows, NamedRows, TskvRows
from sluice.decode.text.objects import Dialect
from sluice.decode.text.split_json import JsonSplitter


def json_object_decoder(table: TableSpec) -> TableDecoder:
    """JSONEachRow: a message is one object, or objects one after another, or an array of them."""
    if table.dynamic is not None and table.dynamic.passed_over:
        # Read, whatever stands there, and not stored.
        passed_over = (
            Column(name, "Nullable(String)", "EPHEMERAL") for name in table.dynamic.passed_over
        )
        table = replace(table, columns=(*table.columns, *passed_over))
    drops = table.bad_rows == "drop-row"
    return Decoder(table, JsonSplitter(OBJECTS, drops) if table.rows == "many" else None)


def json_array_decoder(table: TableSpec) -> TableDecoder:
    """JSONCompactEachRow: a message is one array, or arrays one after another."""
    return Decoder(table, ArrayRows(table, Dialect.ARRAYS, _names(table)))


def line_decoder(table: TableSpec) -> TableDecoder:
    """CSV and TSV: a message is one line, or lines; WithNames they stand behind a line of names,
    and in TSKV each value behind its own."""
    options = dict(table.options)
    null = null_text(options.get("null", "\\N"))
    if table.format == "TSKV":
        return Decoder(table, TskvRows(table, Dialect.TSV, null=null))
    dialect, delimiter = Dialect.TSV, b"\t"
    if table.format.startswith("CSV"):
        dialect, delimiter = Dialect.CSV, delimiter_of(options.get("delimiter", ",")).encode()
    if table.format.endswith("WithNames"):
        return Decoder(table, NamedRows(table, dialect, delimiter, null))
    return Decoder(table, LineRows(table, dialect, _names(table), delimiter, null))


def _names(table: TableSpec) -> tuple[str, ...] | None:
    value = dict(table.options).get("columns", "")
    return column_names(value) if value else None
