"""RawBLOB: a message is the value of one column, whatever its bytes are."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.core.load_spec import TableSpec
from sluice.decode.engine.columns import only_column
from sluice.decode.engine.session import declared, literal
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.format import PLACE_IS_ROW_NUMBER, Group, Natural, TypedFormat
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.messages.views import Indices
from sluice.decode.schema.structure import with_lengths


class WholeValues(TypedFormat):
    """Every message makes one row.

    :raises TerminalError: neither the option `columns` nor the table says which column it is.
    """

    def __init__(self, table: TableSpec) -> None:
        name = only_column(table)
        self._columns = (Natural(name, "String"),)
        self._structure = literal(declared([(name, "String")]))

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See TypedFormat: one group of all."""
        with MemoryFile("whole") as file:
            for piece in buffer.pieces(indices):
                file.append(with_lengths(piece.text, *piece.bounds))
            source = f"file({literal(file.path)}, RowBinary, {self._structure})"
            yield Group(source, self._columns, indices, PLACE_IS_ROW_NUMBER, single=True)
