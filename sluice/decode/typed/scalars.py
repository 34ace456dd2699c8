"""Pairs of scalar types: the test of a value and its conversion. See conversions.py. Of dates and
times among each other: which instants a type has, and what may get lost.
"""

from __future__ import annotations

from sluice.decode.engine.conversions import ConversionFactory
from sluice.decode.engine.pair import (
    Expression,
    Pair,
    cast,
    either,
    fails,
    or_null,
    outside,
    over,
)
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import (
    DAY_SECONDS,
    DAYS,
    FLOATS,
    INSTANT,
    TICKS,
    TIME_SECONDS_MAX,
    TypeNode,
    decimal_shape,
    enum_elements,
    integer_bounds,
    parse_type,
    scale_of,
)
from sluice.decode.typed.texts import by_text, from_text

#: The first second that the engine knows, and the one behind the last.
_SECONDS = (DAYS[0] * DAY_SECONDS, (DAYS[1] + 1) * DAY_SECONDS)


def zone_of(node: TypeNode) -> str:
    """The type's own time zone as a further argument in SQL, "" without one."""
    own = node.arguments[1:] if node.name == "DateTime64" else node.arguments
    return f", {own[0]}" if own and node.name.startswith("DateTime") else ""


def same_moment_unfit(node: TypeNode) -> Expression | None:
    """Finds days, times and instants beyond those that the engine knows."""
    if node.name == "Date32":
        low, high = DAYS
        return lambda value: f"(toInt32({value}) < {low} OR toInt32({value}) > {high})"
    if node.name == "DateTime64":
        return _ticks_outside(scale_of(node), *_SECONDS)
    if node.name == "Time":
        return lambda value: f"abs(toInt32({value})) > {TIME_SECONDS_MAX}"
    if node.name == "Time64":
        return lambda value: f"abs(toInt64({value})) > {TIME_SECONDS_MAX}"
    return None


def instant_unfit(target: TypeNode, seconds: Expression) -> Expression:
    """Finds what a DateTime or DateTime64 has no instant for.

    :param seconds: since 1970, an integer of any width.
    """
    low, high = _bounds(target)

    def test(value: str) -> str:
        count = seconds(value)
        return f"({count} < toInt64({low}) OR {count} >= toInt64({high}))"

    return test


def loses_ticks(natural: TypeNode, target: TypeNode) -> Expression | None:
    """Finds digits of a second that a coarser type does not keep."""
    digits = scale_of(natural) - scale_of(target)
    if digits <= 0:
        return None
    return lambda value: f"reinterpretAsInt64({value}) % {10**digits} != 0"


def moment_pair(natural: TypeNode, target: TypeNode, cuts: bool) -> Pair:
    """Between Date, Date32, DateTime and DateTime64; from one type to the same one too (of
    another scale or time zone).

    :param cuts: digits of a second that the target does not keep are cut.
    """
    into = cast(target.text)
    if target.name in ("Date", "Date32"):
        return Pair(into, _to_day(natural, target))
    if natural.name in ("Date", "Date32"):
        zone = zone_of(target)

        def midnight(value: str) -> str:
            return f"toInt64(toDateTime64({value}, 0{zone}))"

        unfit = instant_unfit(target, midnight)
        if target.name == "DateTime64":
            return Pair(into, unfit)
        # The engine's own cast refuses the last day.
        return Pair(lambda value: into(f"toUInt32({midnight(value)})"), unfit)
    if natural.name == "DateTime":
        return Pair(into)
    scale = scale_of(natural)
    outside = either(
        _ticks_outside(scale, *_bounds(target)), None if cuts else loses_ticks(natural, target)
    )
    if target.name == "DateTime64":
        return Pair(into, outside)
    # The engine's own cast refuses the last second.
    seconds = f"toUInt32(intDiv(reinterpretAsInt64({{}}), {10**scale}))"
    return Pair(lambda value: into(seconds.format(value)), outside)


def _to_day(natural: TypeNode, target: TypeNode) -> Expression | None:
    """A time of day would get lost: only midnight is a date."""

    def day(value: str) -> str:
        return value if natural.name == "Date32" else f"toDate32({value})"

    tests: list[Expression] = []
    if natural.name.startswith("DateTime"):
        scale, zone = scale_of(natural), zone_of(natural)
        ticks = "toInt64({})" if natural.name == "DateTime" else "reinterpretAsInt64({})"
        tests.append(
            lambda value: (
                f"{ticks.format(value)} != "
                f"toInt64(toDateTime64(toDate32({value}), 0{zone})) * {10**scale}"
            )
        )
    if target.name == "Date" and natural.name != "Date":
        tests.append(lambda value: f"toInt32({day(value)}) NOT BETWEEN 0 AND 65535")
    return either(*tests)


