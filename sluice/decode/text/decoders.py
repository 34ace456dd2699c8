"""The decoders of the text formats, with their options."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.load_spec import Column, TableSpec
from sluice.core.text_options import column_names, delimiter_of, null_text
from sluice.decode.messages.boundaries import ARRAYS, OBJECTS
from sluice.decode.messages.port import TableDecoder
from sluice.decode.text.decoder import Decoder
from sluice.decode.text.line_decoder import LineDecoder
from sluice.decode.text.line_formats import Csv, JsonArrays, LineFormat, Tskv, Tsv
from sluice.decode.text.named_lines import NamedLineDecoder
from sluice.decode.text.split_json import JsonSplitter
from sluice.decode.text.split_lines import LineSplitter


def json_object_decoder(table: TableSpec) -> TableDecoder:
    """JSONEachRow: a message is one object, or objects one after another, or an array of them."""
    if table.dynamic is not None and table.dynamic.passed_over:
        # Read, whatever stands there, and not stored.
        passed_over = (
            Column(name, "Nullable(String)", "EPHEMERAL") for name in table.dynamic.passed_over
        )
        table = replace(table, columns=(*table.columns, *passed_over))
    return Decoder(table, _json_splitter(table, OBJECTS))


def json_array_decoder(table: TableSpec) -> TableDecoder:
    """JSONCompactEachRow: a message is one array, or arrays one after another."""
    return LineDecoder(table, JsonArrays(), _names(table), _json_splitter(table, ARRAYS))


def line_decoder(table: TableSpec) -> TableDecoder:
    """CSV and TSV: a message is one line, or lines; WithNames they stand behind a line of names,
    and in TSKV each value behind its own."""
    options, is_csv = dict(table.options), table.format.startswith("CSV")
    null = null_text(options.get("null", "\\N"))
    lines: LineFormat = Tskv(null) if table.format == "TSKV" else Tsv(null)
    if is_csv:
        lines = Csv(delimiter_of(options.get("delimiter", ",")).encode(), null)
    split = LineSplitter(lines.delimiter, is_csv, table.rows == "many", _drops(table))
    if table.format == "TSKV" or table.format.endswith("WithNames"):
        return NamedLineDecoder(table, lines, split)
    return LineDecoder(table, lines, _names(table), split)


def _names(table: TableSpec) -> tuple[str, ...] | None:
    value = dict(table.options).get("columns", "")
    return column_names(value) if value else None


def _json_splitter(table: TableSpec, kind: bytes) -> JsonSplitter | None:
    return JsonSplitter(kind, _drops(table)) if table.rows == "many" else None


def _drops(table: TableSpec) -> bool:
    return table.bad_rows == "drop-row"
