"""Values of JSON messages that the engine would read as something else than they say.

Dates without a year, which it would complete with the present one, and those that could be others;
a fraction of a second beyond what the column keeps; an empty text where a number should be, which
would be 0; in types that are read as they are (Variant, paths of JSON), what does not fit. And
messages that have no field of the table.

The verdict follows from the message and the types of its columns. JSON says which texts stand in
quotes: 12 is a number of seconds, "12" the 12th of January. Messages that a quick look cannot clear
are taken apart, all others are left to the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, auto
from typing import Any

import numpy as np

from sluice.core.dynamic import Number
from sluice.decode.engine.dates import CUT, FRACTION, may_be_date, problem
from sluice.decode.engine.scalars import holds_float
from sluice.decode.engine.types import (
    GEO_TYPES,
    TypeNode,
    decimal_shape,
    enum_values,
    integer_bounds,
    parse_type,
    scale_of,
    typed_paths,
)
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import (
    CANNOT_PARSE,
    NO_COLUMN,
    NULL_IN_COLUMN,
    OUT_OF_RANGE,
    Fault,
    no_json,
    refused_value,
)
from sluice.decode.messages.quick_look import (
    ITEMS,
    MAP_KEYS,
    TIME_OF_DAY,
    VALUES,
    QuickLook,
    is_odd,
)

_MOMENTS = ("DateTime", "DateTime64")
_TIMES = ("Time", "Time64")
#: Of a number in a time of day, before the digits of a second that it keeps: more are none, and the
#: engine lets some of them wrap.
_TIME_DIGITS_MAX = 7
_VALUE_CHARACTERS_MAX = 100


class Reading(Enum):
    """How the engine reads a type."""

    WIDER = auto()  #: than it is, then narrowed
    AS_IT_IS = auto()
    ONE_OF_SEVERAL = auto()  #: as it is; another type may take what this one does not


class Fields(tuple[tuple[str, Any], ...]):
    """A JSON object's fields, in their order, also those of equal names."""


#: A text, one that does not end too, or what stands in no quotes. As all expressions for what
#: messages say, it never tries one place twice: of a million characters that would take hours.
_BARE = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|[^\s{}\[\]:,"]++', re.DOTALL)
#: A number that the engine reads, and JSON does not know: 01, +1, .5, 1.
_LOOSE_NUMBER = re.compile(r"([+-]?)0*+([0-9]*+)(?:\.([0-9]*+))?([eE][+-]?[0-9]++)?")
#: A message without any of this has no float that the engine could take for infinite, or for none.
_EXTREME = re.compile(rb"[0-9.][eE][+]?[0-9]{2}|[0-9]{39}|[0-9]{30}[.]?[0-9]*+[eE]")
_EXTREME_OR_NULL = re.compile(_EXTREME.pattern + rb"|null")
#: Keeps fields of equal names. As the engine, and unlike Python, it takes a tab in a text for one.
WITH_FIELDS = json.JSONDecoder(
    strict=False, object_pairs_hook=Fields, parse_int=Number, parse_float=Number
)


def holds_moment(node: TypeNode) -> bool:
    """Whether a value of this type has a date with a time, or a time of day, in it."""
    return node.name in (*_MOMENTS, *_TIMES) or any(map(holds_moment, inner_types(node)))


def inner_types(node: TypeNode) -> list[TypeNode]:
    """The types of the values in a value of this type, also of those that it may be instead."""
    if node.name == "Variant":
        return [node.inner(place) for place in range(len(node.arguments))]
    if node.name == "JSON":
        return [inner for _, inner in typed_paths(node)]
    return node.parts()


@dataclass(frozen=True, slots=True)
class Misread:
    """A value in a message that is not to be read, and why: a reason, and words if needed."""

    value: Any
    reason: str
    why: str = ""

    def fault(self, column: str, type_text: str) -> Fault:
        """As a fault of the message."""
        return refused_value(self.reason, shown_value(self.value), column, type_text, self.why)


def shown_value(value: Any) -> str:
    """A value nearly as the message wrote it, cut to what a person reads."""
    return _written(value)[:_VALUE_CHARACTERS_MAX]


def _written(value: Any) -> str:
    if isinstance(value, Number):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)}: {_written(v)}' for k, v in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)


