"""Finding the bad rows among lines of values.

The engine skips what it cannot read and goes on at the next line. Each row carries its number,
so what was skipped is known, not guessed. A reader may look beyond the end of its line and
take other rows with it; so what was skipped is read once more, with something between any two
at which the engine stops. What is left unread then is bad by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from sluice.decode.engine.native import read_header
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, OUT_OF_RANGE, Fault, refused_value
from sluice.decode.messages.marked import Indices, memory_file, pieces
from sluice.decode.text.line_files import line_file, write_numbered
from sluice.decode.text.line_formats import LineFormat
from sluice.decode.text.plan import MARK_COLUMN, Plan
from sluice.decode.text.words import REASONS

#: So many unreadable rows of a block get the engine's own words, at two queries each.
EXPLAINED_MAX = 100
#: What may raise an error that the engine does not skip.
_HARD = re.compile(rb"[0-9]{18,}|null|\\N", re.IGNORECASE)
_VALUE_CHARACTERS_MAX = 100
_OUT_OF_RANGE_CODES = frozenset((69, 70, 131, 321, 395, 407, 691))
_COLUMN_READ = re.compile(r"Column \d+,\s+name: (.+?), type: ")
_JUDGED_BYTES = 16 << 20
#: Within so many bytes of the end of its text the engine reads floats by other rules ("--1" is
#: -1 there), and what decodes alone would not among others: so a row is read several times.
_FLOATS_END = 512


class LineJudge:
    """Judges the rows of a buffer.

    :param names: of the values of a row, in their order.
    """

    def __init__(
        self, plan: Plan, lines: LineFormat, names: tuple[str, ...], buffer: MessageBuffer
    ) -> None:
        self._plan = plan
        self._lines = lines
        self._names = names
        self._head = lines.header(names)
        self._buffer = buffer
        types = [column.type for column in plan.table.columns]
        self._names_hold_newlines = any("Enum" in t and ("\n" in t or "\\n" in t) for t in types)

    def find_faults(self, indices: Indices) -> dict[int, Fault]:
        """The bad rows among these, in a few queries however many they are."""
        faults: dict[int, Fault] = {}
        unread: list[int] = []
        sizes = np.diff(self._buffer.ends, prepend=0)[indices]
        parts = np.cumsum(sizes) // _JUDGED_BYTES
        for part in np.split(indices, np.flatnonzero(np.diff(parts)) + 1):
            judged, not_read = self._judge(part)
            faults |= judged
            unread += not_read
        for index in unread[EXPLAINED_MAX:]:
            faults[index] = self._unreadable(self._buffer.message(index), "")
        alone = set(unread[:EXPLAINED_MAX])
        if self._lines.newline_moves and not self._buffer.one_line_each:
            # Newlines were written as spaces, which may change the verdict on a value.
            broad = [index for index in faults if b"\n" in self._buffer.message(index)]
            alone |= set(broad if self._names_hold_newlines else broad[:EXPLAINED_MAX])
        for index in sorted(alone):
            fault = self.explain(index)
            if fault is not None:
                faults[index] = fault
            else:
                faults.pop(index, None)
        return faults

    def halve(self, indices: Indices, decodes: Callable[[Indices], bool]) -> dict[int, Fault]:
        """The bad rows that `find_faults` cannot judge (a default expression that throws).

        :param decodes: whether these rows decode strictly, to as many.
        """
        if not len(indices) or decodes(indices):
            return {}
        if len(indices) > 1:
            middle = len(indices) // 2
            return self.halve(indices[:middle], decodes) | self.halve(indices[middle:], decodes)
        unclear = Fault(CANNOT_PARSE, "the row does not make one row of the table")
        index = int(indices[0])
        return {index: self.explain(index) or unclear}

    def _judge(self, indices: Indices) -> tuple[dict[int, Fault], list[int]]:
        """The bad rows of a part; and those that the engine cannot read at all."""
        faults: dict[int, Fault] = {}
        for piece in pieces(self._buffer, indices):
            for place, fault in self._lines.broken(piece).items():
                faults[int(indices[piece.first + place])] = fault
        sound = [index for index in indices.tolist() if index not in faults]
        read, asked = self._read_leniently(sound, stopped=False)
        again = [index for index in asked if index not in read]
        more, asked = self._read_leniently(again, stopped=True)
        read |= more
        for index, code in read.items():
            if code:
                faults[index] = self._value_fault(self._buffer.message(index), code)
        return faults, [index for index in asked if index not in read]

    def _read_leniently(
        self, indices: list[int], stopped: bool
    ) -> tuple[dict[int, int], list[int]]:
        """The fault codes of the rows that can be read; and the rows that were asked for, some
        or none of those that raise an error which the engine does not skip."""
        read = self._lenient(indices, stopped)
        if read is None:
            indices = [i for i in indices if not _HARD.search(self._buffer.message(i))]
            read = self._lenient(indices, stopped)
        return ({}, []) if read is None else (read, indices)

    def _lenient(self, indices: list[int], stopped: bool) -> dict[int, int] | None:
        """The fault codes of the rows that can be read; None: not decided."""
        if not indices:
            return {}
        values = self._buffer.iterate(np.array(indices, np.int64))
        with line_file() as file:
            rows = list(zip(indices, values, strict=True))
            write_numbered(file, self._lines, self._head, rows, stopped)
            path = f"/proc/self/fd/{file}"
            # One block: it ends after so many attempts to read a row, and a row has four lines.
            found = _run_marked(self._plan.lenient(path, MARK_COLUMN, 4 * len(indices)))
        if found is None:
            return None
        return dict(zip(found[0].tolist(), found[1].tolist(), strict=True))

    def explain(self, index: int) -> Fault | None:
        """Why this row is bad; None if it is not."""
        row = self._buffer.message(index)
        times = 2 + _FLOATS_END // (len(row) + 1)
        with memory_file(self._head + (row + b"\n") * times) as path:
            try:
                # Most fail here, which asks the engine for a third of the time.
                run(self._plan.bare(path), "Null")
                block = run(self._plan.strict(path, times), "Native").bytes()
            except EngineError as error:
                return self._read_error(row, index, error)
        if block and read_header(memoryview(block))[1] == times:
            return None
        return Fault(CANNOT_PARSE, "the row does not make one row of the table")

    def _read_error(self, row: bytes, index: int, error: EngineError) -> Fault:
        if error.code in _OUT_OF_RANGE_CODES:
            codes = self._lenient([index], stopped=True) or {}
            if codes.get(index):
                return self._value_fault(row, codes[index])
        read = _COLUMN_READ.findall(str(error).split("ERROR")[0])
        key = re.search(r"reading the value of (?:key|nested key|path) (.+?)\)", str(error))
        column = read[-1] if read else key[1] if key else ""
        return self._unreadable(row, column, error)

    def _unreadable(self, row: bytes, column: str, error: EngineError | None = None) -> Fault:
        values, expected = self._lines.values(row), len(self._names)
        types = {part.name: part.column.type for part in self._plan.columns}
        if values and len(values) != expected and not any("Tuple" in t for t in types.values()):
            said = f"the row has {_count(values)}, not {expected}"
            return Fault(CANNOT_PARSE, said)
        out_of_range = error is not None and error.code in _OUT_OF_RANGE_CODES
        reason = OUT_OF_RANGE if out_of_range else CANNOT_PARSE
        if column not in types or column not in self._names or not values:
            said = f"the row cannot be read as {self._plan.table.format} of this table"
            return Fault(reason, said, column if column in types else "")
        return refused_value(reason, self._shown(values, column), column, types[column])

    def _value_fault(self, row: bytes, code: int) -> Fault:
        part = self._plan.columns[code // 4]
        value = self._shown(self._lines.values(row), part.name)
        return refused_value(REASONS[code % 4], value, part.name, part.column.type)

    def _shown(self, values: list[str], column: str) -> str:
        if len(values) != len(self._names) or column not in self._names:
            return "the value"
        value = re.sub(r"\s", " ", values[self._names.index(column)])
        return f'"{value}"'[:_VALUE_CHARACTERS_MAX]


def _count(values: list[str]) -> str:
    return "1 value" if len(values) == 1 else f"{len(values)} values"


def _run_marked(query: str) -> tuple[Indices, Indices] | None:
    """Run a query that gives columns i and f, both UInt32."""
    try:
        result = run(query, "Native")
    except EngineError:
        return None
    block = result.bytes()
    if not block:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    _, rows, position = read_header(memoryview(block))
    width = 4 * rows
    head = len(b"\x01i\x06UInt32")
    marks = np.frombuffer(block, np.uint32, rows, position + head)
    codes = np.frombuffer(block, np.uint32, rows, position + head + width + head)
    return marks.astype(np.int64), codes.astype(np.int64)
