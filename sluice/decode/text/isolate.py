"""Finding the bad messages of a block, so that they cost no neighbour.

Messages whose structure is one object can be joined safely (boundaries.py), and after a
parse error the next newline is the end of that message: raw newlines between tokens are
written as spaces. That is what makes the engine's skipping of bad rows exact. Each
row carries its index in a field of its own, so what was skipped is known, not guessed.
Whatever is left is decoded strictly afterwards; should that still fail, halving decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.native import read_header
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import (
    CANNOT_PARSE,
    NULL_IN_COLUMN,
    OUT_OF_RANGE,
    UNKNOWN_FIELD,
    Fault,
)
from sluice.decode.messages.marked import Indices, buffer_of, marked_file, memory_file
from sluice.decode.text.plan import Plan
from sluice.decode.text.suspects import run_marked
from sluice.decode.text.words import (
    ERROR_CHARACTERS_MAX,
    is_clear,
    is_null,
    unfit,
    unread_as_a_whole,
    unreadable,
    value_fault,
)

#: So many messages of a block, of which we do not know which column fails or how, get the
#: engine's own words, at two queries each.
EXPLAINED_MAX = 100
#: Between two messages: readers of fixed length (a UUID's) look beyond a short value, and
#: the engine goes on after the next newline. 96 spaces are more than any of them reads.
_PADDING = b" " * 96 + b"\n"
#: Behind a message that is read alone: within so many bytes of the end of its text, the engine
#: reads floats by other rules ("--1" is -1 there), and what decodes alone would not among others.
_BEYOND_FLOATS = b" " * 512 + b"\n"
#: What may raise an error that the engine does not skip: numbers beyond 64 bits in a
#: DateTime, null in a Dynamic.
_HARD = re.compile(rb"[0-9]{18,}|null")
_OUT_OF_RANGE_CODES = frozenset((69, 70, 131, 321, 395, 407, 691))
_NULL_CODES = frozenset((349,))

_NONE = np.zeros(0, np.int64)

#: So much text is judged together: what each message needs is not held for all of them.
_JUDGED_BYTES = 16 << 20


def find_faults(
    plan: Plan, buffer: MessageBuffer, indices: Indices, seen_unread: Indices = _NONE
) -> dict[int, Fault]:
    """The bad messages among these, each of which is one object, by index, in a few queries
    however many they are.

    What is left decodes strictly, but for what no query can skip: then `halve` is next.

    :param seen_unread: those of which a pass before could not make a row, as far as known.
    """
    faults: dict[int, Fault] = {}
    if not len(indices):
        return faults
    unread: list[int] = []
    sizes = np.diff(buffer.ends, prepend=0)[indices]
    parts = np.cumsum(sizes) // _JUDGED_BYTES
    for part in np.split(indices, np.flatnonzero(np.diff(parts)) + 1):
        judged, not_read = _judge(plan, buffer, part, seen_unread)
        faults |= judged
        unread += not_read
    for index in _to_explain(plan, buffer, faults, unread):
        fault = explain(plan, _line(buffer, index))
        if fault is None:
            del faults[index]
        else:
            faults[index] = replace(fault, column=fault.column or faults[index].column)
    return faults


def _to_explain(
    plan: Plan, buffer: MessageBuffer, faults: dict[int, Fault], unread: list[int]
) -> list[int]:
    """Of these messages those that the engine has to be asked about singly.

    They could not be read with loose types. All that a strict query might read are among
    them; of those that it cannot read either, the ones without good words, up to a limit.
    Where the column at fault is read alike by both, the strict query cannot read it: asking
    would cost an exception of the engine for each message.
    """
    if not unread:
        return []
    sure = {part.name for part in plan.columns if part.reader.wide == part.reader.loose}
    places = np.array([index for index in unread if faults[index].column not in sure], np.int64)
    readable: set[int] = set()
    if len(places):
        with marked_file(buffer, places, 1, _PADDING) as marked:
            rows = run_marked(plan.wide(marked.path, marked.field, len(places)))
        readable = set((places if rows is None else places[rows[0] - 1]).tolist())
    types = {part.name: part.column.type for part in plan.columns}
    unclear = [
        index for index in unread if index not in readable and not is_clear(faults[index], types)
    ]
    return sorted(readable.union(unclear[:EXPLAINED_MAX]))


def _judge(
    plan: Plan, buffer: MessageBuffer, indices: Indices, seen_unread: Indices
) -> tuple[dict[int, Fault], list[int]]:
    """The bad messages of a part; and which of them the engine cannot read at all."""
    faults: dict[int, Fault] = {}
    looked_at, by_column = _judge_unread(plan, buffer, indices[np.isin(indices, seen_unread)])
    easy = indices[~np.isin(indices, np.fromiter(by_column, np.int64, len(by_column)))]
    rows = _lenient(plan, buffer, easy)
    if rows is None:
        easy = easy[~_are_hard(buffer, easy)]
        rows = _lenient(plan, buffer, easy)
    if rows is None:
        return faults, []
    found, codes = rows
    bad = codes != 0
    for index, code in zip(easy[found[bad]].tolist(), codes[bad].tolist(), strict=True):
        faults[index] = value_fault(plan, _line(buffer, index), code)
    unread = _others(easy, found)
    is_looked_at = np.isin(unread, looked_at)
    faults |= by_column | _explain_many(plan, buffer, unread[~is_looked_at])
    for index in unread[is_looked_at].tolist():
        faults[index] = unread_as_a_whole(plan, _line(buffer, index))
    return faults, sorted([*unread.tolist(), *by_column])


def _judge_unread(
    plan: Plan, buffer: MessageBuffer, unread: Indices
) -> tuple[Indices, dict[int, Fault]]:
    """Of messages that a pass could not read those that were looked at column by column, and
    the faults of those among them that have a column which cannot be read.

    What cannot be read in one column cannot be read as a whole. An exception of the engine for
    each message is what costs, so they are not tried as a whole, too.
    """
    unread = unread[~_are_hard(buffer, unread)]
    found = _by_column(plan, buffer, unread)
    return (_NONE, {}) if found is None else (unread, found)


def _are_hard(buffer: MessageBuffer, indices: Indices) -> NDArray[np.bool_]:
    """Which of these messages may stop a query."""
    hard = [_HARD.search(value) is not None for value in buffer.iterate(indices)]
    return np.array(hard, np.bool_)


def halve(
    plan: Plan, buffer: MessageBuffer, indices: Indices, decodes: Callable[[Indices], bool]
) -> dict[int, Fault]:
    """The bad messages that `find_faults` cannot judge (a default expression that throws).

    :param indices: of the messages that it left.
    :param decodes: whether these messages decode strictly, to as many rows.
    """
    unclear = Fault(CANNOT_PARSE, "the message does not make one row")
    found = _halve(indices, decodes)
    return {index: explain(plan, _line(buffer, index)) or unclear for index in found}


def _halve(indices: Indices, decodes: Callable[[Indices], bool]) -> list[int]:
    if not len(indices) or decodes(indices):
        return []
    if len(indices) == 1:
        return [int(indices[0])]
    middle = len(indices) // 2
    return _halve(indices[:middle], decodes) + _halve(indices[middle:], decodes)


def _line(buffer: MessageBuffer, index: int) -> bytes:
    """The message on one line."""
    return buffer.message(index).replace(b"\n", b" ")


def _others(indices: Indices, places: Indices) -> Indices:
    """The indices at other places than these."""
    kept = np.ones(len(indices), np.bool_)
    kept[places] = False
    return indices[kept]


def _lenient(plan: Plan, buffer: MessageBuffer, indices: Indices) -> tuple[Indices, Indices] | None:
    """Places of the rows that can be read, and their fault codes; None: not decided."""
    with marked_file(buffer, indices, 1, _PADDING) as marked:
        rows = run_marked(plan.lenient(marked.path, marked.field, len(indices)))
    return None if rows is None else (rows[0] - 1, rows[1])


def explain(plan: Plan, line: bytes) -> Fault | None:
    """Why one message makes no row, in the engine's words; None if it makes one."""
    with memory_file(line + _BEYOND_FLOATS) as path:
        try:
            # Most fail here, which asks the engine for a third of the time.
            run(plan.bare(path), "Null")
            block = run(plan.strict(path, 1), "Native").bytes()
        except EngineError as error:
            return read_error(plan, line, error)
    if block and read_header(memoryview(block))[1] == 1:
        return None
    return Fault(CANNOT_PARSE, "the message does not make one row")


