"""Finding the bad messages of a block, so that they cost no neighbour.

Messages whose structure is one object can be joined safely (brackets.py), and after a
parse error the next newline is the end of that message: raw newlines between tokens are
written as spaces. That is what makes the engine's skipping of bad rows exact (tolerant.py).
Whatever is left is decoded strictly afterwards; should that still fail, halving decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault, refused_by_engine
from sluice.decode.messages.marked import Indices, memory_file
from sluice.decode.text.misread import DoubtfulValues
from sluice.decode.text.plan import Plan
from sluice.decode.text.tolerant import lonely
from sluice.decode.text.words import (
    unequal_lengths,
    unread_as_a_whole,
    unreadable,
    value_fault,
    word_for_number,
)

#: Behind a message that is read alone: within so many bytes of the end of its text, the engine
#: reads floats by other rules ("--1" is -1 there), and what decodes alone would not among others.
_BEYOND_FLOATS = b" " * 512 + b"\n"
#: What may raise an error that the engine does not skip: numbers beyond 64 bits in a
#: DateTime, null in a Dynamic.
_HARD = re.compile(rb"[0-9]{18,}|null")
#: The column of which the engine reads the value when it gives up.
_KEY = re.compile(r"reading the value of (?:key|nested key|path) (.+?)\)")

_NONE = np.zeros(0, np.int64)

#: So much text is judged together: it is copied.
_JUDGED_BYTES = 16 << 20


def find_faults(
    plan: Plan, buffer: MessageBuffer, indices: Indices, unread: Indices = _NONE
) -> dict[int, Fault]:
    """The bad messages among these, each of which is one object, by index, in a few queries
    however many they are.

    What is left decodes strictly, but for what no query can skip: then `halve` is next.

    :param unread: those among them of which a pass before could not make a row.
    """
    faults = _words_for_numbers(plan, buffer, unread) | _doubtful(plan, buffer, indices)
    for part in parts_of(buffer, _besides(indices, faults)):
        judged, not_read = _judge(plan, buffer, part)
        faults |= judged | _unreadable(plan, buffer, not_read)
    return faults


def _words_for_numbers(plan: Plan, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
    """Those of messages that cannot be read of which this shows in their text. An exception of the
    engine for each is what costs."""
    pairs = ((index, word_for_number(plan, line)) for index, line in _lines(buffer, indices))
    return {index: fault for index, fault in pairs if fault is not None}


def _doubtful(plan: Plan, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
    """Those with a value that no query of a plan that takes words judges."""
    if not plan.takes_words:
        return {}
    values = DoubtfulValues(plan.types, plan.table.on_null == "dead-letter")
    pairs = ((index, values.fault(line)) for index, line in _lines(buffer, indices))
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
    with lonely(plan, buffer, indices) as messages:
        found = messages.fault_kinds()
    if found is None:
        indices = indices[~_are_hard(buffer, indices)]
        with lonely(plan, buffer, indices) as messages:
            found = messages.fault_kinds()
    if found is None:
        return {}, _NONE
    read, kinds = found
    bad = np.flatnonzero(kinds.any(axis=1))
    faults: dict[int, Fault] = {}
    lines = _lines(buffer, indices[read[bad]])
    for (index, line), of_columns in zip(lines, kinds[bad], strict=True):
        column = int(np.flatnonzero(of_columns)[0])
        faults[index] = value_fault(plan, line, plan.columns[column], int(of_columns[column]))
    return faults, np.delete(indices, read)


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
    left = np.ones(len(indices), np.bool_)
    with lonely(plan, buffer, indices) as messages:
        for part in plan.read:
            if not left.any():
                return faults
            read = messages.readable((part,))
            if read is None:
                continue
            failed = left.copy()
            failed[read] = False
            for index, line in _lines(buffer, indices[failed]):
                faults[index] = unreadable(plan, line, part.name, part.column.type)
            left &= ~failed
    indices = indices[left]
    with lonely(plan, buffer, indices) as messages:
        read = messages.readable()
    if read is not None:
        for index, line in _lines(buffer, np.delete(indices, read)):
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
            run(plan.strict(path, 1), "Null")
        except EngineError as error:
            key = _KEY.search(str(error))
            part = next((one for one in plan.read if key and one.name == key[1]), None)
            if part is None:
                return refused_by_engine(error)
            return unreadable(plan, line, part.name, part.column.type)
    return unequal_lengths(plan, line) or Fault(CANNOT_PARSE, "the message does not make one row")
