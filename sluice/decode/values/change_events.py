"""Envelopes of Debezium and Kafka Connect around JSON: the row inside is the message.

Connect's schema of a JSON message says of values what JSON cannot say by itself: moments as
numbers of milliseconds, decimals as bytes in base64, maps whose keys are no texts as pairs. Where
a column takes it, such a value is written as the text that it means, also inside of arrays,
maps and structs; one that cannot be written so is a fault, since to the column it would mean
something else. Anything else stays as it is, and the column decides.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import MAX_EMAX, Context, Decimal
from functools import lru_cache
from typing import Any, NoReturn

from sluice.core.load_spec import TableSpec
from sluice.decode.engine.types import (
    DAY_SECONDS,
    TIME_SECONDS_MAX,
    TypeNode,
    nested_groups,
    parse_type,
)
from sluice.decode.messages.buffer import Value
from sluice.decode.messages.events import (
    ADDED,
    DELETED,
    MOMENTS,
    OPERATION,
    SOURCE,
    TICKS,
    TIME_MS,
    is_unavailable,
    no_row,
    tells_deletes,
    unavailable,
)
from sluice.decode.messages.fault import CANNOT_PARSE, OUT_OF_RANGE, Fault
from sluice.decode.messages.framing import JSON_OBJECTS
from sluice.decode.messages.members import Member, items_of, members_of, object_of
from sluice.decode.schema.headed import target_types
from sluice.decode.values.steps import ValueStep

#: By what MOMENTS end with: how many of these units are a second.
_TICKS = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
#: A struct of a scale and of bytes, for columns of NUMERIC without a precision.
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
#: What takes it as it stands there.
_OBJECTS = ("Tuple", "Map", "JSON", "Object", "Variant", "Dynamic")
_EPOCH = date(1970, 1, 1)
#: Of a number of 64 bits, in JSON.
_DIGITS_MAX = 19
_NUMBERS_BEGIN = "-0123456789"
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_SCALE_MAX = 76
#: Of a number that has 97 digits.
_DECIMAL_BYTES_MAX = 40
#: So much is shown of a value that cannot be written.
_SHOWN_CHARACTERS = 60
_EXACT = Context(prec=10_000, Emax=MAX_EMAX)

#: Writes a value anew; None: it stays as it is. Where it would mean something else then, a
#: RefusedEventError says so.
Rewrite = Callable[[str], str | None]


class RefusedEventError(Exception):
    """An event makes no row."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.error)
        self.fault = fault


def _refuse(reason: str, value: str, what: str) -> NoReturn:
    shown = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}…"
    shown = shown.encode("latin-1", "replace").decode(errors="replace")
    raise RefusedEventError(Fault(reason, f"{shown} is {what}"))


