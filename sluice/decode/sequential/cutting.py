"""Messages of several rows of RowBinary or MsgPack, cut into rows.

Where rows end follows from their bytes. It is worked out here and proven by the engine: each row
stands between two marks (marks.py) that are its own, so a row that was cut wrongly cannot be
read, and its message is at fault. Rows that are read so, one behind the other, are the message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.session import identifier, literal
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import NO_MESSAGE, PLACE_IS_FIRST, Group, Natural
from sluice.decode.messages.marked import Indices, Piece, pieces, write_at
from sluice.decode.messages.marks import MARK_BYTES, place_between, secret
from sluice.decode.sequential.row_walk import UNKNOWN, Bytes, Positions, Step
from sluice.decode.typed.structures import Structure, declared

HEAD, TAIL, OWNER = "_sluice_head", "_sluice_tail", "_sluice_message"
NOT_ROWS = Fault(CANNOT_PARSE, "the message is not a number of whole rows of these columns")
#: Short messages are walked through together, a row of each at a time. That is slow for a few
#: with many rows each.
TOGETHER_BYTES_MAX = 1 << 16

Mask = NDArray[np.bool_]
#: Where the rows of one message end, or None if it is no whole rows.
CutAlone = Callable[[bytes, int, int], list[int] | None]


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows of some messages.

    :param owner: of each row, its message; ascending.
    :param broken: messages that are not whole rows. None of their rows is here.
    :param unknown: messages of which it is not known. None of their rows is here.
    """

    begins: Positions
    ends: Positions
    owner: Positions
    broken: Mask
    unknown: Mask

    @property
    def numbers(self) -> NDArray[np.uint32]:
        """Of each row within its message, from 0."""
        first = np.searchsorted(self.owner, self.owner, side="left")
        return (np.arange(len(self.owner)) - first).astype(np.uint32)


def cut(
    text: Bytes,
    begins: Positions,
    ends: Positions,
    step: Step | None,
    alone: CutAlone | None = None,
    together_max: int = TOGETHER_BYTES_MAX,
) -> Cut:
    """Cut messages, which are whole rows, none, or at fault.

    :param step: over one row; None: not known for these columns.
    :param alone: cuts a long message; None: those are left to the engine.
    """
    count = len(begins)
    broken, unknown = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    found: list[tuple[Positions, Positions, Positions]] = []
    is_short = ends - begins <= together_max
    if step is None:
        unknown |= begins < ends
    else:
        _cut_together(text, begins, ends, step, np.flatnonzero(is_short), broken, unknown, found)
        unknown |= ~is_short
    if alone is not None and unknown.any():
        value = text.tobytes()
        for index in np.flatnonzero(unknown).tolist():
            rows = alone(value, int(begins[index]), int(ends[index]))
            unknown[index], broken[index] = False, rows is None
            behind = np.array(rows or [], np.int64)
            before = np.concatenate((begins[index : index + 1], behind))[:-1]
            found.append((np.full(len(behind), index), before, behind))
    nothing = np.zeros(0, np.int64)
    columns = zip(*found, strict=True) if found else ((nothing,),) * 3
    owner, row_begins, row_ends = (np.concatenate(column) for column in columns)
    order = np.argsort(owner, kind="stable")
    order = order[~(broken | unknown)[owner[order]]]
    return Cut(row_begins[order], row_ends[order], owner[order], broken, unknown)


def _cut_together(
    text: Bytes,
    begins: Positions,
    ends: Positions,
    step: Step,
    chosen: Positions,
    broken: Mask,
    unknown: Mask,
    found: list[tuple[Positions, Positions, Positions]],
) -> None:
    alive = chosen[begins[chosen] < ends[chosen]]
    at = begins[alive]
    while len(alive):
        behind, end = step(text, at, ends[alive]), ends[alive]
        unknown[alive[behind >= UNKNOWN]] = True
        broken[alive[(behind > end) & (behind < UNKNOWN)]] = True
        fits = behind <= end
        found.append((alive[fits], at[fits], behind[fits]))
        goes_on = behind < end
        alive, at = alive[goes_on], behind[goes_on]


@dataclass(slots=True)
class Rows:
    """What of some messages goes to the engine.

    :param messages: indices in the buffer of those whose rows stand in the file, in its order.
    :param alone: of those that the engine must cut.
    :param faults: of those that are at fault, and why.
    :param numbers: of each row within its message, in the order of the file.
    :param dropped: rows that were left out.
    """

    messages: list[Indices] = field(default_factory=list)
    alone: list[Indices] = field(default_factory=list)
    faults: dict[int, Fault] = field(default_factory=dict)
    numbers: list[NDArray[np.uint32]] = field(default_factory=list)
    dropped: int = 0


