"""How a value of each type is read so that nothing wraps, is cut or vanishes (H16).

The engine's JSON reader stores 300 in a UInt8 as 44, 70000 in a Date as 1982, 257 in an
Enum8 as element 1, 1e400 in a Float64 as infinity, epoch milliseconds in a DateTime64 as
the year 9999, and null in a number as 0, without a word. So a column is read in a wider type
and converted; what no expression can see (digits beyond 256 bits) is kept out by
`MessageBuffer.long_digits`.

What ClickHouse itself reads stays readable: numbers in strings, true and false as numbers. What no
reading shows, such as "" that is read as 0, is found in the messages before (misread.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.decode.engine.conversions import Conversion, ConversionFactory, required
from sluice.decode.engine.lambdas import Lambdas, greatest
from sluice.decode.engine.pair import RANGE, Expression, Pair
from sluice.decode.engine.scalars import FLOATS, scalar_of
from sluice.decode.engine.session import declared, identifier, literal
from sluice.decode.engine.types import (
    GEO_TYPES,
    TypeNode,
    default_of,
    nested_groups,
    parse_type,
)


@dataclass(frozen=True, slots=True)
class Reader:
    """One way to read a column.

    :param wide: the type it is read as.
    :param loose: the type it is read as where no value may raise an error that stops the query.
    :param conversion: from either of them.
    """

    wide: str
    loose: str
    conversion: Conversion

    @property
    def target(self) -> str:
        return self.conversion.target


class ReaderFactory(ConversionFactory):
    """Chooses readers for the columns of one table.

    :param refuse_null: null in a non-nullable place is a fault; otherwise the engine puts
        the default there (setting input_format_null_as_default).
    :param widest_integer: what integers of up to 128 bits are read as.
    :param takes_words: floats that are infinite, or no number, are taken for what they are.
    """

    def __init__(self, refuse_null: bool, widest_integer: str, takes_words: bool = False) -> None:
        super().__init__(refuse_null)
        self._widest_integer = widest_integer
        self._takes_words = takes_words
        #: What is converted is an element of a tuple that may not be null: an absent one is the
        #: default of the type that is read.
        self._is_bare_element = False

    def of(self, type_text: str, in_tuple: bool = False) -> Reader:
        """The reader of a column, or of an element of a tuple."""
        node = parse_type(type_text)
        wide, loose = self._types(node, self.refuse_null, in_tuple=in_tuple)
        convert = self._element if in_tuple else self._any
        return Reader(wide, loose, convert(parse_type(wide), node))

    def required(self, type_text: str, read_as: str) -> Reader:
        """The reader of a column that must be there.

        :param read_as: the type, with null for what is absent.
        """
        wide, loose = self._types(parse_type(read_as), self.refuse_null)
        return Reader(wide, loose, required(self.conversion(wide, type_text)))

    def nested(self, types: Mapping[str, str]) -> dict[str, NestedColumn]:
        """The columns among these that a server made of a Nested."""
        found: dict[str, NestedColumn] = {}
        for head, elements in nested_groups(types).items():
            type_text = f"Array(Tuple({declared(elements.items())}))"
            records = self.of(type_text)
            for name, text in elements.items():
                element, flat = self.of(text, in_tuple=True), self.of(types[f"{head}.{name}"])
                found[f"{head}.{name}"] = NestedColumn(
                    head, type_text, name, records, flat, element, self.lambdas
                )
        return found

    def _types(
        self, node: TypeNode, refuse_null: bool, nullable: bool = False, in_tuple: bool = False
    ) -> tuple[str, str]:
        """What a type is read as, and what loosely."""
        match node.name:
            case "Nullable":
                return self._types(node.inner(), refuse_null, True, in_tuple)
            case "LowCardinality":
                return self._types(node.inner(), refuse_null, nullable, in_tuple)
            case "SimpleAggregateFunction":
                return self._types(node.inner(1), refuse_null, nullable, in_tuple)
            case name if name in GEO_TYPES:
                return self._types(parse_type(GEO_TYPES[name]), refuse_null)
            case "Array":
                item = self._types(node.inner(), refuse_null)
                found = [f"Array({text})" for text in item]
            case "Map":
                key = self._types(node.inner(0), refuse_null=False)
                item = self._types(node.inner(1), refuse_null)
                found = [f"Map({', '.join(pair)})" for pair in zip(key, item, strict=True)]
            case "Tuple" | "Nested":
                names = [f"{identifier(name)} " if name else "" for name, _ in node.elements()]
                parts = [self._types(part, refuse_null, False, True) for part in node.parts()]
                found = [
                    f"Tuple({', '.join(map(str.__add__, names, some))})"
                    for some in zip(*parts, strict=True)
                ]
                if node.name == "Nested":
                    found = [f"Array({text})" for text in found]
            case _:
                tells_null = refuse_null and not nullable and in_tuple
                scalar = scalar_of(node, self._widest_integer, tells_null)
                found = [scalar.wide, scalar.loose]
                # Not in tuples, whose missing elements would be null.
                reads_null = refuse_null and not in_tuple and scalar.pair is not None
                nullable = nullable or reads_null
        wide, loose = (f"Nullable({text})" if nullable else text for text in found)
        return wide, loose

    def scalar(self, natural: TypeNode, target: TypeNode) -> Pair | None:
        """As the base says."""
        is_bare = self._is_bare_element
        scalar = scalar_of(target, self._widest_integer, is_bare and self.refuse_null)
        is_taken = self._takes_words and target.name in FLOATS
        pair = Pair(None) if scalar.pair is None or is_taken else scalar.pair
        return _or_missing(pair, target) if is_bare and scalar.parse is not None else pair

    def _item(self, natural: TypeNode, target: TypeNode) -> Conversion:
        return self._of_element(natural, target, False)

    def _element(self, natural: TypeNode, target: TypeNode) -> Conversion:
        return self._of_element(natural, target, natural.name != "Nullable")

    def _of_element(self, natural: TypeNode, target: TypeNode, is_bare: bool) -> Conversion:
        before, self._is_bare_element = self._is_bare_element, is_bare
        try:
            return self._any(natural, target)
        finally:
            self._is_bare_element = before


def _or_missing(pair: Pair, target: TypeNode) -> Pair:
    """Of a value that is read as String: an absent one is empty."""
    narrow, unfit = pair.narrow, pair.unfit
    assert narrow is not None and unfit is not None
    return Pair(
        lambda value: f"if(empty({value}), {default_of(target.text)}, {narrow(value)})",
        lambda value: f"(notEmpty({value}) AND {unfit(value)})",
        pair.unread,
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
        flat, item, name = self.flat.conversion, self.element.conversion, literal(self.element_name)

        def of_record(expression: Expression) -> Expression:
            return lambda record: expression(f"tupleElement({record}, {name})")

        def narrow(value: str) -> str:
            items = self.lambdas.each(of_record(item.value), records)
            parts = (f"CAST({part}, {literal(flat.target)})" for part in (items, flat.value(value)))
            return f"if(notEmpty({records}), {', '.join(parts)})"

        def clashes(value: str) -> str:
            return f"if(notEmpty({records}) AND notEmpty({value}), {RANGE}, 0)"

        of_items = self.lambdas.greatest(item.fault and of_record(item.fault), lambda _: records)
        fault = greatest(clashes, flat.fault, of_items)
        return Reader(self.flat.wide, self.flat.loose, Conversion(flat.target, narrow, fault))
