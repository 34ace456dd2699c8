"""Finding the bad messages of a block, so that they cost no neighbour.

Messages whose structure is one object can be joined safely (boundaries.py), and after a
parse error the next newline is the end of that message: raw newlines between tokens are
written as spaces. That is what makes the engine's skipping of bad rows exact. Each
row carries its index in a field of its own, so what was skipped is known, not guessed.
Whatever is left is decoded strictly afterwards; should that still fail, halving decides.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.decode.boundaries import faults_of
from sluice.decode.buffer import MessageBuffer
from sluice.decode.native import read_header
from sluice.decode.plan import Plan
from sluice.decode.scalars import NULL
from sluice.decode.session import EngineError, run

NOT_ONE_OBJECT = "not-one-object"
CANNOT_PARSE = "cannot-parse"
OUT_OF_RANGE = "out-of-range"
NULL_IN_COLUMN = "null-in-column"
UNKNOWN_FIELD = "unknown-field"

#: So many unreadable messages of a block get the engine's own words, at a query each.
EXPLAINED_MAX = 100
#: Between two messages: readers of fixed length (a UUID's) look beyond a short value, and
#: the engine goes on after the next newline. 96 spaces are more than any of them reads.
_PADDING = b" " * 96 + b"\n"
#: What may raise an error that the engine does not skip: numbers beyond 64 bits in a
#: DateTime, null in a Dynamic.
_HARD = re.compile(rb"[0-9]{18,}|null")
_ERROR_CHARACTERS_MAX = 300
_VALUE_CHARACTERS_MAX = 100
_OUT_OF_RANGE_CODES = frozenset((69, 70, 131, 321, 395, 407, 691))
_NULL_CODES = frozenset((349,))

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that makes no row.

    :param index: its position in the buffer.
    :param reason: a short stable code, see the constants above.
    :param error: what was wrong, for people; one line, at most 300 characters.
    :param column: the column at fault, "" if it is not one column's.
    """

    index: int
    offset: int
    reason: str
    error: str
    column: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a message, wherever it stands."""

    reason: str
    error: str
    column: str = ""


def structure_fault(value: bytes) -> Fault:
    """Why a message is not one object."""
    text = value.strip(b" \t\r\n")
    if not text:
        what = "the message is empty"
    elif text.startswith(b"\xef\xbb\xbf"):
        what = "the message starts with a byte order mark"
    elif text.startswith(b"["):
        what = "the message is an array"
    elif not text.startswith(b"{"):
        what = "the message does not start with {"
    else:
        try:
            json.loads(text)
            what = "the message is not one JSON object"
        except (ValueError, RecursionError) as error:
            what = f"the message is not one JSON object: {error}"
    return Fault(NOT_ONE_OBJECT, what[:_ERROR_CHARACTERS_MAX])


def find_faults(plan: Plan, values: list[bytes]) -> dict[int, Fault]:
    """The bad messages among these, by index, in a few queries however many they are.

    What is left decodes strictly, but for what no query can skip: then `halve` is next.
    """
    lines = _lines(values)
    # The cheap test leaves structure to a decode that went well. This one did not.
    broken = faults_of(values)
    faults = {index: structure_fault(values[index]) for index in np.flatnonzero(broken).tolist()}
    sound = np.flatnonzero(~broken)
    easy, rows = sound, _lenient(plan, lines, sound)
    if rows is None:
        hard = np.array([_HARD.search(lines[index]) is not None for index in sound], np.bool_)
        easy, rows = sound[~hard], _lenient(plan, lines, sound[~hard])
    if rows is None:
        easy, rows = sound[:0], (sound[:0], sound[:0])
    found, codes = rows
    for index, code in zip(found[codes != 0].tolist(), codes[codes != 0].tolist(), strict=True):
        faults[index] = _value_fault(plan, lines[index], code)
    unread = np.setdiff1d(easy, found)
    if len(unread):
        faults |= _explain_many(plan, lines, unread)
    for index in unread[:EXPLAINED_MAX].tolist():
        fault = explain(plan, lines[index])
        if fault is None:
            del faults[index]
        else:
            faults[index] = replace(fault, column=fault.column or faults[index].column)
    return faults


def halve(
    plan: Plan,
    values: list[bytes],
    known: dict[int, Fault],
    tries: Callable[[list[bytes]], bool],
) -> dict[int, Fault]:
    """The bad messages that `find_faults` cannot judge (a default expression that throws).

    :param known: what it found; these are left out.
    :param tries: whether these messages decode strictly, to as many rows.
    """
    lines = _lines(values)
    rest = np.setdiff1d(np.arange(len(lines)), np.fromiter(known, np.int64, len(known)))
    unclear = Fault(CANNOT_PARSE, "the message does not make one row")
    found = _halve(lines, rest, tries)
    return {index: explain(plan, lines[index]) or unclear for index in found}


def _lines(values: list[bytes]) -> list[bytes]:
    """The messages, each on one line."""
    return [value.replace(b"\n", b" ") if b"\n" in value else value for value in values]


def _halve(lines: list[bytes], indices: Indices, tries: Callable[[list[bytes]], bool]) -> list[int]:
    if not len(indices) or tries([lines[index] for index in indices.tolist()]):
        return []
    if len(indices) == 1:
        return [int(indices[0])]
    middle = len(indices) // 2
    return _halve(lines, indices[:middle], tries) + _halve(lines, indices[middle:], tries)


def _lenient(plan: Plan, lines: list[bytes], indices: Indices) -> tuple[Indices, Indices] | None:
    """Indices of the rows that can be read, and their fault codes; None: not decided."""
    index_field = _unused_field(lines)
    with _indexed_file(lines, indices, index_field) as path:
        return _run_indexed(plan.lenient(path, index_field, len(indices)))


def _run_indexed(query: str) -> tuple[Indices, Indices] | None:
    """Run a query that gives columns i and f, both UInt32."""
    try:
        result = run(query, "Native")
    except EngineError:
        return None
    block = result.bytes()
    if not block:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    _, rows, position = read_header(memoryview(block))
    width = 4 * rows
    head = len(b"\x01i\x06UInt32")
    found = np.frombuffer(block, np.uint32, rows, position + head)
    codes = np.frombuffer(block, np.uint32, rows, position + head + width + head)
    return found.astype(np.int64), codes.astype(np.int64)


def _unused_field(lines: list[bytes]) -> str:
    """A field name that no message mentions, the same for the same messages."""
    name = b"_sluice_index"
    while any(name in line for line in lines):
        name += b"_"
    return name.decode()


@contextmanager
def _indexed_file(lines: list[bytes], indices: Indices, index_field: str) -> Iterator[str]:
    """The messages in a file of their own, each with its index as first field."""
    head = b'{"%b":' % index_field.encode()
    parts = []
    for index in indices.tolist():
        line = lines[index]
        if line[:2] == b'{"':
            parts.append(b"%b%d,%b" % (head, index, line[1:]))
        else:
            rest = line.lstrip(b" \t\r")[1:].lstrip(b" \t\r")
            comma = b"" if rest.startswith(b"}") else b","
            parts.append(b"%b%d%b%b" % (head, index, comma, rest))
    with memory_file(_PADDING.join(parts)) as path:
        yield path


@contextmanager
def memory_file(content: bytes | memoryview) -> Iterator[str]:
    """A path at which this process reads the content."""
    file = os.memfd_create("sluice-part", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def explain(plan: Plan, line: bytes) -> Fault | None:
    """Why one message makes no row, in the engine's words; None if it makes one."""
    with memory_file(line) as path:
        try:
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
    if code in _OUT_OF_RANGE_CODES or code in _NULL_CODES:
        judged = _judge_alone(plan, line)
        if judged is not None:
            return judged
    key = re.search(r"reading the value of (?:key|nested key|path) (.+?)\)", words)
    column = _column_named(plan, key[1]) if key else ""
    if column and _is_null(line, column):
        return Fault(NULL_IN_COLUMN, f"null in column {column}", column)
    reason = NULL_IN_COLUMN if code in _NULL_CODES else CANNOT_PARSE
    if code in _OUT_OF_RANGE_CODES:
        reason = OUT_OF_RANGE
        if column:
            return _unfit(plan, line, column)
    noise = (
        r"\s*: \(at row \d+\)|\s*: \(in file/uri [^)]*\)|: [Ww]hile executing .*|\. \([A-Z_]+\)$"
    )
    words = " ".join(re.sub(noise, "", words, flags=re.DOTALL).split())
    return Fault(reason, words[:_ERROR_CHARACTERS_MAX], column)


