"""Finding the bad messages of a block, so that they cost no neighbour.

Messages whose structure is one object can be joined safely (brackets.py), and after a
parse error the next newline is the end of that message: raw newlines between tokens are
written as spaces. That is what makes the engine's skipping of bad rows exact. Whatever
is left is decoded strictly afterwards; should that still fail, halving decides.

A tolerant pass goes on behind a message that cannot be read. The engine skips such a message: it
goes on behind the next newline, and writes down which of its attempts to read a row failed. A
message whose structure is one object, on one line, is one attempt: it is read to its end, or what
fails in it is skipped to its end at least. An attempt that takes more than that takes whole
messages more. So if n messages were n attempts, each was exactly one. The n + 1st attempt is a line
behind them that fails: it counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.buffer import BEHIND, MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault, refused_by_engine
from sluice.decode.messages.framing import JSON_OBJECTS
from sluice.decode.messages.memory import MemoryFile, memory_file
from sluice.decode.messages.views import Indices, lines_of, without
from sluice.decode.text.misread import DoubtfulValues
from sluice.decode.text.plan import Plan
from sluice.decode.text.words import (
    TooManySeconds,
    unequal_lengths,
    unread_as_a_whole,
    unreadable,
    value_fault,
    word_for_number,
)

_NONE = np.zeros(0, np.int64)
#: Cannot be read in any format, and says so in the log.
_LAST_LINE = b"!\n"
_ATTEMPT = re.compile(rb'^"[^"]*",[^,]*,[^,]*,([0-9]+),', re.MULTILINE)
#: Between two messages: readers of fixed length (a UUID's) look beyond a short value, and
#: the engine goes on after the next newline. 96 spaces are more than any of them reads.
_PADDING = b" " * 96 + b"\n"


def _suspects(plan: Plan, buffer: MessageBuffer, indices: Indices) -> tuple[Indices, Indices]:
    """Those of these messages that a strict pass would refuse, and those of them that it cannot
    read; all and none, if it is not proven which row is which message.

    Where the engine gives up in the middle of a value, what it leaves behind may change values that
    come then. So no row is made here, and who is no suspect still has to decode strictly.
    """
    if buffer.framing is not JSON_OBJECTS or not buffer.one_line_each:
        return indices, _NONE
    count = len(indices)
    others = np.delete(np.arange(buffer.messages), indices)
    with without(buffer, others), _ended(buffer) as path:
        made = _run(partial(plan.are_unfit, path, count + 1), count)
    if made is None:
        return indices, _NONE
    block, read = made
    # What cannot be read is one.
    are_suspects = np.ones(count, np.bool_)
    are_suspects[read] = np.frombuffer(block, np.bool_)
    return indices[are_suspects], np.delete(indices, read)


@contextmanager
def _ended(buffer: MessageBuffer) -> Iterator[str]:
    """The buffer's file with the last line."""
    path, size = buffer.path, buffer.size
    try:
        os.pwrite(buffer.file, _LAST_LINE, size)
        yield path
    finally:
        os.ftruncate(buffer.file, size)


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


def _of_lonely(
    query: Callable[[str, int, str], str], buffer: MessageBuffer, indices: Indices
) -> tuple[bytes, Indices] | None:
    """The same of messages of which each is one object, and of their places. They stand in a file
    of their own, each on one line and far enough from the next one that no reader of a value
    reaches it.

    :param query: one of a `Plan`, of the file, its lines and the log.
    """
    with MemoryFile("lonely") as file:
        for piece in buffer.pieces(indices):
            file.append(lines_of(piece).replace(b"\n", _PADDING))
        file.append(BEHIND, _LAST_LINE)
        return _run(partial(query, file.path, len(indices) + 1), len(indices))


#: Behind a message that is read alone: within so many bytes of the end of its text, the engine
#: reads floats by other rules ("--1" is -1 there), and what decodes alone would not among others.
_BEYOND_FLOATS = b" " * 512 + b"\n"
#: What may raise an error that the engine does not skip: numbers beyond 64 bits in a
#: DateTime, null in a Dynamic.
_HARD = re.compile(rb"[0-9]{18,}|null")
#: The column of which the engine reads the value when it gives up.
_KEY = re.compile(r"reading the value of (?:key|nested key|path) (.+?)\)")

#: So much text is judged together: it is copied.
_JUDGED_BYTES = 16 << 20


def find_faults(
    plan: Plan, buffer: MessageBuffer, indices: Indices, strict: Plan | None = None
) -> dict[int, Fault]:
    """The bad messages among these, each of which is one object, by index, in a few queries
    however many they are.

    What is left decodes strictly, but for what no query can skip: then `halve` is next.

    :param strict: whose rows are wanted: only what it refuses is looked at; None: that is all.
    """
    unread = _NONE
    if strict is not None:
        indices, unread = _suspects(strict, buffer, indices)
    faults = _words_for_numbers(plan, buffer, unread)
    if plan.takes_words:
        # No query of such a plan judges them.
        doubtful = DoubtfulValues(plan.types, plan.table.on_null == "dead-letter")
        faults |= _told(buffer, indices, doubtful.fault)
    for part in parts_of(buffer, _besides(indices, faults)):
        judged, not_read = _judge(plan, buffer, part)
        faults |= judged | _unreadable(plan, buffer, not_read)
    return faults


