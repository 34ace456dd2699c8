"""Good messages of the text formats, and pieces that mean something in them."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from typing import Any

from sluice.core.load_spec import Column

COLUMNS = (
    Column("id", "UInt64"),
    Column("n", "UInt8"),
    Column("s", "String"),
    Column("at", "DateTime"),
    Column("u", "UUID"),
    Column("tags", "Array(String)"),
    Column("x", "Nullable(Decimal(9, 2))"),
    Column("d", "Date", "DEFAULT", "toDate(at)"),
    Column("e", "Enum8('a' = 1, 'b\\nc' = 2)"),
    Column("f", "Float64"),
    Column("b", "Bool"),
)
NAMES = [column.name for column in COLUMNS]

TEXTS = (
    "",
    "abc",
    'q"uo"te',
    "new\nline",
    "tab\ttab",
    "a,b",
    "back\\slash",
    "é\u2028",
    "[{}]",
    "'",
)
TOKENS = (
    *(b"\n", b"\r\n", b"\r", b"\t", b",", b'"', b"'", b"\\", b"\\N", b'""', b'"\n"', b"\\\n", b" "),
    *(b"{", b"}", b"[", b"]", b"}{", b"},{", b"],[", b"[[", b"null", b"\x00", b"\xff", b"-", b":"),
    *(b"\xef\xbb\xbf", b"_sluice_mark", b"9" * 70, b"0x10", b"1e400", b"id,n\n", b"id\tn\n", b"#"),
    *(b"'[", b"['", b"x'x\"x`x", b"!\n", b"2026-01-02", b'"\n"', b'","', b"()", b"\xe2\x80\xa8"),
)


def _row(chance: random.Random) -> list[Any]:
    tags = [chance.choice(TEXTS) for _ in range(chance.randrange(3))]
    return [
        chance.randrange(2 ** chance.choice([8, 63, 64])),
        chance.randrange(256),
        chance.choice(TEXTS),
        f"2026-01-{chance.randrange(1, 28):02d} 03:04:05",
        "61f0c404-5cb3-11e7-907b-a6006ad3dba0",
        tags,
        chance.choice([None, "1.25", "-7"]),
        "2026-02-03",
        chance.choice(["a", "b\nc"]),
        chance.choice([0, 1.5, -2e10]),
        chance.choice([True, False]),
    ]


def _array(values: list[str]) -> str:
    escapes = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t"})
    quoted = [value.translate(escapes) for value in values]
    return "[" + ",".join(f"'{value}'" for value in quoted) + "]"


def _cells(row: list[Any]) -> list[str]:
    def cell(value: Any) -> str:
        if value is None:
            return "\\N"
        if isinstance(value, bool):
            return str(value).lower()
        return _array(value) if isinstance(value, list) else str(value)

    return [cell(value) for value in row]


def _csv_line(cells: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue().removesuffix("\r\n")


def _tsv_cells(row: list[Any]) -> list[str]:
    def escaped(text: str) -> str:
        if text == "\\N" or text.startswith("['"):
            return text
        for symbol, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
            text = text.replace(symbol, written)
        return text

    return [escaped(cell) for cell in _cells(row)]


def _object(row: list[Any]) -> str:
    return json.dumps(dict(zip(NAMES, row, strict=True)), ensure_ascii=False)


_LINES: dict[str, Callable[[list[Any]], str]] = {
    "JSONEachRow": _object,
    "JSONCompactEachRow": lambda row: json.dumps(row, ensure_ascii=False),
    "CSV": lambda row: _csv_line(_cells(row)),
    "TSV": lambda row: "\t".join(_tsv_cells(row)),
    "TSKV": lambda row: "\t".join(map("=".join, zip(NAMES, _tsv_cells(row), strict=True))),
}


_ENDS = (b"", b"", b"\n", b"\r\n")


def good(table_format: str, chance: random.Random, rows: int = 1) -> bytes:
    """A message as a careful producer writes it."""
    named = table_format.endswith("WithNames")
    kind = table_format.removesuffix("WithNames")
    assert kind in _LINES, (
        f"{table_format}: say in _LINES of tests/decode/text_fuzz.py how a row is written"
    )
    lines = [_LINES[kind](_row(chance)) for _ in range(rows)]
    if named:
        lines.insert(0, ("," if kind == "CSV" else "\t").join(NAMES))
    if kind == "JSONEachRow" and rows > 1 and chance.random() < 0.5:
        return ("[" + ", ".join(lines) + "]").encode()
    return "\n".join(lines).encode() + chance.choice((b"",) if kind.startswith("JSON") else _ENDS)
