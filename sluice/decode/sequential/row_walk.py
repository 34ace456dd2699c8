"""Where a RowBinary row ends: the length of every value follows from its type and its bytes."""

from __future__ import annotations

from collections.abc import Callable

from sluice.decode.engine.types import GEO_TYPES, TypeNode, parse_type, size_of
from sluice.decode.sequential.rows import NotRowsError, UnknownLengthError, Walk

#: Over the value that begins at a place of a message, see rows.Walk: where it ends.
_Step = Callable[[bytes, int], int]

#: Types that are nested deeper are left to the engine: each level is two calls of a function.
_DEPTH_MAX = 100


def row_walk(types: tuple[str, ...]) -> Walk:
    """The way over a row of columns of these types."""
    step = _in_turn([parse_type(text) for text in types])
    return lambda value, at, faults: step(value, at)


def _in_turn(nodes: list[TypeNode], depth: int = 0) -> _Step:
    """Over values of these types, one behind the other. Those of a known size are one jump."""
    jumps: list[tuple[int, _Step | None]] = []
    before = 0
    for node in nodes:
        size = size_of(node)
        if size is None:
            jumps.append((before, None if node.name == "String" else _step(node, depth + 1)))
            before = 0
        else:
            before += size

    if len(jumps) == 1 and jumps[0][0] == before == 0:
        # One value, as of an array: no need to go through a loop for it.
        return jumps[0][1] or _string

    def step(value: bytes, at: int) -> int:
        for size, behind in jumps:
            at += size
            if behind is not None:
                at = behind(value, at)
            elif value[at] < 0x80:
                # A short string: nothing is as frequent.
                at += 1 + value[at]
            else:
                at = _string(value, at)
        return at + before

    return step


def _step(node: TypeNode, depth: int) -> _Step:
    """Over a value of a type whose values are not all equally long."""
    if node.name in GEO_TYPES:
        return _in_turn([parse_type(GEO_TYPES[node.name])], depth)
    parts = node.parts()
    if not parts or depth > _DEPTH_MAX:
        return _unknown
    together = _in_turn(parts, depth)
    if node.name == "Nullable":
        return _nullable(together)
    return _items(parts, together) if node.name in ("Array", "Map", "Nested") else together


def _unknown(value: bytes, at: int) -> int:
    raise UnknownLengthError


def _string(value: bytes, at: int) -> int:
    length = value[at]
    if length < 0x80:
        return at + 1 + length
    length, at = _length(value, at)
    return at + length


def _length(value: bytes, at: int) -> tuple[int, int]:
    """The length that stands at this place, and the place behind it."""
    length = 0
    for shift in range(0, 63, 7):
        byte = value[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, at
    raise UnknownLengthError


def _nullable(inner: _Step) -> _Step:
    def step(value: bytes, at: int) -> int:
        return at + 1 if value[at] else inner(value, at + 1)

    return step


def _items(parts: list[TypeNode], inner: _Step) -> _Step:
    sizes = [size_of(part) for part in parts]
    size = sum(size for size in sizes if size) if None not in sizes else None

    def step(value: bytes, at: int) -> int:
        count = value[at]
        at += 1
        if count >= 0x80:
            count, at = _length(value, at - 1)
        if size is not None:
            return at + count * size
        # Every item takes a byte at least.
        if count > len(value) - at:
            raise NotRowsError
        for _ in range(count):
            at = inner(value, at)
        return at

    return step