def scale_kept(node: TypeNode, cuts: bool) -> int:
    """How many digits of a second a type keeps; CUT: others may be cut."""
    return CUT if cuts else scale_of(node)


def least_scale(node: TypeNode, cuts: bool) -> int:
    """The least of all in a type; of times of day with TIME_OF_DAY."""
    scalars = [one for one in scalars_in(node) if one.name in (*_MOMENTS, *_TIMES)]
    is_time = all(one.name in _TIMES for one in scalars)
    return min(scale_kept(one, cuts) for one in scalars) | (TIME_OF_DAY if is_time else 0)


def scalars_in(node: TypeNode) -> Iterator[TypeNode]:
    """The types in a type that contain no other."""
    inner = inner_types(node)
    if not inner:
        yield node
    for one in inner:
        yield from scalars_in(one)


def takes_empty(node: TypeNode) -> bool:
    """Whether an empty text is a value of a type that contains no other."""
    if node.name.startswith("Enum"):
        return "''" in enum_values(node)
    return node.name in ("String", "FixedString", "Dynamic", "JSON", "Nothing")


def is_read_as_it_is(node: TypeNode) -> bool:
    """Whether a value of this type may be read without being read wider and narrowed."""
    if node.name in ("Variant", "JSON"):
        return any(map(_may_be_misread, scalars_in(node)))
    return any(is_read_as_it_is(inner) for inner in inner_types(node))


def _mixes_times(node: TypeNode) -> bool:
    """Whether a value of this type has both a date with a time and a time of day in it: the quick
    look knows one rule for a field."""
    found = {one.name in _TIMES for one in scalars_in(node) if holds_moment(one)}
    return len(found) > 1


def _may_be_misread(node: TypeNode) -> bool:
    return node.name.startswith(
        ("Decimal", "Date", "Float", "BFloat", "Time64")
    ) or not takes_empty(node)


class MisreadObjects:
    """Finds what the engine would read as something else than it says, in messages of one JSON
    object each. `look`: what a buffer may look at when it takes messages; None: each is judged.

    :param types: of all columns that are read from messages, by name.
    :param cuts: digits of a second that a column does not keep may be cut.
    :param refuses_unknown: a field that the table does not have is found elsewhere.
    :param names_fields: messages say names of fields, one of which the table must have.
    """

    def __init__(
        self,
        types: Mapping[str, str],
        cuts: bool = False,
        refuses_unknown: bool = False,
        names_fields: bool = True,
    ) -> None:
        self._types, self._cuts = types, cuts
        self._refuses_unknown, self._names_fields = refuses_unknown, names_fields
        nodes = {name: parse_type(text) for name, text in types.items()}
        moments = {name: node for name, node in nodes.items() if holds_moment(node)}
        empties, within = _empties(nodes)
        self.look: QuickLook | None = None
        judged = map(is_read_as_it_is, nodes.values()), map(_mixes_times, nodes.values())
        if not any((*judged[0], *judged[1], *map(is_odd, (*nodes, *empties)))):
            scales = {name: least_scale(node, cuts) for name, node in moments.items()}
            others = [name for name in types if name not in moments] if names_fields else None
            self.look = QuickLook(scales, others, empties, within)
        self._nodes = nodes

    def faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """The messages with such a value, and what it says."""
        faults: dict[int, Fault] = {}
        unclear = np.arange(buffer.messages)
        if self.look is not None:
            unclear = buffer.unclear(self.look)
        for index, message in buffer.items(unclear):
            try:
                fault = self._judge(message)
            except (ValueError, RecursionError) as error:
                fault = no_json(error)
            if fault is not None:
                faults[index] = fault
        return faults

    def _judge(self, message: bytes) -> Fault | None:
        """What is wrong with a message that no quick look has cleared.

        :raises ValueError, RecursionError: it is no JSON.
        """
        document = _document(message)
        if not isinstance(document, Fields):
            return None
        is_filled = False
        for name, value in document:
            node = self._nodes.get(name)
            if node is None:
                continue
            is_filled = True
            found = misread(value, node, self._cuts)
            if found is not None:
                return found.fault(name, self._types[name])
        if is_filled or not self._names_fields or (self._refuses_unknown and document):
            return None
        said = "the message has no field of the table"
        names = ", ".join(json.dumps(name, ensure_ascii=False) for name, _ in document)
        if names:
            said += f", only {names}: upper and lower case are told apart"
        return Fault(NO_COLUMN, said)


