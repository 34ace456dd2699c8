"""How a value of each type is read so that nothing wraps, is cut or vanishes (C10).

The engine's JSON reader stores 300 in a UInt8 as 44, 70000 in a Date as 1982, 257 in an
Enum8 as element 1, 1e400 in a Float64 as infinity, epoch milliseconds in a DateTime64 as
the year 9999, and null in a number as 0, without a word. So a column is read in a wider type
and narrowed by an expression that fails loudly; what no expression can see (digits beyond 256
bits) is kept out by `MessageBuffer.long_digits`.

What ClickHouse itself reads stays readable: numbers in strings, true and false as numbers,
fractions of a second that a DateTime does not keep, "" as 0 in integers and decimals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sluice.decode.engine.bare_numbers import bare_number
from sluice.decode.engine.scalars import Expression, Place, Reader, scalar_reader
from sluice.decode.engine.session import identifier, literal
from sluice.decode.engine.types import TypeNode, parse_type


@dataclass(slots=True)
class ReaderFactory:
    """Chooses readers for the columns of one table.

    :param refuse_null: null in a non-nullable place is a fault; otherwise the engine puts
        the default there (setting input_format_null_as_default).
    :param widest_integer: what integers of up to 128 bits are read as.
    :param has_blanks: blanks around numbers are none of them.
    :param brackets: what is in brackets says by quotes what is a number: "none", "nested" if a
        tuple that stands in no others has none (CSV), or "all" (TSV).
    """

    refuse_null: bool
    widest_integer: str = "Int256"
    has_blanks: bool = False
    brackets: str = "none"
    _names: int = field(default=0)
    _depth: int = field(default=0)

    def of(self, type_text: str) -> Reader:
        """The reader of a column."""
        return self._reader(parse_type(type_text), nullable=False, in_tuple=False)

    def _reader(self, node: TypeNode, nullable: bool, in_tuple: bool) -> Reader:
        if node.name == "Nullable":
            return self._reader(node.inner(), nullable=True, in_tuple=in_tuple)
        if node.name == "LowCardinality":
            inner = self._reader(node.inner(), nullable, in_tuple)
            return self._retarget(inner, node.text)
        if node.name == "SimpleAggregateFunction":
            return self._reader(node.inner(1), nullable, in_tuple)
        if node.name in ("Array", "Map", "Tuple", "Nested") and not nullable:
            return self._container(node)
        place = Place(nullable, in_tuple, self.refuse_null, self.has_blanks)
        if self._depth and (bare := bare_number(node, place)) is not None:
            return bare
        return scalar_reader(node, place, self.widest_integer)

    def _container(self, node: TypeNode) -> Reader:
        has_brackets = self.brackets == "all" or self._depth > 0 or node.name != "Tuple"
        deeper = int(has_brackets and self.brackets != "none")
        self._depth += deeper
        make = {"Array": self._array, "Map": self._map}.get(node.name, self._tuple)
        reader = make(node)
        self._depth -= deeper
        return reader

    def _retarget(self, reader: Reader, target: str) -> Reader:
        def narrow(value: str) -> str:
            inner = value if reader.plain else reader.narrow(value)
            return f"accurateCast({inner}, {literal(target)})"

        return replace(reader, target=target, narrow=narrow)

    def _variable(self) -> str:
        self._names += 1
        return f"_v{self._names}"

    def _array(self, node: TypeNode) -> Reader:
        item = self._reader(node.inner(), nullable=False, in_tuple=False)
        target = f"Array({item.target})"

        def narrow(value: str) -> str:
            name = self._variable()
            inner = value if item.plain else f"arrayMap({name} -> {item.narrow(name)}, {value})"
            return f"accurateCast({inner}, {literal(target)})"

        return Reader(
            target,
            f"Array({item.wide})",
            f"Array({item.loose})",
            narrow,
            self._over_items(item.silent),
            self._over_items(item.fault),
            item.plain,
            self._over_items(item.doubt),
        )

    def _over_items(self, test: Expression | None, of: str = "{0}") -> Expression | None:
        """The greatest result of a test over the items of an array."""
        if test is None:
            return None

        def over(value: str) -> str:
            name = self._variable()
            results = f"arrayMap({name} -> toUInt8({test(name)}), {of.format(value)})"
            return f"arrayMax(arrayPushBack({results}, 0))"

        return over

    def _map(self, node: TypeNode) -> Reader:
        outer = self.refuse_null
        self.refuse_null = False
        key = self._reader(node.inner(0), nullable=False, in_tuple=False)
        self.refuse_null = outer
        item = self._reader(node.inner(1), nullable=False, in_tuple=False)
        target = f"Map({key.target}, {item.target})"
        plain = key.plain and item.plain

        def narrow(value: str) -> str:
            if plain:
                return f"accurateCast({value}, {literal(target)})"
            name = self._variable()
            keys = f"arrayMap({name} -> {key.narrow(name)}, mapKeys({value}))"
            items = f"arrayMap({name} -> {item.narrow(name)}, mapValues({value}))"
            return f"CAST(mapFromArrays({keys}, {items}), {literal(target)})"

        return Reader(
            target,
            f"Map({key.wide}, {item.wide})",
            f"Map({key.loose}, {item.loose})",
            narrow,
            _greatest(
                self._over_items(key.silent, "mapKeys({0})"),
                self._over_items(item.silent, "mapValues({0})"),
            ),
            _greatest(
                self._over_items(key.fault, "mapKeys({0})"),
                self._over_items(item.fault, "mapValues({0})"),
            ),
            plain,
            _greatest(
                self._over_items(key.doubt, "mapKeys({0})"),
                self._over_items(item.doubt, "mapValues({0})"),
            ),
        )

    def _tuple(self, node: TypeNode) -> Reader:
        elements = node.elements()
        readers = [self._reader(part, nullable=False, in_tuple=True) for _, part in elements]
        names = [identifier(name) + " " if name else "" for name, _ in elements]
        wrap = "Array({})" if node.name == "Nested" else "{}"
        plain = all(reader.plain for reader in readers)
        parts = ", ".join(n + r.target for n, r in zip(names, readers, strict=True))
        tuple_target = f"Tuple({parts})"
        target = wrap.format(tuple_target)

        def element(value: str, index: int) -> str:
            return f"tupleElement({value}, {index + 1})"

        def one(value: str) -> str:
            values = (r.narrow(element(value, i)) for i, r in enumerate(readers))
            return f"CAST(tuple({', '.join(values)}), {literal(tuple_target)})"

        def narrow(value: str) -> str:
            if plain:
                return f"accurateCast({value}, {literal(target)})"
            if node.name == "Nested":
                name = self._variable()
                return f"arrayMap({name} -> {one(name)}, {value})"
            return one(value)

        def over(tests: list[Expression | None]) -> Expression | None:
            combined = _greatest(
                *(
                    (lambda value, t=test, i=i: t(element(value, i))) if test else None
                    for i, test in enumerate(tests)
                )
            )
            return self._over_items(combined) if node.name == "Nested" else combined

        wide = ", ".join(n + r.wide for n, r in zip(names, readers, strict=True))
        loose = ", ".join(n + r.loose for n, r in zip(names, readers, strict=True))
        return Reader(
            target,
            wrap.format(f"Tuple({wide})"),
            wrap.format(f"Tuple({loose})"),
            narrow,
            over([reader.silent for reader in readers]),
            over([reader.fault for reader in readers]),
            plain,
            over([reader.doubt for reader in readers]),
        )


def _greatest(*tests: Expression | None) -> Expression | None:
    """The greatest result of several tests of one value."""
    real = [test for test in tests if test is not None]
    if not real:
        return None
    return lambda value: f"greatest(0, {', '.join(f'toUInt8({test(value)})' for test in real)})"