def _bounds(target: TypeNode) -> tuple[int, int]:
    """The first second of a type, and the one behind its last."""
    if target.name == "DateTime":
        return 0, 2**32
    reach = 2**63 // 10 ** scale_of(target)
    return max(_SECONDS[0], -reach), min(_SECONDS[1], reach)


def _ticks_outside(scale: int, low: int, high: int) -> Expression | None:
    """Of a DateTime64 of this scale: before a second, or at another one or behind it."""
    tests: list[Expression] = []
    if low * 10**scale > -(2**63):
        tests.append(lambda value: f"reinterpretAsInt64({value}) < {low * 10**scale}")
    if high * 10**scale < 2**63:
        tests.append(lambda value: f"reinterpretAsInt64({value}) >= {high * 10**scale}")
    return either(*tests)


_TIMES = ("Time", "Time64")
_MOMENTS = ("Date", "Date32", "DateTime", "DateTime64")
#: Besides integers, decimals and Enums: their values have one text.
_WITH_TEXT = (*FLOATS, *_MOMENTS, "Bool", "Time", "Time64", "UUID", "IPv4", "IPv6", "JSON")


class TypedConversions(ConversionFactory):
    """From types that values have of their own.

    :param cuts: digits of a second that a type does not keep are cut; otherwise they are a fault.
    """

    def __init__(self, refuse_null: bool, cuts: bool) -> None:
        super().__init__(refuse_null)
        self._cuts = cuts

    def scalar(self, natural: TypeNode, target: TypeNode) -> Pair | None:
        """As the base says."""
        return scalar_pair(natural, target, self._cuts)


def scalar_pair(natural: TypeNode, target: TypeNode, cuts: bool) -> Pair | None:
    """The pair of these types; None: no value of the one is one of the other.

    :param cuts: digits of a second that the target does not keep are cut.
    """
    if natural.name == TICKS:
        return _from_ticks(natural, target, cuts)
    if natural.name == INSTANT:
        return _from_instant(target, cuts)
    own = same_type_unfit(natural)
    if natural.text == target.text:
        return Pair(None, own)
    pair = _pair(natural, target, cuts)
    if pair is None or own is None:
        return pair
    return Pair(pair.narrow, either(own, pair.unfit), pair.unread)


def same_type_unfit(node: TypeNode) -> Expression | None:
    """Finds what a column of this type may hold although it is no value of the type."""
    if node.name == "Bool":
        return lambda value: f"reinterpretAsUInt8({value}) > 1"
    if node.name.startswith("Enum"):
        known = ", ".join(number for _, number in enum_elements(node))
        return lambda value: f"toInt16({value}) NOT IN ({known})"
    if node.name.startswith("Decimal"):
        precision, scale = decimal_shape(node)
        digits, fraction = "9" * (precision - scale) or "0", "9" * scale
        text = f"{digits}.{fraction}" if scale else digits
        bound, least = (f"CAST('{sign}{text}', {literal(node.text)})" for sign in ("", "-"))
        return lambda value: f"({value} > {bound} OR {value} < {least})"
    return same_moment_unfit(node)


def _from_ticks(natural: TypeNode, target: TypeNode, cuts: bool) -> Pair | None:
    """An integer into numbers; into what else there is, what it counts."""
    whole, meant = parse_type(natural.arguments[0]), parse_type(natural.arguments[1])
    is_number = integer_bounds(target.name) is not None
    if is_number or target.name in FLOATS or target.name.startswith("Decimal"):
        return scalar_pair(whole, target, cuts)
    counted = scalar_pair(meant, target, cuts)
    if counted is None:
        return None
    if meant.name == "DateTime64":
        return over(counted, lambda value: f"reinterpret(toInt64({value}), {literal(meant.text)})")
    # Of a time of day, what is beyond the last one would be clamped.
    scale = scale_of(meant)
    most = (TIME_SECONDS_MAX + 1) * 10**scale - 1

    def time(value: str) -> str:
        ticks = f"reinterpret(toInt64({value}), 'Decimal64({scale})')"
        return f"CAST({ticks}, {literal(meant.text)})"

    through = over(counted, time)
    return Pair(through.narrow, either(outside(-most, most), through.unfit), through.unread)


