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
from numpy.typing import NDArray

from sluice.decode.engine.native import read_header
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, OUT_OF_RANGE, Fault, refused_value
from sluice.decode.messages.marked import Indices, memory_file, pieces
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.text.isolate import OUT_OF_RANGE_CODES, halves, parts_of
from sluice.decode.text.line_files import write_numbered
from sluice.decode.text.line_formats import LineFormat
from sluice.decode.text.plan import MARK_COLUMN, Plan
from sluice.decode.text.words import REASONS

#: So many unreadable rows of a block get the engine's own words, at two queries each.
EXPLAINED_MAX = 100
#: What may raise an error that the engine does not skip.
_HARD = re.compile(rb"[0-9]{18,}|null|\\N", re.IGNORECASE)
_VALUE_CHARACTERS_MAX = 100
_COLUMN_READ = re.compile(r"Column \d+,\s+name: (.+?), type: ")
#: Within so many bytes of the end of its text the engine reads floats by other rules ("--1" is
#: -1 there), and what decodes alone would not among others: so a row is read several times.
_FLOATS_END = 512
_UNCLEAR = Fault(CANNOT_PARSE, "the row does not make one row of the table")

#: Of a row the kind of fault of each column.
_Kinds = NDArray[np.uint8]


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
        for part in parts_of(self._buffer, indices):
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
        return {index: self.explain(index) or _UNCLEAR for index in halves(indices, decodes)}

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
        for index, kinds in read.items():
            if kinds.any():
                faults[index] = self._value_fault(self._buffer.message(index), kinds)
        return faults, [index for index in asked if index not in read]

    def _read_leniently(
        self, indices: list[int], stopped: bool
    ) -> tuple[dict[int, _Kinds], list[int]]:
        """The faults of the rows that can be read; and the rows that were asked for, some or none
        of those that raise an error which the engine does not skip."""
        read = self._lenient(indices, stopped)
        if read is None:
            indices = [i for i in indices if not _HARD.search(self._buffer.message(i))]
            read = self._lenient(indices, stopped)
        return ({}, []) if read is None else (read, indices)

    def _lenient(self, indices: list[int], stopped: bool) -> dict[int, _Kinds] | None:
        """The faults of the rows that can be read; None: not decided."""
        if not indices:
            return {}
        values = self._buffer.iterate(np.array(indices, np.int64))
        with MemoryFile("lines") as file:
            rows = list(zip(indices, values, strict=True))
            write_numbered(file, self._lines, self._head, rows, stopped)
            # One block: it ends after so many attempts to read a row, and a row has four lines.
            query = self._plan.fault_kinds(file.path, 4 * len(indices), index=MARK_COLUMN)
            try:
                block = run(query, "RowBinary").bytes()
            except EngineError:
                return None
        found = np.frombuffer(block, np.uint8).reshape(-1, 4 + len(self._plan.columns))
        numbers = found[:, :4].copy().view("<u4")[:, 0]
        return dict(zip(numbers.tolist(), found[:, 4:], strict=True))

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
        return _UNCLEAR

    def _read_error(self, row: bytes, index: int, error: EngineError) -> Fault:
        if error.code in OUT_OF_RANGE_CODES:
            kinds = (self._lenient([index], stopped=True) or {}).get(index)
            if kinds is not None and kinds.any():
                return self._value_fault(row, kinds)
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
        out_of_range = error is not None and error.code in OUT_OF_RANGE_CODES
        reason = OUT_OF_RANGE if out_of_range else CANNOT_PARSE
        if column not in types or column not in self._names or not values:
            said = f"the row cannot be read as {self._plan.table.format} of this table"
            return Fault(reason, said, column if column in types else "")
        return refused_value(reason, self._shown(values, column), column, types[column])

    def _value_fault(self, row: bytes, kinds: _Kinds) -> Fault:
        column = int(np.flatnonzero(kinds)[0])
        part = self._plan.columns[column]
        value = self._shown(self._lines.values(row), part.name)
        return refused_value(REASONS[int(kinds[column])], value, part.name, part.column.type)

    def _shown(self, values: list[str], column: str) -> str:
        if len(values) != len(self._names) or column not in self._names:
            return "the value"
        value = re.sub(r"\s", " ", values[self._names.index(column)])
        return f'"{value}"'[:_VALUE_CHARACTERS_MAX]


def _count(values: list[str]) -> str:
    return "1 value" if len(values) == 1 else f"{len(values)} values"
