"""What a table gets of the fields of a Protobuf message.

An absent field is what Protobuf says it is: the default of its type (or proto2's own). Where
absence differs from the default (`optional`, oneof) and the column takes null, it is null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sluice.decode.engine.pair import FINE, RANGE
from sluice.decode.engine.session import identifier, literal, run, settings_clause
from sluice.decode.engine.types import parse_type
from sluice.decode.messages.format import Natural
from sluice.decode.schema.protobuf_schema import ProtobufColumn


def filling(column: ProtobufColumn, target: str | None, cuts: bool) -> tuple[str, Natural]:
    """How the engine reads a field, and what the table gets of it.

    :param target: the type of the table's column of this name, if it has one.
    :param cuts: digits of a second that it does not keep are cut.
    """
    source = identifier(column.source)
    is_nullable = target is not None and _takes_null(target)
    wrapped = _WRAPPERS.get(column.message)
    if wrapped is not None and column.has_presence:
        value = f"tupleElement({source}, 'value')"
        if is_nullable:
            declared = f"Nullable({column.type})"
            return declared, Natural(column.name, f"Nullable({wrapped})", value)
        return column.type, Natural(column.name, wrapped, value)
    if column.message == _TIMESTAMP and target is not None and column.has_presence:
        moment = _moment(source, target, cuts)
        if moment is not None:
            type_text, value, fault = moment
            if not is_nullable:
                return column.type, Natural(column.name, type_text, value, fault)
            value = f"if(isNull(tupleElement({source}, 'seconds')), NULL, {value})"
            natural = Natural(column.name, f"Nullable({type_text})", value, fault)
            return f"Nullable({column.type})", natural
    declared = column.type
    if column.has_presence and (is_nullable or column.message):
        declared = f"Nullable({declared})"
    if target is not None:
        declared = _fitted(declared, target)
    return declared, Natural(column.name, declared, source)


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
    said = ", ".join(f"toTypeName(defaultValueOfTypeName({literal(one)}))" for one in types)
    clause = settings_clause(print_pretty_type_names=0)
    spelled = json.loads(run(f"SELECT {said} {clause}", "JSONCompactEachRow").bytes())
    variant = f"Variant({', '.join(spelled)})"
    values = (f"isNotNull({one}), CAST(assumeNotNull({one}), {literal(variant)})" for one in given)
    return Natural(name, variant, f"multiIf({', '.join(values)}, CAST(NULL, {literal(variant)}))")


def table_type(column: ProtobufColumn) -> str:
    """The type of a column that holds all that a field can say, null where it says nothing."""
    wrapped = _WRAPPERS.get(column.message)
    if wrapped is not None:
        return f"Nullable({wrapped})"
    if column.message == _TIMESTAMP:
        return "Nullable(DateTime64(9, 'UTC'))"
    takes_null = column.has_presence and not column.message
    return f"Nullable({column.type})" if takes_null else column.type


_TIMESTAMP = "google.protobuf.Timestamp"


def _moment(source: str, target: str, cuts: bool) -> tuple[str, str, str] | None:
    """A Timestamp as a type, a value, and a fault where it is no instant; None: the column wants
    something else."""
    node = parse_type(target).bare()
    if node.name not in ("Date", "Date32", "DateTime", "DateTime64", "String"):
        return None
    seconds = f"assumeNotNull(tupleElement({source}, 'seconds'))"
    nanos = f"assumeNotNull(tupleElement({source}, 'nanos'))"
    sound = f"({seconds} BETWEEN -62135596800 AND 253402300799 AND {nanos} BETWEEN 0 AND 999999999)"
    if node.name == "DateTime64" and int(node.arguments[0] if node.arguments else 3) > 6:
        sound = f"({sound} AND {seconds} BETWEEN -9223372036 AND 9223372035)"
        ticks = f"fromUnixTimestamp64Nano({seconds} * 1000000000 + {nanos}, 'UTC')"
        return "DateTime64(9, 'UTC')", ticks, _unless(sound)
    micros = f"if({sound}, {seconds} * 1000000 + intDiv({nanos}, 1000), 0)"
    moment = f"fromUnixTimestamp64Micro({micros}, 'UTC')"
    below = f"{nanos} % 1000"
    if node.name == "String":
        rest = f"if({below} = 0, '', leftPad(toString({below}), 3, '0'))"
        return "String", f"concat(toString({moment}), {rest})", _unless(sound)
    if not cuts:
        sound = f"({sound} AND {below} = 0)"
    return "DateTime64(6, 'UTC')", moment, _unless(sound)


def _unless(sound: str) -> str:
    return f"if({sound}, {FINE}, {RANGE})"


#: Google's messages around one scalar.
_WRAPPERS = {
    f"google.protobuf.{name}Value": type_text
    for name, type_text in (
        ("Double", "Float64"),
        ("Float", "Float32"),
        ("Int64", "Int64"),
        ("UInt64", "UInt64"),
        ("Int32", "Int32"),
        ("UInt32", "UInt32"),
        ("Bool", "Bool"),
        ("String", "String"),
        ("Bytes", "String"),
    )
}


def _takes_null(type_text: str) -> bool:
    return type_text.startswith(("Nullable(", "LowCardinality(Nullable("))


def _fitted(natural: str, target: str) -> str:
    """The type as it is read: Nullable only where the target takes null, and of a message only
    what the target wants, if that is told by names."""
    node, wanted = parse_type(natural), parse_type(target).bare()
    if wanted.name == "Nested":
        wanted = parse_type(f"Array(Tuple({', '.join(wanted.arguments)}))")
    if node.name == "Nullable":
        inner = _fitted(node.inner().text, wanted.text)
        return f"Nullable({inner})" if _takes_null(target) else inner
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
