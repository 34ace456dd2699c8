"""The formats in which the names of the columns stand before the rows: CSV, TSV, JSON arrays.

The engine reads them `WithNames`: our own line of names stands first in every file that it
reads. So columns that messages do not carry get the table's DEFAULT, the engine's
guessing of headers has nothing to guess, and what it treats differently in the first line of a
file (a byte order mark, a carriage return) never meets a message.
"""

from __future__ import annotations

import csv
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sluice.decode.engine.session import literal
from sluice.decode.messages.boundaries import JSON_WHITESPACE
from sluice.decode.messages.fault import CANNOT_PARSE, NOT_ONE_ROW, Fault
from sluice.decode.messages.marked import Piece
from sluice.decode.text.cells import LineCells
from sluice.decode.text.misread import Look, MisreadArrays
from sluice.decode.text.plan import MARK_COLUMN, RowFormat
from sluice.decode.text.split_lines import row_ends

#: Behind a row that may be unreadable. A reader of fixed length (a UUID's) looks beyond its
#: line's end and fails in here; so does one of an unclosed array of TSV, which goes on to the
#: next quote. Should the engine hold what stands behind a bad value of CSV for quoted, the first
#: quote of these lines is the end of it, and the second line is one more bad row.
_STOPPER = b"x" * 96 + b"\n"
_CSV_STOPPER = b"x" * 96 + b'"\n"x\n'
_TSV_STOPPER = b"x'x\"x`x" + _STOPPER

_COMMON: dict[str, object] = {
    # Names are checked before; what is left is to be skipped.
    "input_format_skip_unknown_fields": 1,
    "input_format_with_names_use_header": 1,
}
_CSV: dict[str, object] = {
    **_COMMON,
    "format_csv_allow_single_quotes": 0,
    "format_csv_allow_double_quotes": 1,
    "input_format_csv_empty_as_default": 1,
    "input_format_csv_missing_nullable_as_empty_string": 0,
    # The engine cuts blanks around unquoted text unless told not to: a value would change.
    "input_format_csv_trim_whitespaces": 0,
    "input_format_csv_allow_whitespace_or_tab_as_delimiter": 0,
    "input_format_csv_allow_cr_end_of_line": 0,
    "input_format_csv_allow_variable_number_of_columns": 0,
    "input_format_csv_use_default_on_bad_values": 0,
    "input_format_csv_enum_as_number": 0,
    "input_format_csv_arrays_as_nested_csv": 0,
    "input_format_csv_deserialize_separate_columns_into_tuple": 1,
    "input_format_csv_detect_header": 0,
    "input_format_csv_skip_first_lines": 0,
    "input_format_csv_skip_trailing_empty_lines": 0,
}
_TSV: dict[str, object] = {
    **_COMMON,
    "input_format_tsv_empty_as_default": 0,
    "input_format_tsv_enum_as_number": 0,
    "input_format_tsv_allow_variable_number_of_columns": 0,
    "input_format_tsv_crlf_end_of_line": 0,
    "input_format_tsv_detect_header": 0,
    "input_format_tsv_skip_first_lines": 0,
    "input_format_tsv_skip_trailing_empty_lines": 0,
}
_ARRAYS: dict[str, object] = {
    **_COMMON,
    "input_format_json_compact_allow_variable_number_of_columns": 0,
}


class LineFormat(ABC):
    """How rows, marks and names are written in a format, and what a person reads of them.

    :param delimiter: between two values.
    :param newline_moves: a newline in a row is not proven to stay in it.
    :param stopper: what no row can be, behind which the engine is at the start of a row again.
    """

    delimiter: bytes
    newline_moves = True
    stopper: bytes

    @property
    @abstractmethod
    def rows(self) -> RowFormat:
        """How the engine finds them in a file."""

    @abstractmethod
    def header(self, names: Sequence[str]) -> bytes:
        """The line of names, with its newline."""

    def marked(self, mark: bytes, row: bytes) -> bytes:
        """The row with one more value in front.

        :param mark: ASCII letters and digits.
        """
        return mark + self.delimiter + row

    def marked_head(self, head: bytes) -> bytes:
        """The line of names with MARK_COLUMN in front."""
        return self.marked(MARK_COLUMN.encode(), head)

    def broken(self, piece: Piece) -> dict[int, Fault]:
        """Rows of a piece whose structure may take part of the next one with it."""
        return {}

    def first_line(self, message: bytes) -> tuple[bytes, bytes] | Fault:
        """The line of names that a message begins with, and the rest."""
        head, _, rest = message.partition(b"\n")
        return head.removesuffix(b"\r"), rest

    @abstractmethod
    def values(self, row: bytes) -> list[str]:
        """The values as the row says them; empty if that cannot be told."""

    @abstractmethod
    def look(self, columns: Sequence[tuple[str, str]], cuts: bool) -> Look:
        """Finds what the engine would misread.

        :param columns: names and types of a row's values; no type: no column takes it.
        :param cuts: digits of a second that a column does not keep may be cut.
        """


