"""ClickHouse type names, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sluice.core.errors import TerminalError
from sluice.decode.engine.session import literal

#: Types that are others by another name.
GEO_TYPES = {
    "Point": "Tuple(Float64, Float64)",
    "Ring": "Array(Point)",
    "LineString": "Array(Point)",
    "MultiPoint": "Array(Point)",
    "Polygon": "Array(Ring)",
    "MultiLineString": "Array(LineString)",
    "MultiPolygon": "Array(Polygon)",
}

#: Each holds those before it.
FLOATS = ("BFloat16", "Float32", "Float64")
#: Since 1970, the first day that the engine knows, and the last.
DAYS = (-719528, 2932896)
DAY_SECONDS = 86_400
#: Of a Time: 999:59:59.
TIME_SECONDS_MAX = 3_599_999

#: Types of ours. Formats say so of values for which the engine has no type that it reads.
#: Ticks(Int32, Time64(3)) is an Int32 that counts what a Time64(3) keeps; Wrapped(Int32) an Int32
#: in a tuple of its own, which may be null; Instant() a tuple of seconds and nanoseconds.
TICKS, WRAPPED, INSTANT = "Ticks", "Wrapped", "Instant"
_TICKS = re.compile(r"Ticks\((U?Int[0-9]+), ((?:Time64|DateTime64)\([^)]*\))\)")
_WRAPPED = re.compile(r"Wrapped\((\w+)\)")


def stored_type(text: str) -> str:
    """The type as the engine has the value: of ticks, the integer."""
    text = text.replace("Instant()", "Tuple(seconds Int64, nanos Int32)")
    return _WRAPPED.sub(r"Tuple(value \1)", _TICKS.sub(r"\1", text))


def meant_type(text: str) -> str:
    """The type as it is meant: of ticks, what they count."""
    text = text.replace("Instant()", "DateTime64(9, 'UTC')")
    return _WRAPPED.sub(r"\1", _TICKS.sub(r"\2", text))


@dataclass(frozen=True, slots=True)
class TypeNode:
    """A type and its arguments.

    :param text: as the server writes it, but see `parse_type`.
    :param arguments: the parts between the brackets, untouched: types, numbers, names.
    """

    text: str
    name: str
    arguments: tuple[str, ...]

    def inner(self, index: int = 0) -> TypeNode:
        """The argument at this position, as a type."""
        return parse_type(self.arguments[index])

    def parts(self) -> list[TypeNode]:
        """The types of the values that stand in a value of this type; none in one of several
        types (Variant, JSON)."""
        match self.name:
            case "Nullable" | "LowCardinality" | "Array":
                return [self.inner()]
            case "Map":
                return [self.inner(0), self.inner(1)]
            case "Tuple":
                return [inner for _, inner in self.elements()]
        return []

    def bare(self) -> TypeNode:
        """Without Nullable and LowCardinality."""
        return self.inner().bare() if self.name in ("Nullable", "LowCardinality") else self

    def elements(self) -> tuple[tuple[str, TypeNode], ...]:
        """Names ("" without one) and types of a Tuple's elements."""
        return tuple(_element(argument) for argument in self.arguments)


def parse_type(text: str) -> TypeNode:
    """Take a type name apart. One that is another type by another name is given as that one: a
    Nested is an array of tuples, a SimpleAggregateFunction the type of its values. A Point keeps
    its text, which blocks say, and so do the others of GEO_TYPES.

    :raises TerminalError: brackets or quotes do not match.
    """
    text = text.strip()
    if text in GEO_TYPES:
        return replace(parse_type(GEO_TYPES[text]), text=text)
    opening = text.find("(")
    if opening < 0:
        return TypeNode(text, text, ())
    if not text.endswith(")"):
        raise TerminalError(f"type {text!r} is not understood", "Report it with the table's DDL.")
    name, arguments = text[:opening].strip(), tuple(_split(text[opening + 1 : -1]))
    if name == "Nested":
        return parse_type(f"Array(Tuple({', '.join(arguments)}))")
    if name == "SimpleAggregateFunction" and len(arguments) > 1:
        return parse_type(arguments[1])
    return TypeNode(text, name, arguments)


def _split(text: str) -> list[str]:
    """Arguments, cut at commas outside quotes and brackets."""
    parts, depth, begin, quote = [], 0, 0, ""
    position = 0
    while position < len(text):
        symbol = text[position]
        if quote:
            if symbol == "\\":
                position += 1
            elif symbol == quote:
                quote = ""
        elif symbol in "'`\"":
            quote = symbol
        elif symbol == "(":
            depth += 1
        elif symbol == ")":
            depth -= 1
        elif symbol == "," and depth == 0:
            parts.append(text[begin:position].strip())
            begin = position + 1
        position += 1
    if quote or depth:
        raise TerminalError(f"type {text!r} is not understood", "Report it with the table's DDL.")
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


