"""Numbers in the brackets of lines, where quotes tell numbers from texts.

There a column of text takes no number. So what JSON reads as text is read as a number, and texts of
numbers that the engine reads wrongly have to be found before (`text/cells.py`).
"""

from __future__ import annotations

from sluice.decode.engine.scalars import Place, Reader, checked_reader
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import TypeNode, decimal_shape

_DIGITS_MAX = 76
#: Integers of so many digits are read as a Decimal, whatever its own are.
_WHOLE_DIGITS = 20


def shows_cut_digits(precision: int, scale: int) -> bool:
    """Whether digits behind the last one that is kept show in what is read."""
    return _read_scale(precision, scale) > scale


def _read_scale(precision: int, scale: int) -> int:
    return max(scale, _DIGITS_MAX - max(precision - scale + 1, _WHOLE_DIGITS))


def bare_number(node: TypeNode, place: Place) -> Reader | None:
    """The reader of a Decimal or a 256-bit integer; None: another type."""
    if node.name in ("Int256", "UInt256"):
        return checked_reader(node, place, node.text, lambda value: "0")
    if not node.name.startswith("Decimal"):
        return None
    precision, scale = decimal_shape(node)
    before, read_scale = precision - scale, _read_scale(precision, scale)

    def unfit(value: str) -> str:
        tests = [f"{value} != trunc({value}, {scale})"]
        if before + 1 + read_scale <= _DIGITS_MAX:
            bound = f"toDecimal256({literal(str(10**before))}, {read_scale})"
            tests.append(f"{value} >= {bound} OR {value} <= -{bound}")
        return f"({' OR '.join(tests)})"

    return checked_reader(node, place, f"Decimal({_DIGITS_MAX}, {read_scale})", unfit)