@dataclass(frozen=True)
class Csv(LineFormat):
    """Comma-separated values as in RFC 4180.

    :param delimiter: one ASCII byte.
    """

    delimiter: bytes = b","
    null: str = "\\N"
    stopper = _CSV_STOPPER

    @property
    def rows(self) -> RowFormat:
        settings = _CSV | {
            "format_csv_delimiter": literal(self.delimiter.decode()),
            "format_csv_null_representation": literal(self.null),
        }
        return RowFormat("CSVWithNames", frozenset(("CSV", "CSVWithNames")), settings)

    def header(self, names: Sequence[str]) -> bytes:
        quoted = ['"' + name.replace('"', '""') + '"' for name in names]
        return self.delimiter.join(name.encode() for name in quoted) + b"\n"

    def broken(self, piece: Piece) -> dict[int, Fault]:
        faults: dict[int, Fault] = {}
        symbols = np.frombuffer(piece.text, np.uint8)
        row_ends(piece, np.flatnonzero(symbols == ord("\n")), self.delimiter, faults)
        return faults

    def first_line(self, message: bytes) -> tuple[bytes, bytes]:
        head, _, rest = message.partition(b"\n")
        while head.count(b'"') % 2 and rest:
            more, _, rest = rest.partition(b"\n")
            head += b"\n" + more
        return head.removesuffix(b"\r"), rest

    def values(self, row: bytes) -> list[str]:
        text = io.StringIO(row.decode(errors="replace"), newline="")
        try:
            return next(csv.reader(text, delimiter=self.delimiter.decode()), [])
        except csv.Error:
            return []

    def look(self, columns: Sequence[tuple[str, str]], cuts: bool) -> Look:
        return LineCells(columns, self.values, self.delimiter.decode(), self.null, cuts)


@dataclass(frozen=True)
class Tsv(LineFormat):
    """Tab-separated values as the engine escapes them."""

    null: str = "\\N"
    delimiter = b"\t"
    stopper = _TSV_STOPPER

    @property
    def rows(self) -> RowFormat:
        settings = _TSV | {"format_tsv_null_representation": literal(self.null)}
        formats = frozenset(("TSV", "TSVWithNames", "TSKV"))
        return RowFormat("TabSeparatedWithNames", formats, settings)

    def header(self, names: Sequence[str]) -> bytes:
        return self.delimiter.join(_escaped(name.encode()) for name in names) + b"\n"

    def values(self, row: bytes) -> list[str]:
        return [unescaped(value).decode(errors="replace") for value in row.split(b"\t")]

    def look(self, columns: Sequence[tuple[str, str]], cuts: bool) -> Look:
        return LineCells(columns, self.values, "", self.null, cuts)


@dataclass(frozen=True)
class Tskv(Tsv):
    """As Tsv with a name before each value. Names are taken out of the rows, and stand before
    them once, so that the engine sees what it sees of TSVWithNames."""

    def first_line(self, message: bytes) -> tuple[bytes, bytes] | Fault:
        heads, rows, at, end = set[bytes](), b"", 0, b"\n"
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
                rows += b"\t".join(values) + b"\n"
                names, values = [], []
        if len(heads) > 1:
            return Fault(NOT_ONE_ROW, "the rows of the message have different names")
        return b"".join(heads), rows


class JsonArrays(LineFormat):
    """One JSON array for each row. The structure is proven, newlines between values or not."""

    newline_moves = False
    stopper = _STOPPER

    @property
    def rows(self) -> RowFormat:
        engine = "JSONCompactEachRowWithNames"
        return RowFormat(engine, frozenset(("JSONCompactEachRow",)), _ARRAYS)

    def header(self, names: Sequence[str]) -> bytes:
        return json.dumps(list(names)).encode() + b"\n"

    def marked(self, mark: bytes, row: bytes) -> bytes:
        shown = mark if mark.isdigit() else b'"' + mark + b'"'
        return b"[" + shown + b"," + row.lstrip(JSON_WHITESPACE)[1:]

    def values(self, row: bytes) -> list[str]:
        try:
            document = json.loads(row, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            return []
        return [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in document]

    def look(self, columns: Sequence[tuple[str, str]], cuts: bool) -> Look:
        return MisreadArrays(columns, cuts)


#: Of TSKV: name, value, and what ends it; or the word `tskv`, which means nothing. In a name stand
#: only those escapes that `unescaped` reads as the engine does.
_NAME = rb"[^\\\t\n=]*+(?:\\[\\=tnr][^\\\t\n=]*+)*+"
_VALUE = rb"[^\\\t\n]*+(?:\\.[^\\\t\n]*+)*+"
_FIELD = re.compile(rb"(?:(%b)=(%b)|tskv)(\t|\n|\Z)" % (_NAME, _VALUE), re.DOTALL)
_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r"}
_UNESCAPES = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"b": b"\b", b"f": b"\f"}


def _escaped(text: bytes) -> bytes:
    return re.sub(rb"[\\\t\n\r]", lambda match: _ESCAPES[match[0]], text)


def unescaped(text: bytes) -> bytes:
    """A value of TSV, near enough for names and for people."""
    return re.sub(
        rb"\\(.)", lambda match: _UNESCAPES.get(match[1], match[1]), text, flags=re.DOTALL
    )
