"""Scalar types as they are read from text, and which values do not fit.

Tests of values are SQL and never throw, so that one query judges all rows. What no
expression can see (digits beyond 256 bits) is kept out by `MessageBuffer.long_digits`; a
decimal's digits are seen down to the 38th behind the point at least, so 1e-70 is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.decode.engine.pair import Expression, Pair, cast, fails, or_null, over
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import (
    DAY_SECONDS,
    DAYS,
    FLOATS,
    TIME_SECONDS_MAX,
    TypeNode,
    decimal_shape,
    enum_values,
    integer_bounds,
    leaves,
    parse_type,
    scale_of,
)

_INTEGERS = frozenset(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128))
_WIDE_INTEGERS = frozenset(("Int256", "UInt256"))
_SURE = frozenset(("String", "FixedString", "UUID", "IPv4", "IPv6", "Bool"))
#: Beyond these seconds the engine clamps a DateTime64: in the first and the last day it knows, too.
_DATETIME64_SECONDS = ((DAYS[0] + 1) * DAY_SECONDS, DAYS[1] * DAY_SECONDS)


def holds_float(type_text: str) -> bool:
    """Whether a value of this type has a float in it, or may be one."""
    found = set(leaves(parse_type(type_text)))
    return not found.isdisjoint((*FLOATS, "Geometry", "Variant", "Dynamic", "JSON"))


@dataclass(frozen=True, slots=True)
class Scalar:
    """How a type that contains no other is read from text.

    :param wide: the type it is read as.
    :param loose: the type it is read as where no value may raise an error that stops the query.
    :param pair: from either of them to the type itself; None: reading alone decides.
    :param parse: of a type that is read as String: the text as a value, or null.
    """

    wide: str
    loose: str
    pair: Pair | None
    parse: Expression | None = None


def scalar_of(node: TypeNode, widest_integer: str, tells_null: bool = False) -> Scalar:
    """How this type is read; unknown types are read as they are.

    :param widest_integer: what integers of up to 128 bits are read as.
    :param tells_null: null is to be a fault where nothing that may be null is read.
    """
    if node.name in _INTEGERS and tells_null:
        # A missing element and null look alike in Int256; a decimal refuses null, and so does text.
        unfit = _integer_unfit(node.name)
        return _text(
            node,
            _whole,
            lambda value: (
                f"({_no_number(value)} OR ifNull({unfit(_whole(value))} OR {_cut(value)}, 1))"
            ),
            _no_number,
        )
    if node.name in _INTEGERS:
        is_it = node.name == widest_integer
        pair = Pair(None) if is_it else Pair(or_null(node.text), fails(node.text))
        return Scalar(widest_integer, widest_integer, pair)
    if node.name in FLOATS:
        return _itself(node, _not_finite if tells_null else _infinite)
    if node.name.startswith("Decimal"):
        return _decimal(node)
    if node.name in ("DateTime", "DateTime64"):
        return _moment(node)
    if node.name in ("Date", "Date32"):
        return _text(node, _date(node.name), _date_unfit(node.name))
    if node.name in _WIDE_INTEGERS:
        return _text(node, str, _wraps(node.text))
    if node.name.startswith("Enum"):
        return _text(node, str, _not_among(enum_values(node)))
    if node.name in ("Time", "Time64"):
        return _itself(node, _at_the_last_second)
    if node.name.startswith("Interval"):
        return _interval(node, scalar_of(parse_type("Int64"), widest_integer, tells_null))
    if node.name in _SURE:
        return _itself(node, None)
    return Scalar(node.text, node.text, None)


def _interval(node: TypeNode, count: Scalar) -> Scalar:
    """An Int64 by another name."""
    pair, name = count.pair, cast(node.text)
    assert pair is not None
    named = over(Pair(name), pair.narrow) if pair.narrow else Pair(name)
    return replace(count, pair=Pair(named.narrow, pair.unfit, pair.unread))


def _itself(node: TypeNode, unfit: Expression | None) -> Scalar:
    """A type that is read as what it is.

    :param unfit: true for values that do not fit; None: all do.
    """
    return Scalar(node.text, node.text, Pair(None, unfit))


def _text(
    node: TypeNode, parse: Expression, unfit: Expression, unread: Expression | None = None
) -> Scalar:
    """A scalar read as String, where only the text tells what the message said.

    :param unfit: true for text that does not fit; never throws.
    :param unread: of text that does not fit: whether it is no such value at all.
    """
    pair = Pair(
        lambda value: f"accurateCast({parse(value)}, {literal(node.text)})",
        lambda value: f"ifNull({unfit(value)}, 1)",
        unread,
    )
    return Scalar("String", "String", pair, parse)


def _decimal(node: TypeNode) -> Scalar:
    precision, scale = decimal_shape(node)
    unfit = _decimal_unfit(node.text, precision, scale)
    bits = next(
        bits for bits, most in ((32, 9), (64, 18), (128, 38), (256, 76)) if precision <= most
    )
    return _text(node, lambda value: f"toDecimal{bits}OrZero({value}, {scale})", unfit, _no_number)


def _moment(node: TypeNode) -> Scalar:
    """DateTime is read as a DateTime64, which does not throw for what is beyond a DateTime. The
    engine clamps a DateTime64 to the years that it knows."""
    low, high = _DATETIME64_SECONDS
    if node.name == "DateTime":
        zone = f", {node.arguments[0]}" if node.arguments else ""
        wide, whole = f"DateTime64(0{zone})", cast(node.text)
        unfit = _seconds_outside(0, 2**32)
        pair = Pair(lambda value: whole(f"toUInt32(toInt64({value}))"), unfit)
        return Scalar(wide, wide, pair)
    scale, zone = scale_of(node), "".join(f", {argument}" for argument in node.arguments[1:])
    reach = 2**63 // 10**scale
    unfit = _seconds_outside(max(low, -reach), min(high, reach))
    return Scalar(node.text, f"DateTime64({min(scale, 6)}{zone})", Pair(cast(node.text), unfit))


def _at_the_last_second(value: str) -> str:
    """Of a time of day, which the engine clamps; so the last second itself is refused."""
    return f"(abs(toInt64({value})) >= {TIME_SECONDS_MAX})"


def _seconds_outside(low: int, high: int) -> Expression:
    return lambda value: f"bitOr(toInt64({value}) < {low}, toInt64({value}) >= {high})"


def _infinite(value: str) -> str:
    return f"isInfinite({value})"


def _not_finite(value: str) -> str:
    """null in an element of a tuple is read as nan."""
    return f"(isInfinite({value}) OR isNaN({value}))"


#: Holds every integer of up to 128 bits, and shows fractions.
_WHOLE_SCALE = 20
_WHOLE = f"Decimal(76, {_WHOLE_SCALE})"


def _whole(value: str) -> str:
    """Text as a number, NULL if it is none of so many digits."""
    return f"accurateCastOrNull({value}, '{_WHOLE}')"


def _cut(value: str) -> str:
    """Whether the number of this text has digits behind those that `_whole` keeps; NULL: its
    exponent is beyond 32 bits. 1e-21 would be 0 there."""
    behind = f"length(extract({value}, '\\\\.([0-9]*[1-9])'))"
    said = f"extract({value}, '[eE][+]?(-?[0-9]+)$')"
    exponent = f"if(empty({said}), 0, accurateCastOrNull({said}, 'Int32'))"
    return f"(match({value}, '[.eE]') AND {behind} - {exponent} > {_WHOLE_SCALE})"


def _integer_unfit(name: str) -> Expression:
    """A decimal of scale 20 that is no integer of this type."""
    bounds = integer_bounds(name)
    assert bounds is not None
    low, high = bounds

    def unfit(value: str) -> str:
        below = f"{value} < toDecimal256('{low}', 20)"
        above = f"{value} > toDecimal256('{high}', 20)"
        return f"({below} OR {above} OR {value} != trunc({value}))"

    return unfit


def _date(name: str) -> Expression:
    """Text to this type or NULL: a date, or days since 1970 in up to six digits.

    Made in the type itself: behind a NULL stands the default, and Date32's does not fit Date.
    """
    days_type = "UInt16" if name == "Date" else "Int32"

    def parse(value: str) -> str:
        days = f"addDays(to{name}('1970-01-01'), accurateCastOrNull({value}, '{days_type}'))"
        return f"if(length({value}) < 7, {days}, accurateCastOrNull({value}, '{name}'))"

    return parse


def _date_unfit(name: str) -> Expression:
    """No date, a 30th of February (it would become the 2nd of March), a time of day."""

    def unfit(value: str) -> str:
        date = _date("Date32")(value)
        last = f"extract({value}, '[0-9]{{1,2}}$')"
        said = f"if(length({value}) = 10, substring({value}, 9, 2), {last})"
        day = f"toDayOfMonth({date}) != toUInt8OrZero({said})"
        tests = [f"isNull({date})", f"length({value}) > 10", f"(length({value}) > 6 AND {day})"]
        if name == "Date":
            tests.append(f"toInt32({date}) < 0 OR toInt32({date}) > 65535")
        return f"({' OR '.join(tests)})"

    return unfit


def _wraps(target: str) -> Expression:
    """256-bit parsing wraps: the value must print as the text it was made from."""

    def unfit(value: str) -> str:
        number = f"accurateCastOrNull({value}, '{target}')"
        canonical = f"replaceRegexpOne({value}, '^\\\\+?(-?)0*([0-9])', '\\\\1\\\\2')"
        differs = f"(toString({number}) != {canonical} AND {canonical} != '-0')"
        return f"(isNull({number}) OR {differs})"

    return unfit


def _no_number(value: str) -> str:
    """Whether this text is no number. The engine takes "-", "1e" and "1.2.3" for numbers."""
    pattern = "^[+-]?([0-9]+\\\\.?[0-9]*|\\\\.[0-9]+)([eE][+-]?[0-9]+)?$"
    return f"NOT match({value}, '{pattern}')"


def _decimal_unfit(target: str, precision: int, scale: int) -> Expression:
    """No number, too many digits before the point, or digits behind the last one that is kept.

    Read as text: reading it as a decimal takes much for a number that is none, and leaves values
    of bad messages behind for good ones [measured, ClickHouse 26.9].
    """
    before = precision - scale
    behind = f"(\\\\.[0-9]{{1,{scale}}})?" if scale else ""
    usual = f"^-?{f'[0-9]{{1,{before}}}' if before else '0'}{behind}$"
    # As many digits before the point as the target; more of them are no value of this type.
    wide = f"Decimal(76, {76 - before})"
    # Beyond 38 digits, cut digits do not show there, nor do those of a number with an exponent.
    behind_last = f"\\\\.[0-9]{{{scale}}}[0-9]*[1-9][0-9]*$"
    cut = f"[eE]|{behind_last}"

    def unfit(value: str) -> str:
        number = f"accurateCastOrNull({value}, '{wide}')"
        tests = [_no_number(value), f"isNull({number})"]
        tests.append(f"ifNull({number} != trunc({number}, {scale}), 1)")
        # An exponent may be so small that no digit is left, which reads as 0; and of more digits
        # than these the wide decimal cuts some without a trace. Fewer never reach so far.
        tests.append(f"({number} = 0 AND match({value}, '^[^eE]*[1-9]'))")
        tests.append(f"match({value}, '[0-9.]{{39}}[eE]|{behind_last}')")
        if precision > 38:
            tests[1:] = [f"isNull(accurateCastOrNull({value}, {literal(target)}))"]
            tests.append(f"match({value}, '{cut}')")
        return f"if(match({value}, '{usual}'), 0, {' OR '.join(tests)})"

    return unfit


def _not_among(values: list[str]) -> Expression:
    return lambda value: f"NOT has([{', '.join(values)}], {value})"
