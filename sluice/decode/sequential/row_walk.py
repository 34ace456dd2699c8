"""Which RowBinary messages are not exactly one row, for all messages of a piece at once.

The length of every value of these types follows from its bytes. A cursor for each message goes
from column to column; numpy moves all of them together, and the few with long arrays go on alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.types import TypeNode, parse_type

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
#: Moves the cursors of some messages behind a value; a cursor beyond the end of its message
#: stays there, wherever it is.
Step = Callable[[Bytes, Positions, Positions], Positions]

_SIZES = {
    **dict.fromkeys(("Int8", "UInt8", "Bool", "Enum8"), 1),
    **dict.fromkeys(("Int16", "UInt16", "Enum16", "Date", "BFloat16"), 2),
    **dict.fromkeys(("Int32", "UInt32", "Float32", "Date32", "DateTime", "IPv4", "Time"), 4),
    **dict.fromkeys(("Int64", "UInt64", "Float64", "DateTime64", "Time64"), 8),
    **dict.fromkeys(("Int128", "UInt128", "UUID", "IPv6"), 16),
    **dict.fromkeys(("Int256", "UInt256"), 32),
}
_ALIASES = {
    "Point": "Tuple(Float64, Float64)",
    "Ring": "Array(Point)",
    "LineString": "Array(Point)",
    "MultiLineString": "Array(LineString)",
    "Polygon": "Array(Ring)",
    "MultiPolygon": "Array(Polygon)",
}
#: Where a cursor stands that has left its message, and one that was given up.
BEYOND, UNKNOWN = 2**61, 2**62
#: Lengths of more bytes are left to the engine, and so are longer arrays of values that are
#: not all equally long.
_LENGTH_BYTES_MAX = 9
_ITEMS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class RowWalk:
    """The way through the values of these columns.

    :param step: None: a type's length is not known here.
    """

    step: Step | None

    def broken(self, text: Bytes, begins: Positions, ends: Positions) -> NDArray[np.bool_]:
        """Messages that do not end where their last column ends; none if that is not known."""
        if self.step is None:
            return np.zeros(len(begins), np.bool_)
        at = self.step(text, begins, ends)
        return np.asarray((at != ends) & (at < UNKNOWN), np.bool_)


def row_walk(types: tuple[str, ...]) -> RowWalk:
    """The way through columns of these types."""
    steps = [_step(parse_type(text)) for text in types]
    known = [step for step in steps if step is not None]
    return RowWalk(_in_turn(known) if len(known) == len(steps) else None)


def _size(node: TypeNode) -> int | None:
    """Of a value in bytes, if all are equally long."""
    if node.name == "FixedString":
        return int(node.arguments[0])
    if node.name.startswith("Decimal"):
        precision = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
        digits = precision.get(node.name) or int(node.arguments[0])
        return 4 if digits <= 9 else 8 if digits <= 18 else 16 if digits <= 38 else 32
    if node.name.startswith("Interval"):
        return 8
    return _SIZES.get(node.name)


def _step(node: TypeNode) -> Step | None:
    if node.name in _ALIASES:
        return _step(parse_type(_ALIASES[node.name]))
    if node.name == "LowCardinality":
        return _step(node.inner())
    if node.name == "SimpleAggregateFunction":
        return _step(node.inner(1))
    size = _size(node)
    if size is not None:
        return _fixed(size)
    if node.name == "String":
        return _string
    parts: list[TypeNode] = []
    if node.name in ("Array", "Nullable"):
        parts = [node.inner()]
    elif node.name == "Map":
        parts = [node.inner(0), node.inner(1)]
    elif node.name in ("Tuple", "Nested"):
        parts = [part for _, part in node.elements()]
    inner = [_step(part) for part in parts]
    known = [step for step in inner if step is not None]
    if not parts or len(known) < len(inner):
        return None
    together = _in_turn(known)
    if node.name == "Tuple":
        return together
    if node.name == "Nullable":
        return _nullable(together)
    sizes = [_size(part) for part in parts]
    if None not in sizes:
        return _fixed_items(sum(size for size in sizes if size))
    return _repeated(together)


def _fixed(size: int) -> Step:
    def step(text: Bytes, at: Positions, ends: Positions) -> Positions:
        beyond: Positions = np.where(at + size <= ends, at + size, np.maximum(at, BEYOND))
        return beyond

    return step


def _in_turn(steps: list[Step]) -> Step:
    def step(text: Bytes, at: Positions, ends: Positions) -> Positions:
        for one in steps:
            at = one(text, at, ends)
        return at

    return step


def _string(text: Bytes, at: Positions, ends: Positions) -> Positions:
    length, at = _lengths(text, at, ends)
    beyond: Positions = np.where(length <= ends - at, at + length, np.maximum(at, BEYOND))
    return beyond


def _lengths(text: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """The lengths at these cursors, and the cursors behind them."""
    inside = at < ends
    first = text[np.where(inside, at, 0)].astype(np.int64)
    length, at = first & 0x7F, np.where(inside, at + 1, np.maximum(at, BEYOND))
    longer = np.flatnonzero(inside & (first >= 0x80))
    for count in range(1, _LENGTH_BYTES_MAX + 1):
        if not len(longer):
            break
        here = at[longer]
        ended, too_long = here >= ends[longer], count == _LENGTH_BYTES_MAX
        at[longer[ended]] = BEYOND
        if too_long:
            at[longer[~ended]] = UNKNOWN
            break
        longer, here = longer[~ended], here[~ended]
        byte = text[here].astype(np.int64)
        length[longer] |= (byte & 0x7F) << (7 * count)
        at[longer] = here + 1
        longer = longer[byte >= 0x80]
    return length, at


def _nullable(inner: Step) -> Step:
    def step(text: Bytes, at: Positions, ends: Positions) -> Positions:
        inside = at < ends
        null = text[np.where(inside, at, 0)] != 0
        at = np.where(inside, at + 1, np.maximum(at, BEYOND))
        some = np.flatnonzero(inside & ~null)
        at[some] = inner(text, at[some], ends[some])
        return at

    return step


def _fixed_items(size: int) -> Step:
    def step(text: Bytes, at: Positions, ends: Positions) -> Positions:
        count, at = _lengths(text, at, ends)
        fits = count <= (ends - at) // size
        beyond: Positions = np.where(fits, at + count * size, np.maximum(at, BEYOND))
        return beyond

    return step


def _repeated(inner: Step) -> Step:
    def step(text: Bytes, at: Positions, ends: Positions) -> Positions:
        left, at = _lengths(text, at, ends)
        # Every item takes a byte at least.
        at = np.where(left <= ends - at, at, np.maximum(at, BEYOND))
        some = np.flatnonzero((left > 0) & (at < BEYOND))
        left = left[some]
        for _ in range(_ITEMS_MAX):
            if not len(some):
                break
            at[some] = inner(text, at[some], ends[some])
            left = left - 1
            goes_on = (left > 0) & (at[some] < BEYOND)
            some, left = some[goes_on], left[goes_on]
        at[some] = UNKNOWN
        return at

    return step
