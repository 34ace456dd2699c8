"""RowBinary, without names, or with the names and the types of its columns in each message."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, TypedFormat
from sluice.decode.messages.marked import Indices
from sluice.decode.sequential.row_walk import row_walk
from sluice.decode.sequential.rows import RowLayout
from sluice.decode.typed.structures import Structure, normalised, structure_of

_NOT_ONE_ROW = Fault(CANNOT_PARSE, "the message is not exactly one row of these columns")
#: The engine cuts longer messages faster than it is done here.
_CUT_BYTES_MAX = 1 << 16
#: Different heads whose columns are kept. Messages may bring any number of them.
_HEADS_MAX = 1000
_COLUMNS_MAX = 10_000
_TEXT_BYTES_MAX = 10_000


def _layout(structure: Structure, table: TableSpec, skip: int = 0) -> RowLayout:
    return RowLayout(
        "RowBinary",
        structure,
        row_walk(tuple(type_text for _, type_text in structure)),
        _NOT_ONE_ROW,
        many=table.rows == "many",
        cut_bytes_max=_CUT_BYTES_MAX,
        skip=skip,
    )


def row_binary(table: TableSpec) -> RowLayout:
    """Values in the order of the columns, without names. Option `columns`: their names and types;
    without it those of the table."""
    return _layout(structure_of(table), table)


class RowBinaryWithNamesAndTypes(TypedFormat):
    """Each message begins with the names and the types of its columns."""

    def __init__(self, table: TableSpec) -> None:
        self._table = table
        #: By the bytes at the beginning of a message: its layout, or why it says nothing that
        #: could be read.
        self._heads: dict[bytes, RowLayout | Fault] = {}

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See TypedFormat."""
        by_head, unreadable = self._by_head(buffer, indices)
        if unreadable:
            yield Group.without_messages(unreadable)
        for layout, messages in by_head:
            yield from layout.groups(buffer, messages)

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """See TypedFormat."""
        by_head, faults = self._by_head(buffer, indices)
        for layout, messages in by_head:
            faults |= layout.broken(buffer, messages)
        return faults

    def _by_head(
        self, buffer: MessageBuffer, indices: Indices
    ) -> tuple[list[tuple[RowLayout, Indices]], dict[int, Fault]]:
        """The messages of each head, in the order of the heads' first messages."""
        found: dict[bytes, tuple[RowLayout, list[int]]] = {}
        faults: dict[int, Fault] = {}
        head = None
        for index, value in buffer.items(indices):
            # A head says its own length, so no head begins with another one.
            if head is None or not value.startswith(head):
                head = None
                text, layout = self._head(value)
                if isinstance(layout, Fault):
                    faults[index] = layout
                    continue
                head = text
                own = found.setdefault(head, (layout, []))[1]
            own.append(index)
        return [(layout, np.array(own, np.int64)) for layout, own in found.values()], faults

    def _head(self, message: bytes) -> tuple[bytes, RowLayout | Fault]:
        try:
            text, names, types = _read_head(message)
        except _HeadError as error:
            return b"", Fault(CANNOT_PARSE, str(error))
        known = self._heads.get(text)
        if known is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            known = self._heads[text] = self._understood(text, names, types)
        return text, known

    def _understood(self, text: bytes, names: list[str], types: list[str]) -> RowLayout | Fault:
        try:
            structure = normalised(tuple(zip(names, types, strict=True)))
        except (TerminalError, RecursionError, ValueError, IndexError) as error:
            said = error.message if isinstance(error, TerminalError) else "a type is not understood"
            return Fault(CANNOT_PARSE, " ".join(said.split()))
        return _layout(structure, self._table, skip=len(text))


class _HeadError(Exception):
    """The bytes at the beginning of a message are no head."""


def _read_head(message: bytes) -> tuple[bytes, list[str], list[str]]:
    """The bytes of the head, the names and the types.

    :raises _HeadError: they are not there.
    """
    count, position = _number(message, 0, _COLUMNS_MAX)
    texts = []
    for _ in range(2 * count):
        length, position = _number(message, position, _TEXT_BYTES_MAX)
        text = message[position : position + length]
        position += length
        if len(text) < length:
            raise _HeadError("the message ends within the names and types of its columns")
        try:
            texts.append(text.decode())
        except UnicodeDecodeError:
            raise _HeadError("a name or type of a column is not UTF-8") from None
    return message[:position], texts[:count], texts[count:]


def _number(message: bytes, position: int, maximum: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        if position >= len(message):
            raise _HeadError("the message ends within the names and types of its columns")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > maximum:
                break
            return value, position
        shift += 7
    raise _HeadError("the message does not begin with names and types of columns")
