"""Values of envelopes, many at once, as the target's type asks for them.

A target says where lists stand: Array(T) takes a list of T, Map(K, V) a list of lists of two,
Tuple a list of its elements. Everything else takes one value, of any kind but a list; whether a
text is a number or a number fits is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.envelope.wire import (
    Bits,
    Children,
    Mask,
    Positions,
    Text,
    children,
    lengths,
    varints,
)
from sluice.producer.wire import LENGTH, LIMITS, MILLISECONDS, VALUE, VARINT, WIRE_TYPES, Kind, tag

Classes = NDArray[np.uint8]

#: What a value is, once it does not matter how it was written. BIG: only as UInt64.
NONE, INT, BIG, DOUBLE, STRING, BOOL, TIMESTAMP = range(7)

#: The last millisecond of the last year that DateTime64 knows, 2299.
TIMESTAMP_MAX = 10413791999999

_VALUE_TAG = tag(VALUE, LENGTH)
_LIST_TAG = tag(Kind.LIST, LENGTH)
_SIGN = np.uint64(1 << 63)

#: Kind of a ValueP by its first byte; 0: not as the official encoders write it.
_KIND_OF = np.zeros(256, np.uint8)
for _kind, _wire_type in WIRE_TYPES.items():
    _KIND_OF[tag(_kind, _wire_type)] = _kind


_LIMITS_OF = {f"UInt{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)} | {
    f"Int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
}
_KNOWN_WITHOUT_NULL = {
    *_LIMITS_OF,
    "String",
    "Float32",
    "Float64",
    "DateTime",
    "DateTime64",
    "Date",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a target type takes.

    :param kind: "value", "list", "map" or "tuple".
    :param parts: of a list its items; of a map keys and values; of a tuple its elements.
    :param names: of a tuple's elements, "" where they have none.
    :param integers: what integers are read as, as far as they can be: Int64, UInt64, or Float64,
        which rounds those beyond 2^53.
    """

    kind: str
    target: str
    parts: tuple[Shape, ...] = ()
    names: tuple[str, ...] = ()
    integers: str = "Int64"
    #: Integers beyond these are known to be at fault; None: that is not looked at here.
    limits: tuple[int, int] | None = None
    refuses_null: bool = False

    def leaves(self) -> Iterator[Shape]:
        """The values in it, in order."""
        if self.kind == "value":
            yield self
        for part in self.parts:
            yield from part.leaves()


def shape_of(type_text: str, looks: bool = False, refuse_null: bool = False) -> Shape:
    """What a column of this type takes.

    :param looks: faults that are cheap to see are seen here: integers that do not fit, and null
        if `refuse_null`. The engine finds the same; it takes longer to say which row it was.
    """
    return _shape(parse_type(type_text), looks, looks and refuse_null, nullable=False)


def _shape(node: TypeNode, looks: bool, refuse_null: bool, nullable: bool) -> Shape:
    def part(inner: TypeNode) -> Shape:
        return _shape(inner, looks, refuse_null, nullable=False)

    if node.name in ("Nullable", "LowCardinality"):
        keeps_null = nullable or node.name == "Nullable"
        return _shape(node.inner(), looks, refuse_null, keeps_null)
    if node.name == "SimpleAggregateFunction":
        return _shape(node.inner(1), looks, refuse_null, nullable)
    if node.name == "Array":
        return Shape("list", node.text, (part(node.inner()),))
    if node.name == "Map":
        return Shape("map", node.text, (part(node.inner(0)), part(node.inner(1))))
    if node.name in ("Tuple", "Nested"):
        elements = node.elements()
        parts = tuple(part(inner) for _, inner in elements)
        one = Shape("tuple", node.text, parts, tuple(name for name, _ in elements))
        return one if node.name == "Tuple" else Shape("list", node.text, (one,))
    integers = "Int64"
    if node.name in ("UInt64", "UInt128", "UInt256"):
        integers = "UInt64"
    elif node.name in ("Float32", "Float64", "BFloat16"):
        integers = "Float64"
    refuses = refuse_null and not nullable and node.name in _KNOWN_WITHOUT_NULL
    limits = _LIMITS_OF.get(node.name) if looks else None
    return Shape("value", node.text, (), (), integers, limits, refuses)


@dataclass(slots=True)
class Values:
    """Values of a leaf.

    :param classes: of each value.
    :param bits: of numbers: 64 bits, in two's complement or as a Float64; of a timestamp its
        milliseconds.
    :param begins: of a text, where its length stands; `ends` where the text ends. None if
        there is no text.
    """

    classes: Classes
    bits: Bits
    begins: Positions | None
    ends: Positions | None

    def take(self, kept: Mask) -> Values:
        begins = None if self.begins is None else self.begins[kept]
        ends = None if self.ends is None else self.ends[kept]
        return Values(self.classes[kept], self.bits[kept], begins, ends)


