"""Messages whose fault shows in their text alone, without a question to the engine.

An exception of the engine costs as much as reading a hundred messages, and most bad messages are
simple: a word where a number must be, a number that does not fit, null. Such a message is judged
here if the meaning of every one of its values is certain; the verdict and its words are those
that the engine's passes would give. Everything else is theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.messages.fault import Fault
from sluice.decode.text.plan import Plan, PlannedColumn
from sluice.decode.text.words import Number, null_fault, range_fault, unread_fault


class _Verdict(Enum):
    GOOD = auto()
    UNREAD = auto()
    RANGE = auto()
    NULL = auto()
    UNSURE = auto()


_Judge = Callable[[Any], _Verdict]

_INTEGER_TYPE = re.compile(r"(U?)Int(8|16|32|64|128)")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
#: No number begins like this, nor `nan`, `inf`, `true`, `false`, `null` in any case.
_WORD = re.compile(r"[A-EG-HJ-MO-SU-Za-eg-hj-mo-su-z]")
_MOMENT = re.compile(
    r"([0-9]{4})-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: Whole years that a DateTime holds in every time zone, and those beyond that the engine can read.
_DATETIME_YEARS, _LATER_YEARS = range(1971, 2106), range(2107, 2262)


class Certainty:
    """Judges messages of one plan."""

    def __init__(self, plan: Plan) -> None:
        on_null = _Verdict.NULL if plan.table.on_null == "dead-letter" else _Verdict.GOOD
        self._columns = [(part, _judge_of(part, on_null)) for part in plan.columns]
        self._known = {part.name for part in plan.columns}

    def fault(self, message: bytes) -> Fault | None:
        """Why a message makes no row; None if that does not show, or if it makes one."""
        if b"\\" in message:
            return None  # what an escape means, in names above all, is the engine's affair
        try:
            document = _DECODER.decode(message.decode(errors="replace"))
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict) or not document.keys() <= self._known:
            return None
        unread: Fault | None = None
        unfit: Fault | None = None
        for part, judge in self._columns:
            value = document.get(part.name, _ABSENT)
            verdict = judge(value)
            if verdict is _Verdict.GOOD:
                continue
            if verdict is _Verdict.UNSURE:
                return None
            column, type_text = part.name, part.column.type
            if verdict is _Verdict.UNREAD:
                unread = unread or unread_fault(value, column, type_text)
            elif unfit is None:
                is_null = verdict is _Verdict.NULL
                unfit = null_fault(column, type_text) if is_null else None
                unfit = unfit or range_fault(value, column, type_text)
        # What cannot be read hides from the engine what does not fit.
        return unread or unfit


_ABSENT: Any = object()


def _document(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which no name stands twice: which of the two counts is not for us to say."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name stands twice")
    return document


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, object_pairs_hook=_document)


def _judge_of(part: PlannedColumn, on_null: _Verdict) -> _Judge:
    node = parse_type(part.column.type)
    if node.name == "LowCardinality":
        node = node.inner()
    if node.name == "Nullable":
        node, on_null = node.inner(), _Verdict.GOOD
    judge = _judge_of_value(node)
    if judge is _unsure:
        on_null = _Verdict.UNSURE
    on_absent = _Verdict.UNSURE if part.column.kind else _Verdict.GOOD

    def judge_any(value: Any) -> _Verdict:
        if value is None:
            return on_null
        return on_absent if value is _ABSENT else judge(value)

    return judge_any


def _unsure(value: Any) -> _Verdict:
    return _Verdict.UNSURE


def _judge_of_value(node: TypeNode) -> _Judge:
    integer = _INTEGER_TYPE.fullmatch(node.text)
    if integer:
        bits, has_sign = int(integer[2]), not integer[1]
        return (
            _integers(-(1 << bits - 1), (1 << bits - 1) - 1)
            if has_sign
            else _integers(0, (1 << bits) - 1)
        )
    judges = {
        "Float64": _float,
        "String": _string,
        "DateTime": _moment,
        "UUID": _uuid,
        "Bool": _bool,
    }
    return judges.get(node.name, _unsure)


def _integers(low: int, high: int) -> _Judge:
    def judge(value: Any) -> _Verdict:
        if isinstance(value, Number):
            if not _INTEGER.fullmatch(value):
                return _Verdict.UNSURE
            return _Verdict.GOOD if low <= int(value) <= high else _Verdict.RANGE
        return _word(value)

    return judge


def _word(value: Any) -> _Verdict:
    """A text where a number must be."""
    is_word = isinstance(value, str) and _WORD.match(value)
    return _Verdict.UNREAD if is_word else _Verdict.UNSURE


def _float(value: Any) -> _Verdict:
    if isinstance(value, Number):
        return _Verdict.GOOD if _DECIMAL.fullmatch(value) else _Verdict.UNSURE
    return _word(value)


def _string(value: Any) -> _Verdict:
    is_text = isinstance(value, str) and not isinstance(value, Number) and value.isascii()
    return _Verdict.GOOD if is_text else _Verdict.UNSURE


def _moment(value: Any) -> _Verdict:
    moment = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if moment is None:
        return _Verdict.UNSURE
    year = int(moment[1])
    if year in _DATETIME_YEARS:
        return _Verdict.GOOD
    return _Verdict.RANGE if year in _LATER_YEARS else _Verdict.UNSURE


def _uuid(value: Any) -> _Verdict:
    is_one = isinstance(value, str) and _UUID.fullmatch(value)
    return _Verdict.GOOD if is_one else _Verdict.UNSURE


def _bool(value: Any) -> _Verdict:
    return _Verdict.GOOD if isinstance(value, bool) else _Verdict.UNSURE
