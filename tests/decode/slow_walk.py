"""The walk through a message in Python, for the tests to compare structure.c with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sluice.decode.schema.structure import (
    AvroKind,
    AvroTables,
    Code,
    Positions,
    ProtobufKind,
    ProtobufTables,
    Results,
)

#: As structure.c has them.
DEPTH_MAX = 64
EMPTY_ITEMS_MAX = 4096
FIELD_NUMBER_MAX = 536870911
#: By ProtobufKind.
WIRE_TYPES = (0, 0, 0, 0, 0, 1, 5, 2, 2, 2)


class _BrokenError(Exception):
    """The walk ended; `where` of the walk says where."""

    def __init__(self, code: Code) -> None:
        self.code = code


@dataclass(slots=True)
class _Walk:
    text: bytes
    at: int
    end: int
    where: int = 0
    unknown: list[tuple[int, int]] = field(default_factory=list)
    comes_again: bool = False
    empty_items_left: int = field(init=False)

    def __post_init__(self) -> None:
        self.empty_items_left = EMPTY_ITEMS_MAX + self.end - self.at

    def varint(self) -> int:
        result = shift = 0
        while shift < 70:
            if self.at == self.end:
                raise _BrokenError(Code.TRUNCATED)
            byte = self.text[self.at]
            self.at += 1
            if shift == 63 and byte != 1:
                raise _BrokenError(Code.VARINT)
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
        raise _BrokenError(Code.VARINT)

    def long(self) -> int:
        raw = self.varint()
        return (raw >> 1) ^ -(raw & 1)

    def skip(self, length: int) -> None:
        if length < 0 or length > self.end - self.at:
            raise _BrokenError(Code.TRUNCATED)
        self.at += length

    def fail(self, is_bad: bool, code: Code, where: int | None = None) -> None:
        if is_bad:
            if where is not None:
                self.where = where
            raise _BrokenError(code)


def check_avro_slowly(
    text: bytes, begins: Positions, ends: Positions, tables: AvroTables
) -> Results:
    """The rules of `check_avro` in Python."""
    nodes = [tuple(node) for node in tables.nodes.tolist()]
    children = tables.children.tolist()
    results = np.zeros(len(begins), np.int64)
    for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        walk = _Walk(text, begin, end)
        try:
            _avro(walk, nodes, children, 0, 0)
            if walk.at != walk.end:
                walk.where = 0
                raise _BrokenError(Code.TRAILING)
        except _BrokenError as error:
            results[index] = error.code + 256 * walk.where
    return results


def split_avro_slowly(text: bytes, rows: int, tables: AvroTables) -> tuple[int, Positions]:
    """The rules of `split_avro` in Python."""
    nodes = [tuple(node) for node in tables.nodes.tolist()]
    children = tables.children.tolist()
    ends = np.zeros(rows, np.int64)
    walk = _Walk(text, 0, len(text))
    try:
        for row in range(rows):
            _avro(walk, nodes, children, 0, 0)
            ends[row] = walk.at
    except _BrokenError as error:
        return error.code + 256 * walk.where, ends
    return (0 if walk.at == walk.end else int(Code.TRAILING)), ends


def _avro(
    walk: _Walk, nodes: list[tuple[int, ...]], children: list[int], node: int, depth: int
) -> None:
    kind, a, b = nodes[node]
    walk.fail(depth > DEPTH_MAX, Code.DEPTH)
    if kind == AvroKind.NULL:
        return
    if kind == AvroKind.RECORD:
        for child in children[a : a + b]:
            _avro(walk, nodes, children, child, depth + 1)
        return
    walk.where = node
    if kind == AvroKind.REFUSED_NULL:
        raise _BrokenError(Code.NULL_REFUSED)
    if kind == AvroKind.BOOLEAN:
        walk.skip(1)
        walk.fail(walk.text[walk.at - 1] > 1, Code.RANGE)
    elif kind == AvroKind.INT:
        walk.fail(not a <= walk.long() <= b, Code.RANGE)
    elif kind == AvroKind.LONG:
        walk.long()
    elif kind == AvroKind.FIXED:
        walk.skip(a)
    elif kind == AvroKind.BYTES:
        length = walk.long()
        walk.fail(length < 0, Code.TRUNCATED)
        walk.fail(length < a or 0 <= b < length, Code.RANGE)
        walk.skip(length)
    elif kind == AvroKind.ENUM:
        walk.fail(not 0 <= walk.long() < a, Code.SYMBOL)
    elif kind == AvroKind.UNION:
        branch = walk.long()
        walk.fail(not 0 <= branch < b, Code.BRANCH)
        _avro(walk, nodes, children, children[a + branch], depth + 1)
    else:
        _avro_blocks(walk, nodes, children, node, depth)


def _avro_blocks(
    walk: _Walk, nodes: list[tuple[int, ...]], children: list[int], node: int, depth: int
) -> None:
    kind, item, _ = nodes[node]
    while count := walk.long():
        stop = None
        if count < 0:
            walk.fail(count == -(2**63), Code.COUNT, node)
            count, size = -count, walk.long()
            walk.fail(size < 0 or size > walk.end - walk.at, Code.TRUNCATED)
            stop = walk.at + size
        walk.fail(count > walk.end - walk.at + walk.empty_items_left, Code.COUNT, node)
        begin = walk.at
        for _ in range(count):
            if kind == AvroKind.MAP:
                walk.skip(walk.long())
            _avro(walk, nodes, children, item, depth + 1)
        walk.empty_items_left -= max(0, count - (walk.at - begin))
        walk.fail(stop is not None and stop != walk.at, Code.COUNT, node)
        walk.fail(walk.empty_items_left < 0, Code.COUNT, node)


def check_protobuf_slowly(
    text: bytes, begins: Positions, ends: Positions, tables: ProtobufTables, refuses_unknown: bool
) -> tuple[Results, list[tuple[int, int]]]:
    """The rules of `check_protobuf` in Python."""
    found: dict[tuple[int, int], None] = {}
    rows = tables.fields.tolist()
    types = [
        {row[0]: tuple(row) for row in rows[first : first + count]}
        for first, count in tables.types.tolist()
    ]
    walker = _ProtobufWalker(types, tables.enums.tolist(), refuses_unknown)
    results = np.zeros(len(begins), np.int64)
    for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        walk = _Walk(text, begin, end)
        try:
            walker.message(walk, 0, 0)
            found |= dict.fromkeys(walk.unknown)
        except _BrokenError as error:
            results[index] = error.code + 256 * walk.where
    return results, list(found)


@dataclass(frozen=True, slots=True)
class _ProtobufWalker:
    types: list[dict[int, tuple[int, ...]]]
    enums: list[int]
    refuses_unknown: bool

    def message(self, walk: _Walk, message_type: int, depth: int) -> None:
        walk.fail(depth > DEPTH_MAX, Code.DEPTH)
        chosen: dict[int, int] = {}
        seen: set[int] = set()
        while walk.at != walk.end:
            tag = walk.varint()
            number, wire = tag >> 3, tag & 7
            if depth == 0:
                walk.where = 0 if number > FIELD_NUMBER_MAX else number
            walk.fail(not 1 <= number <= FIELD_NUMBER_MAX, Code.TAG)
            field = self.types[message_type].get(number)
            if field is None:
                walk.fail(self.refuses_unknown, Code.UNKNOWN)
                self.unknown(walk, wire)
                walk.unknown.append((walk.where, number))
                continue
            _, kind, is_repeated, oneof, _, _ = field
            walk.fail(kind == ProtobufKind.REFUSED, Code.REFUSED)
            if wire == 2 and (kind >= ProtobufKind.BYTES or is_repeated):
                outer = walk.comes_again
                walk.comes_again = not is_repeated and (outer or number in seen)
                walk.fail(walk.comes_again and kind == ProtobufKind.BYTES, Code.TWICE)
                seen.add(number)
                self.length(walk, field, depth)
                walk.comes_again = outer
            else:
                walk.fail(wire != WIRE_TYPES[kind], Code.WIRE)
                self.scalar(walk, field)
            if oneof:
                walk.fail(chosen.setdefault(oneof, number) != number, Code.ONEOF)

    def length(self, walk: _Walk, field: tuple[int, ...], depth: int) -> None:
        _, kind, _, _, reference, _ = field
        length = walk.varint()
        walk.fail(length > walk.end - walk.at, Code.TRUNCATED)
        if kind == ProtobufKind.BYTES:
            walk.at += length
            return
        outer, walk.end = walk.end, walk.at + length
        if kind == ProtobufKind.MESSAGE:
            self.message(walk, reference, depth + 1)
        else:
            while walk.at != walk.end:
                self.scalar(walk, field)
        walk.end = outer

    def scalar(self, walk: _Walk, field: tuple[int, ...]) -> None:
        _, kind, _, _, reference, count = field
        if kind in (ProtobufKind.FIXED64, ProtobufKind.FIXED32):
            walk.skip(8 if kind == ProtobufKind.FIXED64 else 4)
            return
        value = walk.varint()
        number = value - (value >> 63 << 64)
        if kind == ProtobufKind.UNSIGNED:
            walk.fail(value >= 2**32, Code.RANGE)
        elif kind == ProtobufKind.SIGNED:
            walk.fail(not -(2**31) <= number < 2**31, Code.RANGE)
        elif kind == ProtobufKind.BOOL:
            walk.fail(value > 1, Code.RANGE)
        elif kind == ProtobufKind.ENUM:
            walk.fail(number not in self.enums[reference : reference + count], Code.SYMBOL)

    def unknown(self, walk: _Walk, wire: int) -> None:
        if wire == 0:
            walk.varint()
        elif wire in (1, 5):
            walk.skip(8 if wire == 1 else 4)
        elif wire == 2:
            walk.skip(walk.varint())
        else:
            raise _BrokenError(Code.TAG)
