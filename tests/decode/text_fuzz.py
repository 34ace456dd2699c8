"""Mutated messages of the text formats, and what each becomes alone and among others."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.session import run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.marked import memory_file
from sluice.decode.messages.origins import alone
from sluice.decode.messages.port import TableDecoder
from tests.decode.support import FIRST_OFFSET, LINEAGE, LINEAGE_NAMES, fill, table

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
FORMATS = (
    *("JSONEachRow", "JSONCompactEachRow", "CSV", "CSVWithNames", "TSV", "TSVWithNames", "TSKV"),
)

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


@dataclass(frozen=True, slots=True)
class Subject:
    """A decoder under attack."""

    text: TableSpec
    decoder: TableDecoder


def subject(table_format: str, **changes: Any) -> Subject:
    facts = {"format": table_format, "lineage": LINEAGE_NAMES} | changes
    text = table(*COLUMNS, *LINEAGE, **facts)
    return Subject(text, make_decoder(text))


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
    lines = [_LINES[kind](_row(chance)) for _ in range(rows)]
    if named:
        lines.insert(0, ("," if kind == "CSV" else "\t").join(NAMES))
    if kind == "JSONEachRow" and rows > 1 and chance.random() < 0.5:
        return ("[" + ", ".join(lines) + "]").encode()
    return "\n".join(lines).encode() + chance.choice(_ENDS if kind[0] in "CT" else (b"",))


def mutated(value: bytes, other: bytes, chance: random.Random) -> bytes:
    """The message with a few wounds."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        kind, at = chance.randrange(9), chance.randrange(len(value) + 1)
        beyond = min(len(value), at + chance.choice([1, 1, 2, 5, 20]))
        if kind <= 2:
            value = value[:at] + chance.choice(TOKENS) + value[at:]
        elif kind == 3:
            value = value[:at] + value[beyond:]
        elif kind == 4:
            value = value[:at] + value[at:beyond] * 2 + value[beyond:]
        elif kind == 5:
            value = value[:at] + bytes([chance.randrange(256)]) + value[at + 1 :]
        elif kind == 6:
            value = value[:at]
        elif kind == 7:
            value = value[:at] + other[chance.randrange(len(other) + 1) :]
        else:
            value = value + chance.choice([b"", b"\n", b" ", b","]) + other
    return value


def messages(table_format: str, chance: random.Random, count: int) -> list[bytes]:
    """Good and mutated messages, mixed."""
    many = [1, 1, 1, 2, 3]
    pool = [good(table_format, chance, chance.choice(many)) for _ in range(max(8, count // 8))]
    share = chance.choice([0.02, 0.3, 1.0])
    found = []
    for _ in range(count):
        value = chance.choice(pool)
        if chance.random() < share:
            value = mutated(value, chance.choice(pool), chance)
        found.append(value)
    return found


def outcomes(of: Subject, values: list[bytes]) -> list[tuple[Any, ...]]:
    """What each message became: its rows as digests, or bad, or nothing."""
    with MessageBuffer(framing_of(of.text)) as buffer:
        decoded = of.decoder.decode(fill(buffer, values), alone("orders", 3))
    found: list[list[Any]] = [[] for _ in values]
    if decoded.rows:
        names = ", ".join(name for name in decoded.columns if name != "_offset")
        query = "SELECT _offset, cityHash64(toString(({}))) FROM file('{}', Native)"
        with memory_file(decoded.native) as path:
            text = run(query.format(names, path), "TSV").bytes().decode()
        for line in text.splitlines():
            offset, digest = line.split("\t")
            found[(int(offset) - FIRST_OFFSET) // 2].append(digest)
    for bad in decoded.bad:
        assert not found[bad.index], "a message in both places"
        found[bad.index] = ["bad"]
    for offset in decoded.empty:
        assert not found[(offset - FIRST_OFFSET) // 2], "a message in both places"
        found[(offset - FIRST_OFFSET) // 2] = ["empty"]
    assert all(found), "a message is nowhere"
    return [tuple(one) for one in found]


def attack(of: Subject, chance: random.Random, count: int, alone: int) -> set[str]:
    """One block; its messages in another order and in two blocks; some of them alone.

    :returns: what became of messages: "row", "bad", "empty".
    """
    values = messages(of.text.format, chance, count)
    together = outcomes(of, values)
    order = chance.sample(range(count), count)
    half = count // 2
    for part in (order[:half], order[half:]):
        again = outcomes(of, [values[index] for index in part])
        for index, outcome in zip(part, again, strict=True):
            assert outcome == together[index], (
                of.text.format,
                values[index],
                outcome,
                together[index],
            )
    for index in chance.sample(range(count), alone):
        outcome = outcomes(of, [values[index]])[0]
        assert outcome == together[index], (of.text.format, values[index], outcome, together[index])
    return {"row" if len(o) > 1 or o[0].isdigit() else str(o[0]) for o in together}
