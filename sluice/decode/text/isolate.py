"""Finding the bad messages of a block, so that they cost no neighbour.

Messages whose structure is one object can be joined safely (boundaries.py), and after a
parse error the next newline is the end of that message: raw newlines between tokens are
written as spaces. That is what makes the engine's skipping of bad rows exact. Each
row carries its index in a field of its own, so what was skipped is known, not guessed.
Whatever is left is decoded strictly afterwards; should that still fail, halving decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.native import read_header
from sluice.decode.engine.scalars import NULL
from sluice.decode.engine.session import EngineError, run
from sluice.decode.engine.types import leaves, parse_type
from sluice.decode.messages.boundaries import structure_faults
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import (
    CANNOT_PARSE,
    NOT_ONE_OBJECT,
    NULL_IN_COLUMN,
    OUT_OF_RANGE,
    UNKNOWN_FIELD,
    Fault,
)
from sluice.decode.messages.marked import Indices, buffer_of, marked_file, memory_file, pieces
from sluice.decode.text.plan import Plan
from sluice.decode.text.suspects import run_marked

#: So many messages of a block, of which we do not know which column fails or how, get the
#: engine's own words, at two queries each.
EXPLAINED_MAX = 100
#: Between two messages: readers of fixed length (a UUID's) look beyond a short value, and
#: the engine goes on after the next newline. 96 spaces are more than any of them reads.
_PADDING = b" " * 96 + b"\n"
#: What may raise an error that the engine does not skip: numbers beyond 64 bits in a
#: DateTime, null in a Dynamic.
_HARD = re.compile(rb"[0-9]{18,}|null")
#: Types of which reading fails either for what is no such value at all, or for its size.
_LIMITED = re.compile(r"(?:LowCardinality\()?(?:Nullable\()?(?:FixedString\(([0-9]+)\)|Decimal)")
#: Types of which reading fails only for what is no such value.
_SIMPLE = re.compile(
    r"U?Int(8|16|32|64|128|256)|Float(32|64)|BFloat16|String|UUID|IPv[46]|Bool|DateTime(64)?"
    r"|Date(32)?|Enum(8|16)?"
)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ERROR_CHARACTERS_MAX = 300
_VALUE_CHARACTERS_MAX = 100
_OUT_OF_RANGE_CODES = frozenset((69, 70, 131, 321, 395, 407, 691))
_NULL_CODES = frozenset((349,))

#: So much text is judged together: what each message needs is not held for all of them.
_JUDGED_BYTES = 16 << 20
#: So many messages are tested together: numpy's temporaries stay in the cache.
_INSPECTED_MESSAGES = 500


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


def find_faults(plan: Plan, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
    """The bad messages among these, by index, in a few queries however many they are.

    What is left decodes strictly, but for what no query can skip: then `halve` is next.
    """
    faults: dict[int, Fault] = {}
    if not len(indices):
        return faults
    unread: list[int] = []
    sizes = np.diff(buffer.ends, prepend=0)[indices]
    parts = np.cumsum(sizes) // _JUDGED_BYTES
    for part in np.split(indices, np.flatnonzero(np.diff(parts)) + 1):
        judged, not_read = _judge(plan, buffer, part)
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
    """
    if not unread:
        return []
    places = np.array(unread, np.int64)
    with marked_file(buffer, places, 1, _PADDING) as marked:
        rows = run_marked(plan.wide(marked.path, marked.field, len(places)))
    readable = set(unread if rows is None else places[rows[0] - 1].tolist())
    types = {part.name: part.column.type for part in plan.columns}
    unclear = [
        index for index in unread if index not in readable and not _is_clear(faults[index], types)
    ]
    return sorted(readable.union(unclear[:EXPLAINED_MAX]))


def _is_clear(fault: Fault, types: dict[str, str]) -> bool:
    """Whether the column tells why the message cannot be read."""
    if fault.reason != CANNOT_PARSE:
        return True
    type_text = types.get(fault.column, "")
    return bool(type_text) and (
        _LIMITED.match(type_text) is not None
        or all(_SIMPLE.fullmatch(leaf) for leaf in leaves(parse_type(type_text)))
    )


