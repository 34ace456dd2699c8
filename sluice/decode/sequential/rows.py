"""Rows that follow each other with nothing between them, laid out for the engine.

A message is one row, or any number of them. Where rows end follows from their bytes; it is worked
out here and proven by the engine: each row stands between two marks (marks.py) that are its own. So
a message that is too short or too long cannot pass as a row nor move the boundaries of its
neighbours, and a row that was cut wrongly cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.session import declared, identifier, literal
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import NO_MESSAGE, PLACE_IS_FIRST, Group, Natural, TypedFormat
from sluice.decode.messages.framing import in_words
from sluice.decode.messages.marks import MARK_BYTES, place_between
from sluice.decode.messages.memory import MemoryFile, memory_file
from sluice.decode.messages.views import Indices
from sluice.decode.schema.structure import between_marks
from sluice.decode.typed.structures import Structure

_HEAD, _TAIL, _OWNER = "_sluice_head", "_sluice_tail", "_sluice_message"
_NOT_ROWS = Fault(CANNOT_PARSE, "the message is not a number of whole rows of these columns")

#: Over the row of a message that begins at a place: where it ends. Appends what is at fault in it
#: that the engine might take for something else. Raises IndexError if the message ends within the
#: row or it is none, and UnknownLengthError.
Walk = Callable[[bytes, int, list[Fault]], int]


class NotRowsError(IndexError):
    """The bytes of a message are no rows; as if it ended within one."""


class UnknownLengthError(Exception):
    """Only the engine knows where the row ends."""


@dataclass(frozen=True, slots=True)
class RowLayout(TypedFormat):
    """How rows of some columns stand in messages, and in a file that the engine reads.

    :param engine_format: its name.
    :param read: the columns as the engine reads them.
    :param walk: over one row.
    :param not_one: the fault of a message that is not one row.
    :param many: a message is any number of rows.
    :param drops: a row at fault is left out; otherwise its message is at fault.
    :param needs_walk: whether messages of one row must be looked at before the engine sees them,
        which stand in this text.
    :param cut_bytes_max: of several rows; the engine reads longer messages, each alone.
    :param skip: bytes at the beginning of each message that are left out.
    :param before_mark: what the format wants in front of the 16 bytes of a mark.
    :param number: what it wants in front of the 4 bytes of a UInt32, and their order.
    """

    engine_format: str
    read: Structure
    walk: Walk
    not_one: Fault
    many: bool
    drops: bool = False
    needs_walk: Callable[[bytes], bool] = lambda text: False
    cut_bytes_max: int | None = None
    skip: int = 0
    before_mark: bytes = b""
    number: tuple[bytes, str] = (b"", "<u4")

    def rows(self, value: bytes) -> tuple[list[int], dict[int, Fault]] | Fault:
        """Where the rows of a message end, and those at fault by their number; or the message's.

        :raises UnknownLengthError: the engine must cut it.
        """
        walk, end, at = self.walk, len(value), self.skip
        ends: list[int] = []
        found: list[Fault] = []
        faults: dict[int, Fault] = {}
        try:
            while at < end:
                at = walk(value, at, found)
                if found:
                    faults[len(ends)] = found[0]
                    found.clear()
                ends.append(at)
        except IndexError:
            at = -1
        if at != end or (len(ends) != 1 and not self.many):
            fault = _NOT_ROWS if self.many else self.not_one
            # What begins with zeros is rather a number than a registry's header.
            return fault if value[:1] == b"\0" else in_words(fault, value)
        if faults and not self.drops:
            number, fault = next(iter(faults.items()))
            return fault.in_row(number) if self.many else fault
        return ends, faults

    def owners(self, places: list[int]) -> NDArray[np.uint8]:
        """The places of messages as the format has a UInt32, a line of bytes for each."""
        before, order = self.number
        lines = np.array(places, order).view(np.uint8).reshape(-1, 4)
        return np.hstack([np.tile(np.array(list(before), np.uint8), (len(places), 1)), lines])

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """See TypedFormat."""
        faults: dict[int, Fault] = {}
        for index, value in buffer.items(indices):
            try:
                found = self.rows(value)
            except UnknownLengthError:
                continue
            if isinstance(found, Fault):
                faults[index] = found
        return faults

    def groups(self, buffer: MessageBuffer, messages: Indices) -> Iterator[Group]:
        """See TypedFormat: messages that are cut here make one group, others one each."""
        columns = tuple(Natural(*column) for column in self.read)
        with MemoryFile("rows") as file:
            written = _Written(file, self)
            for piece in buffer.pieces(messages):
                written.add(messages[piece.places].tolist(), piece)
            yield Group(
                self._source(file.path, marked=True),
                columns,
                np.array(written.messages, np.int64),
                _place_of_owner() if self.many else place_between(_HEAD, _TAIL),
                not self.many,
                _limits(file.size),
                written.faults,
                np.array(written.numbers, np.uint32),
                written.dropped,
            )
        alone = np.array(written.alone, np.int64)
        for index, value in buffer.items(alone):
            with memory_file(memoryview(value)[self.skip :]) as path:
                source, one = self._source(path, marked=False), np.array([index], np.int64)
                limits = _limits(len(value) - self.skip)
                yield Group(source, columns, one, PLACE_IS_FIRST, False, limits)

    def _source(self, path: str, marked: bool) -> str:
        """What stands behind FROM."""
        read = self.read
        if marked:
            mark = f"FixedString({MARK_BYTES})"
            owner = ((_OWNER, "UInt32"),) if self.many else ()
            read = ((_HEAD, mark), *owner, *read, (_TAIL, mark))
        structure = literal(declared(read))
        return f"file({literal(path)}, {self.engine_format}, {structure})"


@dataclass(slots=True)
class _Written:
    """What of some messages stands in a file, or goes to the engine in another way.

    :param messages: indices in the buffer of those whose rows stand in the file, in its order.
    :param alone: of those that the engine must cut.
    :param faults: of those that are at fault, and why.
    :param numbers: of each row within its message, in the order of the file.
    :param dropped: rows that were left out.
    """

    file: MemoryFile
    layout: RowLayout
    messages: list[int] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    dropped: int = 0

    def add(self, indices: list[int], piece: Piece) -> None:
        """Write the rows of these messages, or note why not."""
        layout, first = self.layout, len(self.numbers)
        owners = np.empty((0, 0), np.uint8)
        if layout.many or layout.needs_walk(piece.text):
            begins, ends, owned = self._cut(indices, piece)
            owners = layout.owners(owned) if layout.many else owners
        else:
            self.messages += indices
            self.numbers += [0] * len(indices)
            begins, ends = piece.bounds
            begins = begins + layout.skip
        places = np.arange(first, first + len(begins), dtype=np.uint32)
        written = between_marks(piece.text, begins, ends, places, layout.before_mark, owners)
        self.file.append(written)

    def _cut(self, indices: list[int], piece: Piece) -> tuple[Indices, Indices, list[int]]:
        """Where the rows of these messages begin and end in the text, and of each the place of its
        message in the file."""
        layout, text = self.layout, piece.text
        longest = layout.cut_bytes_max or len(text)
        begins: list[int] = []
        ends: list[int] = []
        owners: list[int] = []
        for index, first, end in zip(indices, *(b.tolist() for b in piece.bounds), strict=True):
            value = text[first:end]
            try:
                if layout.many and len(value) > longest:
                    raise UnknownLengthError
                found = layout.rows(value)
            except UnknownLengthError:
                self.alone.append(index)
                continue
            if isinstance(found, Fault):
                self.faults[index] = found
                continue
            at = layout.skip
            for number, behind in enumerate(found[0]):
                if number not in found[1]:
                    owners.append(len(self.messages))
                    self.numbers.append(number)
                    begins.append(first + at)
                    ends.append(first + behind)
                at = behind
            self.messages.append(index)
            self.dropped += len(found[1])
        return np.array(begins, np.int64), np.array(ends, np.int64), owners


def _place_of_owner() -> str:
    """SQL: a row between two marks that are the same is the row that they name, and what stands
    right behind the first one is what was written there."""
    proven = place_between(_HEAD, _TAIL)
    return f"if({proven} = {NO_MESSAGE}, toUInt32({NO_MESSAGE}), {identifier(_OWNER)})"


def _limits(size: int) -> dict[str, object]:
    """A length that a message claims must not become memory."""
    return {
        "format_binary_max_string_size": max(size, 1),
        "format_binary_max_array_size": max(size, 1),
    }
