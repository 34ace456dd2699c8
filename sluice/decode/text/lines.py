"""The decoders of the text formats: messages of CSV, TSV, plain lines and JSON arrays are taken
apart into rows that are JSON objects, messages of several JSON objects by their brackets.

A newline ends a row unless it is quoted (CSV) or behind a backslash (TSV). One newline, CR LF
or CR at the end of a message belongs to the end of its last row, so does a CR before each
newline. A byte order mark at a message's start, and a further CR at a row's end, are refused.

Names of columns stand in the options, or in the message: in its first line (WithNames), or before
each value (TSKV).

A message of several JSON objects or arrays is rows one after another: objects (JSONEachRow) or
arrays (JSONCompactEachRow) with whitespace and at most one comma between two of them; or, of
objects, one array of them with exactly one comma between two. Nothing else stands between rows,
before or behind them. Each row then has the structure that brackets.py asks of a message, so it is
joined like one.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.formats import SKIPPED, column_names, delimiter_of, null_text
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.columns import filled_columns, only_column
from sluice.decode.messages.brackets import ARRAYS, JSON_WHITESPACE, OBJECTS, rows_in
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.decoded import TableDecoder
from sluice.decode.messages.fault import (
    CANNOT_PARSE,
    NO_COLUMN,
    NOT_ONE_OBJECT,
    NOT_ONE_ROW,
    UNKNOWN_FIELD,
    Fault,
)
from sluice.decode.messages.framing import BYTE_ORDER_MARK, JSON_OBJECTS, begins_like, in_words
from sluice.decode.messages.splitting import (
    ROWS_MAX,
    TOO_MANY_ROWS,
    PieceRows,
    Split,
    split_pieces,
)
from sluice.decode.text.decoder import Decoder
from sluice.decode.text.fields import names_in_objects
from sluice.decode.text.objects import GARBAGE, Dialect, Parts, ValueLayout, objects_of


@dataclass(frozen=True, slots=True)
class JsonSplitter:
    """Takes the messages of a buffer apart.

    :param kind: what a row is, OBJECTS or ARRAYS of `brackets`.
    :param drops: bad rows are dropped, so that it has to be known of each message whether it
        is bad itself.
    """

    kind: bytes
    drops: bool = False

    def __call__(self, buffer: MessageBuffer) -> Split | None:
        if not self.drops and not buffer.faults:
            return None
        return split_pieces(buffer, JSON_OBJECTS, self.rows)

    def rows(self, piece: Piece) -> PieceRows:
        """Of a piece."""
        begins, ends = piece.bounds
        froms, tos, owners, broken = rows_in(piece.text, begins, ends, self.kind)
        counts = np.bincount(owners, minlength=len(ends))
        too_many = np.flatnonzero(counts > ROWS_MAX)
        if len(too_many):
            kept = np.isin(owners, too_many, invert=True)
            froms, tos, owners = froms[kept], tos[kept], owners[kept]
        view = memoryview(piece.text)
        parts = [view[a:b] for a, b in zip(froms.tolist(), tos.tolist(), strict=True)]
        text = b"\n".join([*parts, b""])
        faults = {
            place: self._explain(piece.text[begins[place] : ends[place]])
            for place in np.flatnonzero(broken).tolist()
        }
        faults |= dict.fromkeys(too_many.tolist(), TOO_MANY_ROWS)
        return PieceRows(text, np.cumsum(tos - froms + 1) - 1, owners, faults)

    def _explain(self, message: bytes) -> Fault:
        value = message.strip(JSON_WHITESPACE)
        noun = "objects" if self.kind == OBJECTS else "arrays"
        reason = NOT_ONE_OBJECT if self.kind == OBJECTS else NOT_ONE_ROW
        if not value:
            return Fault(reason, "the message is empty")
        if value.startswith(BYTE_ORDER_MARK):
            return Fault(CANNOT_PARSE, "the message starts with a byte order mark")
        like = begins_like(value)
        shown = f"; it begins like {like}" if like else ""
        return Fault(CANNOT_PARSE, f"the message is not JSON {noun} one after another{shown}")


#: So many lines of names are known at a time.
_HEADS_MAX = 1024
_MARKED = Fault(CANNOT_PARSE, "the message starts with a byte order mark")
#: Bytes that say what a message looks like; it may have a million bad rows.
_LOOKED_AT = 4096
#: By `enum fault` of objects.c.
_FAULTS = (
    Fault("", ""),
    Fault(NOT_ONE_ROW, "the message is empty"),
    _MARKED,
    Fault(CANNOT_PARSE, "a quoted value is not closed"),
    Fault(CANNOT_PARSE, "a row ends with a backslash that escapes nothing"),
    Fault(CANNOT_PARSE, "a row ends with more than one carriage return"),
)


class LineRows:
    """Takes messages of CSV and TSV apart whose values stand in the same order.

    :param names: of the values of a row, in their order; None: the table's columns that an
        insert without names fills, lineage left out. SKIPPED: no column takes the value.
    :raises TerminalError: the table has no such column.
    """

    def __init__(
        self,
        table: TableSpec,
        dialect: Dialect,
        names: tuple[str, ...] | None = None,
        delimiter: bytes = b"\t",
        null: str = "",
    ) -> None:
        self.table, self.dialect = table, dialect
        self.delimiter, self._null = delimiter, null.encode()
        columns = filled_columns(table)
        self.types = {column.name: column.type for column in columns}
        own = tuple(column.name for column in columns if column.kind != "EPHEMERAL")
        for name in names or ():
            if name not in self.types and name != SKIPPED:
                raise TerminalError(
                    f"table {table.target} has no column {name} that a message could fill",
                    f'Name columns of the table in option columns, or "{SKIPPED}" for a value '
                    "that none takes.",
                )
        self.layout = self.layout_of(names or own)

    def layout_of(self, names: Sequence[str]) -> ValueLayout:
        """The values of a row that have these names."""
        return ValueLayout.of(names, self.types, self.dialect)

    def __call__(self, buffer: MessageBuffer) -> Split:
        return split_pieces(buffer, JSON_OBJECTS, partial(self._rows, buffer))

    def parts(self, buffer: MessageBuffer, piece: Piece) -> Parts:
        """What of a piece of the buffer has rows."""
        return Parts.of_one(self.layout, piece.text, *piece.bounds, np.arange(len(piece.ends)))

    def _rows(self, buffer: MessageBuffer, piece: Piece) -> PieceRows:
        parts = self.parts(buffer, piece)
        if not len(parts.owners):
            nothing = np.zeros(0, np.int64)
            return PieceRows(b"", nothing, nothing, parts.faults)
        found = objects_of(parts, self.dialect, self.delimiter, self._null)
        faults = parts.faults
        too_many = np.flatnonzero(np.bincount(found.owners) > ROWS_MAX)
        if len(too_many):
            faults |= dict.fromkeys(parts.owners[too_many].tolist(), TOO_MANY_ROWS)
            found = found.without(too_many)
        owners = parts.owners[found.owners]
        for part in np.flatnonzero(found.faults).tolist():
            faults.setdefault(int(parts.owners[part]), _FAULTS[found.faults[part]])
        bad = {
            int(row): self._bad_row(int(found.codes[row]), parts, int(found.owners[row]))
            for row in np.flatnonzero(found.codes)
        }
        if self.table.rows == "one" and len(owners):
            counts = np.bincount(owners)[owners]
            for row in np.flatnonzero(counts != 1).tolist():
                bad[row] = Fault(NOT_ONE_ROW, f"the message has {counts[row]} rows")
        return PieceRows(found.text, found.ends, owners, faults, bad)

    def _bad_row(self, code: int, parts: Parts, part: int) -> Fault:
        if code == GARBAGE:
            said = (
                "a value goes on behind its closing quote, or has a carriage return and no quotes"
            )
        else:
            values = "1 value" if code == 1 else f"{code} values"
            expected = len(parts.layouts[int(parts.chosen[part])].values)
            said = f"the row has {values}, not {expected}"
        begin, end = int(parts.begins[part]), int(parts.ends[part])
        return in_words(Fault(CANNOT_PARSE, said), parts.text[begin : min(end, begin + _LOOKED_AT)])


class ArrayRows(LineRows):
    """Takes messages of JSON arrays apart: one, or one after another."""

    def __call__(self, buffer: MessageBuffer) -> Split:
        split = super().__call__(buffer)
        if self.table.rows == "one":
            for index, value in buffer.items(np.array(buffer.faults, np.int64)):
                split.faults[index] = buffer.framing.explain(value)
        return split

    def parts(self, buffer: MessageBuffer, piece: Piece) -> Parts:
        """As the base says."""
        if self.table.rows == "many":
            found = JsonSplitter(ARRAYS).rows(piece)
            begins = np.concatenate(([0], found.ends + 1))[: len(found.ends)]
            of = found.text, begins, found.ends, found.owners
            return replace(Parts.of_one(self.layout, *of), faults=found.faults)
        begins, ends = piece.bounds
        numbers = np.arange(piece.first, piece.first + len(ends))
        sound = np.flatnonzero(np.isin(numbers, buffer.faults, invert=True))
        return Parts.of_one(self.layout, piece.text, begins[sound], ends[sound], sound)


class NamedRows(LineRows):
    """Takes messages apart that begin with a line of names."""

    def __init__(
        self, table: TableSpec, dialect: Dialect, delimiter: bytes = b"\t", null: str = ""
    ) -> None:
        super().__init__(table, dialect, None, delimiter, null)
        #: Of rows below a line of names.
        self._layout_below = lru_cache(_HEADS_MAX)(self._named)

    def parts(self, buffer: MessageBuffer, piece: Piece) -> Parts:
        """As the base says."""
        text: list[bytes] = []
        owners: list[int] = []
        chosen: list[int] = []
        faults: dict[int, Fault] = {}
        numbers: dict[bytes, int] = {}
        layouts: list[ValueLayout] = []
        begin = 0
        for place, end in enumerate(piece.ends.tolist()):
            message, begin = piece.text[begin : end - 1], end
            found = self._first_line(message)
            if isinstance(found, Fault):
                faults[place] = found
                continue
            head, rest = found
            is_alone = bool(not rest and head and not head.startswith(BYTE_ORDER_MARK))
            # A head of several lines may have taken rows for a part of a name.
            layout = None if is_alone and b"\n" not in head else self._layout_below(head)
            if isinstance(layout, Fault):
                faults[place] = layout
                continue
            if is_alone or layout is None:
                if self.table.rows == "one":
                    faults[place] = Fault(NOT_ONE_ROW, "the message has 0 rows")
                continue
            text.append(rest)
            owners.append(place)
            number = numbers.setdefault(head, len(layouts))
            layouts += [layout] if number == len(layouts) else []
            chosen.append(number)
        ends = np.cumsum([len(rest) + 1 for rest in text], dtype=np.int64)
        begins = np.concatenate(([0], ends))[: len(ends)]
        of = np.array(owners, np.int64), layouts, np.array(chosen, np.int64)
        return Parts(b"\n".join([*text, b""]), begins, ends - 1, *of, faults)

    def _first_line(self, message: bytes) -> tuple[bytes, bytes] | Fault:
        """The line of names that a message begins with, and the rest."""
        end = message.find(b"\n")
        quotes = message.count(b'"', 0, end) if self.dialect is Dialect.CSV and end >= 0 else 0
        while end >= 0 and quotes % 2:
            begin, end = end, message.find(b"\n", end + 1)
            quotes += message.count(b'"', begin, end) if end >= 0 else 0
        head, rest = (message, b"") if end < 0 else (message[:end], message[end + 1 :])
        return head.removesuffix(b"\r"), rest

    def _named(self, head: bytes) -> ValueLayout | Fault:
        if head.startswith(BYTE_ORDER_MARK):
            return _MARKED
        if not head:
            return Fault(NOT_ONE_ROW, "the message does not start with names")
        try:
            names = self._names(head.decode())
        except UnicodeDecodeError:
            return Fault(CANNOT_PARSE, "the line of names is not UTF-8")
        if not names:
            said = "the quotes in the line of names do not stand around whole names"
            return Fault(CANNOT_PARSE, said)
        unknown = [name for name in names if name not in self.types]
        doubled = sorted(
            name for name, count in Counter(names).items() if name in self.types and count > 1
        )
        if doubled:
            return Fault(CANNOT_PARSE, f"column {doubled[0]} is named twice", doubled[0])
        if len(unknown) == len(names):
            return Fault(NO_COLUMN, "the first line names no column of the table")
        if unknown and self.table.unknown_fields == "refuse":
            return Fault(UNKNOWN_FIELD, f"the table has no column {unknown[0]}", unknown[0])
        return self.layout_of(names)

    def names_in(self, message: bytes) -> list[str]:
        """The names that stand in a message."""
        found = self._first_line(message)
        return [] if isinstance(found, Fault) else self._names(found[0].decode(errors="replace"))

    def _names(self, head: str) -> list[str]:
        """The names; none if the line is not one row of CSV."""
        if self.dialect is Dialect.TSV:
            return [_UNESCAPED.sub(_unescape, name) for name in head.split("\t")]
        try:
            lines = io.StringIO(head, newline="")
            names, *others = csv.reader(lines, delimiter=self.delimiter.decode(), strict=True)
        except (csv.Error, ValueError):
            return []
        return [] if others else names


class TskvRows(NamedRows):
    """Takes messages of TSKV apart. Names are taken out of the rows, and stand before them once."""

    def _first_line(self, message: bytes) -> tuple[bytes, bytes] | Fault:
        heads, rows, at, end = set[bytes](), list[bytes](), 0, b"\n"
        names, values = list[bytes](), list[bytes]()
        while at < len(message) or end == b"\t":
            field = _FIELD.match(message, at)
            if field is None:
                return Fault(CANNOT_PARSE, "a field of the message is not name=value")
            name, value, end = field.groups()
            at = field.end()
            if name is not None:
                names.append(name)
                values.append(value)
            if end != b"\t":
                heads.add(b"\t".join(names))
                rows.append(b"\t".join(values) + b"\n")
                names, values = [], []
        if len(heads) > 1:
            return Fault(NOT_ONE_ROW, "the rows of the message have different names")
        return b"".join(heads), b"".join(rows)


#: Of TSKV: name, value, and what ends it; or the word `tskv`, which means nothing. In a name stand
#: only those escapes that `_unescape` reads as the engine does.
_NAME = rb"[^\\\t\n=]*+(?:\\[\\=tnr][^\\\t\n=]*+)*+"
_VALUE = rb"[^\\\t\n]*+(?:\\.[^\\\t\n]*+)*+"
_FIELD = re.compile(rb"(?:(%b)=(%b)|tskv)(\t|\n|\Z)" % (_NAME, _VALUE), re.DOTALL)
_UNESCAPED = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPES = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}


def _unescape(escaped: re.Match[str]) -> str:
    """A symbol in a name of TSV, near enough for people."""
    return _UNESCAPES.get(escaped[1], escaped[1])


def _named(table: TableSpec, rows: NamedRows) -> TableDecoder:
    return Decoder(table, rows, rows.names_in)


def json_object_decoder(table: TableSpec) -> TableDecoder:
    """JSONEachRow: a message is one object, or objects one after another, or an array of them."""
    if table.dynamic is not None and table.dynamic.passed_over:
        # Read, whatever stands there, and not stored.
        passed_over = (
            Column(name, "Nullable(String)", "EPHEMERAL") for name in table.dynamic.passed_over
        )
        table = replace(table, columns=(*table.columns, *passed_over))
    drops = table.bad_rows == "drop-row"
    split = JsonSplitter(OBJECTS, drops) if table.rows == "many" else None
    return Decoder(table, split, names_in_objects)


def json_array_decoder(table: TableSpec) -> TableDecoder:
    """JSONCompactEachRow: a message is one array, or arrays one after another."""
    return Decoder(table, ArrayRows(table, Dialect.ARRAYS, _names(table)))


def line_decoder(table: TableSpec) -> TableDecoder:
    """CSV and TSV: a message is one line, or lines; WithNames they stand behind a line of names,
    and in TSKV each value behind its own. LineAsString: a line is a value."""
    if table.format == "LineAsString":
        return Decoder(table, LineRows(table, Dialect.PLAIN, (only_column(table),)))
    options = dict(table.options)
    null = null_text(options.get("null", "\\N"))
    if table.format == "TSKV":
        return _named(table, TskvRows(table, Dialect.TSV, null=null))
    assert table.format.startswith(("CSV", "TSV")), f"line_decoder has no case for {table.format}"
    dialect, delimiter = Dialect.TSV, b"\t"
    if table.format.startswith("CSV"):
        dialect, delimiter = Dialect.CSV, delimiter_of(options.get("delimiter", ",")).encode()
    if table.format.endswith("WithNames"):
        return _named(table, NamedRows(table, dialect, delimiter, null))
    return Decoder(table, LineRows(table, dialect, _names(table), delimiter, null))


def _names(table: TableSpec) -> tuple[str, ...] | None:
    value = dict(table.options).get("columns", "")
    return column_names(value) if value else None
