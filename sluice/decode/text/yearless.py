"""JSON messages with a date without a year, which the engine would complete with the present one.

The verdict follows from the message and the types of its columns. JSON says which texts stand in
quotes: 12 is a number of seconds, "12" the 12th of January. Messages that a quick look cannot clear
are taken apart, all others are left to the engine. Lines: see cells.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.engine.years import lacks_year, may_be_date
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.moments import MomentFields

_MOMENTS = ("DateTime", "DateTime64")
_ERROR_CHARACTERS_MAX = 300
_VALUE_CHARACTERS_MAX = 100


class Fields(tuple[tuple[str, Any], ...]):
    """A JSON object's fields, in their order, also those of equal names."""


_BARE = re.compile(r'("(?:[^"\\]|\\.)*")|[^\s{}\[\]:,"]+', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=Fields)


def holds_moment(node: TypeNode) -> bool:
    """Whether a value of this type has a date with a time in it."""
    return node.name in _MOMENTS or any(holds_moment(inner) for inner in inner_types(node))


def inner_types(node: TypeNode) -> list[TypeNode]:
    """The types of the values in a value of this type, also of those that it may be instead."""
    match node.name:
        case "Nullable" | "LowCardinality" | "Array":
            return [node.inner()]
        case "SimpleAggregateFunction":
            return [node.inner(1)]
        case "Map" | "Variant":
            return [node.inner(place) for place in range(len(node.arguments))]
        case "Tuple" | "Nested":
            return [inner for _, inner in node.elements()]
        case "JSON":
            return [inner for _, inner in _paths(node)]
    return []


def _paths(node: TypeNode) -> list[tuple[str, TypeNode]]:
    """The paths of a JSON type that have types of their own."""
    typed = [one for one in node.arguments if not one.startswith(("SKIP ", "max_dynamic_"))]
    return list(TypeNode("", "", tuple(typed)).elements())


def in_words(value: str, column: str, type_text: str) -> str:
    """What is wrong with a text of no year."""
    shown = json.dumps(value, ensure_ascii=False)[:_VALUE_CHARACTERS_MAX]
    said = f"{shown} cannot be read as column {column} {type_text}: it has no year"
    return said[:_ERROR_CHARACTERS_MAX]


def fault_of(value: str, column: str, type_text: str) -> Fault:
    return Fault(CANNOT_PARSE, in_words(value, column, type_text), column)


class Look(Protocol):
    """Finds what the engine would read as something else than it says.

    `fields`: what a buffer may look at when it takes messages; None: there are no dates.
    """

    @property
    def fields(self) -> MomentFields | None: ...

    def faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """The messages with such a value, and what it says."""
        ...


