"""Rows of envelopes, gathered into relations: one for each statement and kinds of values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.native import column_head, varint
from sluice.decode.engine.session import identifier, literal
from sluice.decode.envelope.columns import (
    AnyColumn,
    Signature,
    add_cells,
    common_signature,
    make_column,
    signatures,
)
from sluice.decode.envelope.values import Cells, Shape, read_values
from sluice.decode.envelope.wire import Mask, Positions, Text, elements
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.format import Group, Indices, Natural
from sluice.producer.wire import LENGTH, VALUE, tag

PLACE = "_sluice_place"


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement means for this table.

    :param columns: of the values, in their order.
    :param shapes: of those that the table has.
    """

    columns: tuple[str, ...]
    shapes: dict[str, Shape]

    @property
    def filled(self) -> tuple[str, ...]:
        """The table's columns among them."""
        return tuple(name for name in self.columns if name in self.shapes)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The rows of some messages of one statement.

    :param owners: for each row the place of its message.
    :param fine: for each message, whether all its rows could be read.
    """

    cells: list[Cells]
    owners: Positions
    fine: Mask


def parse_rows(
    text: Text,
    statement: Statement,
    rows: tuple[Positions, Positions, Positions],
    messages: int,
    null_is_empty: bool,
) -> Parsed:
    """Read the values of rows; the rows of messages that are not fine are left out.

    :param rows: owners, begins and ends.
    """
    owners, positions, ends = rows
    good = np.ones(len(owners), np.bool_)
    cells = []
    for name in statement.columns:
        begins, stops, sound = elements(text, positions, ends, tag(VALUE, LENGTH))
        good &= sound
        if name in statement.shapes:
            shape = statement.shapes[name]
            column, correct = read_values(text, begins, stops, shape, null_is_empty)
            good &= correct
            cells.append(column)
        positions = stops
    good &= positions == ends
    fine = np.ones(messages, np.bool_)
    if not good.all():
        fine[owners[~good]] = False
        kept = fine[owners]
        cells, owners = [column.take(kept) for column in cells], owners[kept]
    return Parsed(cells, owners, fine)


@dataclass(slots=True)
class Relation:
    """Rows with the same columns of the same types, poll after poll."""

    names: tuple[str, ...]
    columns: list[AnyColumn]
    messages: list[Indices] = field(default_factory=list)
    places: list[NDArray[np.uint32]] = field(default_factory=list)
    count: int = 0
    #: Each message has exactly one row.
    is_single: bool = True

    def add(self, messages: Indices, owners: Positions, cells: list[Cells], text: Text) -> None:
        """Append rows.

        :param owners: for each row the place of its message among these.
        """
        alone = len(owners) == len(messages) and bool((owners == np.arange(len(owners))).all())
        self.is_single = self.is_single and alone
        self.places.append((owners + self.count).astype(np.uint32))
        self.messages.append(messages)
        self.count += len(messages)
        for column, values in zip(self.columns, cells, strict=True):
            add_cells(column, values, text)

    @contextmanager
    def group(self, unreadable: dict[int, Fault]) -> Iterator[Group]:
        """The rows as a source, once; the file lives as long as the context."""
        naturals = tuple(map(Natural, self.names, (column.type for column in self.columns)))
        parts = [f"{identifier(natural.name)} {natural.type}" for natural in naturals]
        structure = ", ".join([f"{PLACE} UInt32", *parts])
        file = os.memfd_create("sluice-envelope", os.MFD_CLOEXEC)
        try:
            self._write(file)
            # The file holds the values now.
            self.columns.clear()
            source = f"file({literal(f'/proc/self/fd/{file}')}, Native, {literal(structure)})"
            messages = np.concatenate([np.zeros(0, np.int64), *self.messages])
            single = self.is_single
            yield Group(source, naturals, messages, PLACE, single, unreadable=unreadable)
        finally:
            os.close(file)

    def _write(self, file: int) -> None:
        places = np.concatenate([np.zeros(0, np.uint32), *self.places])
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(varint(1 + len(self.columns)) + varint(len(places)))
            stream.write(column_head(PLACE, "UInt32") + places.tobytes())
            for name, column in zip(self.names, self.columns, strict=True):
                stream.write(column_head(name, column.type))
                for part in column.parts():
                    stream.write(part)


@dataclass(slots=True)
class Relations:
    """All relations of some messages, by columns and signature, in order of appearance."""

    by_key: dict[tuple[tuple[str, ...], Signature], Relation] = field(default_factory=dict)

    def add(
        self, text: Text, statement: Statement, messages: Indices, parsed: Parsed
    ) -> dict[int, str]:
        """Append the rows of messages.

        :returns: indices of messages whose values cannot stand in one column, and that column.
        """
        names = statement.filled
        shapes = [statement.shapes[name] for name in names]
        kept = np.flatnonzero(parsed.fine)
        place_of = np.cumsum(parsed.fine) - 1
        owners = place_of[parsed.owners]
        common = common_signature(parsed.cells, shapes)
        if common is not None:
            relation = self._relation(statement, shapes, common)
            relation.add(messages[kept], owners, parsed.cells, text)
            return {}
        table, columns = signatures(parsed.cells, shapes, owners, len(kept))
        mixed = (table == 0).any(axis=1)
        refused = {
            int(messages[kept[place]]): names[columns[np.argmax(table[place] == 0)]]
            for place in np.flatnonzero(mixed).tolist()
        }
        different, which = np.unique(table, axis=0, return_inverse=True)
        which = which.reshape(-1)
        which[mixed] = -1
        for number, codes in enumerate(different.tolist()):
            chosen = which == number
            if not chosen.any():
                continue
            rows = chosen[owners]
            some = [column.take(rows) for column in parsed.cells]
            place_of = np.cumsum(chosen) - 1
            relation = self._relation(statement, shapes, tuple(codes))
            relation.add(messages[kept[chosen]], place_of[owners[rows]], some, text)
        return refused

    def _relation(
        self, statement: Statement, shapes: list[Shape], signature: Signature
    ) -> Relation:
        key = statement.columns, signature
        if key not in self.by_key:
            codes = iter(signature)
            columns = [make_column(shape, codes) for shape in shapes]
            self.by_key[key] = Relation(statement.filled, columns)
        return self.by_key[key]
