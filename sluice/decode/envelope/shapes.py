"""What a target type takes of an envelope's value.

A target says where lists stand: Array(T) takes a list of T, Map(K, V) a list of lists of two,
Tuple a list of its elements. Everything else takes one value, of any kind but a list; whether a
text is a number or a number fits is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.decode.engine.types import GEO_TYPES, TypeNode, parse_type


@dataclass(frozen=True, slots=True)
class Shape:
    """What a target type takes.

    :param kind: "value", "list", "map" or "tuple".
    :param parts: of a list its items; of a map its pairs, which are tuples; of a tuple its
        elements.
    :param names: of a tuple's elements, "" where they have none.
    :param is_key: of a map, which is never null.
    """

    kind: str
    target: str
    parts: tuple[Shape, ...] = ()
    names: tuple[str, ...] = ()
    is_key: bool = False

    @property
    def is_float(self) -> bool:
        """Whether integers become floats, those beyond 2^53 rounded."""
        return self.target.startswith(("Float", "BFloat"))

    @property
    def is_date(self) -> bool:
        """Whether timestamps become the day in UTC, as eBay's reader does it."""
        return self.target in ("Date", "Date32")


def shape_of(type_text: str) -> Shape:
    """What a column of this type takes."""
    return _shape(parse_type(type_text))


def _shape(node: TypeNode, is_key: bool = False) -> Shape:
    if node.name in GEO_TYPES:
        return _shape(parse_type(GEO_TYPES[node.name]))
    match node.name:
        case "Nullable" | "LowCardinality":
            return _shape(node.inner(), is_key)
        case "SimpleAggregateFunction":
            return _shape(node.inner(1))
        case "Array" | "QBit":
            return Shape("list", node.text, (_shape(node.inner()),))
        case "Map":
            pair = (_shape(node.inner(0), is_key=True), _shape(node.inner(1)))
            return Shape("map", node.text, (Shape("tuple", node.text, pair, ("", "")),))
        case "Tuple" | "Nested":
            elements = node.elements()
            parts = tuple(_shape(inner) for _, inner in elements)
            one = Shape("tuple", node.text, parts, tuple(name for name, _ in elements))
            return one if node.name == "Tuple" else Shape("list", node.text, (one,))
    return Shape("value", node.text, is_key=is_key)