def _from_instant(target: TypeNode, cuts: bool) -> Pair | None:
    """Of what a day, a moment or its text can be made, in UTC."""
    seconds, nanos = "tupleElement({0}, 1)", "tupleElement({0}, 2)"
    sound = f"({seconds} BETWEEN -62135596800 AND 253402300799 AND {nanos} BETWEEN 0 AND 999999999)"
    micros = f"if({sound}, {seconds} * 1000000 + intDiv({nanos}, 1000), 0)"
    moment, below = f"fromUnixTimestamp64Micro({micros}, 'UTC')", f"{nanos} % 1000"
    if target.name == "String":
        rest = f"if({below} = 0, '', leftPad(toString({below}), 3, '0'))"
        text = f"if({sound}, concat(toString({moment}), {rest}), toString({{0}}))"
        return Pair(text.format, f"NOT {sound}".format)
    if target.name not in _MOMENTS:
        return None
    kept = "DateTime64(6, 'UTC')"
    if scale_of(target) > 6:
        kept = "DateTime64(9, 'UTC')"
        sound = f"({sound} AND {seconds} BETWEEN -9223372036 AND 9223372035)"
        moment = f"fromUnixTimestamp64Nano({seconds} * 1000000000 + {nanos}, 'UTC')"
    elif not cuts:
        sound = f"({sound} AND {below} = 0)"
    inner = scalar_pair(parse_type(kept), target, cuts)
    assert inner is not None
    through = over(inner, moment.format)
    return Pair(through.narrow, either(f"NOT {sound}".format, through.unfit), through.unread)


def _pair(natural: TypeNode, target: TypeNode, cuts: bool) -> Pair | None:
    name = natural.name
    if name == "String":
        return from_text(target, cuts)
    if name == "FixedString":
        return _from_fixed(natural, target, cuts)
    if target.name == "String":
        has_text = (
            name in _WITH_TEXT or name.startswith(("Enum", "Decimal")) or integer_bounds(name)
        )
        return Pair(_as_text(natural)) if has_text else None
    if name == "Bool":
        return _from_bool(target)
    bounds = integer_bounds(name)
    if bounds is not None:
        return _from_integer(bounds, target)
    if name in FLOATS:
        return _from_float(natural, target)
    if name.startswith("Decimal"):
        return _from_decimal(natural, target)
    if name.startswith("Enum"):
        return _from_enum(natural, target)
    if name in _MOMENTS and target.name in _MOMENTS:
        return moment_pair(natural, target, cuts)
    if (name, target.name) == ("IPv4", "IPv6"):
        return Pair(cast("IPv6"))
    if name in _TIMES and target.name in _TIMES:
        return _between_times(natural, target, cuts)
    return None


def _between_times(natural: TypeNode, target: TypeNode, cuts: bool) -> Pair:
    def narrow(value: str) -> str:
        # The engine has no cast from Time64 to Time.
        return cast(target.text)(f"toInt32(toInt64({value}))" if target.name == "Time" else value)

    def loses(value: str) -> str:
        return f"{cast(natural.text)(narrow(value))} != {value}"

    return Pair(narrow, loses if scale_of(natural) > scale_of(target) and not cuts else None)


def _as_text(natural: TypeNode) -> Expression:
    if natural.name.startswith("Enum"):
        return _enum_name(natural)
    if natural.name in FLOATS:
        return lambda value: f"toString({value})"
    return cast("String")


def _enum_name(natural: TypeNode) -> Expression:
    elements = enum_elements(natural)
    numbers = ", ".join(f"toInt16({number})" for _, number in elements)
    names = ", ".join(name for name, _ in elements)
    return lambda value: f"transform(toInt16({value}), [{numbers}], [{names}], '')"


def _from_bool(target: TypeNode) -> Pair | None:
    if integer_bounds(target.name) is None and target.name not in FLOATS:
        return None
    return over(Pair(cast(target.text)), lambda value: f"reinterpretAsUInt8({value})")


def _from_integer(bounds: tuple[int, int], target: TypeNode) -> Pair | None:
    low, high = bounds
    wanted = integer_bounds(target.name)
    if wanted is not None:
        fits = wanted[0] <= low and high <= wanted[1]
        return Pair(cast(target.text)) if fits else Pair(or_null(target.text), fails(target.text))
    if target.name in FLOATS:
        # Only UInt128 and the 256 bits reach beyond a Float32.
        reaches = high >= 2**127 and target.name != "Float64"
        return Pair(cast(target.text), _becomes_infinite(target.text) if reaches else None)
    if target.name.startswith("Decimal"):
        precision, scale = decimal_shape(target)
        most = 10 ** (precision - scale) - 1
        fits = -most <= low and high <= most
        if high >= 2**64:
            return by_text(target)
        return Pair(cast(target.text), None if fits else outside(-most, most))
    if target.name == "Bool":
        return Pair(lambda value: f"CAST({value} != 0, 'Bool')", outside(0, 1))
    if target.name.startswith("Enum"):
        known = ", ".join(number for _, number in enum_elements(target))
        # Of an integer of more than 64 bits the engine makes the number 0, which may be none.
        return Pair(
            lambda value: or_null(target.text)(f"toInt16({value})"),
            lambda value: f"{value} NOT IN ({known})",
        )
    if target.name == "IPv4":
        return Pair(lambda value: f"CAST(toUInt32({value}), 'IPv4')", outside(0, 2**32 - 1))
    if target.name.startswith("Interval"):
        count = or_null("Int64")
        return Pair(lambda value: cast(target.text)(count(value)), fails("Int64"))
    return _integer_to_moment(target)