def _empties(nodes: Mapping[str, TypeNode]) -> tuple[list[str], int]:
    """Where no empty text may be: fields, and where else."""
    names: set[str] = set()
    within = 0
    for name, node in nodes.items():
        if not all(map(takes_empty, scalars_in(node))):
            names.add(name)
            within |= _within(node, names)
    return sorted(names), within


def _within(node: TypeNode, names: set[str]) -> int:
    """Where in a type an empty text may not be; adds the names of elements."""
    match node.name:
        case "Nullable" | "LowCardinality":
            return _within(node.parts()[0], names)
        case "Map":
            keys, values = node.inner(0), node.inner(1)
            found = 0 if all(map(takes_empty, scalars_in(keys))) else MAP_KEYS
            if not all(map(takes_empty, scalars_in(values))):
                found |= VALUES
            return found | _within(values, names)
        case "Tuple":
            found = 0
            for name, inner in node.elements():
                if all(map(takes_empty, scalars_in(inner))):
                    continue
                names.add(name)
                # Elements may also stand there as an array, without their names.
                found |= ITEMS | _within(inner, names)
            return found
    found = 0
    if inner_types(node):
        found = 0 if all(map(takes_empty, scalars_in(node))) else ITEMS
    for inner in inner_types(node):
        found |= _within(inner, names)
    return found


def _document(message: bytes) -> Any:
    """The message taken apart.

    :raises ValueError, RecursionError: it is no JSON, whatever stands in no quotes: the engine
        reads 01 and +1.
    """
    text = message.decode(errors="replace").strip(" \t\r\n")
    try:
        return WITH_FIELDS.decode(text)
    except ValueError:
        return WITH_FIELDS.decode(_BARE.sub(_as_json, text))


def _as_json(found: re.Match[str]) -> str:
    """A text, or what stands in no quotes, as JSON has it; null for what is no number."""
    if found[1]:
        return found[1]
    word = found[0].lower().lstrip("+-")
    if word in ("nan", "inf", "infinity"):
        return "NaN"
    number = _LOOSE_NUMBER.fullmatch(found[0])
    if number is None or not (number[2] or number[3] or "0" in found[0]):
        return "null"
    sign, whole, fraction, exponent = number.groups("")
    return f"{sign.strip('+')}{whole or '0'}{fraction and '.' + fraction}{exponent}"


def misread(
    value: Any, node: TypeNode, cuts: bool, reading: Reading = Reading.WIDER
) -> Misread | None:
    """The first value in a JSON value that the engine would read as another one; None: none."""
    match node.name:
        case "Nullable" | "LowCardinality":
            return misread(value, node.parts()[0], cuts, reading)
        case "Variant" if isinstance(value, str):
            return _misread_variant(value, node, cuts)
    inner = inner_types(node)
    if not inner and isinstance(value, str):
        return _misread_scalar(value, node, cuts, reading)
    if inner and isinstance(value, str) and not value and not isinstance(value, Number):
        return Misread(value, CANNOT_PARSE) if node.name != "JSON" else None
    if node.name in ("Variant", "JSON"):
        reading = Reading.AS_IT_IS if node.name == "JSON" else Reading.ONE_OF_SEVERAL
    for part, one in parts_of(value, node):
        found = misread(part, one, cuts, reading)
        if found is not None:
            return found
    return None