def read_error(plan: Plan, line: bytes, error: EngineError) -> Fault:
    """The engine's exception as a fault."""
    code = error.code
    words = re.sub(r"^(Code: \d+\. DB::Exception: )+", "", str(error))
    unknown = re.search(r"Unknown field found while parsing JSONEachRow format: (\S+)", words)
    if unknown:
        name = unknown[1].rstrip(":")
        return Fault(UNKNOWN_FIELD, f"the table has no column {name}", name)
    strange = re.search("Tuple doesn't have element with name '(.+?)', enable", words)
    if strange:
        return Fault(UNKNOWN_FIELD, f"no element of a tuple is named {strange[1]}")
    if code in _OUT_OF_RANGE_CODES or code in _NULL_CODES:
        judged = _judge_alone(plan, line)
        if judged is not None:
            return judged
    key = re.search(r"reading the value of (?:key|nested key|path) (.+?)\)", words)
    column = _column_named(plan, key[1]) if key else ""
    if column and is_null(line, column):
        return Fault(NULL_IN_COLUMN, f"null in column {column}", column)
    reason = NULL_IN_COLUMN if code in _NULL_CODES else CANNOT_PARSE
    if code in _OUT_OF_RANGE_CODES:
        reason = OUT_OF_RANGE
        if column:
            return unfit(plan, line, column)
    noise = (
        r"\s*: \(at row \d+\)|\s*: \(in file/uri [^)]*\)|: [Ww]hile executing .*|\. \([A-Z_]+\)$"
    )
    words = " ".join(re.sub(noise, "", words, flags=re.DOTALL).split())
    return Fault(reason, words[:ERROR_CHARACTERS_MAX], column)


