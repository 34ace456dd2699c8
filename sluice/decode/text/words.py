"""Words about messages that a table cannot take: which column, and what it said.

Pure: from the message and the table, without the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from sluice.core.dynamic import Number
from sluice.decode.engine.pair import NULL, RANGE
from sluice.decode.engine.scalars import holds_float
from sluice.decode.engine.types import TypeNode, nested_groups, parse_type, scale_of
from sluice.decode.messages.fault import (
    CANNOT_PARSE,
    NULL_IN_COLUMN,
    OUT_OF_RANGE,
    REASONS,
    UNKNOWN_FIELD,
    Fault,
    absent,
    no_json,
    refused_value,
)
from sluice.decode.text.misread import (
    WITH_FIELDS,
    exact_number,
    holds_moment,
    parts_of,
    shown_value,
)
from sluice.decode.text.plan import Plan, PlannedColumn

#: Types of which reading fails either for what is no such value at all, or for its size.
_LIMITED = re.compile(
    r"(?:LowCardinality\()?(?:Nullable\()?(?:FixedString\(([0-9]+)\)|Decimal|(DateTime))"
)
_NUMBER_TYPE = re.compile(
    r"(?:LowCardinality\()?(?:Nullable\()?(?:U?Int[0-9]+|Float32|Float64|BFloat16)\)*"
)
#: No number begins like this, nor `nan`, `inf`, `true`, `false`, `null` in any case.
_WORD = re.compile(r"[A-EG-HJ-MO-SU-Za-eg-hj-mo-su-z]")
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?")
#: No DateTime has so many.
_SECONDS = re.compile(r"-?[0-9]{18,}(\.[0-9]*)?")
#: Is in any number of seconds beyond 64 bits, in the parts of a second that a column keeps.
_LARGE = re.compile(rb"[0-9]{10}|[0-9.][eE]")


def value_fault(plan: Plan, line: bytes, part: PlannedColumn, kind: int) -> Fault:
    """A kind of fault as words: which column, and what it said."""
    if kind == NULL and part.name in plan.table.require:
        return absent(part.name)
    document = _document(line)
    shown = shown_value(document[part.name]) if part.name in document else "the value"
    return refused_value(REASONS[kind], shown, part.name, part.column.type)


def word_for_number(plan: Plan, line: bytes) -> Fault | None:
    """Of a message that cannot be read because of a word where a number must be, or of NaN and
    Infinity where no float may be; None: that does not show."""
    document = _document(line)
    for part in plan.read:
        name, type_text = part.name, part.column.type
        value = document.get(name)
        is_word = isinstance(value, str) and _WORD.match(value)
        if is_word and _NUMBER_TYPE.fullmatch(type_text):
            return unread_fault(plan, value, name, type_text)
        if _constants_in(value) and not holds_float(type_text):
            return unread_fault(plan, value, name, type_text)
        if isinstance(value, str) and _HALF_PAIR.search(value):
            said = f"the field {name} has half of a pair of \\u escapes, which is no character"
            return Fault(CANNOT_PARSE, said, name)
    strange = document.keys() - {part.name for part in plan.read}
    unread = [name for name in sorted(strange) if _constants_in(document[name])]
    if unread and plan.table.unknown_fields == "refuse":
        return Fault(UNKNOWN_FIELD, f"the table has no column {unread[0]}", unread[0])
    return None


def _constants_in(value: Any) -> list[float]:
    """What of NaN and Infinity stands in a value, in no quotes. Numbers are texts here."""
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return [found for one in inner for found in _constants_in(one)]
    return [value] if isinstance(value, float) else []


def unread_as_a_whole(plan: Plan, line: bytes) -> Fault:
    """Why a message cannot be read each of whose columns can."""
    known = {part.name for part in plan.columns}
    strange = [name for name in _document(line) if name not in known]
    if plan.table.unknown_fields == "refuse" and strange:
        return Fault(UNKNOWN_FIELD, f"the table has no column {strange[0]}", strange[0])
    noun = "JSON" if plan.table.format.startswith("JSON") else plan.table.format
    said = f"the message cannot be read as {noun} of this table"
    if noun != "JSON":
        return Fault(CANNOT_PARSE, said)
    try:
        AS_WRITTEN.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        return no_json(error)
    return Fault(CANNOT_PARSE, said)


def unequal_lengths(plan: Plan, line: bytes) -> Fault | None:
    """Of a message that gives the columns of a Nested arrays of several lengths."""
    document = _document(line)
    types = {column.name: column.type for column in plan.table.columns}
    for head, elements in nested_groups(types).items():
        arrays = {name: document.get(name) for name in (f"{head}.{one}" for one in elements)}
        sizes = {name: len(one) for name, one in arrays.items() if isinstance(one, list)}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
            said = f"the columns of {head} have arrays of different lengths: {shown}"
            return Fault(CANNOT_PARSE, said, next(iter(sizes)))
    return None


def unreadable(plan: Plan, line: bytes, column: str, type_text: str) -> Fault:
    """Of a message of which this column cannot be read."""
    document = _document(line)
    if _repeated(line, column):
        return Fault(CANNOT_PARSE, f"the field {column} stands there twice", column)
    if column not in document:
        return unread_as_a_whole(plan, line)
    value = document[column]
    if plan.table.unknown_fields == "refuse":
        strange = _strange_element(value, parse_type(type_text))
        if strange:
            said = f"column {column} {type_text} has no element {strange}"
            return Fault(UNKNOWN_FIELD, said, column)
    return unread_fault(plan, value, column, type_text)


def _repeated(line: bytes, name: str) -> bool:
    """Whether the message has a field of this name twice."""
    if line.count(json.dumps(name, ensure_ascii=False).encode()) < 2:
        return False
    try:
        pairs = WITH_FIELDS.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return False
    return [key for key, _ in pairs].count(name) > 1


class TooManySeconds:
    """Finds messages with a number of seconds that a 64-bit number does not hold, in the parts of a
    second that its column keeps: the engine throws an error that it does not skip."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        nodes = ((part, parse_type(part.column.type)) for part in plan.columns)
        self._columns = [(part, node) for part, node in nodes if holds_moment(node)]

    def fault(self, line: bytes) -> Fault | None:
        """Of such a message."""
        if not self._columns or not _LARGE.search(line):
            return None
        document = _document(line)
        for part, node in self._columns:
            if part.name in document and _has_too_many_seconds(document[part.name], node):
                return value_fault(self._plan, line, part, RANGE)
        return None