def _misread_scalar(value: str, node: TypeNode, cuts: bool, reading: Reading) -> Misread | None:
    is_number = isinstance(value, Number)
    if not value:
        if takes_empty(node):
            return None
        why = problem(value, CUT) if node.name in _MOMENTS else ""
        return Misread(value, CANNOT_PARSE, why)
    is_time = node.name in _TIMES and reading is not Reading.ONE_OF_SEVERAL
    number = exact_number(value) if is_time else None
    if number is not None and sum(number) > _TIME_DIGITS_MAX + scale_of(node):
        return Misread(value, OUT_OF_RANGE)
    if node.name in (*_MOMENTS, "Time64"):
        scale = scale_kept(node, cuts)
        if is_number:
            why = "" if _keeps(value, scale) else FRACTION
        elif node.name == "Time64":
            digits = re.search("[.]([0-9]*)", value)
            why = FRACTION if digits and digits[1][scale:].strip("0") else ""
        else:
            why = problem(value, scale)
        reason = OUT_OF_RANGE if why == FRACTION else CANNOT_PARSE
        return Misread(value, reason, why) if why else None
    if reading is Reading.AS_IT_IS and _is_cut(value, node):
        return Misread(value, OUT_OF_RANGE)
    return None if reading is Reading.WIDER else _unfit_as_it_is(value, node)


def _is_cut(value: str, node: TypeNode) -> bool:
    """Whether an integer or a Bool that the engine reads as it is becomes another number."""
    number = exact_number(value)
    if number is None:
        return False
    if node.name == "Bool":
        return float(value) not in (0, 1)
    if integer_bounds(node.name) is None or value.lstrip("+-").isdecimal() or number == (0, 0):
        return False
    # Of a number with a point it takes what is before it, with an exponent what a float holds.
    digits, power = number
    if power < 0 or digits + power > _INTEGER_DIGITS_MAX:
        return True
    return "e" in value.lower() and int(float(value)) != int(Decimal(value))


def _unfit_as_it_is(value: str, node: TypeNode) -> Misread | None:
    """What is cut, becomes infinite or another day where the engine reads the type itself."""
    unfit = Misread(value, OUT_OF_RANGE)
    if node.name.startswith("Decimal"):
        return None if _keeps(value, decimal_shape(node)[1]) else unfit
    if node.name in _FLOATS_MAX:
        try:
            number_read = abs(float(value))
        except ValueError:
            return None
        said = value.strip("+-").lower()
        is_infinite = number_read > _FLOATS_MAX[node.name] and not said.startswith("inf")
        return unfit if is_infinite else None
    if node.name in ("Date", "Date32"):
        said_day = re.fullmatch("([0-9]{4})[-/.]?([0-9]{1,2})[-/.]?([0-9]{1,2})", value)
        try:
            if said_day:
                date(*map(int, said_day.groups()))
        except ValueError:
            return unfit
    return None


def _keeps(value: str, scale: int) -> bool:
    """Whether a number has no digit, but 0, behind so many of its fraction; also of what is
    none."""
    number = exact_number(value)
    return number is None or number == (0, 0) or number[1] >= -scale


def exact_number(value: str) -> tuple[int, int] | None:
    """How many digits a decimal number has, zeros at both ends left out, and the power of ten of
    the last one; (0, 0) for 0, None for what is no number. Exact for any length and exponent."""
    found = _DECIMAL.fullmatch(value)
    if found is None:
        return None
    whole, fraction, exponent = found[1], found[2] or "", found[3] or "0"
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return 0, 0
    # Python refuses to read integers of thousands of digits; these are beyond all types.
    power = int(exponent) if len(exponent) < _DIGITS_MAX else int(exponent[:_DIGITS_MAX])
    return len(kept), power - len(fraction) + len(digits) - len(kept)


class DoubtfulValues:
    """What a plan that takes words does not refuse by itself: floats that are infinite, or no
    number, and are not said to be so, as the engine makes infinity of 1e999 and none of a null in a
    tuple; and nulls beside a Dynamic, which it only reads where all nulls are read.

    :param types: of the columns that are read, by name.
    :param refuses_null: null must not stand where the type does not take it.
    """

    def __init__(self, types: Mapping[str, str], refuses_null: bool) -> None:
        self._types, self._refuses_null = types, refuses_null
        self._nodes = {name: parse_type(text) for name, text in types.items()}
        kinds = " ".join(text for text in types.values() if holds_float(text))
        has_nulls = any(word in kinds for word in ("Dynamic", "Tuple(", "Nested(", *GEO_TYPES))
        self._may_be = _EXTREME_OR_NULL if refuses_null and has_nulls else _EXTREME

    def fault(self, line: bytes) -> Fault | None:
        """Of one message."""
        if self._may_be.search(line) is None:
            return None
        try:
            document = _document(line)
        except (ValueError, RecursionError) as error:
            return no_json(error)
        for name, value in document if isinstance(document, Fields) else ():
            node = self._nodes.get(name)
            found = None if node is None else self._misread(value, node)
            if found is not None:
                return found.fault(name, self._types[name])
        return None

    def _misread(self, value: Any, node: TypeNode) -> Misread | None:
        if value is None and node.name != "LowCardinality":
            takes_null = node.name in ("Nullable", "Variant", "Dynamic")
            return None if takes_null or not self._refuses_null else Misread(None, NULL_IN_COLUMN)
        if node.name in _FLOATS_MAX:
            return _unfit_as_it_is(value, node) if isinstance(value, str) else None
        if node.name in ("Variant", "JSON"):
            return None
        parts = (self._misread(part, inner) for part, inner in parts_of(value, node))
        return next((found for found in parts if found is not None), None)


