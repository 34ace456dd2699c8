"""The decoders of the text formats, with their options."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.load_spec import Column, TableSpec
from sluice.core.text_options import column_names, delimiter_of, null_text
from sluice.decode.messages.boundaries import ARRAYS, OBJECTS
from sluice.decode.messages.port import TableDecoder
from sluice.decode.text.decoder import Decoder
from sluice.decode.text.line_decoder import LineDecoder
from sluice.decode.text.line_formats import Csv, JsonArrays, Tskv, Tsv
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


def csv_decoder(table: TableSpec) -> TableDecoder:
    """CSV: a message is one line, or lines."""
    lines = _csv(table)
    return LineDecoder(table, lines, _names(table), _csv_splitter(table, lines))


def tsv_decoder(table: TableSpec) -> TableDecoder:
    """TSV: a message is one line, or lines."""
    return LineDecoder(table, _tsv(table), _names(table), _tsv_splitter(table))


def named_csv_decoder(table: TableSpec) -> TableDecoder:
    """CSVWithNames: a message is a line of names and then one line, or lines."""
    lines = _csv(table)
    return NamedLineDecoder(table, lines, _csv_splitter(table, lines))


def named_tsv_decoder(table: TableSpec) -> TableDecoder:
    """TSVWithNames: a message is a line of names and then one line, or lines."""
    return NamedLineDecoder(table, _tsv(table), _tsv_splitter(table))


def tskv_decoder(table: TableSpec) -> TableDecoder:
    """TSKV: a message is one line of `name=value`, or lines of equal names."""
    lines = Tskv(null_text(_option(table, "null", "\\N")))
    return NamedLineDecoder(table, lines, _tsv_splitter(table))


def _option(table: TableSpec, name: str, default: str) -> str:
    return dict(table.options).get(name, default)


def _names(table: TableSpec) -> tuple[str, ...] | None:
    value = _option(table, "columns", "")
    return column_names(value) if value else None


def _csv(table: TableSpec) -> Csv:
    delimiter = delimiter_of(_option(table, "delimiter", ","))
    return Csv(delimiter.encode(), null_text(_option(table, "null", "\\N")))


def _tsv(table: TableSpec) -> Tsv:
    return Tsv(null_text(_option(table, "null", "\\N")))


def _json_splitter(table: TableSpec, kind: bytes) -> JsonSplitter | None:
    return JsonSplitter(kind, _drops(table)) if table.rows == "many" else None


def _csv_splitter(table: TableSpec, lines: Csv) -> LineSplitter:
    return LineSplitter(lines.delimiter, True, table.rows == "many", _drops(table))


def _tsv_splitter(table: TableSpec) -> LineSplitter:
    return LineSplitter(b"\t", False, table.rows == "many", _drops(table))


def _drops(table: TableSpec) -> bool:
    return table.bad_rows == "drop-row"
