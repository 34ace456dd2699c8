"""Rows of envelopes, column by column, as the shapes of a table's columns ask for them.

A target type says where lists stand: Array(T) takes a list of T, Map(K, V) a list of lists of two,
Tuple a list of its elements. Everything else takes one value, of any kind but a list; whether a
text is a number or a number fits is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.envelope.walk import UNREADABLE, Mask, Nodes, Positions
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, OUT_OF_RANGE, Fault
from sluice.producer.wire import Kind


@dataclass(frozen=True, slots=True)
class Shape:
    """What a target type takes.

    :param kind: "value", "list", "map" or "tuple".
    :param parts: of a list its items; of a map its pairs, which are tuples; of a tuple its
        elements.
    :param names: of a tuple's elements, "" where they have none.
    :param is_key: of a map, which is never null.
    """

    kind: str
    target: str
    parts: tuple[Shape, ...] = ()
    names: tuple[str, ...] = ()
    is_key: bool = False

    @property
    def is_float(self) -> bool:
        """Whether integers become floats, those beyond 2^53 rounded."""
        return self.target.startswith(("Float", "BFloat"))

    @property
    def is_date(self) -> bool:
        """Whether timestamps become the day in UTC, as eBay's reader does it."""
        return self.target in ("Date", "Date32")


def shape_of(type_text: str) -> Shape:
    """What a column of this type takes."""
    return _shape(parse_type(type_text))


def _shape(node: TypeNode, is_key: bool = False) -> Shape:
    match node.name:
        case "Nullable" | "LowCardinality":
            return _shape(node.inner(), is_key)
        case "Array" | "QBit":
            return Shape("list", node.text, (_shape(node.inner()),))
        case "Map":
            pair = (_shape(node.inner(0), is_key=True), _shape(node.inner(1)))
            return Shape("map", node.text, (Shape("tuple", node.text, pair, ("", "")),))
        case "Tuple":
            elements = node.elements()
            parts = tuple(_shape(inner) for _, inner in elements)
            return Shape("tuple", node.text, parts, tuple(name for name, _ in elements))
    return Shape("value", node.text, is_key=is_key)


#: The last millisecond of the last year that DateTime64 knows, 2299.
TIMESTAMP_MAX = 10413791999999


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement means for this table.

    :param columns: of the values, in their order.
    :param shapes: of those that the table has.
    """

    columns: tuple[str, ...]
    shapes: dict[str, Shape]


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of all rows in one place of a column: lists or maps, or single values (a leaf).

    :param owners: for each node the place of its message.
    """

    column: str
    shape: Shape
    nodes: Positions
    owners: Positions

    @property
    def is_leaf(self) -> bool:
        """Whether these are single values."""
        return self.shape.kind == "value"

    def of(self, chosen: Mask) -> Cells:
        """Those of these messages, whose places are then those among the chosen."""
        if chosen.all():
            return self
        kept = chosen[self.owners]
        places = np.cumsum(chosen) - 1
        return replace(self, nodes=self.nodes[kept], owners=places[self.owners[kept]])


def all_rows(nodes: Nodes, rows: Positions) -> Cells:
    """The rows themselves.

    :param rows: how many each message has.
    """
    owners = np.repeat(np.arange(len(rows)), rows)
    return Cells("", Shape("tuple", ""), np.flatnonzero(nodes.depths == 0), owners)


class RowReader:
    """Reads rows that are bound to one statement; what it found is in its fields.

    :param null_is_empty: null in the place of a list is an empty one.

    `columns` are those that the table has: each in the order of Native, a list before its
    items. `faults`: for places of messages what is wrong first; of these messages the cells
    mean nothing.
    """

    def __init__(
        self, nodes: Nodes, rows: Cells, statement: Statement, null_is_empty: bool
    ) -> None:
        self._nodes = nodes
        self._null_is_empty = null_is_empty
        self._first: dict[int, tuple[int, Cells]] = {}
        self.rows = rows
        self.statement = statement
        self.columns: dict[str, list[Cells]] = {}
        complete = nodes.numbers[rows.nodes] == len(statement.columns)
        self._refuse(~complete, rows)
        owners, values = rows.owners[complete], rows.nodes[complete] + 1
        for name in statement.columns:
            if name in statement.shapes:
                self.columns[name] = []
                self._read(Cells(name, statement.shapes[name], values, owners))
            values = nodes.behind(values)
        self.faults = {place: self._fault(*first) for place, first in self._first.items()}

    def _read(self, cells: Cells) -> None:
        kinds, numbers = self._nodes.kinds[cells.nodes], self._nodes.numbers[cells.nodes]
        if cells.is_leaf:
            bad = (kinds == Kind.LIST) | (kinds == UNREADABLE)
            bad |= (kinds == Kind.TIMESTAMP) & (numbers > TIMESTAMP_MAX)
            if cells.shape.is_key:
                bad |= kinds == Kind.NULL
            self._refuse(bad, cells)
            self.columns[cells.column].append(cells)
            return
        parts = cells.shape.parts
        good = kinds == Kind.LIST
        if cells.shape.kind == "tuple":
            good &= numbers == len(parts)
        elif self._null_is_empty:
            good |= kinds == Kind.NULL
        self._refuse(~good, cells)
        nodes, owners = cells.nodes[good], cells.owners[good]
        if cells.shape.kind == "tuple":
            nodes = nodes + 1
            for part in parts:
                self._read(Cells(cells.column, part, nodes, owners))
                nodes = self._nodes.behind(nodes)
        else:
            self.columns[cells.column].append(Cells(cells.column, cells.shape, nodes, owners))
            items = np.repeat(owners, self._nodes.numbers[nodes].view(np.int64))
            self._read(Cells(cells.column, parts[0], self._nodes.items(nodes), items))

    def _refuse(self, bad: Mask, cells: Cells) -> None:
        """The messages of these nodes are at fault; the node that stands first says why."""
        if not bad.any():
            return
        places, firsts = np.unique(cells.owners[bad], return_index=True)
        nodes = cells.nodes[bad][firsts]
        for place, node in zip(places.tolist(), nodes.tolist(), strict=True):
            if place not in self._first or node < self._first[place][0]:
                self._first[place] = node, cells

    def _fault(self, node: int, cells: Cells) -> Fault:
        row = int(np.searchsorted(self.rows.nodes, node, side="right")) - 1
        number = row - int(np.searchsorted(self.rows.owners, self.rows.owners[row]))
        if cells is self.rows:
            count, width = self._nodes.numbers[node], len(self.statement.columns)
            return Fault(CANNOT_PARSE, f"row {number} has {count} values for {width} columns")
        reason, said = self._mismatch(node, cells.shape, f"column {cells.column}")
        return Fault(reason, f"row {number}: {said}", cells.column)

    def _mismatch(self, node: int, shape: Shape, column: str) -> tuple[str, str]:
        column = f"{column} {shape.target}"
        kind = int(self._nodes.kinds[node])
        if kind == UNREADABLE:
            fault = self._nodes.fault(node)
            return fault.reason, f"{fault.error}, in {column}"
        if kind == Kind.NULL:
            return NULL_IN_COLUMN, f"null {'as a key ' if shape.is_key else ''}in {column}"
        if kind == Kind.TIMESTAMP and shape.kind == "value":
            return OUT_OF_RANGE, f"timestamp {self._nodes.numbers[node]} does not fit {column}"
        return CANNOT_PARSE, f"{Kind(kind).field} cannot be read as {column}"
