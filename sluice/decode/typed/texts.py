"""Text to scalar types: the same texts are read as in JSON, the same are refused."""

from __future__ import annotations

from sluice.decode.engine.dates import CUT, is_cut, is_problem, problem
from sluice.decode.engine.pair import (
    Expression,
    Pair,
    either,
    fails,
    or_null,
    over,
)
from sluice.decode.engine.scalars import Scalar, scalar_of
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import (
    FLOATS,
    TypeNode,
    integer_bounds,
    parse_type,
    scale_of,
    typed_paths,
)

#: The 256-bit reader wraps beyond these digits.
_OVERLONG = "[0-9]{61,}"


def from_text(target: TypeNode, cuts: bool = False) -> Pair | None:
    """As in JSON: read in the type that the JSON reader reads, judged as it judges.

    :param cuts: digits of a second that the target does not keep are cut.
    """
    if target.name == "FixedString":
        length = target.arguments[0]
        return Pair(
            lambda value: f"toFixedString(substring({value}, 1, {length}), {length})",
            lambda value: f"length({value}) > {length}",
        )
    if target.name in ("Time", "Time64"):
        failing = fails(target.text)
        if cuts or target.name == "Time":
            return Pair(or_null(target.text), failing, failing)
        fraction = literal(f"[.][0-9]{{{scale_of(target)}}}[0-9]*[1-9]")
        unfit = either(failing, lambda value: f"match({value}, {fraction})")
        return Pair(or_null(target.text), unfit, failing)
    if target.name in ("DateTime", "DateTime64"):
        return _moment(target, cuts)
    if target.name == "JSON":
        # What has a type of its own in it would be cut, or become another day.
        return (
            None if typed_paths(target) else Pair(or_null(target.text), *2 * [fails(target.text)])
        )
    scalar = scalar_of(target, "Int256")
    pair, parse = scalar.pair, scalar.parse
    if pair is None:
        return None
    if parse is not None:
        return _of_text(target, pair, parse)
    unread, own = _unread(scalar), _over_read(scalar)
    if target.name in FLOATS:
        # Infinite is what says so; not 1e999.
        own = _unsaid(own)
    if integer_bounds(target.name) is None:
        return Pair(_narrow(target, scalar), either(unread, own), unread)

    def overlong(value: str) -> str:
        return f"match({value}, '{_OVERLONG}')"

    return Pair(
        _narrow(target, scalar),
        either(overlong, unread, own),
        lambda value: f"(NOT {overlong(value)} AND {unread(value)})",
    )


def _of_text(target: TypeNode, pair: Pair, parse: Expression) -> Pair:
    """Of what JSON reads as String, too."""
    unfit = pair.unfit
    assert unfit is not None

    def narrow(value: str) -> str:
        chosen = parse(f"if({unfit(value)}, NULL, {value})")
        return f"assumeNotNull(accurateCast({chosen}, {literal(f'Nullable({target.text})')}))"

    return Pair(narrow, unfit, pair.unread)


def _read(value: str, read_as: str) -> str:
    """A text as the JSON reader reads it, NULL if it does not."""
    return f"accurateCastOrNull({value}, {literal(read_as)})"


def _narrow(target: TypeNode, scalar: Scalar) -> Expression:
    return lambda value: or_null(target.text)(_read(value, scalar.wide))


def _unread(scalar: Scalar) -> Expression:
    return lambda value: f"isNull({_read(value, scalar.loose)})"


def _unsaid(infinite: Expression | None) -> Expression | None:
    return infinite and (lambda value: f"({infinite(value)} AND NOT match({value}, '^[+-]?[iI]'))")


def _over_read(scalar: Scalar) -> Expression | None:
    """The test of what was read, of text."""
    unfit = None if scalar.pair is None else scalar.pair.unfit
    return unfit and (lambda value: f"ifNull({unfit(_read(value, scalar.loose))}, 0)")


def _moment(target: TypeNode, cuts: bool) -> Pair:
    """DateTime and DateTime64: the engine's best-effort reading, as in JSON, but of texts that say
    one moment that there is, and nothing clamped."""
    scalar, scale = scalar_of(target, "Int256"), scale_of(target)

    def unread(text: str) -> str:
        return f"({_unread(scalar)(text)} OR {is_problem(text, scale)})"

    def cut(text: str) -> str:
        return is_cut(text, CUT if cuts else scale)

    return Pair(or_null(target.text), either(unread, _over_read(scalar), cut), unread)


def remark_on(text: str, type_text: str) -> str:
    """Why a text cannot be read as this type, or does not fit it, if there is more to say of it;
    else ""."""
    node = parse_type(type_text).bare()
    if node.name == "JSON" and typed_paths(node):
        return (
            "paths with types of their own take no text; a column by CAST in [table.columns] does"
        )
    is_moment = node.name in ("DateTime", "DateTime64")
    return problem(text.strip(" '"), scale_of(node)) if is_moment else ""


def by_text(target: TypeNode) -> Pair | None:
    """Of a number: through its text, which no type can misread."""
    pair = from_text(target)
    if pair is None:
        return None
    through = over(pair, lambda value: f"toString({value})")
    return Pair(through.narrow, through.unfit)
