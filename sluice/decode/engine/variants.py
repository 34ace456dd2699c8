"""Which of the types of a Variant takes a value of another type, whatever the value is."""

from __future__ import annotations

from sluice.decode.engine.pair import integer_bounds
from sluice.decode.engine.types import (
    TypeNode,
    decimal_shape,
    meant_type,
    parse_type,
    scale_of,
    size_of,
)

_FLOATS = ("BFloat16", "Float32", "Float64")
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
    if target.name in _FLOATS and natural.name in _FLOATS:
        return _FLOATS.index(target.name) >= _FLOATS.index(natural.name)
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
