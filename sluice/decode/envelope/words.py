"""Why an envelope that can be read does not fit its table, in words.

Asked for one message at a time, after the reader of many at once marked it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sluice.decode.envelope.plain import PlainRequest, PlainValue
from sluice.decode.envelope.values import TIMESTAMP_MAX, Shape
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, OUT_OF_RANGE, Fault
from sluice.producer.wire import LIMITS, Kind

_ERROR_CHARACTERS_MAX = 300
_VALUE_CHARACTERS_MAX = 100


def explain(
    request: PlainRequest, columns: tuple[str, ...], shapes: dict[str, Shape], null_is_empty: bool
) -> Fault:
    """The first thing that is wrong.

    :param columns: of the values of a row, in their order.
    :param shapes: of those that the table has.
    """
    for number, row in enumerate(request.rows):
        if len(row) != len(columns):
            said = f"row {number} has {len(row)} values for {len(columns)} columns"
            return Fault(CANNOT_PARSE, said)
        for name, value in zip(columns, row, strict=True):
            if name in shapes:
                fault = _mismatch(value, shapes[name], name, null_is_empty)
                if fault is not None:
                    said = f"row {number}: {fault.error}"
                    return replace(fault, error=said[:_ERROR_CHARACTERS_MAX])
    return Fault(CANNOT_PARSE, "the envelope cannot be read")


def mixed_kinds(name: str) -> Fault:
    """Of one message whose values in one column are no column."""
    said = f"column {name} has values of different kinds in one message, which nothing can hold"
    return Fault(CANNOT_PARSE, said[:_ERROR_CHARACTERS_MAX], name)


def _mismatch(value: PlainValue, shape: Shape, name: str, null_is_empty: bool) -> Fault | None:
    kind, raw = value
    if shape.kind == "value":
        if kind is Kind.LIST:
            return _unfit(value, shape, name)
        if kind is Kind.NULL and shape.refuses_null:
            return Fault(
                NULL_IN_COLUMN,
                f"null in column {name} {shape.target}"[:_ERROR_CHARACTERS_MAX],
                name,
            )
        if not _in_range(kind, raw, shape):
            said = f"{kind.field} {raw} does not fit column {name} {shape.target}"
            return Fault(OUT_OF_RANGE, said[:_ERROR_CHARACTERS_MAX], name)
        return None
    if kind is Kind.NULL and not (null_is_empty and shape.kind != "tuple"):
        said = f"null in column {name} {shape.target}"
        return Fault(NULL_IN_COLUMN, said[:_ERROR_CHARACTERS_MAX], name)
    if kind is Kind.NULL:
        return None
    if not isinstance(raw, list):
        return _unfit(value, shape, name)
    return _mismatch_in_list(value, raw, shape, name, null_is_empty)


def _in_range(kind: Kind, raw: object, shape: Shape) -> bool:
    if not isinstance(raw, int):
        return True
    if kind is Kind.TIMESTAMP:
        return raw <= TIMESTAMP_MAX
    if kind not in LIMITS or shape.limits is None:
        return True
    return shape.limits[0] <= raw <= shape.limits[1]


def _mismatch_in_list(
    value: PlainValue, items: list[PlainValue], shape: Shape, name: str, null_is_empty: bool
) -> Fault | None:
    if shape.kind == "list":
        inner = ((item, shape.parts[0]) for item in items)
    elif shape.kind == "tuple":
        if len(items) != len(shape.parts):
            return _unfit(value, shape, name)
        inner = ((item, part) for item, part in zip(items, shape.parts, strict=True))
    else:
        pairs = []
        for item in items:
            pair = item[1]
            if not isinstance(pair, list) or len(pair) != 2:
                return _unfit(item, shape, name)
            if pair[0][0] is Kind.NULL:
                return Fault(NULL_IN_COLUMN, f"null as a key in column {name}", name)
            pairs += list(zip(pair, shape.parts, strict=True))
        inner = (pair for pair in pairs)
    faults = (_mismatch(item, part, name, null_is_empty) for item, part in inner)
    return next((fault for fault in faults if fault is not None), None)


def _unfit(value: PlainValue, shape: Shape, name: str) -> Fault:
    kind, _ = value
    shown = json.dumps(_shown(value), ensure_ascii=False)[:_VALUE_CHARACTERS_MAX]
    said = f"{kind.field} {shown} cannot be read as column {name} {shape.target}"
    return Fault(CANNOT_PARSE, said[:_ERROR_CHARACTERS_MAX], name)


def _shown(value: PlainValue) -> Any:
    kind, raw = value
    if kind is Kind.NULL:
        return None
    if isinstance(raw, list):
        return [_shown(item) for item in raw[:_VALUE_CHARACTERS_MAX]]
    return raw.decode(errors="replace") if isinstance(raw, bytes) else raw