def _words_for_numbers(plan: Plan, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
    """Those of messages that cannot be read of which this shows in their text. An exception of the
    engine for each is what costs."""
    return _told(buffer, indices, partial(word_for_number, plan))


def _told(
    buffer: MessageBuffer, indices: Indices, fault_of: Callable[[bytes], Fault | None]
) -> dict[int, Fault]:
    """Those of these messages that have a fault by themselves."""
    pairs = ((index, fault_of(line)) for index, line in _lines(buffer, indices))
    return {index: fault for index, fault in pairs if fault is not None}


def _besides(indices: Indices, faults: dict[int, Fault]) -> Indices:
    kept: Indices = indices[~np.isin(indices, np.fromiter(faults, np.int64, len(faults)))]
    return kept


def parts_of(buffer: MessageBuffer, indices: Indices) -> list[Indices]:
    """These messages in parts that are judged together."""
    sizes = np.diff(buffer.ends, prepend=0)[indices]
    number = np.cumsum(sizes) // _JUDGED_BYTES
    parts = np.split(indices, np.flatnonzero(np.diff(number)) + 1)
    return [part for part in parts if len(part)]


def _judge(plan: Plan, buffer: MessageBuffer, indices: Indices) -> tuple[dict[int, Fault], Indices]:
    """Those with a value that does not fit; and those that the engine cannot read loosely."""
    found = _of_lonely(plan.fault_kinds, buffer, indices)
    faults: dict[int, Fault] = {}
    if found is None:
        faults = _too_many_seconds(plan, buffer, indices)
        indices = _besides(indices, faults)
        found = _of_lonely(plan.fault_kinds, buffer, indices)
    if found is None:
        indices = indices[~_are_hard(buffer, indices)]
        found = _of_lonely(plan.fault_kinds, buffer, indices)
    if found is None:
        return faults, _NONE
    block, read = found
    kinds = np.frombuffer(block, np.uint8).reshape(len(read), len(plan.columns))
    bad = np.flatnonzero(kinds.any(axis=1))
    lines = _lines(buffer, indices[read[bad]])
    for (index, line), of_columns in zip(lines, kinds[bad], strict=True):
        column = int(np.flatnonzero(of_columns)[0])
        faults[index] = value_fault(plan, line, plan.columns[column], int(of_columns[column]))
    return faults, np.delete(indices, read)


def _too_many_seconds(plan: Plan, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
    """Those with one of the numbers that stop a query. To look for each of them by halves takes a
    tenth of a second [measured], and a producer that counts in nanoseconds sends nothing else."""
    return _told(buffer, indices, TooManySeconds(plan).fault)


def _are_hard(buffer: MessageBuffer, indices: Indices) -> NDArray[np.bool_]:
    """Which of these messages may stop a query."""
    hard = [_HARD.search(value) is not None for value in buffer.iterate(indices)]
    return np.array(hard, np.bool_)


def _unreadable(plan: Plan, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
    """Those that a strict pass cannot read, and why: one query for each column.

    As a whole only those are read each of whose columns can be read.
    """
    faults = _words_for_numbers(plan, buffer, indices)
    indices = _besides(indices, faults)
    for part in plan.read:
        if not len(indices):
            return faults
        found = _of_lonely(partial(plan.readable_rows, columns=(part,)), buffer, indices)
        if found is None:
            continue
        for index, line in _lines(buffer, np.delete(indices, found[1])):
            faults[index] = unreadable(plan, line, part.name, part.column.type)
        indices = indices[found[1]]
    found = _of_lonely(plan.readable_rows, buffer, indices)
    if found is not None:
        for index, line in _lines(buffer, np.delete(indices, found[1])):
            faults[index] = unread_as_a_whole(plan, line)
    return faults


def halve(
    plan: Plan, buffer: MessageBuffer, indices: Indices, decodes: Callable[[Indices], bool]
) -> dict[int, Fault]:
    """The bad messages that `find_faults` cannot find among others: they stop its queries, or a
    default expression throws.

    :param indices: of the messages that it left.
    :param decodes: whether these messages decode strictly, to as many rows.
    """
    faults: dict[int, Fault] = {}
    found = np.array(halves(indices, decodes), np.int64)
    for index, line in _lines(buffer, found):
        alone = find_faults(plan, buffer, np.array([index], np.int64))
        faults |= alone or {index: _said_by_engine(plan, line)}
    return faults


def halves(indices: Indices, decodes: Callable[[Indices], bool]) -> list[int]:
    """Those of these messages that do not decode.

    :param decodes: whether messages decode together.
    """
    if not len(indices) or decodes(indices):
        return []
    if len(indices) == 1:
        return [int(indices[0])]
    middle = len(indices) // 2
    return halves(indices[:middle], decodes) + halves(indices[middle:], decodes)


def _lines(buffer: MessageBuffer, indices: Indices) -> Iterator[tuple[int, bytes]]:
    """These messages by their indices, each on one line."""
    for index, value in buffer.items(indices):
        yield index, value.replace(b"\n", b" ")


def _said_by_engine(plan: Plan, line: bytes) -> Fault:
    """Why one message makes no row, as far as the engine says it."""
    with memory_file(line + _BEYOND_FLOATS) as path:
        try:
            run(plan.strict("/dev/null", path, 1), "Null")
        except EngineError as error:
            key = _KEY.search(str(error))
            part = next((one for one in plan.read if key and one.name == key[1]), None)
            if part is None:
                return unequal_lengths(plan, line) or refused_by_engine(error)
            return unreadable(plan, line, part.name, part.column.type)
    return Fault(CANNOT_PARSE, "the message does not make one row")
