"""What pairs of types are made of, of scalars (see conversions.py) and of what has values in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.decode.engine.session import literal

Expression = Callable[[str], str]

#: Kinds of faults of a value. MISMATCH: of a type that the column does not take, or text that does
#: not say a value of it.
FINE, NULL, RANGE, MISMATCH = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Pair:
    """How one scalar type becomes another.

    :param narrow: the value where it fits; None: no change.
    :param unfit: UInt8, true where it does not fit; never throws. None: it always fits.
    :param unread: UInt8, true where text does not say a value at all; only asked if it is unfit.
    """

    narrow: Expression | None
    unfit: Expression | None = None
    unread: Expression | None = None


def cast(target: str) -> Expression:
    return lambda value: f"CAST({value}, {literal(target)})"


def or_null(target: str) -> Expression:
    """The value where there is one, else the type's default; never throws."""
    return lambda value: f"assumeNotNull(accurateCastOrNull({value}, {literal(target)}))"


def fails(target: str) -> Expression:
    return lambda value: f"isNull(accurateCastOrNull({value}, {literal(target)}))"


def either(*tests: Expression | None) -> Expression | None:
    real = [test for test in tests if test is not None]
    if not real:
        return None
    return lambda value: f"({' OR '.join(f'({test(value)})' for test in real)})"


def outside(low: int, high: int) -> Expression:
    """Of an integer: below or above. Wide bounds need wide literals."""

    def test(value: str) -> str:
        return f"({value} < {_number(low)} OR {value} > {_number(high)})"

    return test


def _number(value: int) -> str:
    if -(2**63) <= value < 2**63:
        return f"toInt64({value})"
    return f"toInt256('{value}')"


def over(pair: Pair, first: Expression) -> Pair:
    """The pair, of what `first` makes of a value."""

    def then(expression: Expression | None) -> Expression | None:
        return None if expression is None else lambda value: expression(first(value))

    return Pair(then(pair.narrow) or first, then(pair.unfit), then(pair.unread))


class Lambdas:
    """Makes expressions over the items of arrays, each with a variable of its own."""

    def __init__(self) -> None:
        self._names = 0

    def each(self, convert: Expression, array: str) -> str:
        """The array with each item converted."""
        self._names += 1
        name = f"_v{self._names}"
        return f"arrayMap({name} -> {convert(name)}, {array})"

    def greatest(self, test: Expression | None, of: Expression = str) -> Expression | None:
        """The greatest result of a test over the items of an array.

        :param of: the array; without it, the value itself.
        """
        if test is None:
            return None

        def result(item: str) -> str:
            return f"toUInt8({test(item)})"

        return lambda value: f"arrayMax(arrayPushBack({self.each(result, of(value))}, 0))"

    def greatest_of_map(
        self, keys: Expression | None, values: Expression | None
    ) -> Expression | None:
        """The greatest result of a test over the keys of a map, and of one over its values."""
        of_keys = self.greatest(keys, lambda value: f"mapKeys({value})")
        return greatest(of_keys, self.greatest(values, lambda value: f"mapValues({value})"))


def of_element(test: Expression | None, place: int) -> Expression | None:
    """A test of a tuple's element, of the tuple."""
    return None if test is None else lambda value: test(f"tupleElement({value}, {place + 1})")


def greatest(*tests: Expression | None) -> Expression | None:
    """The greatest result of several tests of one value."""
    real = [test for test in tests if test is not None]
    if len(real) < 2:
        return real[0] if real else None
    return lambda value: f"greatest({', '.join(f'toUInt8({test(value)})' for test in real)})"
