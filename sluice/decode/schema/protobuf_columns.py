"""What a table gets of the fields of a Protobuf message.

An absent field is what Protobuf says it is: the default of its type (or proto2's own). Where
absence differs from the default (`optional`, oneof) and the column takes null, it is null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sluice.decode.engine.session import identifier, literal, run, settings_clause
from sluice.decode.engine.types import INSTANT, WRAPPED, meant_type, parse_type, stored_type
from sluice.decode.messages.format import Natural
from sluice.decode.schema.protobuf_schema import ProtobufColumn


def filling(column: ProtobufColumn, target: str | None) -> Natural:
    """What the table gets of a field, which the engine reads as the stored type of this.

    :param target: the type of the table's column of this name, if it has one.
    """
    type_text = column.type
    if column.has_presence and (column.message or (target is not None and _takes_null(target))):
        type_text = f"Nullable({type_text})"
    if target is not None:
        type_text = _fitted(type_text, target)
    return Natural(column.name, type_text, identifier(column.source))


def of_oneof(column: ProtobufColumn, target: str) -> Natural:
    """What a column gets of a field that is read as Nullable, since its oneof is a column, too."""
    source = identifier(column.source)
    if _takes_null(target):
        return Natural(column.name, f"Nullable({column.type})", source)
    return Natural(column.name, column.type, f"assumeNotNull({source})")


def any_of(name: str, fields: Sequence[ProtobufColumn]) -> Natural:
    """A column with the name of a oneof: what it says, of whatever type that is."""
    given = [identifier(field.source) for field in fields]
    types = list(dict.fromkeys(field.type for field in fields))
    if len(types) == 1:
        return Natural(name, f"Nullable({types[0]})", f"coalesce({', '.join(given)})")
    # As the engine writes them, which tells by their names which of them a value has.
    stored = [stored_type(one) for one in types]
    said = ", ".join(f"toTypeName(defaultValueOfTypeName({literal(one)}))" for one in stored)
    clause = settings_clause(print_pretty_type_names=0)
    spelled = json.loads(run(f"SELECT {said} {clause}", "JSONCompactEachRow").bytes())
    variant = f"Variant({', '.join(dict.fromkeys(spelled))})"
    if len(set(spelled)) == len(types):
        is_known = (stored_type(one) == text for one, text in zip(types, spelled, strict=True))
        kept = zip(is_known, types, spelled, strict=True)
        meant = f"Variant({', '.join(one if known else text for known, one, text in kept)})"
    else:
        meant = variant
    values = (f"isNotNull({one}), CAST(assumeNotNull({one}), {literal(variant)})" for one in given)
    return Natural(name, meant, f"multiIf({', '.join(values)}, CAST(NULL, {literal(variant)}))")


def table_type(column: ProtobufColumn) -> str:
    """The type of a column that holds all that a field can say, null where it says nothing."""
    type_text = meant_type(column.type)
    is_record = type_text.startswith("Tuple(")
    return f"Nullable({type_text})" if column.has_presence and not is_record else type_text


def _takes_null(type_text: str) -> bool:
    return type_text.startswith(("Nullable(", "LowCardinality(Nullable(", "Dynamic", "Variant("))


def _fitted(natural: str, target: str) -> str:
    """The type as it is read: Nullable only where the target takes null, and of a message only
    what the target wants, if that is told by names."""
    node, wanted = parse_type(natural), parse_type(target).bare()
    if wanted.name == "Nested":
        wanted = parse_type(f"Array(Tuple({', '.join(wanted.arguments)}))")
    if node.name == "Nullable":
        inner = _fitted(node.inner().text, wanted.text)
        return f"Nullable({inner})" if _takes_null(target) else inner
    if node.name in (WRAPPED, INSTANT) and wanted.name == "Tuple":
        return _fitted(stored_type(natural), target)
    if node.name != wanted.name:
        return natural
    if node.name == "Array":
        return f"Array({_fitted(node.inner().text, wanted.inner().text)})"
    if node.name == "Map":
        value = _fitted(node.inner(1).text, wanted.inner(1).text)
        return f"Map({node.arguments[0]}, {value})"
    if node.name == "Tuple":
        types = {name: part.text for name, part in wanted.elements()}
        has_names = all(types) and any(name in types for name, _ in node.elements())
        parts = (
            f"{identifier(name)} {_fitted(part.text, types[name]) if has_names else part.text}"
            for name, part in node.elements()
            if not has_names or name in types
        )
        return f"Tuple({', '.join(parts)})"
    return natural
