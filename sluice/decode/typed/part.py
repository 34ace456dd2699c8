"""Blocks of some of a buffer's messages, and one block made of several of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TransientError
from sluice.decode.engine.keys import PLACE_COLUMN
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.assemble import BlockShapeError, Body
from sluice.decode.messages.format import Group, Indices
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.typed.plan import Target, TypedPlan

_COPIED_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of some messages as a block, with its keys and its order.

    :param messages: of each row, its message's index in the buffer; in the order of reading,
        which is not the block's if that is sorted.
    :param numbers: of each row within its message; in the same order.
    """

    body: Body
    messages: Indices
    numbers: NDArray[np.uint32]


def read_rows(
    target: Target, plan: TypedPlan, group: Group, throws: bool, is_whole: bool
) -> tuple[Body, Indices]:
    """The rows of a group without those at fault, and the place of each in reading order.

    :param throws: a row at fault is an EngineError.
    :raises EngineError: the group cannot be read.
    """
    body = Body()
    try:
        run_on_messages(plan.rows_into(body.path, group, throws, is_whole), "Null")
    except BaseException:
        body.close()
        raise
    return body, _measured(target, body, is_whole)


def run_on_messages(query: str, output_format: str) -> Any:
    """`session.run` for queries that messages may break in the middle of their output.

    A query that wants more memory than its own setting allows is the
    messages' doing: a length in them says what is not there.

    :raises EngineError: also for this.
    """
    try:
        return run(query, output_format)
    except TransientError as error:
        if "Query memory limit exceeded" not in error.message:
            raise
        raise EngineError("the message asks for more memory than its size allows") from error


def _measured(target: Target, body: Body, is_whole: bool) -> Indices:
    """Take off what stands behind the table's columns; gives the places in reading order."""
    if not body.size or not body.measure():
        return np.zeros(0, np.int64)
    if not is_whole:
        begin = body.last_column(PLACE_COLUMN, "UInt32", 4)
        values = os.pread(body.file, 4 * body.rows, begin)
        return np.frombuffer(values, np.uint32).astype(np.int64)
    places = np.frombuffer(body.cut(PLACE_COLUMN, "UInt32", 4), np.uint32)
    body.cut_keys(target.keys)
    if body.order is not None:
        unsorted = np.empty_like(places)
        unsorted[body.order] = places
        places = unsorted
    return places.astype(np.int64)


class Pile(MemoryFile):
    """Blocks one after another in a file, to be made one. Each has the places of its rows as last
    column, which become the indices of their messages."""

    def __init__(self) -> None:
        super().__init__("parts")
        self._messages: list[Indices] = []
        self._numbers: list[NDArray[np.uint32]] = []

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows."""
        return not self._messages

    def add(self, part: Part) -> None:
        """Put a block of rows on top; its own file is closed."""
        body = part.body
        begin = body.last_column(PLACE_COLUMN, "UInt32", 4)
        os.pwrite(body.file, part.messages.astype("<u4").tobytes(), begin)
        size, position = os.fstat(body.file).st_size, 0
        while position < size:
            chunk = os.pread(body.file, _COPIED_BYTES, position)
            self.append(chunk)
            position += len(chunk)
        body.close()
        self._messages.append(part.messages)
        self._numbers.append(part.numbers)

    def joined(self, target: Target) -> Part:
        """All rows as one block, in the order of their messages."""
        if self.is_empty:
            return Part(Body(), np.zeros(0, np.int64), np.zeros(0, np.uint32))
        messages, numbers = np.concatenate(self._messages), np.concatenate(self._numbers)
        order = np.argsort(messages, kind="stable")
        body = Body()
        run(target.joined(body.path, self.path), "Null")
        ordered = _measured(target, body, is_whole=True)
        if not np.array_equal(ordered, messages[order]):
            raise BlockShapeError(
                "the engine did not join the parts of a block in the order of their messages",
                "Report this; the engine's version may have changed how it sorts.",
            )
        return Part(body, messages[order], numbers[order])
