"""The members of a JSON object, each as it stands there: no number is read and written again.

Texts are bytes as Latin-1, so that what is not UTF-8 stays what it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_SPACE = " \t\r\n"
#: Values are only passed over: what a number is does not matter, however long it is.
_SCAN = json.JSONDecoder(  # type: ignore[attr-defined]
    strict=False, parse_int=bool, parse_float=bool, parse_constant=bool
).scan_once


#: What stands before, between and behind the rows of a message.
_BETWEEN_ROWS = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


def values_of(text: str, decoder: json.JSONDecoder) -> Iterator[Any]:
    """What stands in a message of several rows, one behind the other.

    :raises ValueError, RecursionError: it is something else.
    """
    at = 0
    while (space := _BETWEEN_ROWS.match(text, at)) and space.end() < len(text):
        value, at = decoder.raw_decode(text, space.end())
        yield value


@dataclass(frozen=True, slots=True)
class Member:
    """
    :param key: as it stands there, in quotes.
    :param value: as it stands there.
    """

    key: str
    value: str

    @property
    def name(self) -> str:
        """The name that the key says, as a column has it."""
        return str(json.loads(self.key.encode("latin-1").decode(errors="replace"), strict=False))

    @property
    def is_null(self) -> bool:
        return self.value == "null"

    @property
    def is_object(self) -> bool:
        return self.value.startswith("{")


def members_of(text: str) -> dict[str, Member]:
    """Of one object, in their order, by name; a name is Latin-1, too, but where it is written in
    escapes: `Member.name` says which column it is.

    :raises ValueError: it is no object, or a name stands there twice.
    """
    try:
        return _members(text)
    except (StopIteration, IndexError, RecursionError) as error:
        raise ValueError("it is not one JSON object") from error


def _members(text: str) -> dict[str, Member]:
    found: dict[str, Member] = {}
    at = _expect(text, 0, "{")
    if text[at] == "}":
        return _ended(text, at + 1, found)
    while True:
        begin = at
        name, at = scanstring(text, _expect(text, at, '"', passes=False), False)
        key = text[begin:at]
        at = _expect(text, at, ":")
        begin = at
        _, at = _SCAN(text, at)
        if name in found:
            raise ValueError(f"the field {_shown(name)} is there twice")
        found[name] = Member(key, text[begin:at])
        at = _after_space(text, at)
        if text[at] == "}":
            return _ended(text, at + 1, found)
        at = _expect(text, at, ",")


def items_of(text: str) -> list[str]:
    """The items of an array, each as it stands there.

    :param text: a member's value that begins with [.
    """
    found: list[str] = []
    at = _expect(text, 0, "[")
    while text[at] != "]":
        begin = at
        _, at = _SCAN(text, at)
        found.append(text[begin:at])
        at = _after_space(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return found


def _ended(text: str, at: int, found: dict[str, Member]) -> dict[str, Member]:
    if text[at:].strip(_SPACE):
        raise ValueError("something stands behind the object")
    return found


def _after_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, symbol: str, passes: bool = True) -> int:
    """Where what stands behind the symbol begins.

    :param passes: over space behind it.
    """
    at = _after_space(text, at)
    if text[at] != symbol:
        raise ValueError(f"{symbol} is missing")
    return _after_space(text, at + 1) if passes else at + 1


def _shown(name: str) -> str:
    return name.encode("latin-1", "replace").decode("utf-8", "replace")


def object_of(members: list[Member]) -> str:
    """An object of these members."""
    return f"{{{','.join(f'{one.key}:{one.value}' for one in members)}}}"