#: Beyond these, a float is infinite.
_FLOATS_MAX = {
    "Float64": 1.7976931348623157e308,
    "Float32": 3.4028235677973366e38,
    "BFloat16": 3.3961775292304957e38,
}
_DECIMAL = re.compile(r"[+-]?(?=\.?[0-9])([0-9]*+)\.?([0-9]*+)(?:[eE]([+-]?[0-9]++))?")
_DIGITS_MAX = 900
#: More no integer has.
_INTEGER_DIGITS_MAX = 78


#: Types of a Variant that take numbers which an integer or a time of day does not.
_TAKE_NUMBERS = ("String", "FixedString", "Dynamic", "Decimal")


def _misread_variant(value: str, node: TypeNode, cuts: bool) -> Misread | None:
    """Of a text or number: in any of the types that it may become. The engine takes a number for
    a number first, and what can be no date for something else."""
    kinds = [inner.bare() for inner in inner_types(node)]
    if not value:
        return Misread(value, CANNOT_PARSE) if not all(map(takes_empty, kinds)) else None
    is_number = any(_takes_number(value, kind) for kind in kinds)
    is_taken = is_number or any(kind.name.startswith(_TAKE_NUMBERS) for kind in kinds)
    for kind in kinds:
        if kind.name in _MOMENTS and (is_number or not may_be_date(value)):
            continue
        if kind.name in ("Array", "Tuple", "Map"):
            continue
        is_alone = not is_taken and kind.name != "Bool"
        reading = Reading.AS_IT_IS if is_alone else Reading.ONE_OF_SEVERAL
        found = _misread_scalar(value, kind, cuts, reading)
        if found is not None:
            return found
    return None


def _takes_number(value: str, kind: TypeNode) -> bool:
    """Whether the engine takes this text or number for a number of a Variant, before all dates: an
    integer that fits, or any if there are floats."""
    bounds = integer_bounds(kind.name)
    if bounds is not None:
        # Longer ones are beyond all types, and Python refuses to read thousands of digits.
        is_short = len(value) <= 80 and re.fullmatch("[+-]?[0-9]+", value) is not None
        return is_short and bounds[0] <= int(value) <= bounds[1]
    return kind.name in _FLOATS_MAX and _is_float(value)


def _is_float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def parts_of(value: Any, node: TypeNode) -> Iterator[tuple[Any, TypeNode]]:
    """The values that stand in one, with their types.

    :param value: as JSON has it, objects as Fields or dict.
    """
    pairs: Iterable[tuple[Any, Any]] = value if isinstance(value, Fields) else ()
    pairs = value.items() if isinstance(value, dict) else pairs
    values = value if isinstance(value, list) else ()
    match node.name:
        case "Nullable" | "LowCardinality":
            yield value, node.parts()[0]
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
            for path, inner in typed_paths(node):
                yield from ((one, inner) for one in _at(value, path.split(".")))


def _at(value: Any, path: list[str]) -> Iterator[Any]:
    """What stands at a path of an object, also if its names have points in them."""
    if not path:
        yield value
    for key, one in value if isinstance(value, Fields) else ():
        names = key.split(".") if isinstance(key, str) else []
        if names and path[: len(names)] == names:
            yield from _at(one, path[len(names) :])
