"""Messages with a date without a year, which the engine would complete with the present one.

The verdict follows from the message and the types of its columns. JSON says which texts stand in
quotes: 12 is a number of seconds, "12" the 12th of January; so do arrays, maps and tuples in lines.
Messages that a quick look cannot clear are taken apart, all others are left to the engine.
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


class _Object(tuple[tuple[str, Any], ...]):
    """A JSON object's fields, in their order, also those of equal names."""


#: In an array, a map or a tuple of lines: a text in quotes, a bracket, what separates, others.
_TOKEN = re.compile(
    r"\s*(?:'((?:[^'\\]|\\.|'')*)'|([\[({])|([\])}])|[,:]|[^\s',:\[({\])}]+)", re.DOTALL
)
_BARE = re.compile(r'("(?:[^"\\]|\\.)*")|[^\s{}\[\]:,"]+', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_Object)


def holds_moment(node: TypeNode) -> bool:
    """Whether a value of this type has a date with a time in it."""
    return node.name in _MOMENTS or any(holds_moment(inner) for inner in _inner(node))


def _inner(node: TypeNode) -> list[TypeNode]:
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


def _fault(value: str, column: str, type_text: str) -> Fault:
    return Fault(CANNOT_PARSE, in_words(value, column, type_text), column)


class Years(Protocol):
    """Of all messages of a buffer.

    `fields`: what a buffer may look at when it takes messages; None: there are no dates.
    """

    @property
    def fields(self) -> MomentFields | None: ...

    def faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """The messages with a date without a year, and what it says."""
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
        return _faults(buffer, self.fields, self._judge)

    def _judge(self, message: bytes) -> Fault | None:
        document = _document(message)
        for name, value in document if isinstance(document, _Object) else ():
            node = self._nodes.get(name)
            text = None if node is None else _without_year(value, node)
            if text is not None:
                return _fault(text, name, self._types[name])
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
        return _faults(buffer, self.fields, self._judge)

    def _judge(self, message: bytes) -> Fault | None:
        document = _document(message)
        if not isinstance(document, list):
            return None
        for place, name, type_text, node in self._columns:
            text = _without_year(document[place], node) if place < len(document) else None
            if text is not None:
                return _fault(text, name, type_text)
        return None


class YearsOfLines:
    """Of rows of CSV or TSV.

    :param columns: as of `YearsOfArrays`.
    :param values: takes a row apart.
    :param delimiter: between values; of CSV, so that each element of a tuple is a value.
        "": it is a tab.
    :param null: the text that means null.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        values: Callable[[bytes], list[str]],
        delimiter: str,
        null: str,
    ) -> None:
        self._values, self._null = values, null
        cells = [
            (name, text, cell)
            for name, text in columns
            for cell in (_cells(text) if delimiter else (text,))
        ]
        self._cells = [
            (place, name, text, parse_type(cell))
            for place, (name, text, cell) in enumerate(cells)
            if cell and holds_moment(parse_type(cell))
        ]
        places = [place for place, *_ in self._cells]
        fields = MomentFields(delimiter or "\t", places, bool(delimiter))
        self.fields = fields if places else None

    def faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """As of `YearsOfObjects`."""
        return _faults(buffer, self.fields, self._judge)

    def _judge(self, row: bytes) -> Fault | None:
        cells = self._values(row)
        for place, name, type_text, node in self._cells:
            cell = cells[place] if place < len(cells) else ""
            if cell in ("", self._null, "\\N"):
                continue
            value = _nested(cell) if cell[0] in "[{(" else cell.strip(" '")
            text = _without_year(value, node)
            if text is not None:
                return _fault(text, name, type_text)
        return None


def _cells(type_text: str) -> Iterator[str]:
    """The types of the values of a row of CSV that a column takes."""
    node = parse_type(type_text) if type_text else None
    if node is None or node.name != "Tuple":
        yield type_text
        return
    for _, element in node.elements():
        yield from _cells(element.text)


def _nested(text: str) -> Any:
    """What stands in brackets, as JSON would say it: texts where there are quotes, else None."""
    outer: list[Any] = []
    stack = [outer]
    for match in _TOKEN.finditer(text):
        quoted, opening, closing = match.groups()
        if opening:
            stack.append([])
        elif closing:
            values: Any = stack.pop()
            if not stack:
                return None
            if closing == "}":
                values = _Object(zip(values[::2], values[1::2], strict=False))
            stack[-1].append(values)
        elif quoted is not None:
            stack[-1].append(re.sub(r"\\(.)|''", lambda m: m[1] or "'", quoted, flags=re.DOTALL))
        elif match[0].strip() not in (",", ":"):
            stack[-1].append(None)
    return outer[0] if outer else None


def _faults(
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


def _without_year(value: Any, node: TypeNode) -> str | None:
    """The first text in a JSON value that would be a date without a year; None: there is none."""
    match node.name:
        case "DateTime" | "DateTime64":
            return value if isinstance(value, str) and lacks_year(value) else None
        case "Nullable" | "LowCardinality":
            return _without_year(value, node.inner())
        case "SimpleAggregateFunction":
            return _without_year(value, node.inner(1))
        case "Variant" if isinstance(value, str):
            return value if _is_completed_variant(value, node) else None
    for part, inner in _parts(value, node):
        text = _without_year(part, inner)
        if text is not None:
            return text
    return None


def _is_completed_variant(value: str, node: TypeNode) -> bool:
    """The engine takes a number for a number first, and what can be no date for something else."""
    names = [inner.name for inner in _inner(node)]
    if any(name.startswith(("Int", "UInt", "Float", "Decimal")) for name in names):
        try:
            float(value)
        except ValueError:
            pass
        else:
            return False
    return any(name in _MOMENTS for name in names) and lacks_year(value) and may_be_date(value)


def _parts(value: Any, node: TypeNode) -> Iterator[tuple[Any, TypeNode]]:
    """The values that stand in one, with their types."""
    pairs = value if isinstance(value, _Object) else ()
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
            yield from ((one, named[key]) for key, one in pairs if key in named)
        case "Variant":
            yield from ((value, inner) for inner in _inner(node))
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
    for key, one in value if isinstance(value, _Object) else ():
        names = key.split(".")
        if path[: len(names)] == names:
            yield from _at(one, path[len(names) :])