@dataclass(slots=True)
class Lists:
    """Lists or maps: how many items each has, and the items of all of them."""

    counts: Positions
    parts: list[Cells]

    def take(self, kept: Mask) -> Lists:
        items = np.repeat(kept, self.counts)
        return Lists(self.counts[kept], [part.take(items) for part in self.parts])


@dataclass(slots=True)
class Tuples:
    """Tuples, element by element."""

    parts: list[Cells]

    def take(self, kept: Mask) -> Tuples:
        return Tuples([part.take(kept) for part in self.parts])


Cells = Values | Lists | Tuples


def read_values(
    text: Text, begins: Positions, ends: Positions, shape: Shape, null_is_empty: bool
) -> tuple[Cells, Mask]:
    """The values between these positions, and which of them are fine.

    :param null_is_empty: null in the place of a list is an empty one.
    """
    if shape.kind == "value":
        values, fine = _leaf(text, begins, ends, shape.integers)
        return values, _without_faults(values, fine, shape)
    found, fine = _items(text, begins, ends, null_is_empty and shape.kind != "tuple")
    if shape.kind == "list":
        cells, good = read_values(text, found.begins, found.ends, shape.parts[0], null_is_empty)
        fine[found.owners[~good]] = False
        return Lists(found.counts, [cells]), fine
    if shape.kind == "map":
        pairs = children(text, *_list_content(text, found, fine), _VALUE_TAG)
        good = pairs.sound & (pairs.counts == 2)
        parts, correct = _elements(text, pairs, good, shape, null_is_empty)
        keys = parts[0]
        if isinstance(keys, Values):
            correct &= keys.classes != NONE
        fine[found.owners[~correct]] = False
        return Lists(found.counts, parts), fine
    fine &= found.counts == len(shape.parts)
    parts, correct = _elements(text, found, fine, shape, null_is_empty)
    return Tuples(parts), correct


def _items(
    text: Text, begins: Positions, ends: Positions, null_is_empty: bool
) -> tuple[Children, Mask]:
    """The items of lists, and which of them are lists."""
    fine = (text.symbols[np.minimum(begins, ends)] == _LIST_TAG) & (begins < ends)
    first, stops, sized = lengths(text, np.minimum(begins + 1, ends), ends)
    is_list = fine & sized & (stops == ends)
    fine = is_list
    if null_is_empty and not is_list.all():
        fine = is_list | _is_null(text, begins, ends)
    found = children(text, np.where(is_list, first, ends), ends, _VALUE_TAG)
    return found, fine & found.sound


def _is_null(text: Text, begins: Positions, ends: Positions) -> Mask:
    null: Mask = (ends - begins == 2) & (text.symbols[np.minimum(begins, ends)] == Kind.NULL << 3)
    null &= text.symbols[np.minimum(begins + 1, ends)] == 0
    return null


def _list_content(text: Text, found: Children, fine: Mask) -> tuple[Positions, Positions]:
    """Where the items of each of these lists stand; what is no list makes its owner not fine."""
    begins, ends = found.begins, found.ends
    good = (text.symbols[np.minimum(begins, ends)] == _LIST_TAG) & (begins < ends)
    first, stops, sized = lengths(text, np.minimum(begins + 1, ends), ends)
    good &= sized & (stops == ends)
    fine[found.owners[~good]] = False
    return np.where(good, first, ends), ends


def _elements(
    text: Text, found: Children, complete: Mask, shape: Shape, null_is_empty: bool
) -> tuple[list[Cells], Mask]:
    """The n-th items of containers with as many items as the shape has parts.

    :param complete: containers that have them.
    """
    correct = complete.copy()
    firsts = np.cumsum(found.counts) - found.counts
    parts: list[Cells] = []
    for number, part in enumerate(shape.parts):
        # What is not complete has an empty value here, which no reader finds fine.
        places = firsts[complete] + number
        begins, ends = np.zeros(len(complete), np.int64), np.zeros(len(complete), np.int64)
        begins[complete], ends[complete] = found.begins[places], found.ends[places]
        cells, good = read_values(text, begins, ends, part, null_is_empty)
        correct &= good
        parts.append(cells)
    return parts, correct


def _without_faults(values: Values, fine: Mask, shape: Shape) -> Mask:
    """Those that are fine and, as far as it is looked at, fit."""
    if shape.refuses_null:
        fine &= values.classes != NONE
    if shape.limits is not None:
        low, high = shape.limits
        signed = values.bits.view(np.int64)
        fine &= (values.classes != INT) | ((signed >= low) & (signed <= high))
        fine &= (values.classes != BIG) | (values.bits <= np.uint64(high))
    return fine