class YearsOfObjects:
    """Of messages of one JSON object each.

    :param types: of all columns that are read from messages, by name.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        self._types = {name: text for name, text in types.items() if holds_moment(parse_type(text))}
        self._nodes = {name: parse_type(text) for name, text in self._types.items()}
        fields = MomentFields("{", list(self._types))
        self.fields = fields if self._types else None

    def faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """The messages with such a date, and what it says."""
        return faults_of(buffer, self.fields, self._judge)

    def _judge(self, message: bytes) -> Fault | None:
        document = _document(message)
        for name, value in document if isinstance(document, Fields) else ():
            node = self._nodes.get(name)
            text = None if node is None else without_year(value, node)
            if text is not None:
                return fault_of(text, name, self._types[name])
        return None


class YearsOfArrays:
    """Of messages of one JSON array each.

    :param columns: names and types of the values, in their order; no type: no column takes it.
    """

    def __init__(self, columns: Sequence[tuple[str, str]]) -> None:
        self._columns = [
            (place, name, text, parse_type(text))
            for place, (name, text) in enumerate(columns)
            if text and holds_moment(parse_type(text))
        ]
        fields = MomentFields("[", [place for place, *_ in self._columns])
        self.fields = fields if self._columns else None

    def faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """As of `YearsOfObjects`."""
        return faults_of(buffer, self.fields, self._judge)

    def _judge(self, message: bytes) -> Fault | None:
        document = _document(message)
        if not isinstance(document, list):
            return None
        for place, name, type_text, node in self._columns:
            text = without_year(document[place], node) if place < len(document) else None
            if text is not None:
                return fault_of(text, name, type_text)
        return None


def faults_of(
    buffer: MessageBuffer, fields: MomentFields | None, judge: Callable[[bytes], Fault | None]
) -> dict[int, Fault]:
    faults: dict[int, Fault] = {}
    if fields is None:
        return faults
    unclear = buffer.unclear(fields)
    for index, message in zip(unclear.tolist(), buffer.iterate(unclear), strict=True):
        try:
            fault = judge(message)
        except (ValueError, RecursionError):
            fault = Fault(CANNOT_PARSE, "the message cannot be read as JSON of this table")
        if fault is not None:
            faults[index] = fault
    return faults


def _document(message: bytes) -> Any:
    """The message taken apart.

    :raises ValueError, RecursionError: it is no JSON, whatever stands in no quotes: the engine
        reads 01 and +1.
    """
    text = message.decode(errors="replace").strip(" \t\r\n")
    try:
        return _DECODER.decode(text)
    except ValueError:
        return _DECODER.decode(_BARE.sub(lambda match: match[0] if match[1] else "null", text))


def without_year(value: Any, node: TypeNode) -> str | None:
    """The first text in a JSON value that would be a date without a year; None: there is none."""
    match node.name:
        case "DateTime" | "DateTime64":
            return value if isinstance(value, str) and lacks_year(value) else None
        case "Nullable" | "LowCardinality":
            return without_year(value, node.inner())
        case "SimpleAggregateFunction":
            return without_year(value, node.inner(1))
        case "Variant" if isinstance(value, str):
            return value if _is_completed_variant(value, node) else None
    for part, inner in parts_of(value, node):
        text = without_year(part, inner)
        if text is not None:
            return text
    return None


def _is_completed_variant(value: str, node: TypeNode) -> bool:
    """The engine takes a number for a number first, and what can be no date for something else."""
    names = [inner.name for inner in inner_types(node)]
    if any(name.startswith(("Int", "UInt", "Float", "Decimal")) for name in names):
        try:
            float(value)
        except ValueError:
            pass
        else:
            return False
    return any(name in _MOMENTS for name in names) and lacks_year(value) and may_be_date(value)


def parts_of(value: Any, node: TypeNode) -> Iterator[tuple[Any, TypeNode]]:
    """The values that stand in one, with their types."""
    pairs = value if isinstance(value, Fields) else ()
    values = value if isinstance(value, list) else ()
    match node.name:
        case "Array":
            yield from ((one, node.inner()) for one in values)
        case "Map":
            for key, one in pairs:
                yield key, node.inner(0)
                yield one, node.inner(1)
        case "Tuple":
            elements = node.elements()
            yield from zip(values, (inner for _, inner in elements), strict=False)
            named = dict(elements)
            yield from (
                (one, named[key]) for key, one in pairs if isinstance(key, str) and key in named
            )
        case "Variant":
            yield from ((value, inner) for inner in inner_types(node))
        case "JSON":
            for path, inner in _paths(node):
                yield from ((one, inner) for one in _at(value, path.split(".")))
        case "Nested":
            text = f"Tuple({', '.join(node.arguments)})"
            yield from ((one, parse_type(text)) for one in values)


def _at(value: Any, path: list[str]) -> Iterator[Any]:
    """What stands at a path of an object, also if its names have points in them."""
    if not path:
        yield value
    for key, one in value if isinstance(value, Fields) else ():
        names = key.split(".") if isinstance(key, str) else []
        if names and path[: len(names)] == names:
            yield from _at(one, path[len(names) :])