def _judge(
    plan: Plan, buffer: MessageBuffer, indices: Indices
) -> tuple[dict[int, Fault], list[int]]:
    """The bad messages of a part; and which of them the engine cannot read at all."""
    # The cheap test leaves structure to a decode that went well. This one did not.
    broken = _broken(buffer, indices)
    faults = {index: structure_fault(buffer.message(index)) for index in indices[broken].tolist()}
    easy = indices[~broken]
    rows = _lenient(plan, buffer, easy)
    if rows is None:
        hard = [_HARD.search(value) is not None for value in buffer.iterate(easy)]
        easy = easy[~np.array(hard, np.bool_)]
        rows = _lenient(plan, buffer, easy)
    if rows is None:
        return faults, []
    found, codes = rows
    bad = codes != 0
    for index, code in zip(easy[found[bad]].tolist(), codes[bad].tolist(), strict=True):
        faults[index] = _value_fault(plan, _line(buffer, index), code)
    unread = _others(easy, found)
    if len(unread):
        faults |= _explain_many(plan, buffer, unread)
    return faults, unread.tolist()


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


def _broken(buffer: MessageBuffer, indices: Indices) -> NDArray[np.bool_]:
    """Which of these messages are not one object."""
    broken = np.zeros(len(indices), np.bool_)
    for piece in pieces(buffer, indices):
        begins, ends = np.concatenate(([0], piece.ends[:-1])), piece.ends - 1
        for first in range(0, len(ends), _INSPECTED_MESSAGES):
            some = slice(first, first + _INSPECTED_MESSAGES)
            begin = int(begins[first])
            chunk = piece.text[begin : int(ends[some][-1])]
            place = piece.first + first
            broken[place : place + len(ends[some])] = structure_faults(
                chunk, begins[some] - begin, ends[some] - begin
            )
    return broken


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
    with memory_file(line) as path:
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
    with buffer_of([line]) as buffer:
        rows = _lenient(plan, buffer, np.zeros(1, np.int64))
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


def _explain_many(plan: Plan, buffer: MessageBuffer, unread: Indices) -> dict[int, Fault]:
    """Why many messages cannot be read: one query for each column instead of each message."""
    faults: dict[int, Fault] = {}
    left = np.ones(len(unread), np.bool_)
    with marked_file(buffer, unread, 1, _PADDING) as marked:
        for part in plan.columns:
            if not left.any():
                break
            query = plan.lenient_column(marked.path, marked.field, len(unread), part)
            rows = run_marked(query)
            if rows is None:
                continue
            failed = left.copy()
            failed[rows[0] - 1] = False
            for index in unread[failed].tolist():
                faults[index] = _unreadable(_line(buffer, index), part.name, part.column.type)
            left &= ~failed
    known = {part.name for part in plan.columns}
    for index in unread[left].tolist():
        document = _document(_line(buffer, index))
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
    value = document[column]
    if value is None:
        return Fault(NULL_IN_COLUMN, f"null in column {column} {type_text}", column)
    if _is_too_large(value, type_text):
        said = f"{_shown(value)} does not fit column {column} {type_text}"
        return Fault(OUT_OF_RANGE, said[:_ERROR_CHARACTERS_MAX], column)
    said = f"{_shown(value)} cannot be read as column {column} {type_text}"
    return Fault(CANNOT_PARSE, said[:_ERROR_CHARACTERS_MAX], column)


def _is_too_large(value: Any, type_text: str) -> bool:
    """Whether a value that cannot be read would be one of its type, but for its size."""
    limited = _LIMITED.match(type_text)
    if limited is None or not isinstance(value, str):
        return False
    if limited[1]:
        is_text = not isinstance(value, _Number)
        return is_text and len(value.encode(errors="replace")) > int(limited[1])
    return _NUMBER.fullmatch(value) is not None


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
