"""Rows of CSV, TSV and JSON arrays to one Native block.

Where one row ends (H17). The file that the engine reads is our line of names, then each row with
a newline behind it.
  - JSON arrays: the structure of each is proven, see `boundaries`.
  - Lines without a newline inside. After n of them, n rows mean that every row ended at its own
    newline: a row that swallows one (in quotes, in the array of a TSV value) leaves one row fewer,
    and no row ends without one but the last, at the end of the file. That one must have
    swallowed the file's last newline, for which it would have to go on behind it; lines that end
    with a backslash of TSV, which could, are not let in (`split_lines`).
  - Lines with quoted newlines (CSV). Counting proves nothing any more, so each row begins with
    a value that no message can contain, and with the row's number. Where row k says k, row k
    began right there, and row k - 1 ended before it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.core.text_options import SKIPPED
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.assemble import Body, Lineage
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import BadMessage, Decoded
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.marked import Indices
from sluice.decode.messages.marks import secret
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.messages.origins import Origins
from sluice.decode.messages.splitting import Splitter
from sluice.decode.text.decoder import Decoder, without_faults
from sluice.decode.text.isolate_lines import LineJudge
from sluice.decode.text.line_files import write_lines
from sluice.decode.text.line_formats import LineFormat
from sluice.decode.text.merging import merge
from sluice.decode.text.misread import Look
from sluice.decode.text.plan import Plan


class LineDecoder(Decoder):
    """Decodes rows of values without names. Compile once for each table text and order of columns.

    :param names: of the values of a row, in their order; None: the table's columns that an
        insert without names fills, lineage left out. SKIPPED: no column takes the value.
    :raises TerminalError: the text cannot be executed by this decoder.
    """

    _sifts = False

    def __init__(
        self,
        table: TableSpec,
        lines: LineFormat,
        names: tuple[str, ...] | None = None,
        split: Splitter | None = None,
    ) -> None:
        self._lines = lines
        self._given = names
        super().__init__(table, split)

    def _make_plan(self, widest_integer: str) -> Plan:
        return Plan(self.table, widest_integer, self._lines.rows)

    def _check(self) -> None:
        names = self._given or tuple(part.name for part in self._plan.columns)
        known = self._plan.readable
        unknown = [name for name in names if name not in known and name != SKIPPED]
        if unknown:
            raise TerminalError(
                f"table {self.table.target} has no column {unknown[0]} that a message could fill",
                f'Name columns of the table in option columns, or "{SKIPPED}" for a value that '
                "none takes.",
            )
        #: A name that no column has, for values that none takes.
        stand_in = SKIPPED
        while stand_in in known:
            stand_in += SKIPPED
        self.names = tuple(
            f"{stand_in}{place}" if name == SKIPPED else name for place, name in enumerate(names)
        )
        self._head = self._lines.header(self.names)
        self._compile(self._head)

    def _make_look(self) -> Look:
        types = self._plan.types
        columns = [(name, types.get(name, "")) for name in self.names]
        return self._lines.look(columns, self.table.fractions == "cut")

    def _structure_faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        return {} if self._lines.newline_moves else super()._structure_faults(buffer)

    @property
    def readable(self) -> frozenset[str]:
        """The names of the columns that messages may fill."""
        return self._plan.readable

    def merged(
        self,
        parts: list[Decoded],
        origins: Origins,
        bad: tuple[BadMessage, ...],
    ) -> Decoded:
        """Blocks of this table's columns as one.

        :param parts: of different messages, each block in the order of its messages.
        """
        messages = sum(part.messages for part in parts)
        filled = [part for part in parts if part.rows]
        if filled:
            body, lineage = merge(self._plan, filled, origins)
            body.cut_keys(self._plan.keys)
            return self._finished(body, lineage, bad, messages)
        return self._finished(Body(), Lineage(origins, np.zeros(0, np.uint64)), bad, 0)

    def _judge(self, buffer: MessageBuffer) -> LineJudge:
        return LineJudge(self._plan, self._lines, self.names, buffer)

    def _judged(self, buffer: MessageBuffer, left: Indices) -> tuple[Body | None, dict[int, Fault]]:
        return None, self._judge(buffer).find_faults(left)

    def _halved(self, buffer: MessageBuffer, left: Indices) -> tuple[Body | None, dict[int, Fault]]:
        return None, self._judge(buffer).halve(left, partial(self._decodes, buffer))

    def _decodes(self, buffer: MessageBuffer, indices: Indices) -> bool:
        return self._read(buffer, indices) is not None

    def _rows_of(self, buffer: MessageBuffer, faults: dict[int, Fault]) -> Body | None:
        return self._read(buffer, without_faults(buffer.messages, faults) if faults else None)

    def _read(self, buffer: MessageBuffer, chosen: Indices | None) -> Body | None:
        """These rows, None for all; None if they do not decode or are not as many."""
        rows = buffer.messages if chosen is None else len(chosen)
        if not rows:
            return Body()
        mark = b""
        if self._lines.newline_moves and not buffer.one_line_each:
            mark = b"m" + secret().hex().encode() + b"x"
        with MemoryFile("lines") as file:
            write_lines(file, self._lines, self._head, buffer, chosen, mark)
            plans = (self._short_plan, self._plan) if buffer.short_numbers else (self._plan,)
            for plan in plans:
                body = Body()
                # The engine may fail for a number that only the wider plan reads.
                with suppress(EngineError):
                    run(plan.strict_into(body.path, file.path, rows, mark.decode()), "Null")
                    if body.size and body.measure() == rows:
                        body.cut_keys(plan.keys)
                        return body
                body.close()
        return None
