"""Columns that are added for fields which messages bring along (R14). Pure.

Which fields these are follows from the table's text alone, and so does when there is no more room.
So whether a range is refused for its fields is a function of the range and of its text: as long
as a message of it has such a field, nobody inserts any of it, in whatever attempt.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Literal, NamedTuple

#: Names that are passed over stand in the text, so they are bounded too.
PASSED_OVER_MAX = 200
COLUMNS_MAX = 1000
#: Of a name as a file's, with each character that no file's name has as three.
_NAME_BYTES_MAX = 200

Answer = Literal["add", "pass-over"]


@dataclass(frozen=True, slots=True)
class DynamicColumns:
    """Which fields get a column.

    :param allow: expressions over whole names; a field that one of them takes gets a column.
    :param deny: the same of fields that get none, and that are passed over.
    :param columns_max: so many columns of the table may have names that the rules take.
    :param passed_over: names that `deny` takes and that messages were seen to have.
    """

    allow: tuple[str, ...]
    deny: tuple[str, ...] = ()
    columns_max: int = 50
    passed_over: tuple[str, ...] = ()

    def allows(self, name: str) -> bool:
        """Whether a field of this name may get a column."""
        return _is_usable(name) and _any(self.allow, name) and not _any(self.deny, name)

    def denies(self, name: str) -> bool:
        """Whether a field of this name is to be passed over."""
        return _is_usable(name) and _any(self.deny, name)


class NewField(NamedTuple):
    """A field that the table has no column for.

    :param kind: what its values were, see `kind_of`; "" where it is to be passed over.
    """

    name: str
    kind: str


def room_for_columns(dynamic: DynamicColumns, columns: Iterable[str]) -> int:
    """How many columns may still be added to a table that has these."""
    return max(0, dynamic.columns_max - sum(map(dynamic.allows, columns)))


def answer_to(dynamic: DynamicColumns, columns: Collection[str], name: str) -> Answer | None:
    """What is to be done about a field; None: nothing, it is as `unknown_fields` says.

    :param columns: of the table, of whatever kind: none of them is added again.
    """
    if name in columns or name in dynamic.passed_over:
        return None
    if dynamic.allows(name):
        return "add" if room_for_columns(dynamic, columns) else None
    if dynamic.denies(name) and len(dynamic.passed_over) < PASSED_OVER_MAX:
        return "pass-over"
    return None


def why_no_answer(dynamic: DynamicColumns, columns: Collection[str], name: str) -> str:
    """Why a field that the rules speak of gets no column, as the end of a sentence; else ""."""
    if name in columns or name in dynamic.passed_over or answer_to(dynamic, columns, name):
        return ""
    if dynamic.allows(name):
        return f", and as many were added as dynamic_columns.max = {dynamic.columns_max} allows"
    if dynamic.denies(name):
        return f", and {PASSED_OVER_MAX} names are passed over already"
    if not _is_usable(name) and (_any(dynamic.allow, name) or _any(dynamic.deny, name)):
        return ", and a name like this gets none by itself"
    return ""


def _is_usable(name: str) -> bool:
    """Whether a column may be called so: no lineage or virtual column (`_offset`, `_part`), not
    inside of something (`a.b`), nothing that cannot be seen, and not too long for a file."""
    if not name or name.startswith("_") or "." in name or "\ufffd" in name:
        return False
    if not name.isprintable():
        return False
    plain = sum(symbol.isascii() and (symbol.isalnum() or symbol == "_") for symbol in name)
    return plain + 3 * (len(name.encode()) - plain) <= _NAME_BYTES_MAX


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(_compiled(pattern).fullmatch(name) for pattern in patterns)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


# Kinds of values

NULL, BOOL, INT, LONG, FLOAT, TEXT = "Null", "Bool", "Int", "Long", "Float", "String"
_TIMES = ("Time3", "Time6", "Time9")
_ARRAY = "Array("

_INT_DIGITS_MAX = 19
#: Beyond it a float does not hold every integer.
_LONG = 2**53
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.([0-9]{1,9}))?"
    r"(?:Z|[+-](?:0[0-9]|1[0-3]):[0-9]{2})",
    re.ASCII,
)
#: What every DateTime64 holds, whatever its precision and whatever the zone makes of it.
_YEARS = range(1971, 2261)


class Number(str):
    """A number of a message, as it is written there."""


def kind_of(value: object) -> str:
    """The kind of a JSON value, numbers being `Number`."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, Number):
        return _kind_of_number(value)
    if isinstance(value, str):
        return _kind_of_text(value)
    if isinstance(value, list):
        inner = NULL
        for item in value:
            if isinstance(item, list | dict):
                return TEXT
            inner = merged(inner, kind_of(item))
        return f"{_ARRAY}{inner})"
    return TEXT


def _kind_of_number(text: str) -> str:
    if text.lstrip("-").isdigit():
        if len(text.lstrip("-")) > _INT_DIGITS_MAX or not -(2**63) <= int(text) < 2**63:
            return TEXT
        return INT if abs(int(text)) <= _LONG else LONG
    try:
        value = float(text)
    except ValueError:
        return TEXT
    return FLOAT if abs(value) != float("inf") and value == value else TEXT


def _kind_of_text(text: str) -> str:
    found = _TIME.fullmatch(text)
    if found is None:
        return TEXT
    try:
        if datetime.fromisoformat(text).year not in _YEARS:
            return TEXT
    except ValueError:
        return TEXT
    digits = len(found[1] or "")
    return _TIMES[0] if digits <= 3 else _TIMES[1] if digits <= 6 else _TIMES[2]


def merged(one: str, other: str) -> str:
    """The kind of what has values of both kinds; whichever came first."""
    if one == other:
        return one
    kinds = {one, other}
    arrays = [kind for kind in kinds if kind.startswith(_ARRAY)]
    if len(arrays) == 2:
        return f"{_ARRAY}{merged(_inner(one), _inner(other))})"
    if NULL in kinds and not arrays:  # an array cannot be null
        (kind,) = kinds - {NULL}
        return kind
    if kinds <= {INT, LONG}:
        return LONG
    if kinds <= {INT, FLOAT}:
        return FLOAT
    if kinds <= set(_TIMES):
        return max(kinds)
    return TEXT


def _inner(kind: str) -> str:
    return kind.removeprefix(_ARRAY)[:-1]


def type_of(kind: str, *, has_bool: bool = True, has_times: bool = True) -> str:
    """The column's type for values of a kind.

    :param has_bool: whether the server knows Bool, and `has_times` DateTime64.
    """
    if kind.startswith(_ARRAY):
        return f"Array({type_of(_inner(kind), has_bool=has_bool, has_times=has_times)})"
    if kind in (INT, LONG):
        return "Nullable(Int64)"
    if kind == FLOAT:
        return "Nullable(Float64)"
    if kind == BOOL:
        return "Nullable(Bool)" if has_bool else "Nullable(UInt8)"
    if kind in _TIMES and has_times:
        return f"Nullable(DateTime64({kind[-1]}, 'UTC'))"
    return "Nullable(String)"
