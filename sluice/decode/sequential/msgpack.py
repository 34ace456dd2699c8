"""MsgPack: a message is the values of one row, one after the other, or of any number of rows.

What is not an integer is read in the type that the `columns` option says, else the table's.
Integers are read 64 bits wide, and so is what MsgPack writes as an integer (dates, times, Enum,
Bool, IPv4, decimals of up to 18 digits); every value may be nil.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.text import TableText
from sluice.decode.engine.bare_numbers import decimal_shape
from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, OUT_OF_RANGE, Fault
from sluice.decode.messages.format import Group, Natural
from sluice.decode.messages.marked import Indices, Piece, pieces
from sluice.decode.messages.marks import MARK_BYTES
from sluice.decode.sequential.cutting import Cut, Layout, Mask, cut, cut_groups
from sluice.decode.sequential.pack_walk import (
    NIL,
    Bytes,
    Positions,
    Walked,
    kinds_of,
    nil_in_container,
    row_ends,
    row_step,
    walk,
)
from sluice.decode.sequential.rows import marked_group
from sluice.decode.typed.pair import integer_bounds
from sluice.decode.typed.structures import Structure, normalised, structure_of

#: Type and length of 16 bytes of binary.
_BEFORE_MARK = bytes((0xC4, MARK_BYTES))
#: Type of a UInt32 and the order of its bytes.
_NUMBER = (b"\xce", ">u4")
#: Above it a message is walked through alone: that costs a row as much however many there are.
_TOGETHER_BYTES_MAX = 1 << 13
_BROKEN = Fault(CANNOT_PARSE, "the message is not exactly one value for each column")
_AS_INT64 = ("Date", "Date32", "DateTime", "Bool", "IPv4")
_AS_THEY_ARE = (
    "String",
    "UUID",
    "IPv6",
    "Float32",
    "Float64",
    "DateTime64",
    "Int128",
    "UInt128",
    "Int256",
    "UInt256",
)
#: Beside a UUID, in a Map, they could not be told from a broken one.
_LONG = ("String", "IPv6", "128", "256", "Decimal(")


class MessagePack:
    """Values in the order of the columns. Option `columns`: their names and types; without it
    those of the table."""

    def __init__(self, table: TableText) -> None:
        self._table = table
        self._structure = structure_of(table)
        columns = tuple((column.name, column.type) for column in table.columns)
        self._targets = dict(normalised(columns))
        read = [self._read_as(name, type_text) for name, type_text in self._structure]
        self._read: Structure = tuple(
            (name, type_text) for (name, _), type_text in zip(self._structure, read, strict=True)
        )
        self._columns = tuple(Natural(*column) for column in self._read)
        self._unsigned = np.array(["UInt64" in type_text for type_text in read], np.bool_)
        self._nodes = tuple(parse_type(type_text) for type_text in read)
        self._kinds = kinds_of(self._nodes)
        self._containers = np.array([n.name in ("Array", "Map") for n in self._nodes], np.bool_)
        self._uuids = np.array(["UUID" in type_text for type_text in read], np.bool_)
        self._signed = np.array([_has_int64(type_text) for type_text in read], np.bool_)
        self._many = table.rows == "many"
        self._drops = self._many and table.bad_rows == "drop-row"
        self._layout = Layout("MsgPack", self._read, self._columns, _BEFORE_MARK, _NUMBER)

    def _read_as(self, name: str, type_text: str) -> str:
        """The type in which the engine reads a column.

        :raises TerminalError: MsgPack has no such values.
        """
        read = _read_type(parse_type(type_text))
        if read is not None and "UUID" in read and any(word in read for word in _LONG):
            read = None
        target = self._targets.get(name)
        if read is None:
            raise TerminalError(
                f"table {self._table.target}: MsgPack has no values of column {name} {type_text}",
                "Declare it in the columns option with a type that MsgPack has, such as String.",
            )
        if target is not None and _means_more(type_text) and target != type_text:
            raise TerminalError(
                f"table {self._table.target}: column {name} {target} cannot be read from MsgPack "
                f"as {type_text}",
                "Declare it with the table's own type or as Int64.",
            )
        return read

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See TypedFormat."""
        if self._many:
            yield from cut_groups(buffer, indices, self._layout, self._cut, self._judged)
            return
        unreadable = self._wrapping(buffer, indices)
        bad = np.fromiter(unreadable, np.int64, len(unreadable))
        left = indices[~np.isin(indices, bad)] if unreadable else indices
        groups = marked_group(buffer, left, "MsgPack", self._read, self._columns, _BEFORE_MARK)
        for group in groups:
            yield replace(group, unreadable=unreadable)

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """See TypedFormat."""
        faults: dict[int, Fault] = {}
        if self._drops:
            return faults  # rows of other kinds are left out, whoever looks for them and when
        for piece in pieces(buffer, indices):
            text = np.frombuffer(piece.text, np.uint8)
            begins, ends = np.concatenate(([0], piece.ends[:-1])), piece.ends - 1
            own = indices[piece.places]
            if self._many:
                rows = self._cut(text, begins, ends)
                found = walk(text, rows.begins, rows.ends, self._kinds)
                by_message = _first_of_each(rows, self._other_kinds(found))
                faults |= {int(own[place]): fault for place, fault in by_message.items()}
                continue
            found = walk(text, begins, ends, self._kinds)
            strange = self._other_kinds(found)
            faults |= {int(own[place]): fault for place, fault in strange.items()}
            faults |= dict.fromkeys(own[found.broken].tolist(), _BROKEN)
        return faults

    def _other_kinds(self, found: Walked) -> dict[int, Fault]:
        faults: dict[int, Fault] = {}
        for place in np.flatnonzero(found.other_kind >= 0).tolist():
            name, type_text = self._structure[int(found.other_kind[place])]
            said = f"a value of another kind than column {name} {type_text} takes"
            faults[place] = Fault(CANNOT_PARSE, said[:300], name)
        return faults

    def _cut(self, text: Bytes, begins: Positions, ends: Positions) -> Cut:
        columns = len(self._read)
        alone = partial(row_ends, columns)
        return cut(text, begins, ends, row_step(columns), alone, _TOGETHER_BYTES_MAX)

    def _judged(self, piece: Piece, rows: Cut) -> tuple[Mask, dict[int, Fault]]:
        """See cutting.Judge."""
        text = np.frombuffer(piece.text, np.uint8)
        left_out = np.zeros(len(rows.owner), np.bool_)
        if not (self._drops or self._may_wrap(text)):
            return left_out, {}
        found = walk(text, rows.begins, rows.ends, self._kinds)
        faults = self._unfit(found, piece.text, rows.begins, rows.ends)
        if not self._drops:
            return left_out, _first_of_each(rows, faults)
        faults |= self._other_kinds(found)
        left_out[np.fromiter(faults, np.int64, len(faults))] = True
        return left_out, {}

    def _wrapping(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """Messages with an integer that the engine would wrap, or a key that it would drop."""
        faults: dict[int, Fault] = {}
        for piece in pieces(buffer, indices):
            text = np.frombuffer(piece.text, np.uint8)
            if not self._may_wrap(text):
                continue
            begins, ends = np.concatenate(([0], piece.ends[:-1])), piece.ends - 1
            unfit = self._unfit(walk(text, begins, ends, self._kinds), piece.text, begins, ends)
            own = indices[piece.places]
            faults |= {int(own[place]): fault for place, fault in unfit.items()}
        return faults

    def _unfit(
        self, found: Walked, text: bytes, begins: Positions, ends: Positions
    ) -> dict[int, Fault]:
        """What the engine would take for something else, by place."""
        faults: dict[int, Fault] = {}
        unfit = (found.negative & self._unsigned) | (found.huge & self._signed)
        unfit |= found.odd & self._uuids
        unfit[found.broken | (found.other_kind >= 0)] = False
        for place in np.flatnonzero(unfit.any(axis=1)).tolist():
            name, type_text = self._structure[int(np.argmax(unfit[place]))]
            said = f"a value does not fit column {name} {type_text}"
            faults[place] = Fault(OUT_OF_RANGE, said[:300], name)
        nil = (found.nil & self._containers).any(axis=1)
        nil &= ~found.broken & (found.other_kind < 0)
        for place in np.flatnonzero(nil & ~unfit.any(axis=1)).tolist():
            fault = self._nil_fault(text[begins[place] : ends[place]])
            if fault is not None:
                faults[place] = fault
        return faults

    def _nil_fault(self, value: bytes) -> Fault | None:
        takes_nil = self._table.on_null == "default"
        found = nil_in_container(value, self._nodes, only_keys=takes_nil)
        if found is None:
            return None
        column, is_key = found
        name, type_text = self._structure[column]
        if is_key:
            return Fault(CANNOT_PARSE, f"nil is a key in column {name} {type_text}"[:300], name)
        return Fault(NULL_IN_COLUMN, f"null in column {name} {type_text}"[:300], name)

    def _may_wrap(self, text: NDArray[np.uint8]) -> bool:
        """The cheap test: whether the bytes of such a value are there at all."""
        if (
            self._unsigned.any()
            or self._uuids.any()
            or (self._containers.any() and (text == NIL).any())
        ):
            return True
        widest = np.flatnonzero(text[:-1] == 0xCF)
        return bool((text[widest + 1] >= 0x80).any())


def _first_of_each(rows: Cut, faults: Mapping[int, Fault]) -> dict[int, Fault]:
    """The fault of the first bad row of each message, by the message's place."""
    first: dict[int, Fault] = {}
    for row, fault in sorted(faults.items()):
        said = f"row {int(rows.numbers[row])}: {fault.error}"[:300]
        first.setdefault(int(rows.owner[row]), replace(fault, error=said))
    return first


def _means_more(type_text: str) -> bool:
    """Whether an integer in this type is not only a number."""
    return any(word in type_text for word in ("Date", "Enum", "IPv4", "Bool"))


def _has_int64(type_text: str) -> bool:
    """Not DateTime64: the engine itself writes times before 1970 as integers from 2^63 on."""
    return any(word in type_text.replace("UInt64", "") for word in ("Int64", "Decimal"))


def _read_type(node: TypeNode) -> str | None:
    """The type to read, in which nil is seen everywhere; None: there is no such value."""
    if node.name in ("Nullable", "LowCardinality"):
        return _read_type(node.inner())
    if node.name == "SimpleAggregateFunction":
        return _read_type(node.inner(1))
    if node.name == "Array":
        inner = _read_type(node.inner())
        return None if inner is None else f"Array({inner})"
    if node.name == "Map":
        key, value = _read_type(node.inner(0)), _read_type(node.inner(1))
        if key is None or value is None:
            return None
        return f"Map({key.removeprefix('Nullable(').removesuffix(')')}, {value})"
    scalar = _scalar_read_type(node)
    return None if scalar is None else f"Nullable({scalar})"


def _scalar_read_type(node: TypeNode) -> str | None:
    bounds = integer_bounds(node.name)
    if node.name == "UInt64":
        return "UInt64"
    if bounds is not None and bounds[1] < 2**64:
        return "Int64"
    if node.name in _AS_INT64 or node.name.startswith("Enum"):
        return "Int64"
    if node.name == "FixedString":
        return "String"
    if node.name.startswith("Decimal"):
        precision, scale = decimal_shape(node)
        return f"Decimal(18, {scale})" if precision <= 18 else node.text
    return node.text if node.name in _AS_THEY_ARE else None
