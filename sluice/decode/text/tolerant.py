"""Passes over a text that go on behind a message that cannot be read.

The engine skips such a message: it goes on behind the next newline, and writes down which of its
attempts to read a row failed. A message whose structure is one object, on one line, is one attempt:
it is read to its end, or what fails in it is skipped to its end at least. An attempt that takes
more than that takes whole messages more. So if n messages were n attempts, each was exactly one.
The n + 1st attempt is a line behind them that fails: it counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.keys import PLACE_COLUMN
from sluice.decode.engine.session import EngineError, run
from sluice.decode.engine.types import leaves, parse_type
from sluice.decode.messages.assemble import Body
from sluice.decode.messages.buffer import BEHIND, MessageBuffer
from sluice.decode.messages.marked import Indices, lines_of, write_at
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.text.plan import Plan, PlannedColumn

#: Cannot be read in any format, and says so in the log.
_LAST_LINE = b"!\n"
_ATTEMPT = re.compile(rb'^"[^"]*",[^,]*,[^,]*,([0-9]+),', re.MULTILINE)
#: Between two messages: readers of fixed length (a UUID's) look beyond a short value, and
#: the engine goes on after the next newline. 96 spaces are more than any of them reads.
_PADDING = b" " * 96 + b"\n"

_LEAVES = re.compile(
    r"U?Int(8|16|32|64|128|256)|Float(32|64)|BFloat16|Decimal(32|64|128|256)?|String|FixedString"
    r"|UUID|IPv[46]|Bool|DateTime(64)?|Date(32)?|Enum(8|16)?"
)


def can_sift(plan: Plan) -> bool:
    """Whether `sift` surely makes the rows of a strict pass: what a reader leaves behind of a value
    that it gave up may show in the bytes of types that are not named here."""
    return all(
        _LEAVES.fullmatch(leaf) for t in plan.types.values() for leaf in leaves(parse_type(t))
    )


@dataclass(frozen=True, slots=True)
class Sifted:
    """What a tolerant pass made.

    :param body: the rows of all messages but the suspects.
    :param suspects: places of messages that cannot be read, or may hold what does not fit.
    :param unread: those of them that cannot be read.
    """

    body: Body
    suspects: Indices
    unread: Indices


def sift(plan: Plan, buffer: MessageBuffer, messages: int) -> Sifted | None:
    """The rows of a buffer whose messages are known, each for itself, to be one object on
    one line; None if it is not proven which row is which message.

    What is read is read as in a strict pass and narrowed by the same expressions, after
    rows with a value that may not fit were left out.

    :param plan: see `can_sift`.
    :param messages: how many of the buffer's messages the engine can see.
    """
    body = Body()
    with _ended(buffer) as path:
        made = _run(
            lambda errors: plan.tolerant_into(body.path, path, messages + 1, errors), messages
        )
    if made is None:
        body.close()
        return None
    _, read = made
    places = np.zeros(0, np.int64)
    if body.size and body.measure():
        cut = np.frombuffer(body.cut(PLACE_COLUMN, "UInt32", 4), np.uint32)
        places = np.sort(cut).astype(np.int64)
    suspects = np.ones(messages, np.bool_)
    suspects[read[places]] = False
    unread = np.delete(np.arange(messages), read)
    return Sifted(body, np.flatnonzero(suspects), unread)


@dataclass(frozen=True, slots=True)
class LonelyMessages:
    """Some messages in a file of their own, each on one line and far enough from the next one that
    no reader of a value reaches it.

    The methods give places among these messages, or None where a message stops the query.
    """

    plan: Plan
    path: str
    messages: int

    def fault_kinds(self) -> tuple[Indices, NDArray[np.uint8]] | None:
        """Which can be read loosely, and of each the kind of fault of each column."""
        made = _run(
            lambda errors: self.plan.fault_kinds(self.path, self.messages + 1, errors),
            self.messages,
        )
        if made is None:
            return None
        block, read = made
        return read, np.frombuffer(block, np.uint8).reshape(len(read), len(self.plan.columns))

    def readable(self, columns: tuple[PlannedColumn, ...] = ()) -> Indices | None:
        """Which can be read in the wide types: these columns of them, or else all, and then no
        field may be unknown if that is refused."""
        made = _run(
            lambda errors: self.plan.readable_rows(self.path, self.messages + 1, errors, columns),
            self.messages,
        )
        return None if made is None else made[1]


@contextmanager
def lonely(plan: Plan, buffer: MessageBuffer, indices: Indices) -> Iterator[LonelyMessages]:
    """These messages of a buffer, each of which is one object."""
    with MemoryFile("lonely") as file:
        for piece in buffer.pieces(indices):
            file.append(lines_of(piece).replace(b"\n", _PADDING))
        file.append(BEHIND, _LAST_LINE)
        yield LonelyMessages(plan, file.path, len(indices))


@contextmanager
def _ended(buffer: MessageBuffer) -> Iterator[str]:
    """The buffer's file with the last line."""
    path = buffer.path
    size = Path(path).stat().st_size
    try:
        with Path(path).open("r+b", buffering=0) as file:
            write_at(file.fileno(), _LAST_LINE, size)
        yield path
    finally:
        os.truncate(path, size)


def _run(query: Callable[[str], str], messages: int) -> tuple[bytes, Indices] | None:
    """What a query gives and which messages it could read; None if attempts were not messages.

    :param query: takes a path where nothing is, for the log of attempts that fail.
    """
    with TemporaryDirectory(prefix="sluice-") as folder:
        errors = Path(folder, "errors")
        try:
            block = run(query(str(errors)), "RowBinary").bytes()
            log = errors.read_bytes()
        except (EngineError, FileNotFoundError):
            return None
    failed = np.array(list(map(int, _ATTEMPT.findall(log))), np.int64) - 1
    if len(failed) != log.count(b"\n") or not len(failed) or failed[-1] != messages:
        return None
    return block, np.delete(np.arange(messages), failed[:-1])