def _judge_alone(plan: Plan, line: bytes) -> Fault | None:
    """The fault code of one message, if reading it is not the trouble."""
    rows = _lenient(plan, [line], np.zeros(1, np.int64))
    if rows is None or not len(rows[1]) or not rows[1][0]:
        return None
    return _value_fault(plan, line, int(rows[1][0]))


def _value_fault(plan: Plan, line: bytes, code: int) -> Fault:
    """A fault code as words: which column, and what it said."""
    part = plan.columns[code // 4]
    if code % 4 == NULL:
        return Fault(NULL_IN_COLUMN, f"null in column {part.name} {part.column.type}", part.name)
    return _unfit(plan, line, part.name)


def _unfit(plan: Plan, line: bytes, column: str) -> Fault:
    type_text = next(part.column.type for part in plan.columns if part.name == column)
    document = _document(line)
    value = _shown(document[column]) if column in document else "the value"
    said = f"{value} does not fit column {column} {type_text}"
    return Fault(OUT_OF_RANGE, said[:_ERROR_CHARACTERS_MAX], column)


def _explain_many(plan: Plan, lines: list[bytes], unread: Indices) -> dict[int, Fault]:
    """Why many messages cannot be read: one query for each column instead of each message."""
    faults: dict[int, Fault] = {}
    index_field = _unused_field([lines[index] for index in unread.tolist()])
    left = unread
    for part in plan.columns:
        if not len(left):
            break
        with _indexed_file(lines, left, index_field) as path:
            rows = _run_indexed(plan.lenient_column(path, index_field, len(left), part))
        if rows is None:
            continue
        for index in np.setdiff1d(left, rows[0]).tolist():
            faults[index] = _unreadable(lines[index], part.name, part.column.type)
        left = np.intersect1d(left, rows[0])
    known = {part.name for part in plan.columns}
    for index in left.tolist():
        document = _document(lines[index])
        strange = [name for name in document if name not in known]
        if plan.table.unknown_fields == "refuse" and strange:
            said = f"the table has no column {strange[0]}"
            faults[index] = Fault(UNKNOWN_FIELD, said[:_ERROR_CHARACTERS_MAX], strange[0])
        else:
            faults[index] = Fault(CANNOT_PARSE, "the message cannot be read as JSON of this table")
    return faults


def _unreadable(line: bytes, column: str, type_text: str) -> Fault:
    document = _document(line)
    if column not in document:
        return Fault(CANNOT_PARSE, "the message cannot be read as JSON of this table")
    if document[column] is None:
        return Fault(NULL_IN_COLUMN, f"null in column {column} {type_text}", column)
    said = f"{_shown(document[column])} cannot be read as column {column} {type_text}"
    return Fault(CANNOT_PARSE, said[:_ERROR_CHARACTERS_MAX], column)


def _column_named(plan: Plan, key: str) -> str:
    """The column of an error's key; nested keys are not columns."""
    return key if any(part.name == key for part in plan.columns) else ""


class _Number(str):
    """A number as it is written, for words about it."""


def _shown(value: Any) -> str:
    """A value nearly as the message wrote it, cut to what a person reads."""
    return _written(value)[:_VALUE_CHARACTERS_MAX]


def _written(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)}: {_written(v)}' for k, v in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def _document(line: bytes) -> dict[str, Any]:
    """The message as Python reads it; empty if it does not."""
    try:
        text = line.decode(errors="replace")
        document = json.loads(text, parse_int=_Number, parse_float=_Number)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _is_null(line: bytes, column: str) -> bool:
    return _document(line).get(column, "") is None


def buffer_of(values: list[bytes]) -> MessageBuffer:
    """A buffer of messages whose offsets do not matter."""
    buffer = MessageBuffer()
    for begin in range(0, len(values), 500):
        part = values[begin : begin + 500]
        buffer.add(part, list(range(begin, begin + len(part))))
    return buffer