def _integer_to_moment(target: TypeNode) -> Pair | None:
    """Days since 1970 for dates, seconds for times, as in JSON."""
    if target.name in ("Date", "Date32"):
        low, high = (0, 65535) if target.name == "Date" else DAYS
        start = f"to{target.name}('1970-01-01')"
        return Pair(lambda value: f"addDays({start}, toInt32({value}))", outside(low, high))
    if target.name in ("DateTime", "DateTime64"):
        into = cast(target.text)
        return Pair(lambda value: into(f"toInt64({value})"), instant_unfit(target, str))
    return None


def _from_float(natural: TypeNode, target: TypeNode) -> Pair | None:
    if target.name in FLOATS:
        if FLOATS.index(target.name) > FLOATS.index(natural.name):
            return Pair(cast(target.text))
        infinite = _becomes_infinite(target.text)
        return Pair(cast(target.text), lambda v: f"({infinite(v)} AND NOT isInfinite({v}))")
    if integer_bounds(target.name) is not None:
        exact = Pair(or_null(target.text), fails(target.text))
        # Above 64 bits the engine's exact cast gives up.
        is_wide = target.name in ("Int128", "UInt128", "Int256", "UInt256")
        return exact if is_wide else over(exact, lambda value: f"toFloat64({value})")
    if target.name.startswith("Decimal"):
        # The shortest text that means this float has the digits that were meant.
        return by_text(target)
    return None


def _becomes_infinite(float_type: str) -> Expression:
    return lambda value: f"isInfinite(CAST({value}, {literal(float_type)}))"


def _from_decimal(natural: TypeNode, target: TypeNode) -> Pair | None:
    precision, scale = decimal_shape(natural)
    if target.name in ("Float32", "Float64"):
        reaches = target.name == "Float32" and precision - scale >= 38
        return Pair(cast(target.text), _becomes_infinite("Float32") if reaches else None)
    wanted = integer_bounds(target.name)
    if wanted is not None:
        most = 10 ** (precision - scale) - 1
        low, high = max(wanted[0], -most), min(wanted[1], most)
        least, greatest = _decimal(low, scale), _decimal(high, scale)
        tests: list[Expression] = []
        if scale:
            tests.append(lambda value: f"{value} != trunc({value})")
        if low > -most or high < most:
            tests.append(lambda value: f"{value} < {least} OR {value} > {greatest}")
        return Pair(cast(target.text), either(*tests))
    if target.name.startswith("Decimal"):
        wanted_precision, wanted_scale = decimal_shape(target)
        tests = []
        if wanted_scale < scale:
            tests.append(lambda value: f"{value} != trunc({value}, {wanted_scale})")
        digits = wanted_precision - wanted_scale
        if digits < precision - scale:
            bound = _decimal(10**digits, scale)
            tests.append(lambda value: f"{value} >= {bound} OR {value} <= -{bound}")
        return Pair(cast(target.text), either(*tests))
    return None


def _decimal(value: int, scale: int) -> str:
    return f"toDecimal256('{value}', {scale})"


def _from_enum(natural: TypeNode, target: TypeNode) -> Pair | None:
    """By name into another Enum; by number into an integer."""
    if target.name.startswith("Enum"):
        text = from_text(target)
        return None if text is None else over(text, _enum_name(natural))
    if integer_bounds(target.name) is None:
        return None
    pair = _from_integer((-(2**15), 2**15 - 1), target)
    return None if pair is None else over(pair, lambda value: f"toInt16({value})")


def _from_fixed(natural: TypeNode, target: TypeNode, cuts: bool) -> Pair | None:
    """Bytes: all of them for strings; binary values of IPv6 and wide integers; else text."""
    length = int(natural.arguments[0])

    def exact(value: str) -> str:
        return f"substring({value}, 1, {length})"

    if target.name == "String":
        return Pair(exact)
    if target.name == "FixedString" and int(target.arguments[0]) >= length:
        return Pair(lambda value: f"toFixedString({exact(value)}, {target.arguments[0]})")
    if target.name == "IPv6" and length == 16:
        return Pair(cast("IPv6"))
    wide = {"Int128": 16, "UInt128": 16, "Int256": 32, "UInt256": 32}
    if wide.get(target.name) == length:
        return Pair(lambda value: f"reinterpret({value}, {literal(target.name)})")
    text = from_text(target, cuts)
    return None if text is None else over(text, cast("String"))
