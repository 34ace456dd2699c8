"""How a value of each type is read so that nothing wraps, is cut or vanishes (H16).

The engine's JSON reader stores 300 in a UInt8 as 44, 70000 in a Date as 1982, 257 in an
Enum8 as element 1, 1e400 in a Float64 as infinity, epoch milliseconds in a DateTime64 as
the year 9999, and null in a number as 0, without a word. So a column is read in a wider type
and narrowed by an expression that fails loudly; what no expression can see (digits beyond 256
bits) is kept out by `MessageBuffer.long_digits`.

What ClickHouse itself reads stays readable: numbers in strings, true and false as numbers. What no
reading shows, such as "" that is read as 0, is found in the messages before (misread.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluice.decode.engine.lambdas import Lambdas, greatest, of_element
from sluice.decode.engine.scalars import RANGE, Expression, Place, Reader, scalar_reader
from sluice.decode.engine.session import declared, identifier, literal
from sluice.decode.engine.types import GEO_TYPES, TypeNode, nested_groups, parse_type


@dataclass(slots=True)
class ReaderFactory:
    """Chooses readers for the columns of one table.

    :param refuse_null: null in a non-nullable place is a fault; otherwise the engine puts
        the default there (setting input_format_null_as_default).
    :param widest_integer: what integers of up to 128 bits are read as.
    """

    refuse_null: bool
    widest_integer: str = "Int256"
    _lambdas: Lambdas = field(default_factory=Lambdas)

    def of(self, type_text: str) -> Reader:
        """The reader of a column."""
        return self._reader(parse_type(type_text), nullable=False, in_tuple=False)

    def nested(self, types: Mapping[str, str]) -> dict[str, NestedColumn]:
        """The columns among these that a server made of a Nested."""
        found: dict[str, NestedColumn] = {}
        for head, elements in nested_groups(types).items():
            type_text = f"Array(Tuple({declared(elements.items())}))"
            records = self.of(type_text)
            for name, text in elements.items():
                element = self._reader(parse_type(text), nullable=False, in_tuple=True)
                flat = self.of(types[f"{head}.{name}"])
                found[f"{head}.{name}"] = NestedColumn(
                    head, type_text, name, records, flat, element, self._lambdas
                )
        return found

    def _reader(self, node: TypeNode, nullable: bool, in_tuple: bool) -> Reader:
        if node.name == "Nullable":
            return self._reader(node.inner(), nullable=True, in_tuple=in_tuple)
        if node.name == "LowCardinality":
            inner = self._reader(node.inner(), nullable, in_tuple)
            return self._retarget(inner, node.text)
        if node.name == "SimpleAggregateFunction":
            return self._reader(node.inner(1), nullable, in_tuple)
        if node.name in GEO_TYPES:
            return self._recast(self._reader(parse_type(GEO_TYPES[node.name]), False, False), node)
        if node.name in ("Array", "Map", "Tuple", "Nested"):
            return self._container(node, nullable)
        place = Place(nullable, in_tuple, self.refuse_null)
        return scalar_reader(node, place, self.widest_integer)

    def _container(self, node: TypeNode, nullable: bool) -> Reader:
        make = {"Array": self._array, "Map": self._map}.get(node.name, self._tuple)
        return _or_null(make(node)) if nullable else make(node)

    @staticmethod
    def _recast(reader: Reader, node: TypeNode) -> Reader:
        """The same of a type that is another one by another name."""
        return replace(
            reader,
            target=node.text,
            narrow=lambda value: f"CAST({reader.narrow(value)}, {literal(node.text)})",
            plain=False,
        )

    def _retarget(self, reader: Reader, target: str) -> Reader:
        def narrow(value: str) -> str:
            inner = value if reader.plain else reader.narrow(value)
            return f"accurateCast({inner}, {literal(target)})"

        return replace(reader, target=target, narrow=narrow)

    def _array(self, node: TypeNode) -> Reader:
        item = self._reader(node.inner(), nullable=False, in_tuple=False)
        target = f"Array({item.target})"

        def narrow(value: str) -> str:
            inner = value if item.plain else self._lambdas.each(item.narrow, value)
            return f"accurateCast({inner}, {literal(target)})"

        return Reader(
            target,
            f"Array({item.wide})",
            f"Array({item.loose})",
            narrow,
            self._lambdas.greatest(item.fault),
            item.plain,
        )

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
            keys = self._lambdas.each(key.narrow, f"mapKeys({value})")
            items = self._lambdas.each(item.narrow, f"mapValues({value})")
            return f"CAST(mapFromArrays({keys}, {items}), {literal(target)})"

        return Reader(
            target,
            f"Map({key.wide}, {item.wide})",
            f"Map({key.loose}, {item.loose})",
            narrow,
            self._lambdas.greatest_of_map(key.fault, item.fault),
            plain,
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
                return self._lambdas.each(one, value)
            return one(value)

        fault = greatest(*(of_element(r.fault, place) for place, r in enumerate(readers)))
        wide = ", ".join(n + r.wide for n, r in zip(names, readers, strict=True))
        loose = ", ".join(n + r.loose for n, r in zip(names, readers, strict=True))
        return Reader(
            target,
            wrap.format(f"Tuple({wide})"),
            wrap.format(f"Tuple({loose})"),
            narrow,
            self._lambdas.greatest(fault) if node.name == "Nested" else fault,
            plain,
        )


@dataclass(frozen=True, slots=True)
class NestedColumn:
    """A column that a server made of an element of a Nested. A message may have it as an array
    of its own, or all elements as an array of records.

    :param head: the name of the Nested, and `type` that of the records.
    :param records: reads them; `flat` reads the array of its own, `element` a value in a record.
    :param lambdas: makes expressions over the records.
    """

    head: str
    type: str
    element_name: str
    records: Reader
    flat: Reader
    element: Reader
    lambdas: Lambdas

    def reader(self, records: str) -> Reader:
        """Of the column.

        :param records: SQL of the array of records as it was read; empty if there is none.
        """
        flat, element = self.flat, literal(self.element_name)

        def of_record(expression: Expression) -> Expression:
            return lambda record: expression(f"tupleElement({record}, {element})")

        def narrow(value: str) -> str:
            items = self.lambdas.each(of_record(self.element.narrow), records)
            parts = (
                f"CAST({part}, {literal(flat.target)})" for part in (items, flat.narrow(value))
            )
            return f"if(notEmpty({records}), {', '.join(parts)})"

        def clashes(value: str) -> str:
            return f"if(notEmpty({records}) AND notEmpty({value}), {RANGE}, 0)"

        inner = self.element.fault
        of_items = self.lambdas.greatest(inner and of_record(inner), lambda _: records)
        return Reader(
            flat.target,
            flat.wide,
            flat.loose,
            narrow,
            greatest(clashes, flat.fault, of_items),
            False,
        )


def _or_null(reader: Reader) -> Reader:
    """Of a tuple that may be null: its elements are judged where there is one."""
    target, test = f"Nullable({reader.target})", reader.fault

    def fault(value: str) -> str:
        assert test is not None
        return f"if(isNull({value}), 0, toUInt8({test(f'assumeNotNull({value})')}))"

    def narrow(value: str) -> str:
        inner = reader.narrow(f"assumeNotNull({value})")
        return f"if(isNull({value}), NULL, CAST({inner}, {literal(target)}))"

    return Reader(
        target,
        f"Nullable({reader.wide})",
        f"Nullable({reader.loose})",
        narrow,
        None if test is None else fault,
        False,
    )
