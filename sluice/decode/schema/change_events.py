"""Change events of Debezium in Avro: the row inside is the message.

The events of a group are a relation with columns before, after and op. What makes no row is looked
for first; of the others, the columns are the fields of the row after, or before it was deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from sluice.core.load_spec import TableSpec
from sluice.decode.engine.session import identifier, literal, run, settings_clause
from sluice.decode.engine.types import TypeNode, decimal_shape, parse_type, stored_type
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.events import (
    DELETED,
    MOMENTS,
    OPERATION,
    SOURCE,
    TIME_MS,
    UNAVAILABLE,
    UNAVAILABLE_BASE64,
    UNAVAILABLE_CODES,
    UNAVAILABLE_MAP,
    UNAVAILABLE_SHAPES,
    UNAVAILABLE_UUID,
    no_row,
    tells_deletes,
    unavailable,
)
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, Indices, Natural, TypedFormat

_PLACE = "_sluice_event_place"
_EVENT = ("before", "after", "op")
_NO_EVENT = Fault(
    CANNOT_PARSE,
    "the message is no change event of Debezium: it lacks records before and after, or op",
)


def with_moments(text: str) -> str:
    """A schema in which numbers that Connect's names call moments are Avro's.

    :raises ValueError, RecursionError: it is no JSON.
    """

    def told(schema: Any) -> Any:
        if isinstance(schema, list):
            return [told(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        found = {key: told(value) for key, value in schema.items()}
        moment = MOMENTS.get(str(schema.get("connect.name")))
        if moment and schema.get("type") in ("int", "long") and "logicalType" not in schema:
            found["logicalType"] = moment
        return found

    return json.dumps(told(json.loads(text)))


class ChangeEvents(TypedFormat):
    """The rows of change events.

    :param events: their format.
    """

    def __init__(self, table: TableSpec, events: TypedFormat) -> None:
        self._events = events
        self._types = {column.name: parse_type(column.type) for column in table.columns}
        self._tells_deletes = tells_deletes(table)

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """As the port says."""
        for group in self._events.groups(buffer, indices):
            yield self._rows(group)

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """As the port says."""
        return self._events.broken(buffer, indices)

    def _rows(self, group: Group) -> Group:
        by_name = {column.name: column for column in group.columns}
        row = _record_of(by_name)
        if not group.source:
            return group
        if row is None:
            faults = dict.fromkeys(group.messages.tolist(), _NO_EVENT)
            return Group.without_messages({**group.unreadable, **faults})
        columns = tuple(self._columns(by_name, row))
        source = f"(SELECT *, {group.place} AS {_PLACE} FROM {group.source})"
        if not len(group.messages):
            return replace(group, source=source, place=_PLACE, columns=columns)
        faults = self._without_row(group, source, by_name, row)
        left = np.ones(len(group.messages), np.bool_)
        left[list(faults)] = False
        place = _PLACE
        if faults:
            listed = ", ".join(map(str, sorted(faults)))
            source = f"(SELECT * FROM {source} WHERE {_PLACE} NOT IN ({listed}))"
            place = f"toUInt32({_PLACE} - arrayCount(x -> x < {_PLACE}, [{listed}]))"
        told = {int(group.messages[at]): fault for at, fault in faults.items()}
        return replace(
            group,
            source=source,
            columns=columns,
            messages=group.messages[left],
            place=place,
            unreadable={**group.unreadable, **told},
        )

    def _columns(self, by_name: dict[str, Natural], row: TypeNode) -> Iterator[Natural]:
        """The fields of the row, then what the event says of it."""
        before, after = (_value(by_name[name]) for name in ("before", "after"))
        op = _value(by_name["op"])
        for name, node in row.elements():
            field = literal(name)
            old, new = (f"tupleElement(assumeNotNull({side}), {field})" for side in (before, after))
            target = self._types.get(name)
            if node.name == "Nullable" and target is not None and target.name != "Nullable":
                # What the log does not keep of a deleted row is null there.
                default = f"defaultValueOfTypeName({literal(stored_type(node.inner().text))})"
                old = f"toNullable(ifNull({old}, {default}))"
            yield Natural(name, node.text, f"if(isNull({after}), {old}, {new})")
        told = [
            Natural(OPERATION, "String", f"toString({op})"),
            Natural(DELETED, "Bool", f"toBool({op} = 'd')"),
        ]
        for name, of in ((TIME_MS, "ts_ms"), (SOURCE, "source")):
            if of in by_name:
                told.append(Natural(name, by_name[of].type, _value(by_name[of])))
        # What no column asks for is no field of the row.
        yield from (one for one in told if one.name in self._types)

    def _without_row(
        self, group: Group, source: str, by_name: dict[str, Natural], row: TypeNode
    ) -> dict[int, Fault]:
        """By place, the events that make none."""
        before, after, op = (_value(by_name[name]) for name in _EVENT)
        gone = f"isNull(if({op} = 'd', {before}, {after}))"
        odd = f"({op} NOT IN ('c', 'r', 'u', 'd') OR {op} = 'd' AND isNotNull({after}))"
        tests = {
            name: _unavailable(node, f"tupleElement(assumeNotNull({after}), {literal(name)})")
            for name, node in row.elements()
            if name in self._types
        }
        names = [name for name, test in tests.items() if test]
        values = ", ".join(f"ifNull({tests[name]}, 0)" for name in names)
        hidden = f"if(isNull({after}), 0, indexOf([{values}], 1))" if names else "0"
        deletes = "0" if self._tells_deletes else f"{op} = 'd'"
        query = (
            f"SELECT {_PLACE}, substring(toString({op}), 1, 20), {odd} AS odd, {gone} AS gone, "
            f"{hidden} AS hidden FROM {source} "
            f"WHERE {_PLACE} < {len(group.messages)} AND (odd OR gone OR hidden OR {deletes}) "
            f"{settings_clause(**group.settings)}"
        )
        found: dict[int, Fault] = {}
        lines = run(query, "JSONCompactEachRow").bytes().decode(errors="replace")
        for place, said, is_odd, is_gone, column in map(json.loads, lines.splitlines()):
            if is_odd:
                fault = no_row(f'its op is "{said}"')
            elif is_gone:
                side = "before" if said == "d" else "after"
                fault = no_row(f'its op is "{said}", and {side} is null')
            elif column:
                fault = unavailable(names[column - 1])
            else:
                fault = no_row("it says that a row was deleted, which no column of the entry tells")
            found[int(place)] = fault
        return found


def _unavailable(node: TypeNode, value: str) -> str:
    """SQL that says whether a value is not known; "": one of this type always is.

    :param node: its type in the event.
    """
    node = node.bare()
    text = literal(UNAVAILABLE)
    match node.name:
        case "String":
            texts = ", ".join(map(literal, (UNAVAILABLE, UNAVAILABLE_BASE64, UNAVAILABLE_MAP)))
            return f"{value} IN ({texts})"
        case "Map" if node.inner().name == "String":
            return f"mapKeys({value}) = [{text}]"
        case "Tuple" if dict(node.elements()).keys() == {"wkb", "srid"}:
            shapes = ", ".join(f"unhex('{shape.hex()}')" for shape in UNAVAILABLE_SHAPES)
            return f"tupleElement({value}, 'wkb') IN ({shapes})"
        case "Array":
            return _unavailable_items(node.inner().bare(), value)
    return ""


def _unavailable_items(node: TypeNode, value: str) -> str:
    """The same of an array.

    :param node: the type of its items.
    """
    codes = list(UNAVAILABLE_CODES)
    if node.name == "String":
        of_texts = (UNAVAILABLE, UNAVAILABLE_BASE64, UNAVAILABLE_UUID)
        return " OR ".join(f"{value} = [{literal(text)}]" for text in of_texts)
    if node.name.startswith(("Int", "Float")):
        return f"{value} = {codes}"
    if node.name.startswith("Decimal"):
        precision, scale = decimal_shape(node)
        if precision < len(str(max(codes))):
            return ""
        numbers = [f"{Decimal(code).scaleb(-scale):f}" for code in codes]
        return f"{value} = CAST({numbers}, {literal(f'Array({node.text})')})"
    if node.name == "Tuple" and dict(node.elements()).keys() == {"scale", "value"}:
        unscaled = f"arrayMap(one -> tupleElement(one, 'value'), {value})"
        return f"arrayStringConcat({unscaled}) = {literal(UNAVAILABLE)}"
    return ""


def _value(column: Natural) -> str:
    return column.value or identifier(column.name)


def _record_of(by_name: dict[str, Natural]) -> TypeNode | None:
    """The type of the rows; None: these are no change events."""
    if not all(name in by_name for name in _EVENT):
        return None
    before, after = (parse_type(by_name[name].type).bare() for name in ("before", "after"))
    if after.name != "Tuple" or before.text != after.text:
        return None
    return after