def _has_too_many_seconds(value: Any, node: TypeNode) -> bool:
    if node.name in ("DateTime", "DateTime64") and isinstance(value, Number):
        try:
            return abs(Decimal(value)) >= Decimal(1 << 63).scaleb(-scale_of(node))
        except ArithmeticError:  # of an exponent that no Decimal has
            digits, power = exact_number(value) or (0, 0)
            return digits + power > 0
    if node.name in ("Variant", "JSON"):
        return False
    return any(_has_too_many_seconds(one, inner) for one, inner in parts_of(value, node))


def _strange_element(value: Any, node: TypeNode) -> str:
    """The name of a field in a value that no element of its type takes; "" if there is none."""
    if node.name == "Tuple" and isinstance(value, dict):
        elements = dict(node.elements())
        strange = [name for name in value if name not in elements]
        if strange:
            return str(strange[0])
    if node.name in ("Variant", "JSON"):
        return ""
    parts = parts_of(value, node)
    return next((found for one, inner in parts if (found := _strange_element(one, inner))), "")


def unread_fault(plan: Plan, value: Any, column: str, type_text: str) -> Fault:
    """Of a value that cannot be read.

    :param value: as JSON has it, numbers as `Number`.
    """
    reason = OUT_OF_RANGE if _is_too_large(value, type_text) else CANNOT_PARSE
    if value is None:
        reason = NULL_IN_COLUMN
    return refused_value(reason, shown_value(value), column, type_text)


def _is_too_large(value: Any, type_text: str) -> bool:
    """Whether a value that cannot be read would be one of its type, but for its size."""
    limited = _LIMITED.match(type_text)
    if limited is None or not isinstance(value, str):
        return False
    if limited[1]:
        is_text = not isinstance(value, Number)
        return is_text and len(value.encode(errors="replace")) > int(limited[1])
    number = _SECONDS if limited[2] else _NUMBER
    return number.fullmatch(value) is not None


#: Arrays and objects in each other. Who looks into deeper ones needs more frames than Python may
#: have left, and how many these are hangs on who has called.
_LEVELS_MAX = 100
#: Made once: it costs more than a message. See WITH_FIELDS.
AS_WRITTEN = json.JSONDecoder(parse_int=Number, parse_float=Number, strict=False)


def _document(line: bytes) -> dict[str, Any]:
    """The message as Python reads it; empty if it does not, or if it is too deep."""
    try:
        text = line.decode(errors="replace")
        document = AS_WRITTEN.decode(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and not _is_deep(document) else {}


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(_LEVELS_MAX):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
