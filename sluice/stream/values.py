"""Arrow values into what a ClickHouse column can hold: checked, never bent.

The server would narrow 300 to 44 and cut a second's fraction without a word, so each value is
checked here, a column at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.stream.errors import ValueRefusedError


@dataclass(frozen=True, slots=True)
class Wanted:
    """What values of one column, or of a part of it, have to be.

    :param clickhouse: the type there, for messages.
    :param arrow: what is sent.
    :param nullable: whether null may stand there.
    :param low, high: the bounds of values that are counted (days, microseconds); None: none.
    :param unit: of such a value, which has to be a multiple of it.
    :param positive: of a number that is not counted: it may not be negative.
    :param bytes_max: of a text; 0: no bound.
    :param among: the texts that it may be; empty: any.
    :param pattern: of a text; "": any.
    :param parts: of the elements of an array, keys and values of a map, fields of a struct.
    """

    clickhouse: str
    arrow: pa.DataType
    nullable: bool
    low: int | None = None
    high: int | None = None
    unit: int = 1
    positive: bool = False
    bytes_max: int = 0
    among: tuple[str, ...] = ()
    pattern: str = ""
    parts: tuple[Wanted, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """One column of the query.

    :param name: in Spark and in ClickHouse.
    :param spark: its type there, for messages.
    """

    name: str
    spark: str
    wanted: Wanted


def convert(batch: pa.RecordBatch, plans: tuple[ColumnPlan, ...]) -> pa.RecordBatch:
    """The same rows, as they are sent.

    :param plans: one for each column, in their order.
    :raises ValueRefusedError: a value cannot be what its column is; it names both.
    """
    columns = []
    for column, plan in zip(batch.columns, plans, strict=True):
        what = f"column {plan.name} ({plan.spark} into {plan.wanted.clickhouse})"
        _check(column, plan.wanted, what)
        columns.append(_cast(column, plan.wanted.arrow, what))
    return pa.record_batch(columns, names=[plan.name for plan in plans])


def _check(values: pa.Array, wanted: Wanted, what: str) -> None:
    if not wanted.nullable and values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise ValueRefusedError(
            f"{what}: null in row {row} of a batch",
            "Make the column Nullable, or give the query a value with coalesce(…).",
        )
    if pa.types.is_list(values.type):
        _check(values.flatten(), wanted.parts[0], f"{what}, an element")
    elif pa.types.is_map(values.type):
        entries = values.drop_null() if values.null_count else values
        begin = entries.offsets[0].as_py() if len(entries) else 0
        count = (entries.offsets[-1].as_py() - begin) if len(entries) else 0
        _check(entries.keys.slice(begin, count), wanted.parts[0], f"{what}, a key")
        _check(entries.items.slice(begin, count), wanted.parts[1], f"{what}, a value")
    elif pa.types.is_struct(values.type):
        for field, part, inner in zip(values.type, wanted.parts, values.flatten(), strict=True):
            _check(inner, part, f"{what}, field {field.name}")
    else:
        _check_leaf(values, wanted, what)


def _check_leaf(values: pa.Array, wanted: Wanted, what: str) -> None:
    if wanted.low is not None and wanted.high is not None:
        counted = pc.drop_null(values)
        numbers = counted.view(pa.int32() if counted.type.bit_width == 32 else pa.int64())
        numbers = numbers.to_numpy(zero_copy_only=False)
        wrong = (numbers < wanted.low) | (numbers > wanted.high)
        if wanted.unit > 1:
            wrong |= numbers % wanted.unit != 0
        if wrong.any():
            _refuse(counted, int(np.argmax(wrong)), wanted, what)
    if wanted.positive:
        _refuse_first(values, pc.less(values, pa.scalar(0).cast(values.type)), wanted, what)
    if wanted.bytes_max and len(values):
        wrong = pc.greater(pc.binary_length(values), wanted.bytes_max)
        _refuse_first(values, wrong, wanted, what)
    if wanted.among:
        good = pc.is_in(values, value_set=pa.array(wanted.among, values.type))
        _refuse_first(values, pc.and_(pc.invert(good), values.is_valid()), wanted, what)
    if wanted.pattern:
        good = pc.match_substring_regex(values, wanted.pattern)
        _refuse_first(values, pc.invert(good), wanted, what)


def _refuse_first(values: pa.Array, wrong: pa.Array, wanted: Wanted, what: str) -> None:
    place = pc.index(wrong, True).as_py()
    if place >= 0:
        _refuse(values, place, wanted, what)


def _cast(values: pa.Array, to: pa.DataType, what: str) -> pa.Array:
    if values.type == to:
        return values
    found = _casts(values, to)
    if found is None:
        values = _alone(values)
        found = _casts(values, to)
    if found is not None:
        return found
    first, count = 0, len(values)
    while count > 1:  # The value that does it.
        half = count // 2
        if _casts(_alone(values.slice(first, half)), to) is not None:
            first, count = first + half, count - half
        else:
            count = half
    raise ValueRefusedError(
        f"{what}: {_shown(values[first])} cannot be a value of this column", _HINT
    )


def _casts(values: pa.Array, to: pa.DataType) -> pa.Array | None:
    try:
        return values.cast(to, safe=True)
    except pa.ArrowInvalid:
        return None


def _alone(values: pa.Array) -> pa.Array:
    """Without what lies around a slice, whose nested values Arrow casts, too."""
    return values.take(pa.array(np.arange(len(values)))) if values.type.num_fields else values


_HINT = (
    "Change the value in the query, or the column's type. Nothing of this epoch is in the table."
)


def _refuse(values: pa.Array, place: int, wanted: Wanted, what: str) -> None:
    raise ValueRefusedError(
        f"{what}: {_shown(values[place])} cannot be a {wanted.clickhouse}", _HINT
    )


def _shown(value: Any) -> str:
    text = str(value) if pa.types.is_temporal(value.type) else repr(value.as_py())
    return text if len(text) <= 100 else text[:97] + "..."
