"""MsgPack: a message is the values of one row, one after the other, or of any number of rows.

What is not an integer is read in the type that the `columns` option says, else the table's.
Integers are read 64 bits wide, and so is what MsgPack writes as an integer (dates, times, Enum,
Bool, IPv4, decimals of up to 18 digits); every value may be nil.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.pair import integer_bounds
from sluice.decode.engine.types import TypeNode, decimal_shape, parse_type
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, OUT_OF_RANGE, Fault
from sluice.decode.messages.marks import MARK_BYTES
from sluice.decode.sequential.pack_walk import Wrong, column_step
from sluice.decode.sequential.rows import RowLayout, Walk
from sluice.decode.typed.structures import Structure, normalised, structure_of

#: Type and length of 16 bytes of binary.
_BEFORE_MARK = bytes((0xC4, MARK_BYTES))
#: Type of a UInt32 and the order of its bytes.
_NUMBER = (b"\xce", ">u4")
_NOT_ONE = Fault(CANNOT_PARSE, "the message is not exactly one value for each column")
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
                at, wrong = step(value, at)
                if wrong:
                    faults.append(_fault(Wrong(wrong), name, type_text))
        return at

    return walk


def _fault(wrong: Wrong, name: str, type_text: str) -> Fault:
    column = f"column {name} {type_text}"
    reason, said = {
        Wrong.KIND: (CANNOT_PARSE, f"a value of another kind than {column} takes"),
        Wrong.RANGE: (OUT_OF_RANGE, f"a value does not fit {column}"),
        Wrong.NIL: (NULL_IN_COLUMN, f"null in {column}"),
        Wrong.NIL_KEY: (CANNOT_PARSE, f"nil is a key in {column}"),
    }[wrong]
    return Fault(reason, said, name)


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
