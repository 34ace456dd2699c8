"""Columns of envelopes' values, each in the type that the values say they have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.session import identifier
from sluice.decode.envelope.values import (
    BIG,
    BOOL,
    DOUBLE,
    INT,
    NONE,
    STRING,
    TIMESTAMP,
    Cells,
    Lists,
    Shape,
    Tuples,
    Values,
)
from sluice.decode.envelope.wire import Bits, Mask, Positions, Text, gathered

#: What a column of single values can be. The place is the code in a signature; 0: the values
#: cannot stand in one column.
NATURALS = (
    "",
    "Int64",
    "UInt64",
    "Int128",
    "Float64",
    "String",
    "Bool",
    "DateTime64(3, 'UTC')",
)
_INT64, _UINT64, _INT128, _FLOAT64, _STRING, _BOOL, _MOMENT = range(1, len(NATURALS))

#: Code by the set of classes, as bits; null goes with everything.
_CODE_OF = np.zeros(1 << (TIMESTAMP + 1), np.uint8)
for _classes, _code in (
    ((INT,), _INT64),
    ((BIG,), _UINT64),
    ((INT, BIG), _INT128),
    ((DOUBLE,), _FLOAT64),
    ((DOUBLE, INT), _FLOAT64),
    ((DOUBLE, BIG), _FLOAT64),
    ((DOUBLE, INT, BIG), _FLOAT64),
    ((STRING,), _STRING),
    ((BOOL,), _BOOL),
    ((TIMESTAMP,), _MOMENT),
):
    _set = sum(1 << one for one in _classes)
    _CODE_OF[_set] = _CODE_OF[_set | 1 << NONE] = _code

#: Integers up to here are numbers of a Float64.
_FLOAT_INTEGER_MAX = 1 << 53

#: Of each leaf of each column, its code.
Signature = tuple[int, ...]


def code_without_values(shape: Shape) -> int:
    """The code of a leaf that has no value but null."""
    name = shape.target.split("(")[0]
    if name == "Bool":
        return _BOOL
    if name in ("DateTime", "DateTime64"):
        return _MOMENT
    if "Int" in name or shape.integers == "Float64":
        return NATURALS.index(shape.integers)
    return _STRING


def leaves_of(cells: Cells, owners: Positions | None) -> Iterator[tuple[Values, Positions | None]]:
    """The leaves of a column and, if asked for, the owner of each of their values."""
    if isinstance(cells, Values):
        yield cells, owners
    elif isinstance(cells, Tuples):
        for part in cells.parts:
            yield from leaves_of(part, owners)
    else:
        items = None if owners is None else np.repeat(owners, cells.counts)
        for part in cells.parts:
            yield from leaves_of(part, items)


def common_signature(cells: list[Cells], shapes: list[Shape]) -> Signature | None:
    """The signature of all rows; None if there may be several."""
    codes = []
    leaf_shapes = (leaf for shape in shapes for leaf in shape.leaves())
    leaf_values = (leaf for column in cells for leaf, _ in leaves_of(column, None))
    for shape, values in zip(leaf_shapes, leaf_values, strict=True):
        classes = values.classes
        present = {int(classes[0])} if len(classes) else set()
        if present and not (classes == classes[0]).all():
            present = set(np.flatnonzero(np.bincount(classes)).tolist())
        present.discard(NONE)
        if len(present) > 1:
            return None
        bits = 1 << present.pop() if present else 0
        codes.append(int(_CODE_OF[bits]) or code_without_values(shape))
    return tuple(codes)


def signatures(
    cells: list[Cells], shapes: list[Shape], owners: Positions, messages: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """For each message the code of each leaf; 0 where its values cannot stand in one column.

    :param owners: for each row the place of its message.
    :returns: codes by message and leaf, and the number of the column that each leaf is in.
    """
    codes, columns = [], []
    for number, (column, shape) in enumerate(zip(cells, shapes, strict=True)):
        for leaf, (values, of) in zip(shape.leaves(), leaves_of(column, owners), strict=True):
            assert of is not None
            codes.append(_codes(values, of, leaf, messages))
            columns.append(number)
    table = np.array(codes, np.uint8).T if codes else np.zeros((messages, 0), np.uint8)
    return table, np.array(columns, np.uint8)


def _codes(values: Values, owners: Positions, shape: Shape, messages: int) -> NDArray[np.uint8]:
    classes = values.classes
    sets = np.zeros(messages, np.uint8)
    for one in np.flatnonzero(np.bincount(classes, minlength=1)).tolist():
        if one != NONE:
            sets[owners[classes == one]] |= np.uint8(1 << one)
    codes = _CODE_OF[sets]
    codes[sets == 0] = code_without_values(shape)
    mixed = (codes == _FLOAT64) & (sets != 1 << DOUBLE) & (sets != 0)
    if mixed.any():
        whole = np.flatnonzero((classes == INT) | (classes == BIG))
        signed = values.bits[whole].view(np.int64)
        large = (signed > _FLOAT_INTEGER_MAX) | (signed < -_FLOAT_INTEGER_MAX)
        large |= (classes[whole] == BIG) & (signed < 0)
        exceeding = owners[whole[large]]
        codes[exceeding[codes[exceeding] == _FLOAT64]] = 0
    return codes


@dataclass(slots=True)
class LeafColumn:
    """Values of one leaf, poll after poll."""

    code: int
    count: int = 0
    nulls: list[Mask | int] = field(default_factory=list)
    has_null: bool = False
    data: list[bytes] = field(default_factory=list)

    def add(self, values: Values, text: Text) -> None:
        classes = values.classes
        null = classes == NONE
        if null.any():
            self.has_null = True
            self.nulls.append(null)
        else:
            self.nulls.append(len(classes))
        self.count += len(classes)
        self.data.append(self._written(values, null, text))

    def _written(self, values: Values, null: Mask, text: Text) -> bytes:
        bits = values.bits
        if self.code == _STRING:
            if values.begins is None or values.ends is None:
                return b"\0" * len(bits)
            zero = len(text.raw) - 1
            begins = np.where(null, zero, values.begins)
            return gathered(text, begins, np.where(null, zero + 1, values.ends))
        if self.code == _BOOL:
            return bits.astype(np.uint8).tobytes()
        if self.code == _INT128:
            high = np.where(values.classes == INT, bits.view(np.int64) >> 63, 0)
            return np.stack([bits, high.view(np.uint64)], axis=1).tobytes()
        if self.code == _FLOAT64:
            return self._floats(bits, values).tobytes()
        return bits.tobytes()

    @staticmethod
    def _floats(bits: Bits, values: Values) -> Bits:
        whole = (values.classes == INT) | (values.classes == BIG)
        if whole.any():
            bits = bits.copy()
            bits[whole] = bits[whole].view(np.int64).astype(np.float64).view(np.uint64)
        return bits

    @property
    def type(self) -> str:
        natural = NATURALS[self.code]
        return f"Nullable({natural})" if self.has_null else natural

    def parts(self) -> Iterator[bytes]:
        """The column as Native writes it."""
        if self.has_null:
            for null in self.nulls:
                yield b"\0" * null if isinstance(null, int) else null.tobytes()
        yield from self.data


@dataclass(slots=True)
class ListColumn:
    """Lists or maps, poll after poll."""

    is_map: bool
    items: list[AnyColumn]
    count: int = 0
    counts: list[Positions] = field(default_factory=list)

    def add(self, cells: Lists, text: Text) -> None:
        self.count += len(cells.counts)
        self.counts.append(cells.counts)
        for column, part in zip(self.items, cells.parts, strict=True):
            add_cells(column, part, text)

    @property
    def type(self) -> str:
        inner = ", ".join(column.type for column in self.items)
        return f"Map({inner})" if self.is_map else f"Array({inner})"

    def parts(self) -> Iterator[bytes]:
        yield np.cumsum(np.concatenate([np.zeros(0, np.int64), *self.counts])).tobytes()
        for column in self.items:
            yield from column.parts()


@dataclass(slots=True)
class TupleColumn:
    """Tuples, poll after poll."""

    names: tuple[str, ...]
    elements: list[AnyColumn]

    def add(self, cells: Tuples, text: Text) -> None:
        for column, part in zip(self.elements, cells.parts, strict=True):
            add_cells(column, part, text)

    @property
    def type(self) -> str:
        parts = (
            f"{identifier(name)} {column.type}" if name else column.type
            for name, column in zip(self.names, self.elements, strict=True)
        )
        return f"Tuple({', '.join(parts)})"

    def parts(self) -> Iterator[bytes]:
        for column in self.elements:
            yield from column.parts()


AnyColumn = LeafColumn | ListColumn | TupleColumn


def make_column(shape: Shape, codes: Iterator[int]) -> AnyColumn:
    """An empty column; its leaves have the next codes of a signature."""
    if shape.kind == "value":
        return LeafColumn(next(codes))
    parts = [make_column(part, codes) for part in shape.parts]
    if shape.kind == "tuple":
        return TupleColumn(shape.names, parts)
    return ListColumn(shape.kind == "map", parts)


def add_cells(column: AnyColumn, cells: Cells, text: Text) -> None:
    """Append values whose signature is the column's."""
    if isinstance(column, LeafColumn):
        assert isinstance(cells, Values)
        column.add(cells, text)
    elif isinstance(column, ListColumn):
        assert isinstance(cells, Lists)
        column.add(cells, text)
    else:
        assert isinstance(cells, Tuples)
        column.add(cells, text)
