"""Column types for the rows of a sample, wide enough for what comes later.

The engine infers the type of each field from its values; what it finds is widened: Int64 for
integers, DateTime64(3) for moments, String for what is mixed. A column is Nullable only where a
value was absent or null.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.decode.engine.session import EngineError, identifier, literal, run, settings_clause
from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.messages.memory import memory_file

#: More fields than that are no columns but data; the rarest are left out.
COLUMNS_MAX = 1_000

#: Strings of so few different values are stored as LowCardinality.
_LOW_CARDINALITY_VALUES = 30
_LOW_CARDINALITY_SHARE = 0.1

#: An object with more keys than that, most of them absent, is a map.
_MAP_KEYS = 20
_MAP_PRESENCE = 0.5

_FRACTION = re.compile(r"[T ]\d\d:\d\d:\d\d\.\d{3}(\d+)")
_INTEGER = re.compile(r"U?Int\d+")
_INFERENCE = {
    "input_format_json_read_objects_as_strings": 1,
    "input_format_json_read_arrays_as_strings": 1,
    "input_format_json_read_numbers_as_strings": 1,
    "input_format_json_read_bools_as_strings": 1,
    "input_format_json_infer_incomplete_types_as_strings": 1,
    "input_format_json_try_infer_named_tuples_from_objects": 1,
    "input_format_json_try_infer_numbers_from_strings": 0,
    "input_format_try_infer_dates": 1,
    "input_format_try_infer_datetimes": 1,
    "schema_inference_make_columns_nullable": "'auto'",
}

_SORTABLE = re.compile(r"(U?Int64|String|LowCardinality\(String\)|Date|Bool)")

#: Stands for a field that a row does not have.
_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class SampledColumn:
    """A column for a field.

    :param values: rows that have a value there; `distinct` of them differ.
    :param lacking: some rows have none.
    """

    name: str
    type: str
    values: int
    distinct: int
    lacking: bool = False

    @property
    def in_a_key(self) -> bool:
        """Whether the table can be sorted by it."""
        return bool(_SORTABLE.match(self.type))

    def as_text(self) -> SampledColumn:
        """The same column for any value."""
        return replace(self, type=_nullable("String", self.lacking))


def columns_of_records(records: Sequence[dict[str, Any]]) -> list[SampledColumn]:
    """Columns for JSON objects, in the order in which the fields come; the most frequent ones."""
    counts = Counter(name for record in records for name in record)
    kept = {name for name, _ in counts.most_common(COLUMNS_MAX)}
    return [
        _column(name, [record.get(name, _ABSENT) for record in records])
        for name in counts
        if name in kept and is_a_name(name)
    ]


def columns_of_lines(names: Sequence[str], lines: Sequence[Sequence[Any]]) -> list[SampledColumn]:
    """Columns for rows by position. In text, numbers and times stand without quotes, and what
    is empty or \\N stands for null."""
    columns = []
    for index, name in enumerate(names):
        values = [line[index] for line in lines]
        columns.append(_column(name, [_value_of(value) for value in values]))
    return columns


def is_a_name(name: str) -> bool:
    """Whether a field can be a column."""
    return bool(name) and name.isprintable()


def _value_of(value: Any) -> Any:
    """What a text between two delimiters says."""
    if not isinstance(value, str):
        return value
    if value in ("", "\\N"):
        return None
    if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", value, re.ASCII):
        return json.loads(value)
    return {"true": True, "false": False}.get(value, value)


def _column(name: str, values: Sequence[Any]) -> SampledColumn:
    there = [value for value in values if value is not _ABSENT and value is not None]
    distinct = len({json.dumps(value, sort_keys=True) for value in there})
    text = _widened(parse_type(_inferred(there)), values)
    is_few = distinct <= _LOW_CARDINALITY_SHARE * len(there)
    is_text = text in ("String", "Nullable(String)")
    if is_text and is_few and len(there) >= _LOW_CARDINALITY_VALUES:
        text = f"LowCardinality({text})"
    return SampledColumn(name, text, len(there), distinct, len(there) < len(values))


def _inferred(values: Iterable[Any]) -> str:
    """What the engine makes of these values; String where they are mixed or none."""
    lines = [f'{{"v":{json.dumps(value)}}}\n' for value in values]
    if not lines:
        return "String"
    with memory_file("".join(lines).encode()) as path:
        query = f"DESCRIBE file({literal(path)}, JSONEachRow) {settings_clause(**_INFERENCE)}"
        try:
            answer = run(query, "JSONEachRow").bytes().decode()
        except EngineError:
            return "String"
    found: str = json.loads(answer.split("\n")[0])["type"]
    return " ".join(found.split()).replace("( ", "(")


def _widened(node: TypeNode, values: Sequence[Any]) -> str:
    """A type with room, Nullable where a value is absent or null."""
    there = [value for value in values if value is not _ABSENT and value is not None]
    lacks = len(there) < len(values)
    if node.name == "Nullable":
        return _widened(node.inner(), values)
    if node.name == "Array":
        items = [item for value in there if isinstance(value, list) for item in value]
        return f"Array({_widened(node.inner(), items)})"
    if node.name == "Tuple":
        return _object(node, [value for value in there if isinstance(value, dict)])
    return _nullable(_scalar(node, there), lacks)


def _object(node: TypeNode, values: Sequence[dict[str, Any]]) -> str:
    """A named tuple, or a map if the keys are data."""
    elements = node.elements()
    present = sum(map(len, values)) / max(1, len(values) * len(elements))
    if len(elements) > _MAP_KEYS and present < _MAP_PRESENCE:
        items = [item for value in values for item in value.values()]
        return f"Map(String, {_widened(parse_type(_inferred(items)), items)})"
    if not all(name and is_a_name(name) for name, _ in elements):
        return "String"
    parts = [
        f"{identifier(name)} {_widened(part, [value.get(name, _ABSENT) for value in values])}"
        for name, part in elements
    ]
    return f"Tuple({', '.join(parts)})"


def _scalar(node: TypeNode, values: Sequence[Any]) -> str:
    if node.name == "UInt64":
        return "UInt64"
    if _INTEGER.fullmatch(node.name):
        return "Int64"
    if node.name in ("DateTime", "DateTime64"):
        digits = max((len(m[1]) for v in values for m in _FRACTION.finditer(str(v))), default=0)
        return f"DateTime64({3 if not digits else 6 if digits <= 3 else 9})"
    if node.name in ("Date", "Date32"):
        return "Date32"
    return node.name if node.name in ("Bool", "Float64") else "String"


def _nullable(text: str, lacks: bool) -> str:
    return f"Nullable({text})" if lacks else text
