"""MsgPack: a message is the values of one row, one after the other, or of any number of rows.

What is not an integer is read in the type that the `columns` option says, else the table's.
Integers are read 64 bits wide, and so is what MsgPack writes as an integer (dates, times, Enum,
Bool, IPv4, decimals of up to 18 digits); every value may be nil.

Where each value ends, and whether the engine would read it as it is, is found by a walk: the
engine reads MsgPack integers into a column's width without looking: 300 becomes 44 in a
UInt8, 2^64-1 becomes -1 in an Int64, -1 becomes 2^64-1 in a UInt64. Columns are read 64 bits
wide; what is left are the two last cases, and they are found here. So is nil for an Array, a Map or
the key of one, for which the engine takes nothing, and a UUID of another length.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from enum import IntEnum
from itertools import cycle, islice

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.types import TypeNode, decimal_shape, integer_bounds, parse_type
from sluice.decode.messages.fault import (
    CANNOT_PARSE,
    NULL_IN_COLUMN,
    OUT_OF_RANGE,
    Fault,
    refused_value,
)
from sluice.decode.messages.marks import MARK_BYTES
from sluice.decode.sequential.rows import NotRowsError, RowLayout, Walk
from sluice.decode.typed.structures import Structure, normalised, structure_of

_NIL, _INVALID, _UINT64 = 0xC0, 0xC1, 0xCF
#: First bytes of negative integers, or of signed ones that say it by their highest bit.
_NEGATIVE = frozenset((*range(0xD0, 0xD4), *range(0xE0, 0x100)))
_INTEGERS = _NEGATIVE | {*range(0x80), 0xC2, 0xC3, *range(0xCC, 0xD0)}
_TEXTS = frozenset((*range(0xA0, 0xC0), *range(0xD9, 0xDC)))
_TEXTS_OR_BINARIES = _TEXTS | {0xC4, 0xC5, 0xC6}
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)))
_ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))


class Wrong(IntEnum):
    """What is wrong with a value; 0 is nothing."""

    KIND = 1
    RANGE = 2
    NIL = 3
    NIL_KEY = 4


#: Of values of a type, by first byte: the size of those that are right whatever their other bytes
#: are, -1 if the second byte says how many follow, else 0; and the way over any other value, see
#: rows.Walk, with what is wrong with it.
Step = tuple[list[int], Callable[[bytes, int], tuple[int, int]]]


def _shapes() -> list[tuple[int, int, int, int]]:
    """By a value's first byte: bytes up to where its content or items begin; how many of them, from
    the second on, say a length or count; the length or count that the first byte says itself; how
    many values there are for each that is counted, 0 if bytes are."""
    shapes = [(1, 0, 0, 0)] * 256
    for own in range(16):
        shapes[0x80 + own], shapes[0x90 + own] = (1, 0, own, 2), (1, 0, own, 1)
    for own in range(32):
        shapes[0xA0 + own] = (1, 0, own, 0)
    # bin 8, 16, 32; ext 8, 16, 32 (a byte of type behind the length); str 8, 16, 32.
    for first, extra in ((0xC4, 0), (0xC7, 1), (0xD9, 0)):
        for power in range(3):
            shapes[first + power] = (1 + (1 << power) + extra, 1 << power, 0, 0)
    # Floats, unsigned and signed integers of 8 to 64 bits.
    for first, sizes in ((0xCA, (4, 8)), (0xCC, (1, 2, 4, 8)), (0xD0, (1, 2, 4, 8))):
        for place, size in enumerate(sizes):
            shapes[first + place] = (1, 0, size, 0)
    # fixext 1 to 16, with a byte of type.
    for power in range(5):
        shapes[0xD4 + power] = (2, 0, 1 << power, 0)
    # array 16 and 32, map 16 and 32.
    for first, items in ((0xDC, 1), (0xDE, 2)):
        shapes[first], shapes[first + 1] = (3, 2, 0, items), (5, 4, 0, items)
    return shapes


_SHAPES = _shapes()


def _head(value: bytes, at: int) -> tuple[int, int, int]:
    """Of the value at this place: where its content begins, and how many bytes it has, or items."""
    head, width, length, items = _SHAPES[value[at]]
    if width:
        length = int.from_bytes(value[at + 1 : at + 1 + width], "big")
    at += head
    # Each item takes a byte at least.
    if length * (items or 1) > len(value) - at:
        raise NotRowsError
    return (at, 0, length * items) if items else (at, length, 0)


def _behind(value: bytes, at: int) -> int:
    """Where the value at this place ends, whatever it is."""
    left = 1
    while left:
        if value[at] == _INVALID:
            raise NotRowsError
        at, length, items = _head(value, at)
        at += length
        left += items - 1
    return at


def column_step(node: TypeNode, takes_nil: bool, is_key: bool = False) -> Step:
    """Over a value of this type. A wrong one is gone over, whatever it is.

    :param takes_nil: nil is an empty Array or Map.
    :param is_key: the value is the key of a Map.
    """
    while node.name in ("Nullable", "LowCardinality"):
        node, is_key = node.inner(), False
    if node.name == "Array":
        return _container(_ARRAYS, [column_step(node.inner(), takes_nil)], takes_nil)
    if node.name == "Map":
        key = column_step(node.inner(0), takes_nil, is_key=True)
        return _container(_MAPS, [key, column_step(node.inner(1), takes_nil)], takes_nil)
    return _scalar(node, is_key)


def _container(takes: frozenset[int], parts: list[Step], takes_nil: bool) -> Step:
    sizes = [0] * 256
    sizes[_NIL], sizes[min(takes)] = int(takes_nil), 1

    def step(value: bytes, at: int) -> tuple[int, int]:
        first = value[at]
        if first not in takes:
            return _behind(value, at), Wrong.NIL if first == _NIL else Wrong.KIND
        at, _, items = _head(value, at)
        worst = 0
        for part_sizes, behind in islice(cycle(parts), items):
            size = part_sizes[value[at]]
            if size > 0:
                at += size
            elif size:
                at += 2 + value[at + 1]
            else:
                at, wrong = behind(value, at)
                worst = worst or wrong
        return at, worst

    return sizes, step


def _scalar(node: TypeNode, is_key: bool) -> Step:
    takes, is_uuid = _first_bytes(node), node.name == "UUID"
    #: Those of integers that may not fit.
    refused = _NEGATIVE if node.name == "UInt64" else frozenset()
    if node.name in ("Int64", "Decimal"):
        # Not DateTime64: the engine itself writes times before 1970 as integers from 2^63 on.
        refused = frozenset({_UINT64})
    sizes = [0] * 256
    for first in takes - refused:
        head, width, length, _ = _SHAPES[first]
        sizes[first] = 0 if is_uuid or width > 1 else -1 if width else head + length
    sizes[_NIL] = 0 if is_key else 1

    def step(value: bytes, at: int) -> tuple[int, int]:
        first = value[at]
        if first not in takes:
            return _behind(value, at), Wrong.NIL_KEY if first == _NIL else Wrong.KIND
        at, length, _ = _head(value, at)
        is_right = True
        if is_uuid:
            is_right = length in ((32, 36) if first in _TEXTS else (16,))
        elif first in refused:
            is_right = first < 0xE0 and value[at] < 0x80
        return at + length, 0 if is_right else Wrong.RANGE

    return sizes, step


def _first_bytes(node: TypeNode) -> frozenset[int]:
    """Those of the values that the engine might take for a scalar type; nil apart."""
    if node.name in ("Float32", "Float64"):
        return frozenset({0xCA if node.name == "Float32" else 0xCB})
    is_short_decimal = node.name == "Decimal" and int(node.arguments[0]) <= 18
    if is_short_decimal or node.name in ("Int64", "UInt64", "DateTime64"):
        return _INTEGERS
    return _TEXTS_OR_BINARIES | (_EXTENSIONS if node.name == "UUID" else frozenset())


#: Type and length of 16 bytes of binary.
_BEFORE_MARK = bytes((0xC4, MARK_BYTES))
#: Type of a UInt32 and the order of its bytes.
_NUMBER = (b"\xce", ">u4")
_NOT_ONE = Fault(CANNOT_PARSE, "the message is not exactly one value for each column")
_SHOWN_MAX, _BYTES_SHOWN_MAX = 100, 16
#: There where a message holds an integer of 2^63 or more; and where it may hold nil, too.
_LARGE, _LARGE_OR_NIL = re.compile(rb"\xcf[\x80-\xff]"), re.compile(rb"\xcf[\x80-\xff]|\xc0")
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


def message_pack(table: TableSpec) -> RowLayout:
    """Values in the order of the columns. Option `columns`: their names and types; without it
    those of the table.

    :raises TerminalError: MsgPack has no values of a column.
    """
    structure = structure_of(table)
    targets = dict(normalised(tuple((column.name, column.type) for column in table.columns)))
    read = tuple((name, _read_as(table, name, text, targets)) for name, text in structure)
    return RowLayout(
        "MsgPack",
        read,
        _walk(structure, read, table.on_null == "default"),
        _NOT_ONE,
        many=table.rows == "many",
        drops=table.rows == "many" and table.bad_rows == "drop-row",
        needs_walk=_needs_walk(read),
        before_mark=_BEFORE_MARK,
        number=_NUMBER,
    )


def _read_as(table: TableSpec, name: str, type_text: str, targets: dict[str, str]) -> str:
    """The type in which the engine reads a column.

    :param targets: the types of the table's columns, by name.
    :raises TerminalError: MsgPack has no such values.
    """
    read = _read_type(parse_type(type_text))
    if read is not None and "UUID" in read and any(word in read for word in _LONG):
        read = None
    target = targets.get(name)
    if read is None:
        raise TerminalError(
            f"table {table.target}: MsgPack has no values of column {name} {type_text}",
            "Declare it in the columns option with a type that MsgPack has, such as String.",
        )
    if target is not None and _means_more(type_text) and target != type_text:
        raise TerminalError(
            f"table {table.target}: column {name} {target} cannot be read from MsgPack "
            f"as {type_text}",
            "Declare it with the table's own type or as Int64.",
        )
    return read


def _walk(structure: Structure, read: Structure, takes_nil: bool) -> Walk:
    """Over a row of these columns.

    :param structure: the columns as they are called in what is said of a fault.
    """
    columns = [
        (name, type_text, *column_step(parse_type(read_text), takes_nil))
        for (name, type_text), (_, read_text) in zip(structure, read, strict=True)
    ]

    def walk(value: bytes, at: int, faults: list[Fault]) -> int:
        for name, type_text, sizes, step in columns:
            size = sizes[value[at]]
            if size > 0:
                at += size
            elif size:
                at += 2 + value[at + 1]
            else:
                begin = at
                at, wrong = step(value, at)
                if wrong:
                    shown = _shown(value[begin:at])
                    faults.append(_fault(Wrong(wrong), shown, name, type_text))
        return at

    return walk


def _fault(wrong: Wrong, shown: str, name: str, type_text: str) -> Fault:
    if wrong == Wrong.NIL_KEY:
        return Fault(CANNOT_PARSE, f"nil is a key in column {name} {type_text}", name)
    reasons = {Wrong.KIND: CANNOT_PARSE, Wrong.RANGE: OUT_OF_RANGE, Wrong.NIL: NULL_IN_COLUMN}
    return refused_value(reasons[wrong], shown, name, type_text)


def _shown(value: bytes) -> str:
    """A value for people: a text, an integer, a float, or the bytes of anything else."""
    first, behind = value[0], value[1:]
    if first in _TEXTS:
        begin, _, _ = _head(value, 0)
        text = value[begin:].decode(errors="replace")[:_SHOWN_MAX]
        return f"the text {json.dumps(text, ensure_ascii=False)}"
    if first in (0xC2, 0xC3):
        return "true" if first == 0xC3 else "false"
    if first < 0x80 or first >= 0xE0:
        return f"the integer {int.from_bytes(value, 'big', signed=first >= 0xE0)}"
    if first in _INTEGERS:
        return f"the integer {int.from_bytes(behind, 'big', signed=first >= 0xD0)}"
    if first in (0xCA, 0xCB):
        bits = len(behind) * 8
        return f"the float {bits} {struct.unpack('>f' if bits == 32 else '>d', behind)[0]!r}"
    return f"the bytes {value[:_BYTES_SHOWN_MAX].hex(' ')}"


def _needs_walk(read: Structure) -> Callable[[bytes], bool]:
    """A cheap test: whether the bytes of a value that the engine takes for another one may be in a
    message at all."""
    types = " ".join(type_text for _, type_text in read)
    if "UInt64" in types or "UUID" in types:
        return lambda text: True
    found = _LARGE_OR_NIL if "Array(" in types or "Map(" in types else _LARGE
    return lambda text: found.search(text) is not None


def _means_more(type_text: str) -> bool:
    """Whether an integer in this type is not only a number."""
    return any(word in type_text for word in ("Date", "Enum", "IPv4", "Bool"))


def _read_type(node: TypeNode) -> str | None:
    """The type to read, in which nil is seen everywhere; None: there is no such value."""
    if node.name in ("Nullable", "LowCardinality"):
        return _read_type(node.inner())
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
