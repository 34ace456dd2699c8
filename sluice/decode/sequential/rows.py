"""Formats whose rows follow each other with nothing between them: RowBinary and MsgPack.

A message is one row (or any number of them, see cutting.py). It stands between two marks
(marks.py), so that a message that is too short or too long cannot pass as a row, nor move the
boundaries of its neighbours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.text import TableText
from sluice.decode.engine.session import literal
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, Natural
from sluice.decode.messages.marked import Indices, Piece, pieces, write_at
from sluice.decode.messages.marks import MARK_BYTES, place_between, secret
from sluice.decode.schema.structure import between_marks
from sluice.decode.sequential.cutting import HEAD, TAIL, Layout, cut, cut_groups
from sluice.decode.sequential.row_head import Head, HeadError, read_head
from sluice.decode.sequential.row_walk import RowWalk, row_walk
from sluice.decode.typed.structures import Structure, declared, normalised, structure_of

_NOT_ONE_ROW = Fault(CANNOT_PARSE, "the message is not exactly one row of these columns")
#: Different heads whose columns are kept. Messages may bring any number of them.
_HEADS_MAX = 1000


def marked_group(
    buffer: MessageBuffer,
    messages: Indices,
    engine_format: str,
    read: Structure,
    columns: tuple[Natural, ...],
    before: bytes = b"",
    skip: int = 0,
) -> Iterator[Group]:
    """These messages between marks, as one group.

    :param read: the columns as the engine reads them.
    :param before: what the format wants in front of the 16 bytes of a mark (a type and length).
    :param skip: bytes at the beginning of each message that are left out.
    """
    file = os.memfd_create("sluice-marked", os.MFD_CLOEXEC)
    try:
        size = 0
        for piece in pieces(buffer, messages):
            size += write_at(file, _between_marks(piece, before, skip), size)
        mark = f"FixedString({MARK_BYTES})"
        structure = declared(((HEAD, mark), *read, (TAIL, mark)))
        source = f"file('/proc/self/fd/{file}', {engine_format}, {literal(structure)})"
        # A length that a message claims must not become memory.
        settings = {
            "format_binary_max_string_size": max(size, 1),
            "format_binary_max_array_size": max(size, 1),
        }
        yield Group(source, columns, messages, place_between(HEAD, TAIL), True, settings)
    finally:
        os.close(file)


def _between_marks(piece: Piece, before: bytes, skip: int) -> bytes | memoryview:
    begins, ends = np.concatenate(([0], piece.ends[:-1])) + skip, piece.ends - 1
    if not before:
        return between_marks(piece.text, begins, ends, piece.first)
    view, known = memoryview(piece.text), before + secret()
    places = np.arange(piece.first, piece.first + len(ends), dtype="<u4").tobytes()
    marks = [known + places[at : at + 4] for at in range(0, len(places), 4)]
    parts: list[bytes | memoryview] = [b""] * (3 * len(ends))
    parts[::3] = parts[2::3] = marks
    parts[1::3] = [view[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    return b"".join(parts)


class RowBinary:
    """Values in the order of the columns, without names. Option `columns`: their names and types;
    without it those of the table."""

    def __init__(self, table: TableText) -> None:
        self._many = table.rows == "many"
        self._structure = structure_of(table)
        self._columns = tuple(Natural(*column) for column in self._structure)
        self._walk = row_walk(tuple(type_text for _, type_text in self._structure))

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See TypedFormat."""
        if self._many:
            layout = Layout("RowBinary", self._structure, self._columns)
            yield from cut_groups(buffer, indices, layout, partial(cut, step=self._walk.step))
            return
        yield from marked_group(buffer, indices, "RowBinary", self._structure, self._columns)

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """See TypedFormat."""
        return {} if self._many else broken_rows(self._walk, buffer, indices)


def broken_rows(
    walk: RowWalk, buffer: MessageBuffer, indices: Indices, skip: int = 0
) -> dict[int, Fault]:
    """Messages that are not one row; their first bytes may be something else."""
    faults: dict[int, Fault] = {}
    for piece in pieces(buffer, indices):
        text = np.frombuffer(piece.text, np.uint8)
        begins = np.concatenate(([0], piece.ends[:-1])) + skip
        broken = walk.broken(text, begins, piece.ends - 1)
        faults |= dict.fromkeys(indices[piece.places][broken].tolist(), _NOT_ONE_ROW)
    return faults


class RowBinaryWithNamesAndTypes:
    """Each message begins with the names and the types of its columns."""

    def __init__(self, table: TableText) -> None:
        self._many = table.rows == "many"
        self._heads: dict[bytes, Head | Fault] = {}

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See TypedFormat."""
        by_head, unreadable = self._by_head(buffer, indices)
        if unreadable:
            yield Group("", (), np.zeros(0, np.int64), "", True, {}, unreadable)
        for head, messages in by_head.items():
            skip = len(head.text)
            if self._many:
                layout = Layout("RowBinary", head.structure, head.columns)
                cutter = partial(cut, step=head.walk.step)
                yield from cut_groups(buffer, messages, layout, cutter, skip=skip)
            else:
                yield from marked_group(
                    buffer, messages, "RowBinary", head.structure, head.columns, skip=skip
                )

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """See TypedFormat."""
        by_head, faults = self._by_head(buffer, indices)
        for head, messages in by_head.items():
            if not self._many:
                faults |= broken_rows(head.walk, buffer, messages, len(head.text))
        return faults

    def _by_head(
        self, buffer: MessageBuffer, indices: Indices
    ) -> tuple[dict[Head, Indices], dict[int, Fault]]:
        """The messages of each head, in the order of the heads' first messages."""
        found: dict[Head, list[int]] = {}
        faults: dict[int, Fault] = {}
        last: Head | None = None
        for piece in pieces(buffer, indices):
            begins = [0, *piece.ends[:-1].tolist()]
            ends = (piece.ends - 1).tolist()
            text, own = piece.text, indices[piece.places].tolist()
            for index, begin, end in zip(own, begins, ends, strict=True):
                # A head says its own length, so no head begins with another one.
                if last is None or not text.startswith(last.text, begin, end):
                    head = self._head(text[begin:end])
                    if isinstance(head, Fault):
                        faults[index] = head
                        continue
                    last = head
                found.setdefault(last, []).append(index)
        by_head = {head: np.array(messages, np.int64) for head, messages in found.items()}
        return by_head, faults

    def _head(self, message: bytes) -> Head | Fault:
        try:
            text, names, types = read_head(message)
        except HeadError as error:
            return Fault(CANNOT_PARSE, str(error))
        known = self._heads.get(text)
        if known is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            known = self._heads[text] = _understood(text, names, types)
        return known


def _understood(text: bytes, names: list[str], types: list[str]) -> Head | Fault:
    """The head, or why it says nothing that could be read."""
    try:
        structure = normalised(tuple(zip(names, types, strict=True)))
    except (TerminalError, RecursionError, ValueError, IndexError) as error:
        said = error.message if isinstance(error, TerminalError) else "a type is not understood"
        return Fault(CANNOT_PARSE, " ".join(said.split())[:300])
    columns = tuple(Natural(*column) for column in structure)
    walk = row_walk(tuple(type_text for _, type_text in structure))
    return Head(text, structure, columns, walk)
