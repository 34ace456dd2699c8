"""JSON of writers that have one kind of number, or write booleans as text.

`1.0` and `1e3` are the integers that they are, and "true" and "false" are booleans, in fields whose
columns are such; a text of a JSON object is this object in a JSON column. What is no exact integer
stays as it is, and its column refuses it. Fields that have no column and say NaN or Infinity, which
the engine cannot pass over, are left out.
"""

from __future__ import annotations

import json
import re
from decimal import Context, Decimal

from sluice.core.load_spec import TableSpec
from sluice.decode.engine.types import parse_type
from sluice.decode.messages.buffer import Value
from sluice.decode.values.members import Member, members_of, object_of
from sluice.decode.values.steps import ValueStep

_WITH_POINT = re.compile(r"-?[0-9]{1,80}(?:\.[0-9]{0,80})?(?:[eE][+-]?[0-9]{1,3})?")
_INTEGER = re.compile("U?Int[0-9]+")
_NO_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|(NaN|Infinity)', re.DOTALL)
_BOOLEANS = {'"true"': "true", '"false"': "false"}
#: More digits no integer has.
_DIGITS_MAX = 78
_EXACT = Context(prec=1000)


class LenientJson(ValueStep):
    """Rewrites the fields of objects; anything else is left to the decoder."""

    def __init__(self, table: TableSpec) -> None:
        names = {column.name: parse_type(column.type).bare().name for column in table.columns}
        self._unknown_out = table.unknown_fields == "ignore"
        self._names = frozenset(names)
        self._integers = {name for name, kind in names.items() if _INTEGER.fullmatch(kind)}
        self._documents = {name for name, kind in names.items() if kind == "JSON"}
        self._booleans = {name for name, kind in names.items() if kind == "Bool"}

    def following(self, value: Value) -> Value:
        """As the port says."""
        try:
            members = members_of(value.decode("latin-1"))
        except ValueError:
            return value
        strange = [name for name in members if self._unknown_out and name not in self._names]
        strange = [one for one in strange if _says_no_json(members[one].value)]
        for name in strange:
            del members[name]
        changed = bool(strange)
        for name, one in members.items():
            text = one.value
            if name in self._integers:
                text = _whole(text) or text
            elif name in self._booleans:
                text = _BOOLEANS.get(text, text)
            elif name in self._documents:
                text = _object_in(text) or text
            if text is not one.value:
                members[name] = Member(one.key, text)
                changed = True
        return object_of(list(members.values())).encode("latin-1") if changed else value


def _object_in(text: str) -> str:
    """The JSON object that a text is; "" if it is none."""
    if not text.startswith('"'):
        return ""
    try:
        inner = json.loads(text.encode("latin-1"), strict=False).encode().decode("latin-1")
        return inner if members_of(inner) is not None else ""
    except ValueError:
        return ""


def _says_no_json(text: str) -> bool:
    return any(found[1] for found in _NO_JSON.finditer(text))


def _whole(text: str) -> str:
    """An integer that is written with a point or an exponent; "" if it is none."""
    if text.lstrip("-").isdecimal() or not _WITH_POINT.fullmatch(text):
        return ""
    number = Decimal(text)
    if number.adjusted() >= _DIGITS_MAX or number != number.to_integral_value(context=_EXACT):
        return ""
    return str(int(number))
