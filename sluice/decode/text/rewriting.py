"""Values of JSON that are what their column takes, written in a way that the engine refuses; and
names that it does not know again.

In integers 1.0 and 1e3, in a Bool "true" and "false", in a JSON column a text of an object; and
NaN and Infinity in fields that have no column, which the engine cannot pass over. They are written
anew in messages that it refused. What is not exact, or does not fit, stays as it is, so that what
is said of it is what the message says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal

import numpy as np

from sluice.decode.engine.types import TypeNode, integer_bounds, leaves, parse_type
from sluice.decode.messages.buffer import MessageBuffer, Value
from sluice.decode.messages.members import Member, items_of, members_of, object_of
from sluice.decode.messages.quick_look import (
    BOOLEANS,
    CONSTANTS,
    DOCUMENTS,
    NUMBERS,
    Spellings,
    escaped_names,
)
from sluice.decode.messages.views import Indices

_WITH_POINT = re.compile(r"-?[0-9]{1,80}(?:\.[0-9]{0,80})?(?:[eE][+-]?[0-9]{1,3})?")
_NO_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|(NaN|Infinity)', re.DOTALL)
_BOOLEANS = {'"true"': "true", '"false"': "false"}
#: More digits no integer has.
_DIGITS_MAX = 78
_EXACT = Context(prec=1000)


#: A text, one that does not end too, and whether it is the name of a field.
_TEXT = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))([ \t\r\n]*+:)?', re.DOTALL)


class PlainNames:
    """Names inside of values, as of a tuple's elements, without escapes. Python's json writes all
    that is not ASCII in escapes, and the engine reads these in the names of a message's own fields
    only.

    :param types: of the columns that are read, by name.
    """

    def __init__(self, types: Mapping[str, str]) -> None:
        #: Others may take an object as the text that it is.
        self._columns = {
            name for name, text in types.items() if "Tuple(" in text or "Nested(" in text
        }

    def values(self, buffer: MessageBuffer) -> dict[int, Value]:
        """The messages that have such names, without them."""
        found: dict[int, Value] = {}
        if not self._columns:
            return found
        broken = frozenset(buffer.faults)
        for piece in buffer.pieces(np.arange(buffer.messages)):
            begins, ends = piece.bounds
            for place in escaped_names(piece.text, ends).tolist():
                if piece.first + place not in broken:
                    value = piece.text[begins[place] : ends[place]].decode("latin-1")
                    found[piece.first + place] = self._written(value).encode("latin-1")
        return found

    def _written(self, value: str) -> str:
        try:
            members = members_of(value).values()
        except ValueError:  # the engine may read it all the same, as numbers like 01
            return _TEXT.sub(_plain, value)
        return object_of(
            [
                Member(one.key, _TEXT.sub(_plain, one.value)) if one.name in self._columns else one
                for one in members
            ]
        )


def _plain(text: re.Match[str]) -> str:
    if text[2] is None or "\\" not in text[1]:
        return text[0]
    try:
        name = json.loads(text[1].encode("latin-1"), strict=False)
        return json.dumps(name, ensure_ascii=False).encode().decode("latin-1") + text[2]
    except ValueError:  # it is no text, or half of a pair
        return text[0]


class Rewriting:
    """Of messages of one object each.

    :param types: of the columns that are read from them, by name.
    :param leaves_out: fields without a column are passed over.
    """

    def __init__(self, types: Mapping[str, str], leaves_out: bool) -> None:
        nodes = {name: parse_type(text) for name, text in types.items()}
        spellings = {name: _spellings(node) for name, node in nodes.items()}
        self._nodes = {name: node for name, node in nodes.items() if spellings[name]}
        self._names, self._leaves_out = frozenset(nodes), leaves_out
        self._spellings = Spellings(spellings, CONSTANTS if leaves_out else 0)

    def values(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Value]:
        """Those of these messages that are to be written anew, and what they become. Follows for
        each from the message and the types alone."""
        found: dict[int, Value] = {}
        for piece in buffer.pieces(indices):
            begins, ends = piece.bounds
            for place in self._spellings.found(piece.text, ends).tolist():
                value = piece.text[begins[place] : ends[place]]
                made = self._rewritten(value)
                if made is not None:
                    found[int(indices[piece.first + place])] = made
        return found

    def _rewritten(self, value: Value) -> Value | None:
        """None: as it is."""
        try:
            members = members_of(value.decode("latin-1"))
        except ValueError:
            return None
        kept: list[Member] = []
        for one in members.values():
            name = one.name
            if name in self._nodes:
                kept.append(_member_anew(one, self._nodes[name]))
            elif name in self._names or not (self._leaves_out and _says_no_json(one.value)):
                kept.append(one)
        if kept == list(members.values()):
            return None
        return object_of(kept).encode("latin-1")


def _member_anew(member: Member, node: TypeNode) -> Member:
    try:
        made = _written_anew(member.value, node)
    except ValueError:
        return member
    return member if made == member.value else Member(member.key, made)


def _spellings(node: TypeNode) -> int:
    """What may have to be written anew in a value of this type."""
    kinds = set(leaves(node))
    found = NUMBERS if any(map(integer_bounds, kinds)) else 0
    found |= BOOLEANS if "Bool" in kinds else 0
    return found | (DOCUMENTS if "JSON" in kinds else 0)


class _InexactError(ValueError):
    """A number is no integer, or none that its type holds."""


def _written_anew(text: str, node: TypeNode) -> str:
    """A value as the engine reads it in this type.

    :raises ValueError: it has none, or a name stands twice in an object inside.
    """
    match node.name:
        case "Nullable" | "LowCardinality":
            return _written_anew(text, node.inner())
        case "Array" if text.startswith("["):
            return _array(_written_anew(item, node.inner()) for item in items_of(text))
        case "Map" if text.startswith("{"):
            return _object(text, {}, node.inner(1))
        case "Tuple" if text.startswith("{"):
            return _object(text, dict(node.elements()), None)
        case "Tuple" if text.startswith("["):
            items, elements = items_of(text), node.elements()
            if len(items) == len(elements):
                pairs = zip(items, elements, strict=True)
                return _array(_written_anew(item, inner) for item, (_, inner) in pairs)
        case "Bool":
            return _BOOLEANS.get(text, text)
        case "JSON":
            return _document(text)
    bounds = integer_bounds(node.name)
    return text if bounds is None else _whole(text, *bounds)


def _array(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _object(text: str, elements: Mapping[str, TypeNode], other: TypeNode | None) -> str:
    """An object's values, of the types of their names or of another one."""
    found = []
    for one in members_of(text).values():
        node = elements.get(one.name, other)
        value = one.value if node is None else _written_anew(one.value, node)
        found.append(Member(one.key, value))
    return object_of(found)


def _document(text: str) -> str:
    """The JSON object that a text is, if it is one."""
    if not text.startswith('"{'):
        return text
    try:
        inner = json.loads(text.encode("latin-1"), strict=False).encode().decode("latin-1")
        members_of(inner)
    except ValueError:
        return text
    return str(inner)


def _says_no_json(text: str) -> bool:
    may_say = "NaN" in text or "Infinity" in text
    return may_say and any(found[1] for found in _NO_JSON.finditer(text))


def _whole(text: str, low: int, high: int) -> str:
    """A number as an integer, if it is written with a point or an exponent.

    :raises _InexactError: it is none within these bounds.
    """
    if text.lstrip("-").isdecimal() or not _WITH_POINT.fullmatch(text):
        return text
    number = Decimal(text)
    if number.adjusted() >= _DIGITS_MAX or number != number.to_integral_value(context=_EXACT):
        raise _InexactError
    if not low <= int(number) <= high:
        raise _InexactError
    return str(int(number))
