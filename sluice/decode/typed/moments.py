"""Dates and times among each other: which instants a type has, and what may get lost."""

from __future__ import annotations

from sluice.decode.engine.pair import Expression, Pair, either
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import TypeNode, scale_of

#: The first day that the engine knows, and the last; in seconds, the second after it.
_DAYS = (-719528, 2932896)
_SECONDS = (-62167219200, 253402300800)
#: Of Time: 999:59:59 in seconds.
_TIME_SECONDS_MAX = 3599999


def zone_of(node: TypeNode) -> str:
    """The type's own time zone as a further argument in SQL, "" without one."""
    own = node.arguments[1:] if node.name == "DateTime64" else node.arguments
    return f", {own[0]}" if own and node.name.startswith("DateTime") else ""


def same_moment_unfit(node: TypeNode) -> Expression | None:
    """Finds days, times and instants beyond those that the engine knows."""
    if node.name == "Date32":
        low, high = _DAYS
        return lambda value: f"(toInt32({value}) < {low} OR toInt32({value}) > {high})"
    if node.name == "DateTime64":
        return _ticks_outside(scale_of(node), *_SECONDS)
    if node.name == "Time":
        return lambda value: f"abs(toInt32({value})) > {_TIME_SECONDS_MAX}"
    if node.name == "Time64":
        return lambda value: f"abs(toInt64({value})) > {_TIME_SECONDS_MAX}"
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

    def cast(value: str) -> str:
        return f"CAST({value}, {literal(target.text)})"

    if target.name in ("Date", "Date32"):
        return Pair(cast, _to_day(natural, target))
    if natural.name in ("Date", "Date32"):
        zone = zone_of(target)

        def midnight(value: str) -> str:
            return f"toInt64(toDateTime64({value}, 0{zone}))"

        unfit = instant_unfit(target, midnight)
        if target.name == "DateTime64":
            return Pair(cast, unfit)
        # The engine's own cast refuses the last day.
        return Pair(lambda v: f"CAST(toUInt32({midnight(v)}), {literal(target.text)})", unfit)
    if natural.name == "DateTime":
        return Pair(cast)
    scale = scale_of(natural)
    outside = either(
        _ticks_outside(scale, *_bounds(target)), None if cuts else loses_ticks(natural, target)
    )
    if target.name == "DateTime64":
        return Pair(cast, outside)
    # The engine's own cast refuses the last second.
    seconds = f"toUInt32(intDiv(reinterpretAsInt64({{}}), {10**scale}))"
    return Pair(lambda v: f"CAST({seconds.format(v)}, {literal(target.text)})", outside)


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
        tests.append(lambda value: f"(toInt32({day(value)}) < 0 OR toInt32({day(value)}) > 65535)")
    if not tests:
        return None
    return lambda value: f"({' OR '.join(test(value) for test in tests)})"


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
    if not tests:
        return None
    return lambda value: f"({' OR '.join(test(value) for test in tests)})"