#: By `timestamps` of an entry: how many of its units are a second.
_UNITS = {"ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class _Units:
    """What numbers are that a schema does not call moments.

    :param ticks: how many of them are a second; 0: as many as the column says.
    :param others: the same by path, of fields inside for which it is another number.
    """

    ticks: int
    others: Mapping[tuple[str, ...], int]

    @classmethod
    def of(cls, table: TableSpec, seconds: frozenset[tuple[str, ...]]) -> _Units:
        """Of the fields of an entry.

        :param seconds: as in `make_decoder`.
        """
        if not table.timestamps:
            return cls(0, {})
        # A DEFAULT is no number of any unit.
        paths = seconds | {(one.name,) for one in table.columns if one.kind}
        groups = nested_groups({one.name: one.type for one in table.columns})
        paths |= {
            (head, name)
            for head, elements in groups.items()
            for name in elements
            if (f"{head}.{name}",) in paths
        }
        own = TICKS if table.envelope == "debezium" else {}
        others = {path: _UNITS[ticks] for path, ticks in own.items()}
        return cls(_UNITS[table.timestamps], others | dict.fromkeys(paths, 0))

    def inside(self, name: str) -> _Units:
        """Of a field."""
        others = {path[1:]: ticks for path, ticks in self.others.items() if path[0] == name}
        return _Units(others.pop((), self.ticks), others)


def _of_fields(fields: Any, nodes: Mapping[str, TypeNode], units: _Units) -> dict[str, Rewrite]:
    """By field, how its values are written, where that differs.

    :param fields: of a schema of Connect, as it stands in a message; None: it has none.
    :param nodes: types that the fields fill.
    """
    schemas = _by_name(fields)
    found: dict[str, Rewrite] = {}
    for name, node in nodes.items():
        rewrite = _rewrite_of(schemas.get(name), node.bare(), units.inside(name))
        if rewrite is not None:
            found[name] = rewrite
    return found


def _by_name(fields: Any) -> dict[str, dict[str, Any]]:
    return {
        one["field"]: one
        for one in (fields if isinstance(fields, list) else ())
        if isinstance(one, dict) and isinstance(one.get("field"), str)
    }


def _rewrite_of(schema: Any, node: TypeNode, units: _Units) -> Rewrite | None:
    """How values of a schema are written for a type; None: as they are.

    :param schema: None: there is none.
    """
    schema = schema if isinstance(schema, dict) else {}
    fields, values = schema.get("fields"), schema.get("values")
    match schema.get("type", node.name.lower()), node.name:
        case "array", "Array":
            return _items(_rewrite_of(schema.get("items"), node.inner().bare(), units))
        case "map", "Map":
            keys = schema.get("keys")
            is_object = not schema or (isinstance(keys, dict) and keys.get("type") == "string")
            return _entries(_rewrite_of(values, node.inner(1).bare(), units), is_object)
        case "struct", "Map":
            return _members(fields, dict.fromkeys(_by_name(fields), node.inner(1)), units)
        case "struct" | "map" | "tuple", "Tuple":
            elements = dict(node.elements())
            if isinstance(values, dict):
                fields = [{**values, "field": name} for name in elements]
            return _members(fields, elements, units)
    name, takes_moments = str(schema.get("name", "")), "Date" in node.text
    # The day of a moment is cut off only where the entry says that numbers are moments.
    has_clock = not (units.ticks and node.name in ("Date", "Date32"))
    kind, _, unit = MOMENTS.get(name, "").partition("-")
    if kind == "timestamp" and takes_moments:
        return _moment_of(_TICKS[unit], has_clock)
    if kind == "date" and takes_moments:
        return _day
    if kind == "time" and node.name.startswith("Time"):
        return _time_of(_TICKS[unit])
    if name == _DECIMAL:
        parameters = schema.get("parameters")
        return _decimal_of(parameters.get("scale") if isinstance(parameters, dict) else None)
    if name == _VARIABLE_DECIMAL and node.name not in _OBJECTS:
        return _variable_decimal
    if units.ticks and node.name in ("DateTime", "DateTime64", "Date", "Date32"):
        return _number_of(units.ticks, has_clock)
    return None


def _members(fields: Any, nodes: Mapping[str, TypeNode], units: _Units) -> Rewrite | None:
    named = _of_fields(fields, nodes, units)
    return _object(named.get) if named else None


def _items(item: Rewrite | None) -> Rewrite | None:
    if item is None:
        return None

    def array(value: str) -> str | None:
        if not value.startswith("["):
            return None
        return f"[{','.join(item(one) or one for one in items_of(value))}]"

    return array


def _entries(item: Rewrite | None, is_object: bool) -> Rewrite | None:
    """Of a map: an object, or pairs of keys that are no texts."""
    if is_object:
        return None if item is None else _object(lambda _: item)

    def pairs(value: str) -> str | None:
        if not value.startswith("["):
            return None
        written: list[str] = []
        for pair in items_of(value):
            both = items_of(pair) if pair.startswith("[") else []
            if len(both) != 2:
                return None
            key, one = both
            key = key if key.startswith('"') else json.dumps(key)
            written.append(f"{key}:{(item and item(one)) or one}")
        return f"{{{','.join(written)}}}"

    return pairs


def _object(of: Callable[[str], Rewrite | None]) -> Rewrite:
    def written(value: str) -> str | None:
        try:
            members = members_of(value)
        except ValueError:
            return None
        return object_of([rewritten(one, of) for one in members.values()])

    return written


def rewritten(member: Member, of: Callable[[str], Rewrite | None]) -> Member:
    """A member as it is written.

    :param of: by the name of a field.
    """
    name = member.name
    rewrite = of(name)
    try:
        written = None if rewrite is None else rewrite(member.value)
    except RefusedEventError as refused:
        error = f"field {name}: {refused.fault.error}"
        raise RefusedEventError(replace(refused.fault, error=error, column=name)) from None
    return member if written is None else Member(member.key, written)


def _moment_of(ticks: int, has_clock: bool) -> Rewrite:
    """
    :param has_clock: of the column; else it takes days, and gets the one in UTC.
    """

    def moment(value: str) -> str | None:
        number = _integer(value)
        if number is None:
            return None
        seconds, rest = divmod(number, ticks)
        days, second = divmod(seconds, DAY_SECONDS)
        day = _day_text(days)
        if day is None:
            _refuse(OUT_OF_RANGE, value, "a moment beyond the years 1 to 9999")
        return f'"{day}T{_clock(second, rest, ticks)}Z"' if has_clock else f'"{day}"'

    return moment


def _number_of(unit: int, has_clock: bool) -> Rewrite:
    """Of values of which only the entry says what their numbers are; other texts stay."""
    moment = _moment_of(unit, has_clock)

    def written(value: str) -> str | None:
        number = value.strip('"')
        if value[0] not in _NUMBERS_BEGIN and not _NUMBER.fullmatch(number):
            return None
        return moment(number)

    return written


def _time_of(ticks: int) -> Rewrite:
    def time(value: str) -> str | None:
        number = _integer(value)
        if number is None:
            return None
        seconds, rest = divmod(abs(number), ticks)
        if seconds > TIME_SECONDS_MAX:
            _refuse(OUT_OF_RANGE, value, "a time beyond 999:59:59")
        return f'"{"-" if number < 0 else ""}{_clock(seconds, rest, ticks)}"'

    return time


def _clock(second: int, rest: int, ticks: int) -> str:
    fraction = str(ticks + rest)[1:].rstrip("0")
    point = "." if fraction else ""
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{point}{fraction}"


def _day(value: str) -> str | None:
    number = _integer(value)
    if number is None:
        return None
    text = _day_text(number)
    if text is None:
        _refuse(OUT_OF_RANGE, value, "a day beyond the years 1 to 9999")
    return f'"{text}"'


def _day_text(days: int) -> str | None:
    try:
        return (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _integer(value: str) -> int | None:
    """A number that is to be a moment; None: null."""
    if value == "null":
        return None
    if not _NUMBER.fullmatch(value):
        _refuse(CANNOT_PARSE, value, "no number, as a moment must be")
    number = Decimal(value)
    if number.adjusted() >= _DIGITS_MAX:
        _refuse(OUT_OF_RANGE, value, "no number of 64 bits")
    if number != number.to_integral_value():
        _refuse(CANNOT_PARSE, value, "no whole number, as a moment must be")
    return int(number)


def _decimal_of(scale: Any) -> Rewrite:
    try:
        places = int(str(scale))
    except ValueError:
        places = _SCALE_MAX + 1

    def number(value: str) -> str | None:
        if not value.startswith('"'):
            return None
        if abs(places) > _SCALE_MAX:
            what = (
                f"a Decimal whose scale is {scale}, which is not from -{_SCALE_MAX} to {_SCALE_MAX}"
            )
            _refuse(CANNOT_PARSE, value, what)
        try:
            raw = base64.b64decode(json.loads(value), validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        if not raw:
            _refuse(CANNOT_PARSE, value, "no Decimal, which the schema says that it is: no base64")
        if len(raw) > _DECIMAL_BYTES_MAX:
            _refuse(OUT_OF_RANGE, value, f"a Decimal of more than {_DECIMAL_BYTES_MAX} bytes")
        unscaled = Decimal(int.from_bytes(raw, "big", signed=True))
        return f'"{_EXACT.scaleb(unscaled, -places):f}"'

    return number


def _variable_decimal(value: str) -> str | None:
    if value == "null":
        return None
    try:
        parts = members_of(value)
        scale, unscaled = (parts[name].value for name in ("scale", "value"))
        number = _decimal_of(scale)(unscaled)
    except (ValueError, KeyError):
        number = None
    if number is None:
        _refuse(CANNOT_PARSE, value, "no number with a scale, which the schema says that it is")
    return number


#: Schemas of messages are the same for thousands of them.
_SCHEMAS_MAX = 256


class _Unwrapping(ValueStep):
    """What Connect's converter of JSON may put around: a schema and a payload.

    :param seconds: as in `make_decoder`.
    """

    def __init__(self, table: TableSpec, seconds: frozenset[tuple[str, ...]] = frozenset()) -> None:
        self.types = target_types(table)
        self.units = _Units.of(table, seconds)
        self._nodes = {name: parse_type(text) for name, text in self.types.items()}
        self._rewrites = lru_cache(_SCHEMAS_MAX)(self._rewrites_of)

    def following(self, value: Value) -> Value | Fault:
        """As the port says."""
        try:
            found = self.row(members_of(value.decode("latin-1")))
        except ValueError as error:
            found = JSON_OBJECTS.explain(value)
            if found.error.endswith("is not one JSON object"):
                found = Fault(found.reason, f"{found.error}: {error}")
        except RefusedEventError as error:
            found = error.fault
        return value if found is None else found

    @abstractmethod
    def row(self, members: dict[str, Member]) -> Value | Fault | None:
        """Of an object; None: it is the row itself.

        :raises ValueError, RefusedEventError: it has none.
        """

    def payload(self, members: dict[str, Member]) -> tuple[dict[str, Member], str]:
        """What the schema is about, and the schema; without one, all there is, and ""."""
        if members.keys() != {"schema", "payload"}:
            return members, ""
        payload = members["payload"]
        if payload.is_null:
            raise RefusedEventError(no_row("its payload is null"))
        if not payload.is_object:
            raise RefusedEventError(Fault(CANNOT_PARSE, "its payload is no object"))
        return members_of(payload.value), members["schema"].value

    def written(self, members: list[Member], schema: str, inside: str) -> str:
        """The row of these members.

        :param inside: of the schema, the field whose schema is theirs; "": its own.
        """
        if schema in ("", "null") and not self.units.ticks:
            return object_of(members)
        named = self._rewrites(schema, inside)
        if not named:
            return object_of(members)
        return object_of([rewritten(one, named.get) for one in members])

    def _rewrites_of(self, schema: str, inside: str) -> dict[str, Rewrite]:
        return _of_fields(_fields(schema, inside), self._nodes, self.units)


class ConnectJson(_Unwrapping):
    """`{"schema": …, "payload": …}` is its payload; any other object is what it is."""

    def row(self, members: dict[str, Member]) -> Value | Fault | None:
        """As the base says."""
        payload, schema = self.payload(members)
        if payload is members and not self.units.ticks:
            return None
        return self.written(list(payload.values()), schema, "").encode("latin-1")


class DebeziumJson(_Unwrapping):
    """A change event is the row after it; of a deleted row, the row before it."""

    def __init__(self, table: TableSpec, seconds: frozenset[tuple[str, ...]] = frozenset()) -> None:
        super().__init__(table, seconds)
        self._added = [name for name in ADDED if name in self.types]
        self._tells_deletes = tells_deletes(table)

    def row(self, members: dict[str, Member]) -> Value | Fault | None:
        """As the base says."""
        event, schema = self.payload(members)
        operation = event.get("op")
        if operation is None or not operation.value.startswith('"'):
            return Fault(CANNOT_PARSE, "the message is no change event of Debezium: it has no op")
        op = str(json.loads(operation.value))
        if op not in ("c", "r", "u", "d"):
            return no_row(f'its op is "{op[:20]}"')
        is_deleted, side = op == "d", "before" if op == "d" else "after"
        if is_deleted and not self._tells_deletes:
            return no_row("it says that a row was deleted, which no column of the entry tells")
        row = event.get(side)
        if row is None or row.is_null:
            return no_row(f'its op is "{op}", and {side} is null')
        if not row.is_object:
            return Fault(CANNOT_PARSE, f"its field {side} is no object")
        fields = members_of(row.value)
        for one in fields.values():
            if is_unavailable(one.value) and one.name in self.types:
                return unavailable(one.name)
        kept = list(fields.values())
        if is_deleted:
            # What the log does not keep of a deleted row is null there.
            kept = [one for one in kept if not one.is_null]
        kept += self._of_event(event, operation, is_deleted)
        return self.written(kept, schema, side).encode("latin-1")

    def _of_event(
        self, event: dict[str, Member], operation: Member, is_deleted: bool
    ) -> Iterator[Member]:
        """What columns ask of the event itself."""
        told = {
            OPERATION: operation,
            DELETED: Member("", "true" if is_deleted else "false"),
            TIME_MS: event.get("ts_ms"),
            SOURCE: event.get("source"),
        }
        for name in self._added:
            member = told[name]
            if member is not None:
                yield Member(f'"{name}"', member.value)


def _fields(schema: str, inside: str) -> Any:
    """The fields of a schema, or of one of its fields."""
    try:
        fields = json.loads(schema.encode("latin-1")).get("fields")
    except (ValueError, AttributeError, RecursionError):
        return None
    if not inside:
        return fields
    for one in fields if isinstance(fields, list) else ():
        if isinstance(one, dict) and one.get("field") == inside:
            return one.get("fields")
    return None
