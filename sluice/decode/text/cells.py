"""Values of CSV and TSV that the engine would read as something else than they say.

What misread.py finds in JSON; and a sign alone, which is 0 in an integer, values that are missing
in brackets, which are 0 too; floats of two signs, which are numbers near the end of a file; and in
brackets, numbers of a Decimal or of 256 bits that are none or do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sluice.decode.engine.bare_numbers import shows_cut_digits
from sluice.decode.engine.types import TypeNode, decimal_shape, parse_type
from sluice.decode.messages.fault import CANNOT_PARSE, OUT_OF_RANGE, Fault, refused_value
from sluice.decode.messages.moments import (
    ALL,
    DATES,
    EMPTIES,
    LOOK_BITS,
    NUMBERS,
    MomentFields,
)
from sluice.decode.text.misread import (
    Fields,
    Look,
    Misread,
    Numeral,
    exact_number,
    holds_moment,
    inner_types,
    is_read_as_it_is,
    least_scale,
    misread,
    parts_of,
    scalars_in,
    takes_empty,
)

#: In brackets: a text in quotes, a bracket, what separates values, others.
_TOKEN = re.compile(
    r"\s*(?:'((?:[^'\\]|\\.|'')*)'|([\[({])|([\])}])|([,:])|([^\s',:\[({\])}]+))", re.DOTALL
)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: What the engine reads as it is, or refuses; as in moments.c.
_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_PLAIN_DIGITS = 18
_TWO_SIGNS = re.compile(r"\s*'?[+-][+-]")
_VALUE_CHARACTERS_MAX = 100


class _MissingError(Exception):
    """A value is missing in brackets."""


class LineCells(Look):
    """Of rows of CSV or TSV.

    :param columns: names and types of the values, in their order; no type: no column takes it.
    :param values: takes a row apart.
    :param delimiter: between values; of CSV, so that each element of a tuple is a value.
        "": it is a tab.
    :param null: the text that means null.
    :param cuts: digits of a second that a column does not keep may be cut.
    """

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        values: Callable[[bytes], list[str]],
        delimiter: str,
        null: str,
        cuts: bool = False,
    ) -> None:
        self._values, self._null, self._is_csv = values, null, bool(delimiter)
        self._delimiter, self._cuts = delimiter or "\t", cuts
        cells = [
            (name, text, cell)
            for name, text in columns
            for cell in (_cells(text) if delimiter else (text,))
        ]
        self._cells = [
            (place, name, text, parse_type(cell))
            for place, (name, text, cell) in enumerate(cells)
            if cell
        ]
        looks = [(place, _look(node), node) for place, *_, node in self._cells]
        looks = [one for one in looks if one[1]]
        places = [place << LOOK_BITS | look for place, look, _ in looks]
        scales = [least_scale(n, cuts) if holds_moment(n) else 0 for *_, n in looks]
        signs = any(_holds(node, _is_signed) for *_, node in self._cells)
        fields = MomentFields(self._delimiter, places, scales, bool(delimiter), signs)
        self.looks = (fields,) if places or signs else ()

    def _judge(self, message: bytes) -> Fault | None:
        cells = self._values(message)
        # Within brackets, a backslash belongs to the text in quotes.
        raw = cells if self._is_csv else message.decode(errors="replace").split("\t")
        quoted: set[int] | None = None
        for place, name, type_text, node in self._cells:
            values = raw if _scalar(node) is None else cells
            if place >= len(values):
                continue
            cell = values[place]
            if cell == "":
                if self._is_csv and quoted is None:
                    quoted = quoted_empties(message, self._delimiter.encode())
                is_said = not self._is_csv or place in (quoted or ())
                if is_said and not all(map(takes_empty, scalars_in(node))):
                    return Misread("", CANNOT_PARSE).fault(name, type_text)
                continue
            if cell in (self._null, "\\N"):
                continue
            fault = _fault_in(cell, node, name, type_text, self._cuts)
            if fault is not None:
                return fault
        return None


def quoted_empties(row: bytes, delimiter: bytes) -> set[int]:
    """Which values of a row of CSV are two quotes."""
    places: set[int] = set()
    place = at = 0
    while at < len(row):
        if row[at : at + 1] == b'"':
            begin = at = at + 1
            while at < len(row) and (row[at] != ord('"') or row[at + 1 : at + 2] == b'"'):
                at += 2 if row[at] == ord('"') else 1
            if at == begin:
                places.add(place)
            at += 1
        found = row.find(delimiter, at)
        if found < 0:
            break
        place, at = place + 1, found + 1
    return places


def _cells(type_text: str) -> Iterator[str]:
    """The types of the values of a row of CSV that a column takes."""
    node = parse_type(type_text) if type_text else None
    if node is None or node.name != "Tuple":
        yield type_text
        return
    for _, element in node.elements():
        yield from _cells(element.text)


def _scalar(node: TypeNode) -> TypeNode | None:
    """The type of a value in no brackets; None: it stands in some."""
    if node.name in ("Nullable", "LowCardinality"):
        return _scalar(node.inner())
    if node.name == "SimpleAggregateFunction":
        return _scalar(node.inner(1))
    return None if inner_types(node) else node


def _holds(node: TypeNode, test: Callable[[TypeNode], bool]) -> bool:
    return test(node) or any(_holds(inner, test) for inner in inner_types(node))


def _is_integer(node: TypeNode) -> bool:
    """Where a sign alone, or nothing, is 0."""
    return re.fullmatch("U?Int(8|16|32|64|128)|Time(64)?|Interval.*", node.name) is not None


def _is_wide(node: TypeNode) -> bool:
    return node.name in ("Int256", "UInt256") or node.name.startswith("Decimal")


def _is_float(node: TypeNode) -> bool:
    return node.name in ("Float32", "Float64", "BFloat16")


def _is_signed(node: TypeNode) -> bool:
    return _is_integer(node) or _is_float(node)


def _is_opaque(node: TypeNode) -> bool:
    """A Decimal of which digits may be cut that nothing shows."""
    return node.name.startswith("Decimal") and not shows_cut_digits(*decimal_shape(node))


def _look(node: TypeNode) -> int:
    if is_read_as_it_is(node):
        return ALL
    look = DATES if holds_moment(node) else 0
    if not all(map(takes_empty, scalars_in(node))):
        look |= EMPTIES
    if _scalar(node) is not None:
        return look
    if _holds(node, _is_opaque):
        look |= ALL
    return look | NUMBERS if _holds(node, lambda one: _is_signed(one) or _is_wide(one)) else look


def _fault_in(cell: str, node: TypeNode, name: str, type_text: str, cuts: bool) -> Fault | None:
    scalar = _scalar(node)
    if scalar is not None and cell[0] not in "[{(":
        is_alone = _is_integer(scalar) and cell in ("-", "+")
        if is_alone or (_is_float(scalar) and _TWO_SIGNS.match(cell)):
            return _said(cell, CANNOT_PARSE, name, type_text)
        value: Any = cell if takes_empty(scalar) else cell.strip(" '")
    else:
        try:
            value = nested(cell)
        except _MissingError:
            is_looked_at = scalar is None and _look(node) & (NUMBERS | ALL)
            return _said(cell, CANNOT_PARSE, name, type_text) if is_looked_at else None
        reason = _bad_number(value, node)
        if reason:
            return _said(cell, reason, name, type_text)
    found = misread(value, node, cuts)
    return None if found is None else found.fault(name, type_text)


def _said(cell: str, reason: str, name: str, type_text: str) -> Fault:
    return refused_value(reason, f'"{cell}"'[:_VALUE_CHARACTERS_MAX], name, type_text)


def nested(text: str) -> Any:
    """What stands in brackets: lists, `Fields` for maps, `Numeral` where there are no quotes.

    :raises _MissingError: a value is missing.
    """
    outer: list[Any] = []
    stack, before = [outer], ""
    for match in _TOKEN.finditer(text):
        quoted, opening, closing, separator, bare = match.groups()
        symbol = opening or closing or separator or "value"
        if (closing or separator) and (
            before in (",", ":") or (separator and before in ("[", "(", "{"))
        ):
            raise _MissingError
        before = symbol
        if opening:
            stack.append([])
        elif closing:
            values: Any = stack.pop()
            if not stack:
                return None
            if closing == "}":
                values = Fields(zip(values[::2], values[1::2], strict=False))
            stack[-1].append(values)
        elif quoted is not None:
            stack[-1].append(re.sub(r"\\(.)|''", lambda m: m[1] or "'", quoted, flags=re.DOTALL))
        elif bare is not None:
            stack[-1].append(Numeral(bare))
    return outer[0] if outer else None


def _bad_number(value: Any, node: TypeNode) -> str:
    """The reason why a number in brackets is none or does not fit; "" if there is none."""
    if isinstance(value, Numeral):
        scalar, text = _scalar(node), str(value)
        return "" if scalar is None or text.upper() == "NULL" else _reason(text, scalar)
    return next((r for part, inner in parts_of(value, node) if (r := _bad_number(part, inner))), "")


def _reason(value: str, node: TypeNode) -> str:
    if _is_integer(node):
        return CANNOT_PARSE if value in ("-", "+") else ""
    if _is_float(node):
        return CANNOT_PARSE if _TWO_SIGNS.match(value) else ""
    is_plain = _PLAIN.fullmatch(value) is not None and sum(map(str.isdigit, value)) <= _PLAIN_DIGITS
    if not _is_wide(node) or (is_plain and not _is_opaque(node)):
        return ""
    if _NUMBER.fullmatch(value) is None:
        return CANNOT_PARSE
    if node.name in ("Int256", "UInt256"):
        if not re.fullmatch("[+-]?[0-9]+", value):
            return CANNOT_PARSE
        low, high = (0, 2**256) if node.name == "UInt256" else (-(2**255), 2**255)
        return "" if len(value) < 100 and low <= int(value) < high else OUT_OF_RANGE
    precision, scale = decimal_shape(node)
    found = exact_number(value)
    assert found is not None
    digits, power = found
    fits = digits == 0 or (power >= -scale and digits + power <= precision - scale)
    return "" if fits else OUT_OF_RANGE
