"""Values of every kind for columns of every kind, in the formats that write them as text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator

from sluice.core.load_spec import Column, TableSpec
from tests.decode.support import table

TYPES = (
    *("UInt8", "Int64", "UInt64", "UInt256", "Float32", "Bool", "String", "FixedString(3)"),
    *("UUID", "IPv4", "IPv6", "Nullable(Int32)", "LowCardinality(String)", "Date", "Date32"),
    *("DateTime", "DateTime('Europe/Berlin')", "DateTime64(3)", "Nullable(DateTime64(6))"),
    *("Decimal(9, 2)", "Decimal(76, 0)", "Nullable(Decimal(18, 4))"),
    *("Enum8('a' = 1, 'b' = 2, '' = 5)", "Enum16('x' = -300, 'a' = 300)"),
    *("Array(UInt8)", "Array(Nullable(String))", "Array(DateTime)", "Map(String, UInt16)"),
    *("Tuple(a UInt8, b String)", "Tuple(Date, Nullable(Decimal(9, 2)))"),
    "Array(Tuple(at DateTime, e Enum8('a' = 1)))",
)
#: As JSON writes them; inside of an array, an object and a tuple as well.
SCALARS = (
    *("0", "1", "-1", "255", "256", "-300", "300", "65536", "4294967295", "4294967296", "1.5"),
    *("0.125", "1.0", "-0.0", "1e3", "1e400", "1e-400", "0.1e1", "01", "+1", ".5", "1.", "0x10"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 76),
    *("9" * 39, "99999999.99", "9999999.999", "9999999.99", "null", "true", "false", "NaN", "inf"),
    *(
        '""',
        '"a"',
        '"abc"',
        '"abcd"',
        '"1"',
        '" 1"',
        '"1 "',
        '"1.5"',
        '"true"',
        '"null"',
        '"\\\\N"',
    ),
    *('"é"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\u0000"', '"a\\nb"', '"0x10"', '"x"'),
    *('"61f0c404-5cb3-11e7-907b-a6006ad3dba0"', '"61F0C4045CB311E7907BA6006AD3DBA0"', '"1.2.3.4"'),
    *('"1.2.3.256"', '"::1"', '"::ffff:1.2.3.4"', '"inf"', '"nan"', '"-"', "1700000000"),
)
MOMENTS = (
    *("2026-01-02", "2026-1-2", "20260102", "2026-01-02 03:04:05", "2026-01-02T03:04:05Z"),
    *("2026-01-02T03:04:05+05:30", "2026-01-02 03:04:05.123", "2026-01-02 03:04:05.123456789"),
    *("1969-12-31 23:59:59", "2106-02-07 06:28:15", "2106-02-07 06:28:16", "2299-12-31 23:59:59"),
    *("1900-01-01", "1899-12-31", "2299-12-31", "2300-01-01", "2149-06-06", "2149-06-07"),
    *("2026-02-30", "2026-13-01", "2026-03-29 02:30:00", "2026-10-25 02:30:00", "1700000000.5"),
    *("1700000000", "1700000000123", "Jan 2 03:04:05", "Jan 2 2026 03:04:05", "Fri, 2 Jan 2026"),
    *("03:04:05", "12/31/2026", "2026-01-02 24:00:00", "2026-01-02 03:04:60", "0000-00-00"),
    *("0000-00-00 00:00:00", "2026-01-02 03:04", "2026", "2026-01", "-1", "now", "99999999999"),
)
WHOLE = (
    *("[]", "[1]", "[1, 2, 256]", "[null]", '["a"]', '["a", null]', "[[1], []]", "[[]]", "{}"),
    *('{"a": 1}', '{"a": "x"}', '{"a": 1, "b": "x"}', '{"a": 1, "a": 2}', '{"b": "x"}', "[1, 2]"),
    *('{"a": null}', '{"a": 1, "c": 1}', '["2026-01-02", 1.25]', '["2026-01-02", null]'),
    *('["2026-01-02 03:04:05"]', '{"k": "2026-01-02 03:04:05"}', '[{"at": 5, "e": "a"}]'),
    *('[{"at": "Jan 2 03:04:05", "e": "a"}]', '[{"e": "b"}]', '"[1]"', "[1", '{"a"}', "[1,]"),
)
#: As CSV and TSV write what JSON writes otherwise.
CELLS = (
    *(
        "",
        "\\N",
        "NULL",
        "[1]",
        "['a']",
        "['a',NULL]",
        "[[1],[]]",
        "{'a':1}",
        "{}",
        "[]",
        "(1,'b')",
    ),
    *(
        "('2026-01-02',1.25)",
        "['2026-01-02 03:04:05']",
        "[('2026-01-02 03:04:05','a')]",
        "[1",
        "['a",
    ),
)


def value_tables(table_format: str) -> Iterator[tuple[str, TableSpec, tuple[bytes, ...]]]:
    """Name, table text and messages: for some types, a table of such a column and all values."""
    written = _FORMATS.get(table_format)
    if written is None:
        return
    values = (*SCALARS, *map(json.dumps, MOMENTS), *WHOLE)
    if not table_format.startswith("JSON"):
        values = (*CELLS, *(_bare(value) for value in values))
    messages = tuple(written(value).encode() for value in dict.fromkeys(values))
    # JSON has rules of its own for most types; the others share theirs, and take turns.
    turns = 1 if table_format == "JSONEachRow" else len(_FORMATS) - 1
    for number, kind in list(enumerate(TYPES))[list(_FORMATS).index(table_format) % turns :: turns]:
        on_null = "default" if number % 2 else "dead-letter"
        columns = (Column("a", kind), Column("b", "UInt8"))
        yield kind, table(*columns, format=table_format, on_null=on_null), messages


def _bare(value: str) -> str:
    """A text without its quotes."""
    if not value.startswith('"'):
        return value
    text: str = json.loads(value)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _csv(cell: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow((cell, "7"))
    return out.getvalue()


_ESCAPED = str.maketrans({"\t": "\\t", "\n": "\\n", "\0": "\\0"})
_FORMATS: dict[str, Callable[[str], str]] = {
    "JSONEachRow": lambda value: f'{{"a": {value}, "b": 7}}',
    "JSONCompactEachRow": lambda value: f"[{value}, 7]",
    "CSV": _csv,
    "TSV": lambda cell: f"{cell.translate(_ESCAPED)}\t7",
}
