"""Values of envelopes as columns of Native, each of the type that its values say they have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import add, or_

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.native import column_head
from sluice.decode.engine.session import declared, identifier, literal
from sluice.decode.envelope.rows import Cells, RowReader, Shape, Statement
from sluice.decode.envelope.walk import Mask, Nodes, Positions
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, Indices, Natural
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.schema.structure import with_lengths
from sluice.producer.wire import Kind, varint

PLACE = "_sluice_place"

#: Of each leaf of a relation, its place among NATURALS.
Signature = NDArray[np.uint8]

#: What a column of single values can be.
NATURALS = ("", "Int128", "Float64", "String", "Bool", "DateTime64(3, 'UTC')", "Date32")
_MIXED, _INTEGER, _FLOAT, _STRING, _BOOL, _TIME, _DAY = range(len(NATURALS))
#: By `Kind`; null goes with everything.
_NATURAL_OF = np.zeros(256, np.uint8)
_NATURAL_OF[[Kind.INT, Kind.LONG, Kind.UINT, Kind.ULONG]] = _INTEGER
_NATURAL_OF[[Kind.DOUBLE, Kind.STRING, Kind.BOOL, Kind.TIMESTAMP]] = _FLOAT, _STRING, _BOOL, _TIME
#: By the set of naturals, as bits: what all of them can be.
_COMMON = np.zeros(1 << len(NATURALS), np.uint8)
_COMMON[[1 << natural for natural in range(len(NATURALS))]] = range(len(NATURALS))
_COMMON[1 << _INTEGER | 1 << _FLOAT] = _FLOAT

_DAY_MILLIS = 86_400_000
#: Integers up to here are numbers of a Float64.
_FLOAT_INTEGER_MAX = 1 << 53
_SIGN = np.uint64(1 << 63)


@dataclass(slots=True)
class Relations:
    """All relations of some messages, by columns and signature, in order of appearance."""

    by_key: dict[tuple[tuple[str, ...], bytes], Relation] = field(default_factory=dict)

    def add(self, nodes: Nodes, read: RowReader, messages: Indices) -> dict[int, Fault]:
        """Append the rows of messages, but for those with which something is wrong.

        :param messages: their indices.
        :returns: what is wrong, by the messages' places.
        """
        faults = dict(read.faults)
        leaves = [cells for column in read.columns.values() for cells in column if cells.is_leaf]
        table = np.zeros((len(messages), len(leaves)), np.uint8)
        for number, cells in enumerate(leaves):
            table[:, number] = _naturals(nodes, cells, len(messages))
        for place in np.flatnonzero((table == _MIXED).any(axis=1)).tolist():
            name = leaves[int(np.argmax(table[place] == _MIXED))].column
            said = f"column {name} has values of different kinds in one message"
            fault = Fault(CANNOT_PARSE, f"{said}, which nothing can hold", name)
            faults.setdefault(place, fault)
        fine = np.ones(len(messages), np.bool_)
        fine[list(faults)] = False
        for signature, chosen in _by_signature(table, fine):
            key = read.statement.columns, signature.tobytes()
            if key not in self.by_key:
                self.by_key[key] = Relation(read.statement, signature)
            self.by_key[key].add(nodes, read, chosen, messages[chosen])
        return faults


def _by_signature(table: Signature, fine: Mask) -> Iterator[tuple[Signature, Mask]]:
    """The different signatures of these messages, each with those that have it."""
    rows = table[fine]
    if not len(rows) or (rows == rows[0]).all():
        different, which = rows[:1], np.zeros(len(rows), np.int64)
    else:
        different, which = np.unique(rows, axis=0, return_inverse=True)
    for number, signature in enumerate(different):
        chosen = fine.copy()
        chosen[fine] = which.reshape(-1) == number
        yield signature, chosen


def _naturals(nodes: Nodes, cells: Cells, messages: int) -> Signature:
    """For each message what its values here can be together."""
    each = _NATURAL_OF[nodes.kinds[cells.nodes]]
    if cells.shape.is_float:
        each[each == _INTEGER] = _FLOAT
    if cells.shape.is_date:
        each[each == _TIME] = _DAY
    sets = np.zeros(messages, np.uint8)
    for natural in np.flatnonzero(np.bincount(each)).tolist():
        if natural:
            sets[cells.owners[each == natural]] |= np.uint8(1 << natural)
    common = _COMMON[sets]
    both = sets == 1 << _INTEGER | 1 << _FLOAT
    if both.any():
        whole = each == _INTEGER
        signed = nodes.numbers[cells.nodes[whole]].view(np.int64)
        exceeding = (signed > _FLOAT_INTEGER_MAX) | (signed < -_FLOAT_INTEGER_MAX)
        # One of 64 bits without a sign looks negative.
        exceeding |= (nodes.kinds[cells.nodes[whole]] == Kind.ULONG) & (signed < 0)
        owners = cells.owners[whole][exceeding]
        common[owners[both[owners]]] = _MIXED
    # Null stands in a column of any type: it makes no relation of its own where it need not.
    empty = sets == 0
    if empty.any():
        others = np.flatnonzero(np.bincount(common[~empty & (common != _MIXED)]))
        common[empty] = others[0] if len(others) == 1 else _STRING
    return common


#: Of a relation without a file: each has one more open file in a process that may have 1,024.
_HELD_BYTES_MAX = 256 * 1024


class Relation:
    """Rows with the same columns of the same types, which a file holds text after text.

    :param signature: of all that is added.
    """

    def __init__(self, statement: Statement, signature: Signature) -> None:
        self._shapes = {n: statement.shapes[n] for n in statement.columns if n in statement.shapes}
        self._naturals = signature.tolist()
        self._nullable = [False] * len(signature)
        #: What is not in the file yet; a range may have thousands of small relations.
        self._held = bytearray()
        self._file: MemoryFile | None = None
        self._messages: list[Indices] = []
        self._count = 0
        #: Each message has exactly one row.
        self._single = True

    def add(self, nodes: Nodes, read: RowReader, chosen: Mask, messages: Indices) -> None:
        """Append the rows of these messages.

        :param messages: the indices of those that are chosen.
        """
        columns = [[cells.of(chosen) for cells in column] for column in read.columns.values()]
        leaves = (cells for column in columns for cells in column if cells.is_leaf)
        nullable = [bool((nodes.kinds[leaf.nodes] == Kind.NULL).any()) for leaf in leaves]
        self._nullable = list(map(or_, self._nullable, nullable))
        places = read.rows.of(chosen).owners
        self._single &= np.array_equal(places, np.arange(len(messages)))
        write = self._write
        write(varint(1 + len(columns)) + varint(len(places)))
        write(column_head(PLACE, "UInt32") + (places + self._count).astype(np.uint32).tobytes())
        left = iter(zip(self._naturals, nullable, strict=True))
        for natural, column in zip(self._columns(nullable), columns, strict=True):
            write(column_head(natural.name, natural.type))
            for cells in column:
                if cells.is_leaf:
                    write(*_leaf(nodes, cells.nodes, *next(left)))
                else:
                    write(np.cumsum(nodes.numbers[cells.nodes]).tobytes())
        self._messages.append(messages)
        self._count += len(messages)

    def _write(self, *parts: bytes | memoryview) -> None:
        if self._file is not None:
            self._file.append(*parts)
            return
        for part in parts:
            self._held += part
        if len(self._held) > _HELD_BYTES_MAX:
            self._open()

    def _open(self) -> MemoryFile:
        self._file = self._file or MemoryFile("envelope")
        self._file.append(memoryview(self._held))
        self._held = bytearray()
        return self._file

    @contextmanager
    def group(self) -> Iterator[Group]:
        """All of it as a source, once; the file lives as long as the context."""
        with self._open() as file:
            columns = self._columns(self._nullable)
            read = ((column.name, column.type) for column in columns)
            structure = literal(declared([(PLACE, "UInt32"), *read]))
            source = f"file({literal(file.path)}, Native, {structure})"
            messages = np.concatenate(self._messages)
            yield Group(source, columns, messages, PLACE, self._single)

    def _columns(self, nullable: list[bool]) -> tuple[Natural, ...]:
        left = (
            f"Nullable({NATURALS[natural]})" if has_null else NATURALS[natural]
            for natural, has_null in zip(self._naturals, nullable, strict=True)
        )
        return tuple(Natural(name, _type_of(shape, left)) for name, shape in self._shapes.items())


def _type_of(shape: Shape, leaves: Iterator[str]) -> str:
    """The type of a column whose single values have the next of these types."""
    if shape.kind == "value":
        return next(leaves)
    types = [_type_of(part, leaves) for part in shape.parts]
    if shape.kind == "list":
        return f"Array({types[0]})"
    if shape.kind == "map":
        return f"Map{types[0].removeprefix('Tuple')}"
    names = (name and f"{identifier(name)} " for name in shape.names)
    return f"Tuple({', '.join(map(add, names, types))})"


def _leaf(
    nodes: Nodes, cells: Positions, natural: int, has_null: bool
) -> Iterator[bytes | memoryview]:
    """Single values as Native writes them."""
    kinds, bits = nodes.kinds[cells], nodes.numbers[cells]
    null = kinds == Kind.NULL
    if has_null:
        yield null.tobytes()
    if natural == _STRING:
        begins, ends = np.where(null, 0, bits.view(np.int64)), np.where(null, 0, nodes.ends[cells])
        yield with_lengths(nodes.text, begins, ends)
    elif natural == _BOOL:
        yield bits.astype(np.uint8).tobytes()
    elif natural == _INTEGER:
        negative = (bits >= _SIGN) & (kinds != Kind.ULONG)
        yield np.stack([bits, np.where(negative, ~np.uint64(0), 0)], axis=1).tobytes()
    elif natural == _FLOAT:
        floats = np.where(kinds == Kind.DOUBLE, bits.view(np.float64), _floats(nodes, cells))
        yield floats.tobytes()
    elif natural == _DAY:
        yield np.where(null, 0, bits // _DAY_MILLIS).astype(np.int32).tobytes()
    else:
        yield bits.tobytes()


def _floats(nodes: Nodes, integers: Positions) -> NDArray[np.float64]:
    bits = nodes.numbers[integers]
    unsigned = nodes.kinds[integers] == Kind.ULONG
    return np.where(unsigned, bits.astype(np.float64), bits.view(np.int64).astype(np.float64))
