"""RowBinary, without names, or with the names and the types of its columns in each message.

Where a row ends: the length of every value follows from its type and its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.native import read_varint
from sluice.decode.engine.types import TypeNode, parse_type, size_of
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, TypedFormat
from sluice.decode.messages.views import Indices
from sluice.decode.sequential.rows import NotRowsError, RowLayout, UnknownLengthError, Walk
from sluice.decode.typed.structures import Structure, normalised, structure_of

#: Over the value that begins at a place of a message, see rows.Walk: where it ends.
_Step = Callable[[bytes, int], int]

#: Types that are nested deeper are left to the engine: each level is two calls of a function.
_DEPTH_MAX = 100


def row_walk(types: tuple[str, ...]) -> Walk:
    """The way over a row of columns of these types."""
    step = _in_turn([parse_type(text) for text in types])
    return lambda value, at, faults: step(value, at)


def _in_turn(nodes: list[TypeNode], depth: int = 0) -> _Step:
    """Over values of these types, one behind the other. Those of a known size are one jump."""
    jumps: list[tuple[int, _Step | None]] = []
    before = 0
    for node in nodes:
        size = size_of(node)
        if size is None:
            jumps.append((before, None if node.name == "String" else _step(node, depth + 1)))
            before = 0
        else:
            before += size

    if len(jumps) == 1 and jumps[0][0] == before == 0:
        # One value, as of an array: no need to go through a loop for it.
        return jumps[0][1] or _string

    def step(value: bytes, at: int) -> int:
        for size, behind in jumps:
            at += size
            if behind is not None:
                at = behind(value, at)
            elif value[at] < 0x80:
                # A short string: nothing is as frequent.
                at += 1 + value[at]
            else:
                at = _string(value, at)
        return at + before

    return step


def _step(node: TypeNode, depth: int) -> _Step:
    """Over a value of a type whose values are not all equally long."""
    parts = node.parts()
    if not parts or depth > _DEPTH_MAX:
        return _unknown
    together = _in_turn(parts, depth)
    if node.name == "Nullable":
        return _nullable(together)
    return _items(parts, together) if node.name in ("Array", "Map") else together


def _unknown(value: bytes, at: int) -> int:
    raise UnknownLengthError


def _string(value: bytes, at: int) -> int:
    length = value[at]
    if length < 0x80:
        return at + 1 + length
    length, at = _length(value, at)
    return at + length


def _length(value: bytes, at: int) -> tuple[int, int]:
    """The length that stands at this place, and the place behind it."""
    try:
        return read_varint(value, at, 9)
    except ValueError:
        raise UnknownLengthError from None


def _nullable(inner: _Step) -> _Step:
    def step(value: bytes, at: int) -> int:
        return at + 1 if value[at] else inner(value, at + 1)

    return step


def _items(parts: list[TypeNode], inner: _Step) -> _Step:
    sizes = [size_of(part) for part in parts]
    size = sum(size for size in sizes if size) if None not in sizes else None

    def step(value: bytes, at: int) -> int:
        count = value[at]
        at += 1
        if count >= 0x80:
            count, at = _length(value, at - 1)
        if size is not None:
            return at + count * size
        # Every item takes a byte at least.
        if count > len(value) - at:
            raise NotRowsError
        for _ in range(count):
            at = inner(value, at)
        return at

    return step


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
        self._layout = lru_cache(_HEADS_MAX)(self._understood)

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
            size, structure = _read_head(message)
        except _HeadError as error:
            return b"", Fault(CANNOT_PARSE, str(error))
        return message[:size], self._layout(structure, size)

    def _understood(self, structure: Structure, size: int) -> RowLayout | Fault:
        try:
            structure = normalised(structure)
        except (TerminalError, RecursionError, ValueError, IndexError) as error:
            said = error.message if isinstance(error, TerminalError) else "a type is not understood"
            return Fault(CANNOT_PARSE, " ".join(said.split()))
        return _layout(structure, self._table, skip=size)


_ENDS_WITHIN_HEAD = "the message ends within the names and types of its columns"


class _HeadError(Exception):
    """The bytes at the beginning of a message are no head."""


def _read_head(message: bytes) -> tuple[int, Structure]:
    """How many bytes the head has, and the columns that it names.

    :raises _HeadError: they are not there.
    """
    count, position = _number(message, 0, _COLUMNS_MAX)
    texts = []
    for _ in range(2 * count):
        length, position = _number(message, position, _TEXT_BYTES_MAX)
        text = message[position : position + length]
        position += length
        if len(text) < length:
            raise _HeadError(_ENDS_WITHIN_HEAD)
        try:
            texts.append(text.decode())
        except UnicodeDecodeError:
            raise _HeadError("a name or type of a column is not UTF-8") from None
    return position, tuple(zip(texts[:count], texts[count:], strict=True))


def _number(message: bytes, position: int, maximum: int) -> tuple[int, int]:
    try:
        value, position = read_varint(message, position, 5)
    except IndexError:
        raise _HeadError(_ENDS_WITHIN_HEAD) from None
    except ValueError:
        value = maximum + 1
    if value > maximum:
        raise _HeadError("the message does not begin with names and types of columns")
    return value, position
