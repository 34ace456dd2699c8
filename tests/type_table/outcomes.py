"""What becomes of a value of each type in each format, and the page that says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.decode.engine.session import run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from tests.decode.support import fill, rows, table
from tests.type_table.kinds import Kind, every_kind
from tests.type_table.writers import WRITERS, Named, Written

PAGE = Path(__file__).parent.parent.parent / "docs" / "TYPES.md"
LOADS, AT_START = "yes", "no entry"
#: Where a value's own type says more than the column's: who writes it, and as what.
FAMILIES: dict[str, tuple[str, ...]] = {
    "text": (
        *("JSONEachRow", "JSONConfluent", "JSONCompactEachRow", "CSV", "CSVWithNames"),
        *("TSV", "TSVWithNames", "TSKV", "LineAsString"),
    ),
    "avro": ("AvroConfluent", "AvroSingleObject", "Avro"),
    "protobuf": ("Protobuf", "ProtobufConfluent"),
    "arrow": ("Parquet", "Arrow", "ArrowStream"),
    "orc": ("ORC",),
    "other": (
        *("MsgPack", "RowBinary", "RowBinaryWithNamesAndTypes", "Native", "SQLBatchRequest"),
        "RawBLOB",
    ),
}
#: Type -> format -> what became of its value.
Outcomes = dict[str, dict[str, str]]


class WrongValueError(Exception):
    """A value was loaded as another one."""


def outcome(format_name: str, named: Named) -> str:
    """What becomes of a message with these values: LOADS, AT_START, or the code of its dead letter.

    :raises WrongValueError: a row of other values.
    """
    columns = [
        Column(f"{name}{end}", type_text)
        for name, kind in named
        for end, type_text, _ in kind.columns
    ]
    message, options = _written(format_name, named)
    text = table(*columns, format=format_name, options=tuple(sorted(options.items())))
    try:
        decoder = make_decoder(text)
    except TerminalError:
        return AT_START
    with MessageBuffer(framing_of(text)) as buffer:
        decoded = decoder.decode(fill(buffer, [message]), alone("orders", 3))
    if decoded.bad:
        return decoded.bad[0].reason
    found, expected = rows(decoded), [_expected(named)]
    if found != expected:
        raise WrongValueError(f"{format_name}: {found} instead of {expected}")
    return LOADS


def _written(format_name: str, named: Named) -> Written:
    return WRITERS[format_name](named)


def _expected(named: Named) -> list[Any]:
    """The values as the engine shows them."""
    values = ", ".join(sql for _, kind in named for _, _, sql in kind.columns)
    query = (
        f"SELECT {values} SETTINGS output_format_json_quote_64bit_integers=1,"
        " output_format_json_quote_decimals=1, output_format_json_quote_denormals=1,"
        " session_timezone='UTC'"
    )
    line: list[Any] = json.loads(run(query, "JSONCompactEachRow").bytes())
    return line


def named_columns(kinds: Sequence[Kind]) -> Named:
    return [(f"c{number}", kind) for number, kind in enumerate(kinds)]


def outcomes_of(format_name: str, hint: Outcomes | None = None) -> dict[str, str]:
    """What becomes of each type, by itself.

    :param hint: what the page says: if the types that load, by it, do so together in one row, none
        of them is tried alone.
    """
    kinds = every_kind()
    found: dict[str, str] = {}
    loading = [k for k in kinds if hint and hint.get(k.type, {}).get(format_name) == LOADS]
    if loading and _load_together(format_name, loading):
        found = {kind.type: LOADS for kind in loading}
    for kind in kinds:
        if kind.type not in found:
            found[kind.type] = outcome(format_name, named_columns([kind]))
    return {kind.type: found[kind.type] for kind in kinds}


def _load_together(format_name: str, kinds: Sequence[Kind]) -> bool:
    try:
        return outcome(format_name, named_columns(kinds)) == LOADS
    except WrongValueError:
        return False


# The page: its words stay, its tables are written anew.

_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def page(found: Outcomes, words: str) -> str:
    """The page with the tables of these outcomes, in the order of FAMILIES."""
    tables = iter(FAMILIES)
    return _TABLE.sub(lambda _: _table(next(tables), found), words)


def _table(family: str, found: Outcomes) -> str:
    groups = list(_alike(found, FAMILIES[family]))
    heads = ["type", *([] if family in ("text", "other") else ["written as"])]
    heads += [", ".join(group) for group in groups]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for kind in every_kind():
        cells = [f"`{kind.type}`", *_written_as(family, kind)]
        cells += [found[kind.type][group[0]] for group in groups]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _alike(found: Outcomes, formats: Sequence[str]) -> Iterator[list[str]]:
    """Formats of which all outcomes are the same, together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in formats:
        groups.setdefault(tuple(of[name] for of in found.values()), []).append(name)
    yield from groups.values()


def _written_as(family: str, kind: Kind) -> list[str]:
    if family == "avro":
        return [f"`{kind.avro[1]}`"]
    if family == "protobuf":
        return [f"`{kind.protobuf[0].removeprefix('google.protobuf.')}`"]
    if family in ("arrow", "orc"):
        return [f"`{(kind.orc if family == 'orc' else kind.arrow)[0]}`"]
    return []


def read_page(text: str) -> Outcomes:
    """What the page says."""
    found: Outcomes = {}
    formats: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| type "):
            formats = [cell.split(", ") for cell in cells]
        elif line.startswith("| `"):
            of = found.setdefault(cells[0].strip("`"), {})
            for group, cell in zip(formats, cells, strict=True):
                of |= dict.fromkeys(group, cell)
    return found
