"""Expressions over the values that stand in a value."""

from __future__ import annotations

from sluice.decode.engine.pair import Expression


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