#: Judges rows of a piece that the engine would read wrongly: which of them are left out, and
#: messages at fault by their place in the piece.
Judge = Callable[[Piece, Cut], tuple[Mask, dict[int, Fault]]]


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows of one structure stand in a file.

    :param engine_format: its name.
    :param read: the columns as the engine reads them.
    :param columns: what they are to the decoder.
    :param before: what the format wants in front of the 16 bytes of a mark.
    :param number: what it wants in front of the 4 bytes of a UInt32, and their order.
    """

    engine_format: str
    read: Structure
    columns: tuple[Natural, ...]
    before: bytes = b""
    number: tuple[bytes, str] = (b"", "<u4")

    def source(self, file: int, marked: bool) -> str:
        """What stands behind FROM."""
        read = self.read
        if marked:
            mark = f"FixedString({MARK_BYTES})"
            read = ((HEAD, mark), (OWNER, "UInt32"), *read, (TAIL, mark))
        columns = literal(declared(read))
        return f"file('/proc/self/fd/{file}', {self.engine_format}, {columns})"

    def write(self, text: bytes, rows: Cut, places: Positions, first: int) -> bytes:
        """These rows, each between its marks.

        :param places: of each row's message in the group.
        :param first: number of the first row in the file.
        """
        view, known = memoryview(text), self.before + secret()
        head, order = self.number
        count = len(places)
        own = np.arange(first, first + count, dtype="<u4").tobytes()
        owners = places.astype(order).tobytes()
        marks = [known + own[at : at + 4] for at in range(0, 4 * count, 4)]
        parts: list[bytes | memoryview] = [b""] * (4 * count)
        parts[::4] = parts[3::4] = marks
        parts[1::4] = [head + owners[at : at + 4] for at in range(0, 4 * count, 4)]
        begins, ends = rows.begins.tolist(), rows.ends.tolist()
        parts[2::4] = [view[a:b] for a, b in zip(begins, ends, strict=True)]
        return b"".join(parts)


def cut_groups(
    buffer: MessageBuffer,
    messages: Indices,
    layout: Layout,
    cutter: Callable[[Bytes, Positions, Positions], Cut],
    judge: Judge | None = None,
    skip: int = 0,
) -> Iterator[Group]:
    """Messages of any number of rows each: those that were cut as one group, the others each as a
    group of its own.

    :param skip: bytes at the beginning of each message that are left out.
    """
    rows = Rows()
    file = os.memfd_create("sluice-rows", os.MFD_CLOEXEC)
    try:
        size = _write_rows(file, buffer, messages, layout, cutter, judge, skip, rows)
        yield Group(
            layout.source(file, marked=True),
            layout.columns,
            np.concatenate([*rows.messages, np.zeros(0, np.int64)]),
            _place(),
            False,
            _limits(size),
            rows.faults,
            np.concatenate([*rows.numbers, np.zeros(0, np.uint32)]),
            rows.dropped,
        )
    finally:
        os.close(file)
    alone = np.concatenate([*rows.alone, np.zeros(0, np.int64)])
    for index, value in zip(alone.tolist(), buffer.iterate(alone), strict=True):
        file = os.memfd_create("sluice-rows", os.MFD_CLOEXEC)
        try:
            size = write_at(file, memoryview(value)[skip:], 0)
            source = layout.source(file, marked=False)
            one = np.array([index], np.int64)
            settings = _limits(size)
            yield Group(source, layout.columns, one, PLACE_IS_FIRST, False, settings)
        finally:
            os.close(file)


def _place() -> str:
    """SQL: a row between two marks that are the same is the row that they name, and what stands
    right behind the first one is what was written there."""
    proven = place_between(HEAD, TAIL)
    return f"if({proven} = {NO_MESSAGE}, toUInt32({NO_MESSAGE}), {identifier(OWNER)})"


def _limits(size: int) -> dict[str, object]:
    """A length that a message claims must not become memory."""
    return {
        "format_binary_max_string_size": max(size, 1),
        "format_binary_max_array_size": max(size, 1),
    }


def _write_rows(
    file: int,
    buffer: MessageBuffer,
    messages: Indices,
    layout: Layout,
    cutter: Callable[[Bytes, Positions, Positions], Cut],
    judge: Judge | None,
    skip: int,
    rows: Rows,
) -> int:
    """Write what was cut; gives the size."""
    size = written = places = 0
    for piece in pieces(buffer, messages):
        own = messages[piece.places]
        begins = np.concatenate(([0], piece.ends[:-1])) + skip
        found = cutter(np.frombuffer(piece.text, np.uint8), begins, piece.ends - 1)
        rows.faults |= dict.fromkeys(own[found.broken].tolist(), NOT_ROWS)
        rows.alone.append(own[found.unknown])
        is_good = ~(found.broken | found.unknown)
        left_out = np.zeros(len(found.owner), np.bool_)
        if judge is not None:
            left_out, faults = judge(piece, found)
            for place, fault in faults.items():
                rows.faults[int(own[place])] = fault
                is_good[place] = False
        chosen = is_good[found.owner] & ~left_out
        rows.dropped += int(np.count_nonzero(is_good[found.owner] & left_out))
        kept = Cut(
            found.begins[chosen],
            found.ends[chosen],
            found.owner[chosen],
            found.broken,
            found.unknown,
        )
        place_of = places + np.cumsum(is_good) - 1
        size += write_at(file, layout.write(piece.text, kept, place_of[kept.owner], written), size)
        written += len(kept.owner)
        places += int(np.count_nonzero(is_good))
        rows.messages.append(own[is_good])
        rows.numbers.append(found.numbers[chosen])
    return size