def _leaf(text: Text, begins: Positions, ends: Positions, integers: str) -> tuple[Values, Mask]:
    """Values that are no lists."""
    count = len(begins)
    kinds = _KIND_OF[text.symbols[begins]]
    empty = begins >= ends
    if empty.any():
        kinds[empty] = 0
    if count and kinds[0] and (kinds == kinds[0]).all():
        return _leaf_of(text, begins, ends, Kind(int(kinds[0])), integers)
    present = np.flatnonzero(np.bincount(kinds, minlength=1)).tolist()
    classes = np.zeros(count, np.uint8)
    bits = np.zeros(count, np.uint64)
    fine = np.zeros(count, np.bool_)
    starts = stops = None
    for number in present:
        if not number:
            continue
        places = np.flatnonzero(kinds == number)
        some, good = _leaf_of(text, begins[places], ends[places], Kind(number), integers)
        classes[places], bits[places], fine[places] = some.classes, some.bits, good
        if some.begins is not None and some.ends is not None:
            starts, stops = np.zeros(count, np.int64), np.zeros(count, np.int64)
            starts[places], stops[places] = some.begins, some.ends
    return Values(classes, bits, starts, stops), fine


def _leaf_of(
    text: Text, begins: Positions, ends: Positions, kind: Kind, integers: str
) -> tuple[Values, Mask]:
    """Values of one kind."""
    count = len(begins)
    first = begins + 1
    fine: Mask
    if kind is Kind.STRING:
        content, stops, fine = lengths(text, first, ends)
        fine &= stops == ends
        sizes = content - first
        if (sizes > 1).any():
            # A length that is longer than it need be is not what Native says.
            fine &= (sizes == 1) | (ends - content >= np.int64(1) << 7 * (sizes - 1))
        classes = np.full(count, STRING, np.uint8)
        return Values(classes, np.zeros(count, np.uint64), first, ends), fine
    if kind is Kind.LIST:
        return _nothing(count), np.zeros(count, np.bool_)
    if kind is Kind.DOUBLE:
        fine = ends - begins == 9
        bits = text.words[first]
        return Values(np.full(count, DOUBLE, np.uint8), bits, None, None), fine
    if kind is Kind.TIMESTAMP:
        return _timestamps(text, first, ends)
    bits, stops, sound = varints(text, first)
    fine = stops == ends
    if sound is not None:
        fine &= sound
    return _integers(kind, bits, fine, integers)


def _integers(kind: Kind, bits: Bits, fine: Mask, integers: str) -> tuple[Values, Mask]:
    count = len(bits)
    if kind in (Kind.NULL, Kind.BOOL):
        fine &= bits <= np.uint64(kind is Kind.BOOL)
        classes = np.full(count, BOOL if kind is Kind.BOOL else NONE, np.uint8)
        return Values(classes, bits, None, None), fine
    if kind is Kind.INT:
        low, high = LIMITS[kind]
        signed = bits.view(np.int64)
        fine &= (signed >= low) & (signed <= high)
    elif kind is Kind.UINT:
        fine &= bits <= np.uint64(LIMITS[kind][1])
    is_unsigned = kind in (Kind.UINT, Kind.ULONG)
    if integers == "Float64":
        floats = (bits if is_unsigned else bits.view(np.int64)).astype(np.float64)
        bits = floats.view(np.uint64)
        return Values(np.full(count, DOUBLE, np.uint8), bits, None, None), fine
    above = bits >= _SIGN
    is_big = above if is_unsigned else np.zeros(count, np.bool_)
    if integers == "UInt64":
        is_big = is_big | ~above
    classes = np.where(is_big, np.uint8(BIG), np.uint8(INT))
    return Values(classes, bits, None, None), fine


def _timestamps(text: Text, first: Positions, ends: Positions) -> tuple[Values, Mask]:
    content, stops, fine = lengths(text, first, ends)
    fine &= stops == ends
    bits = np.zeros(len(first), np.uint64)
    filled = content < ends
    places = content if filled.all() else content[filled]
    numbers, beyond, sound = varints(text, places + 1)
    good = (text.symbols[places] == tag(MILLISECONDS, VARINT)) & (beyond == ends[filled])
    good &= numbers <= np.uint64(TIMESTAMP_MAX)
    if sound is not None:
        good &= sound
    bits[filled] = numbers
    fine[filled] &= good
    return Values(np.full(len(first), TIMESTAMP, np.uint8), bits, None, None), fine


def _nothing(count: int) -> Values:
    return Values(np.zeros(count, np.uint8), np.zeros(count, np.uint64), None, None)
