"""How a value of one ClickHouse type becomes a value of another one, strictly (H16).

A format says which type N a value has; the table says which type T it must get. The engine's
own cast from N to T wraps (300 to UInt8), cuts (0.29 to Decimal is 0.28) or clamps (a year
2200 to DateTime) without a word, and binary formats carry what a type has no value for (an
Enum's element that does not exist, a Decimal with too many digits). So for each pair there
is a test that never throws, and a conversion that is only used where the test found nothing.

Text becomes a value as it does in JSON: the same texts are read, the same are refused.
Accepted although something gets lost: a float's digits beyond its precision. Infinity and NaN are
values; made by narrowing they are faults.

Which of the types of a Variant takes a value of another type follows from that type, whatever the
value is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial

from sluice.decode.engine.pair import (
    FINE,
    MISMATCH,
    NULL,
    RANGE,
    Expression,
    Lambdas,
    Pair,
    greatest,
    of_element,
)
from sluice.decode.engine.session import identifier, literal
from sluice.decode.engine.types import (
    FLOATS,
    GEO_TYPES,
    INSTANT,
    WRAPPED,
    TypeNode,
    decimal_shape,
    default_of,
    integer_bounds,
    meant_type,
    parse_type,
    scale_of,
    size_of,
    stored_type,
)

#: Each holds those before it, if it keeps as many digits of a second.
_SAME_KIND = (("Date", "Date32"), ("DateTime", "DateTime64"), ("Time", "Time64"))


def member_for(target: TypeNode, natural: TypeNode) -> TypeNode | None:
    """The type among those of a Variant that a value becomes: its own, or the smallest of its kind
    that holds all of its values; of integers, if none does, the largest. None: there is none."""
    own = parse_type(meant_type(natural.bare().text))
    members = [parse_type(text) for text in target.arguments]
    holding = [one for one in members if one.text == own.text or _holds(one, own)]
    if not holding and integer_bounds(own.name):
        integers = [one for one in members if integer_bounds(one.name)]
        return max(integers, key=lambda one: size_of(one) or 0, default=None)
    return min(holding, key=lambda one: (one.text != own.text, size_of(one) or 0), default=None)


def _holds(target: TypeNode, natural: TypeNode) -> bool:
    if natural.name == "Nullable":
        return target.name == "Nullable" and _holds(target.inner(), natural.inner())
    if target.name in ("Nullable", "LowCardinality") or natural.name == "LowCardinality":
        return _holds(target.bare(), natural.bare())
    wide, narrow = integer_bounds(target.name), integer_bounds(natural.name)
    if wide and narrow:
        return wide[0] <= narrow[0] and narrow[1] <= wide[1]
    if target.name in FLOATS and natural.name in FLOATS:
        return FLOATS.index(target.name) >= FLOATS.index(natural.name)
    if target.name.startswith("Decimal") and natural.name.startswith("Decimal"):
        (digits, scale), (least, own) = decimal_shape(target), decimal_shape(natural)
        return scale >= own and digits - scale >= least - own
    if target.name == "String":
        return natural.name.startswith(("String", "FixedString", "Enum"))
    for kind in _SAME_KIND:
        if target.name in kind and natural.name in kind:
            is_wide = kind.index(target.name) >= kind.index(natural.name)
            return is_wide and scale_of(target) >= scale_of(natural)
    return target.name == natural.name and _holds_parts(target, natural)


def _holds_parts(target: TypeNode, natural: TypeNode) -> bool:
    wanted, have = target.parts(), natural.parts()
    if target.name == "Tuple":
        names, own = ([name for name, _ in one.elements()] for one in (target, natural))
        if all(names) and all(own):
            by_name = dict(natural.elements())
            if by_name.keys() != set(names):
                return False
            have = [by_name[name] for name in names]
    is_alike = len(wanted) == len(have) and bool(wanted)
    return is_alike and all(map(_holds, wanted, have))


@dataclass(frozen=True, slots=True)
class Conversion:
    """From a natural type to a target type. Expressions take SQL for the natural value.

    :param target: the type that `narrow` gives.
    :param narrow: the value; None: the natural value itself. Undefined, and possibly an error,
        where `fault` is not FINE.
    :param fault: UInt8: FINE, NULL, RANGE or MISMATCH; never throws. None: always FINE.
    :param quick: UInt8, whether it is not FINE, for a third of the time; None: ask `fault`.
    """

    target: str
    narrow: Expression | None
    fault: Expression | None
    quick: Expression | None = None

    def value(self, natural: str) -> str:
        """SQL for the converted value."""
        return natural if self.narrow is None else self.narrow(natural)


class ConversionFactory(ABC):
    """Chooses conversions.

    :param refuse_null: null in a non-nullable place is a fault; otherwise it becomes the
        type's default there.
    """

    def __init__(self, refuse_null: bool) -> None:
        self.refuse_null = refuse_null
        #: Elements of tuples that no element of the target takes, found so far.
        self.strange: list[str] = []
        self.lambdas = Lambdas()

    @abstractmethod
    def scalar(self, natural: TypeNode, target: TypeNode) -> Pair | None:
        """Of types that contain no other; None: no value of the one is one of the other."""

    def conversion(self, natural: str, target: str) -> Conversion:
        """From a type to a type, as texts."""
        return self._any(parse_type(natural), parse_type(target))

    def _item(self, natural: TypeNode, target: TypeNode) -> Conversion:
        """Of what an array or a map holds."""
        return self._any(natural, target)

    def _element(self, natural: TypeNode, target: TypeNode) -> Conversion:
        """Of an element of a tuple."""
        return self._any(natural, target)

    def _any(self, natural: TypeNode, target: TypeNode) -> Conversion:
        if natural.text == target.text and not self._needs_test(natural):
            return Conversion(target.text, None, None)
        if target.text in GEO_TYPES and natural.text != target.text:
            return retargeted(self._any(natural, parse_type(GEO_TYPES[target.text])), target.text)
        if natural.name == "LowCardinality":
            inner = self._any(natural.inner(), target)
            return _after(inner, lambda value: f"CAST({value}, {literal(natural.inner().text)})")
        if target.name == "LowCardinality":
            return retargeted(self._any(natural, target.inner()), target.text)
        if natural.name == "Variant":
            return self._one_of(natural, target)
        if target.name in ("Variant", "Dynamic"):
            return self._into_any(natural, target)
        nullable = target.name == "Nullable"
        inner_target = target.inner() if nullable else target
        if natural.name == "Nullable":
            return self._nullable(natural.inner(), inner_target, nullable)
        inner = self._plain(natural, inner_target)
        return retargeted(inner, target.text) if nullable else inner

    def _into_any(self, natural: TypeNode, target: TypeNode) -> Conversion:
        """Into a type that holds values of several: as one of these."""
        own = parse_type(meant_type(natural.text))
        if target.name == "Variant":
            member = member_for(target, natural)
            if member is None:
                return _mismatch(target.text)
            own = parse_type(f"Nullable({member.text})") if own.name == "Nullable" else member
        return retargeted(self._any(natural, own), target.text)

    def _one_of(self, natural: TypeNode, target: TypeNode) -> Conversion:
        """From values of several types, each by itself."""
        keeps_null = target.name in ("Nullable", "Variant", "Dynamic")
        inner = target.inner() if target.name == "Nullable" else target
        types = [stored_type(text) for text in natural.arguments]
        nodes = map(natural.inner, range(len(types)))
        made = [
            _mismatch(target.text) if _are_strangers(node, inner) else self._any(node, inner)
            for node in nodes
        ]

        def chosen(value: str, of_each: list[str], otherwise: str) -> str:
            branches = (
                f"toString(variantType({value})) = {literal(type_text)}, {one}"
                for type_text, one in zip(types, of_each, strict=True)
            )
            return f"multiIf({', '.join(branches)}, {otherwise})"

        def elements(value: str) -> list[str]:
            return [f"assumeNotNull(variantElement({value}, {literal(text)}))" for text in types]

        def narrow(value: str) -> str:
            values = map(Conversion.value, made, elements(value))
            null = "NULL" if keeps_null else default_of(target.text)
            as_target = [f"CAST({one}, {literal(target.text)})" for one in (*values, null)]
            return chosen(value, as_target[:-1], as_target[-1])

        def fault(value: str) -> str:
            faults = [
                f"toUInt8({one.fault(element)})" if one.fault else f"toUInt8({FINE})"
                for one, element in zip(made, elements(value), strict=True)
            ]
            kind = FINE if keeps_null or not self.refuse_null else NULL
            return chosen(value, faults, f"toUInt8(if(isNull({value}), {kind}, {MISMATCH}))")

        return Conversion(target.text, narrow, fault)

    def _needs_test(self, node: TypeNode) -> bool:
        """Whether a value of this type may be none, for example in binary formats."""
        if node.parts():
            return any(map(self._needs_test, node.parts()))
        pair = self.scalar(node, node)
        return pair is not None and pair.unfit is not None

    def _nullable(self, natural: TypeNode, target: TypeNode, keeps_null: bool) -> Conversion:
        """From Nullable(natural), to Nullable(target) if null is kept."""
        inner = self._plain(natural, target)
        target_text = f"Nullable({inner.target})" if keeps_null else inner.target
        kind = FINE if keeps_null or not self.refuse_null else NULL
        instead = "NULL" if keeps_null else default_of(inner.target)

        def narrow(value: str) -> str:
            bare = inner.value(f"assumeNotNull({value})")
            if not keeps_null and self.refuse_null:
                return bare
            chosen = f"if(isNull({value}), {instead}, {bare})"
            return f"CAST({chosen}, {literal(target_text)})"

        def fault(value: str) -> str:
            rest = inner.fault(f"assumeNotNull({value})") if inner.fault else f"{FINE}"
            return f"if(isNull({value}), {kind}, {rest})"

        def is_unfit(value: str) -> str:
            rest = inner.quick or inner.fault
            if rest is None:
                return f"isNull({value})"
            # No `if`: the engine would look which of its parts each row needs.
            return f"bitOr(isNull({value}), toUInt8({rest(f'assumeNotNull({value})')}))"

        unchanged = keeps_null and inner.narrow is None
        needs_fault = kind != FINE or inner.fault is not None
        return Conversion(
            target_text,
            None if unchanged else narrow,
            fault if needs_fault else None,
            is_unfit if kind != FINE else None,
        )

    def _plain(self, natural: TypeNode, target: TypeNode) -> Conversion:
        """Between types that are neither Nullable nor LowCardinality themselves."""
        if natural.name in (WRAPPED, INSTANT) and target.name == "Tuple":
            return self._plain(parse_type(stored_type(natural.text)), target)
        if natural.name == WRAPPED:
            inner = self._plain(natural.inner(), target)
            return _after(inner, lambda value: f"tupleElement({value}, 1)")
        if target.name == natural.name == "Array":
            return self._array(natural, target)
        if (natural.name, target.name) == ("Array", "QBit"):
            return self._vector(natural, target)
        if target.name == natural.name == "Map":
            return self._map(natural, target)
        if target.name == natural.name == "Tuple":
            return self._tuple(natural, target)
        pair = self.scalar(natural, target)
        return _mismatch(target.text) if pair is None else _scalar(pair, target.text)

    def _array(self, natural: TypeNode, target: TypeNode) -> Conversion:
        item = self._item(natural.inner(), target.inner())
        narrow = None if item.narrow is None else partial(self.lambdas.each, item.narrow)
        return Conversion(f"Array({item.target})", narrow, self.lambdas.greatest(item.fault))

    def _vector(self, natural: TypeNode, target: TypeNode) -> Conversion:
        """An array of as many numbers as the vector has."""
        numbers = self._array(natural, parse_type(f"Array({target.arguments[0]})"))

        def fault(value: str) -> str:
            other_length = f"(length({value}) != {target.arguments[1]}) * {RANGE}"
            rest = numbers.fault(value) if numbers.fault else f"{FINE}"
            return f"toUInt8(greatest({other_length}, {rest}))"

        return retargeted(Conversion(numbers.target, numbers.narrow, fault), target.text)

    def _map(self, natural: TypeNode, target: TypeNode) -> Conversion:
        key = self._item(natural.inner(0), target.inner(0))
        item = self._item(natural.inner(1), target.inner(1))
        target_text = f"Map({key.target}, {item.target})"

        def narrow(value: str) -> str:
            keys, items = f"mapKeys({value})", f"mapValues({value})"
            keys = self.lambdas.each(key.narrow, keys) if key.narrow else keys
            items = self.lambdas.each(item.narrow, items) if item.narrow else items
            return f"CAST(mapFromArrays({keys}, {items}), {literal(target_text)})"

        unchanged = key.narrow is None and item.narrow is None
        fault = self.lambdas.greatest_of_map(key.fault, item.fault)
        return Conversion(target_text, None if unchanged else narrow, fault)

    def _tuple(self, natural: TypeNode, target: TypeNode) -> Conversion:
        have, wanted = natural.elements(), target.elements()
        by_name = all(name for name, _ in (*have, *wanted))
        if not by_name and len(have) != len(wanted):
            return _mismatch(target.text)
        places = {name: place for place, (name, _) in enumerate(have)}
        if by_name:
            names = {name for name, _ in wanted}
            self.strange += [name for name, _ in have if name not in names]
        sources = [places.get(w[0]) if by_name else place for place, w in enumerate(wanted)]
        parts = [
            None if source is None else self._element(have[source][1], wanted_type)
            for source, (_, wanted_type) in zip(sources, wanted, strict=True)
        ]
        targets = [
            (identifier(name) + " " if name else "") + (part.target if part else node.text)
            for part, (name, node) in zip(parts, wanted, strict=True)
        ]
        target_text = f"Tuple({', '.join(targets)})"

        def narrow(value: str) -> str:
            values = [
                f"CAST({default_of(node.text)}, {literal(node.text)})"
                if part is None or source is None
                else part.value(f"tupleElement({value}, {source + 1})")
                for source, part, (_, node) in zip(sources, parts, wanted, strict=True)
            ]
            return f"CAST(tuple({', '.join(values)}), {literal(target_text)})"

        tests = [
            of_element(part.fault, source)
            for source, part in zip(sources, parts, strict=True)
            if part is not None and source is not None
        ]
        same_names = [name for name, _ in have] == [name for name, _ in wanted]
        unchanged = same_names and all(part is not None and part.narrow is None for part in parts)
        return Conversion(target_text, None if unchanged else narrow, greatest(*tests))


def required(made: Conversion) -> Conversion:
    """The same of a value that must be there: null is a fault whatever the target takes."""

    def fault(value: str) -> str:
        rest = f"{FINE}" if made.fault is None else made.fault(value)
        return f"if(isNull({value}), {NULL}, {rest})"

    return replace(made, fault=fault, quick=None)


def has_enum(type_text: str) -> bool:
    """Whether a value of this type may be one that has no text."""
    return "Enum8(" in type_text or "Enum16(" in type_text


def _are_strangers(natural: TypeNode, target: TypeNode) -> bool:
    """Whether these are records that have no field in common."""
    if not natural.name == target.name == "Tuple":
        return False
    have, wanted = ({name for name, _ in one.elements()} for one in (natural, target))
    return all(have) and all(wanted) and have.isdisjoint(wanted)


def _scalar(pair: Pair, target: str) -> Conversion:
    def fault(value: str) -> str:
        assert pair.unfit is not None
        kind = (
            f"{RANGE}" if pair.unread is None else f"if({pair.unread(value)}, {MISMATCH}, {RANGE})"
        )
        return f"if({pair.unfit(value)}, {kind}, {FINE})"

    return Conversion(target, pair.narrow, None if pair.unfit is None else fault, pair.unfit)


def _mismatch(target: str) -> Conversion:
    """No value of the natural type fits. The default stands where nothing is used of it."""

    def narrow(value: str) -> str:
        return f"CAST({default_of(target)}, {literal(target)})"

    # ignore() keeps the code from being a constant, whose column the engine would not fill.
    return Conversion(target, narrow, lambda value: f"toUInt8({MISMATCH} + ignore({value}))")


def _after(inner: Conversion, first: Expression) -> Conversion:
    """The conversion of what `first` makes of a value."""
    fault = inner.fault
    return Conversion(
        inner.target,
        lambda value: inner.value(first(value)),
        None if fault is None else lambda value: fault(first(value)),
    )


def retargeted(inner: Conversion, target: str) -> Conversion:
    """The same value, cast to a type that holds all of its values."""
    return Conversion(
        target,
        lambda value: f"CAST({inner.value(value)}, {literal(target)})",
        inner.fault,
        inner.quick,
    )