def _element(argument: str) -> tuple[str, TypeNode]:
    """`name Type`, or only a type."""
    if argument.startswith(("`", '"')):
        end = argument.index(argument[0], 1)
        while argument[end - 1] == "\\":
            end = argument.index(argument[0], end + 1)
        return argument[1:end].replace("\\" + argument[0], argument[0]), parse_type(
            argument[end + 1 :]
        )
    head, separator, tail = argument.partition(" ")
    if separator and "(" not in head and tail.strip():
        return head, parse_type(tail)
    return "", parse_type(argument)


def typed_paths(node: TypeNode) -> tuple[tuple[str, TypeNode], ...]:
    """The paths of a JSON type that have types of their own."""
    typed = [one for one in node.arguments if not one.startswith(("SKIP ", "max_dynamic_"))]
    return TypeNode("", "", tuple(typed)).elements()


def nested_groups(types: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The columns that a server makes of a Nested: by its name, the types of a record's elements.

    :param types: of columns, by name.
    """
    groups: dict[str, dict[str, str]] = {}
    for name, text in types.items():
        head, _, tail = name.partition(".")
        if tail and head and head not in types and text.startswith("Array("):
            groups.setdefault(head, {})[tail] = parse_type(text).inner().text
    return groups


def enum_values(node: TypeNode) -> list[str]:
    """SQL literals of what an Enum's field may say: its names, and its numbers as text."""
    values = []
    for argument in node.arguments:
        name, separator, number = argument.rpartition("=")
        if separator:
            values += [name.strip(), f"'{number.strip()}'"]
        else:
            values.append(argument)
    return values


def enum_elements(node: TypeNode) -> list[tuple[str, str]]:
    """Names, as SQL literals, and numbers of an Enum."""
    elements, next_number = [], 1
    for argument in node.arguments:
        name, separator, number = argument.rpartition("=")
        if not separator:
            name, number = argument, str(next_number)
        elements.append((name.strip(), number.strip()))
        next_number = int(number) + 1
    return elements


def leaves(node: TypeNode) -> Iterator[str]:
    """The names of the types in a type that have no parts."""
    if not node.parts():
        yield node.name
    for part in node.parts():
        yield from leaves(part)


def integer_bounds(name: str) -> tuple[int, int] | None:
    """The least and the greatest value of an integer type; None for other types."""
    head, bits = name.rstrip("0123456789"), name.lstrip("UInt")
    if head not in ("Int", "UInt") or not bits.isdigit():
        return None
    if head == "UInt":
        return 0, 2 ** int(bits) - 1
    return -(2 ** (int(bits) - 1)), 2 ** (int(bits) - 1) - 1


_SIZES = {
    **dict.fromkeys(("Int8", "UInt8", "Bool", "Enum8"), 1),
    **dict.fromkeys(("Int16", "UInt16", "Enum16", "Date", "BFloat16"), 2),
    **dict.fromkeys(("Int32", "UInt32", "Float32", "Date32", "DateTime", "IPv4", "Time"), 4),
    **dict.fromkeys(("Int64", "UInt64", "Float64", "DateTime64", "Time64"), 8),
    **dict.fromkeys(("Int128", "UInt128", "UUID", "IPv6"), 16),
    **dict.fromkeys(("Int256", "UInt256"), 32),
}


def size_of(node: TypeNode) -> int | None:
    """Of a value in bytes, in RowBinary and Native, if all of this type are equally long."""
    if node.name == "FixedString":
        return int(node.arguments[0])
    if node.name.startswith("Decimal"):
        digits, _ = decimal_shape(node)
        return 4 if digits <= 9 else 8 if digits <= 18 else 16 if digits <= 38 else 32
    if node.name.startswith("Interval"):
        return 8
    return _SIZES.get(node.name)


_PRECISION = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}


def decimal_shape(node: TypeNode) -> tuple[int, int]:
    """Precision and scale of a Decimal."""
    if node.name == "Decimal":
        precision = int(node.arguments[0]) if node.arguments else 10
        return precision, int(node.arguments[1]) if len(node.arguments) > 1 else 0
    return _PRECISION[node.name], int(node.arguments[0])


def scale_of(node: TypeNode) -> int:
    """How many digits of a second a type keeps."""
    if node.name not in ("DateTime64", "Time64"):
        return 0
    return int(node.arguments[0]) if node.arguments else 3


def default_of(type_text: str) -> str:
    """SQL for what a missing value becomes. Date32 as JSONEachRow does it, not as VALUES."""
    if type_text == "Date32":
        return "toDate32('1970-01-01')"
    return f"defaultValueOfTypeName({literal(type_text)})"
