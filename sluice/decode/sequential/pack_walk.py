"""The values of MsgPack messages, walked through for all messages of a piece at once.

The engine reads MsgPack integers into a column's width without looking: 300 becomes 44 in a
UInt8, 2^64-1 becomes -1 in an Int64, -1 becomes 2^64-1 in a UInt64. Columns are read 64 bits
wide; what is left are the two last cases, and they are found here, by column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.types import TypeNode
from sluice.decode.sequential.row_walk import BEYOND, Step

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: By first byte: bytes up to where the value's content or its items begin; how many bytes right
#: behind the first one say a length or count; whether the count is of items (1), pairs (2).
_HEAD = np.zeros(256, np.int64)
_LENGTH = np.zeros(256, np.int64)
_ITEMS = np.zeros(256, np.int64)
#: Lengths and counts that the first byte says itself.
_OWN = np.zeros(256, np.int64)
#: Binary and extensions; and what of 16 bytes of content comes behind `_HEAD`.
_IS_BINARY, _IS_TEXT = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
_OF_16 = np.full(256, 16, np.int64)
_INVALID = 0xC1
NIL = 0xC0


def _fill_tables() -> None:
    _HEAD[:] = 1
    _OWN[0x80:0x90], _ITEMS[0x80:0x90] = np.arange(16), 2
    _OWN[0x90:0xA0], _ITEMS[0x90:0xA0] = np.arange(16), 1
    _OWN[0xA0:0xC0] = np.arange(32)
    # bin 8, 16, 32; ext 8, 16, 32 (a byte of type behind the length); str 8, 16, 32.
    for first, extra in ((0xC4, 0), (0xC7, 1), (0xD9, 0)):
        for step in range(3):
            _LENGTH[first + step] = 1 << step
            _HEAD[first + step] = 1 + (1 << step) + extra
    # Floats, unsigned and signed integers of 8 to 64 bits.
    for first, sizes in ((0xCA, (4, 8)), (0xCC, (1, 2, 4, 8)), (0xD0, (1, 2, 4, 8))):
        for step, size in enumerate(sizes):
            _HEAD[first + step] = 1 + size
    # fixext 1 to 16, with a byte of type.
    for step in range(5):
        _HEAD[0xD4 + step] = 2 + (1 << step)
    _IS_TEXT[0xA0:0xC0] = _IS_TEXT[0xD9:0xDC] = True
    _IS_BINARY[0xC4:0xCA] = _IS_BINARY[0xD4:0xD9] = True
    # The content of fixext is in its head; only fixext 16 is a UUID's.
    _OF_16[0xD4:0xD8], _OF_16[0xD8] = -1, 0
    # array 16 and 32, map 16 and 32.
    for first, items in ((0xDC, 1), (0xDE, 2)):
        for step in (0, 1):
            _LENGTH[first + step] = 2 << step
            _HEAD[first + step] = 1 + (2 << step)
            _ITEMS[first + step] = items


_fill_tables()
#: The same by first byte: head, bytes of a length, own length, items; a head of 0 is invalid.
_SHAPES = [
    (0 if first == _INVALID else head, *rest)
    for first, (head, *rest) in enumerate(
        zip(*(table.tolist() for table in (_HEAD, _LENGTH, _OWN, _ITEMS)), strict=True)
    )
]


@dataclass(frozen=True, slots=True)
class Kinds:
    """What columns may hold: column x first byte, True if the engine might take the value.

    :param outer: as the column's own value.
    :param inner: within its arrays and maps.
    """

    outer: Mask
    inner: Mask


def kinds_of(types: tuple[TypeNode, ...]) -> Kinds:
    """Of columns that the engine reads in these types."""
    outer = np.zeros((len(types), 256), np.bool_)
    inner = np.zeros((len(types), 256), np.bool_)
    for column, node in enumerate(types):
        _allow(outer[column], node)
        waiting = _parts(node)
        while waiting:
            part = waiting.pop()
            _allow(inner[column], part)
            waiting += _parts(part)
    return Kinds(outer, inner)


def _parts(node: TypeNode) -> list[TypeNode]:
    if node.name == "Array":
        return [node.inner()]
    return [node.inner(0), node.inner(1)] if node.name == "Map" else []


def _allow(table: Mask, node: TypeNode) -> None:
    """The first bytes of what a type takes; nil always."""
    while node.name in ("Nullable", "LowCardinality"):
        node = node.inner()
    table[NIL] = True
    if node.name == "Array":
        table[0x90:0xA0] = table[0xDC:0xDE] = True
    elif node.name == "Map":
        table[0x80:0x90] = table[0xDE:0xE0] = True
    elif node.name == "Float32":
        table[0xCA] = True
    elif node.name == "Float64":
        table[0xCB] = True
    elif node.name in ("Int64", "UInt64", "DateTime64") or _is_short_decimal(node):
        table[:0x80] = table[0xE0:] = table[0xC2:0xC4] = table[0xCC:0xD4] = True
    else:
        # Text and binary; extensions for a UUID.
        table[0xA0:0xC0] = table[0xC4:0xC7] = table[0xD9:0xDC] = True
        if node.name == "UUID":
            table[0xC7:0xCA] = table[0xD4:0xD9] = True


def _is_short_decimal(node: TypeNode) -> bool:
    return node.name == "Decimal" and int(node.arguments[0]) <= 18


@dataclass(frozen=True, slots=True)
class Walked:
    """What was found in some messages.

    :param broken: not exactly as many values as there are columns.
    :param negative: message x column: a negative integer somewhere in it.
    :param huge: message x column: an integer of 2^63 or more somewhere in it.
    :param nil: message x column: nil somewhere in it.
    :param other_kind: of each message, the first column in which a value is of a kind that the
        column does not take; -1: none.
    :param odd: message x column: somewhere in it binary or an extension that is not 16 bytes
        long, or text of another length than a UUID's.
    """

    broken: Mask
    other_kind: Positions
    negative: Mask
    huge: Mask
    nil: Mask
    odd: Mask


def walk(text: Bytes, begins: Positions, ends: Positions, kinds: Kinds) -> Walked:
    """Go through all values of these messages."""
    count, columns = len(begins), len(kinds.outer)
    flags = [np.zeros((count, columns), np.bool_) for _ in range(4)]
    found = Walked(np.zeros(count, np.bool_), np.full(count, -1, np.int64), *flags)
    alive = np.arange(count)
    at = begins.copy()
    column = np.zeros(count, np.int64)
    # Values that are still to come within the current column.
    left = np.ones(count, np.int64)
    # Whether the value is a column's own, not one within an array or a map.
    is_own = np.ones(count, np.bool_)
    while len(alive):
        ended = at >= ends[alive]
        found.broken[alive[ended]] = True
        alive, at, column, left, is_own = _kept(~ended, alive, at, column, left, is_own)
        if not len(alive):
            break
        first = text[at]
        takes = np.where(is_own, kinds.outer[column, first], kinds.inner[column, first])
        strange = np.flatnonzero(~takes & (found.other_kind[alive] < 0))
        found.other_kind[alive[strange]] = column[strange]
        size, items = _sizes(text, at, first, ends[alive])
        _note(found, text, at, first, alive, column)
        content = size - _HEAD[first]
        odd = _IS_BINARY[first] & (content != _OF_16[first])
        odd |= _IS_TEXT[first] & (content != 32) & (content != 36)
        some = np.flatnonzero(odd)
        found.odd[alive[some], column[some]] = True
        broken = (first == _INVALID) | (size > ends[alive] - at) | (items > ends[alive] - at - size)
        found.broken[alive[broken]] = True
        at, left = at + size, left - 1 + items
        is_own = left == 0
        column = column + is_own
        left = np.where(is_own, 1, left)
        done = column == columns
        found.broken[alive[done & ~broken & (at != ends[alive])]] = True
        keep = ~(done | broken)
        alive, at, column, left, is_own = _kept(keep, alive, at, column, left, is_own)
    return found


def row_step(columns: int) -> Step:
    """The way over one row of so many values, see row_walk."""

    def step(text: Bytes, at: Positions, ends: Positions) -> Positions:
        at = at.copy()
        alive = np.flatnonzero(at < ends)
        at[at >= ends] = BEYOND
        # Values that are still to come, those within arrays and maps too.
        left = np.full(len(alive), columns, np.int64)
        while len(alive):
            here, end = at[alive], ends[alive]
            first = text[here]
            size, items = _sizes(text, here, first, end)
            behind, left = here + size, left - 1 + items
            broken = (first == _INVALID) | (behind > end) | (left > end - behind)
            at[alive] = np.where(broken, BEYOND, behind)
            goes_on = ~broken & (left > 0)
            alive, left = alive[goes_on], left[goes_on]
        return at

    return step


def row_ends(columns: int, text: bytes, begin: int, end: int) -> list[int] | None:
    """Where the rows of so many values end, of one message; None: it is no whole rows."""
    found: list[int] = []
    at, left = begin, columns
    while at < end:
        head, width, length, items = _SHAPES[text[at]]
        if not head or (width and at + width >= end):
            return None
        if width:
            length = int.from_bytes(text[at + 1 : at + 1 + width], "big")
        at += head + (0 if items else length)
        left += items * length - 1
        # Each value that is still to come takes a byte at least.
        if at > end or left > end - at:
            return None
        if not left:
            found.append(at)
            left = columns
    return found


def _kept(
    mask: Mask, alive: Positions, at: Positions, column: Positions, left: Positions, is_own: Mask
) -> tuple[Positions, Positions, Positions, Positions, Mask]:
    if mask.all():
        return alive, at, column, left, is_own
    return alive[mask], at[mask], column[mask], left[mask], is_own[mask]


def _sizes(
    text: Bytes, at: Positions, first: Bytes, ends: Positions
) -> tuple[Positions, Positions]:
    """Of each value: its own bytes without items, and its items."""
    length, head = _OWN[first], _HEAD[first]
    widths = _LENGTH[first]
    if widths.any():
        length = length.copy()
        for width in (1, 2, 4):
            some = np.flatnonzero((widths == width) & (at + width < ends))
            value = np.zeros(len(some), np.int64)
            for step in range(width):
                value = value << 8 | text[at[some] + 1 + step]
            length[some] = value
            # A length that is not all there: longer than any message.
            cut = (widths == width) & (at + width >= ends)
            length[cut] = 2**40
    per_item = _ITEMS[first]
    size = np.where(per_item > 0, head, head + length)
    return size, per_item * length


def _note(
    found: Walked, text: Bytes, at: Positions, first: Bytes, alive: Positions, column: Positions
) -> None:
    """Integers that 64 bits of one kind cannot hold."""
    signed = (first >= 0xD0) & (first <= 0xD3)
    widest = first == 0xCF
    negative = first >= 0xE0
    if signed.any() or widest.any():
        top = text[np.minimum(at + 1, len(text) - 1)] >= 0x80
        negative = negative | (signed & top)
        some = np.flatnonzero(widest & top)
        found.huge[alive[some], column[some]] = True
    some = np.flatnonzero(negative)
    found.negative[alive[some], column[some]] = True
    some = np.flatnonzero(first == NIL)
    found.nil[alive[some], column[some]] = True


def nil_in_container(
    value: bytes, types: tuple[TypeNode, ...], only_keys: bool
) -> tuple[int, bool] | None:
    """Where a message of sound structure says nil for an Array, a Map or the key of one: the
    column, and whether it is a key. The engine takes nothing for it, silently."""
    at = 0
    for column, node in enumerate(types):
        if at >= len(value):
            return None
        at, is_key = _alone(value, at, node, False, only_keys)
        if at < 0:
            return column, is_key
    return None


def _alone(
    value: bytes, at: int, node: TypeNode, is_key: bool, only_keys: bool
) -> tuple[int, bool]:
    """Behind the value at this place; -1: nil where the engine would take nothing for it."""
    while node.name in ("Nullable", "LowCardinality"):
        node, is_key = node.inner(), False
    first = value[at]
    is_container = node.name in ("Array", "Map")
    if first == NIL and (is_key or (is_container and not only_keys)):
        return -1, is_key
    width = int(_LENGTH[first])
    length = int.from_bytes(value[at + 1 : at + 1 + width], "big") if width else int(_OWN[first])
    items = int(_ITEMS[first])
    at += int(_HEAD[first]) + (0 if items else length)
    if not items:
        return at, False
    if not is_container:
        return len(value), False
    inner = (
        [(node.inner(0), False)]
        if node.name == "Array"
        else [
            (node.inner(0), True),
            (node.inner(1), False),
        ]
    )
    if items != len(inner):
        return len(value), False
    for _ in range(length):
        for part, part_is_key in inner:
            if at >= len(value):
                return at, False
            at, found_key = _alone(value, at, part, part_is_key, only_keys)
            if at < 0:
                return -1, found_key
    return at, False