def _judge_alone(plan: Plan, line: bytes) -> Fault | None:
    """The fault code of one message, if reading it is not the trouble."""
    with buffer_of([line]) as buffer:
        rows = _lenient(plan, buffer, np.zeros(1, np.int64))
    if rows is None or not len(rows[1]) or not rows[1][0]:
        return None
    return value_fault(plan, line, int(rows[1][0]))


def _explain_many(plan: Plan, buffer: MessageBuffer, unread: Indices) -> dict[int, Fault]:
    """Why many messages cannot be read: one query for each column instead of each message."""
    faults = _by_column(plan, buffer, unread, may_skip=True) or {}
    for index in unread.tolist():
        if index not in faults:
            faults[index] = unread_as_a_whole(plan, _line(buffer, index))
    return faults


def _by_column(
    plan: Plan, buffer: MessageBuffer, unread: Indices, may_skip: bool = False
) -> dict[int, Fault] | None:
    """The messages of which a column cannot be read, and why.

    :param may_skip: leave a column out that a query cannot tell of; else None is given.
    """
    faults: dict[int, Fault] = {}
    left = np.ones(len(unread), np.bool_)
    with marked_file(buffer, unread, 1, _PADDING) as marked:
        for part in plan.read:
            if not left.any():
                break
            query = plan.lenient_column(marked.path, marked.field, len(unread), part)
            rows = run_marked(query)
            if rows is None:
                if not may_skip:
                    return None
                continue
            failed = left.copy()
            failed[rows[0] - 1] = False
            for index in unread[failed].tolist():
                faults[index] = unreadable(plan, _line(buffer, index), part.name, part.column.type)
            left &= ~failed
    return faults


def _column_named(plan: Plan, key: str) -> str:
    """The column of an error's key; nested keys are not columns."""
    return key if any(part.name == key for part in plan.columns) else ""
