"""One envelope, byte by byte: what walk.c accepts, in Python, and the words for what it does not.

Stricter than the official parsers, which take the last of two values, cut numbers to the
field's size and treat a field of the wrong type as unknown: here all of these are faults.
Accepted in any order and any length of numbers up to 64 bits; unknown fields are skipped unless
the table refuses them. Strings may hold any bytes, as ClickHouse's do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from sluice.decode.messages.fault import CANNOT_PARSE, OUT_OF_RANGE, UNKNOWN_FIELD, Fault
from sluice.producer.wire import (
    BINDINGS,
    BLOCK,
    BLOCK_BYTES,
    FIXED32,
    FIXED64,
    LENGTH,
    LIMITS,
    MILLISECONDS,
    ROW,
    SCHEMA_HASHCODE,
    SHARD,
    SQL,
    TABLE,
    VALUE,
    VARINT,
    WIRE_TYPES,
    Kind,
)

#: Lists in lists; the official parsers stop at 100 messages in messages.
LIST_DEPTH_MAX = 90

_REQUEST_TYPES = {
    SHARD: LENGTH,
    TABLE: LENGTH,
    BINDINGS: LENGTH,
    BLOCK: LENGTH,
    SCHEMA_HASHCODE: VARINT,
}
_VALUE_TYPES = {int(kind): wire_type for kind, wire_type in WIRE_TYPES.items()}
_KINDS = {int(kind): kind for kind in Kind}

#: A value and its kind; of a list, the values in it. Without a kind: it is at fault.
PlainValue = tuple[Kind | None, object]


@dataclass(slots=True)
class PlainRequest:
    """What an envelope says. `sql` and `rows` mean nothing where there is a `block`."""

    shard: bytes = b""
    table: bytes = b""
    sql: bytes = b""
    rows: list[list[PlainValue]] = field(default_factory=list)
    block: bytes | None = None
    schema_hashcode: int = 0


class _RefusedError(Exception):
    """Why the message is refused, as a fault."""

    def __init__(self, error: str, reason: str = CANNOT_PARSE) -> None:
        super().__init__(error)
        self.fault = Fault(reason, error[:300])


def read_plain(message: bytes, refuse_unknown: bool) -> PlainRequest | Fault:
    """What the message says, or why it is no envelope."""
    try:
        return _Reader(message, refuse_unknown).request()
    except _RefusedError as error:
        return error.fault


class _Reader:
    def __init__(self, raw: bytes, refuse_unknown: bool) -> None:
        self._raw = raw
        self._refuse_unknown = refuse_unknown

    def request(self) -> PlainRequest:
        request = PlainRequest()
        payloads = 0
        seen: set[int] = set()
        name = "SQLBatchRequest"
        # All of them before any of their contents: what is cut off costs no reading of rows.
        fields = []
        for found in self._fields(0, len(self._raw), name, _REQUEST_TYPES):
            _once(seen, found[0], name)
            fields.append(found)
        for number, begin, end in fields:
            if number == SHARD:
                request.shard = self._raw[begin:end]
            elif number == TABLE:
                request.table = self._raw[begin:end]
            elif number == SCHEMA_HASHCODE:
                request.schema_hashcode = _signed(self._number(begin, end)[0])
            elif number == BINDINGS:
                payloads += 1
                request.sql, request.rows = self._bindings(begin, end)
            else:
                payloads += 1
                request.block = self._block(begin, end)
        if payloads != 1:
            raise _RefusedError(
                "the message holds no rows: neither nucolumnarEncoding nor clickHouseEncoding"
                if not payloads
                else "the message holds both nucolumnarEncoding and clickHouseEncoding"
            )
        return request

    def _bindings(self, begin: int, end: int) -> tuple[bytes, list[list[PlainValue]]]:
        sql, rows = b"", list[list[PlainValue]]()
        seen: set[int] = set()
        name = "SqlWithBatchBindings"
        for number, first, last in self._fields(begin, end, name, {SQL: LENGTH, ROW: LENGTH}):
            if number == SQL:
                _once(seen, number, name)
                sql = self._raw[first:last]
            elif first == last:
                # At two bytes a row they would be the dearest to keep.
                raise _RefusedError(f"row {len(rows)} has no values")
            else:
                rows.append(self._values(first, last, "DataBindingList", 0))
        return sql, rows

    def _block(self, begin: int, end: int) -> bytes:
        content = b""
        seen: set[int] = set()
        name = "ClickHouseNativeBlock"
        for number, first, last in self._fields(begin, end, name, {BLOCK_BYTES: LENGTH}):
            _once(seen, number, name)
            content = self._raw[first:last]
        return content

    def _values(self, begin: int, end: int, name: str, depth: int) -> list[PlainValue]:
        if depth > LIST_DEPTH_MAX:
            raise _RefusedError(f"lists in lists deeper than {LIST_DEPTH_MAX}")
        values: list[PlainValue] = []
        for _, first, last in self._fields(begin, end, name, {VALUE: LENGTH}):
            try:
                values.append(self._value(first, last, depth))
            except _RefusedError as error:
                values.append((None, error.fault))
        return values

    def _value(self, begin: int, end: int, depth: int) -> PlainValue:
        value: PlainValue | None = None
        for number, first, last in self._fields(begin, end, "ValueP", _VALUE_TYPES):
            if value is not None:
                raise _RefusedError("a ValueP holds two values")
            kind = _KINDS[number]
            value = kind, self._content(kind, first, last, depth)
        if value is None:
            raise _RefusedError("a ValueP holds no value of a known kind")
        return value

    def _content(self, kind: Kind, begin: int, end: int, depth: int) -> object:
        if kind is Kind.LIST:
            return self._values(begin, end, "ListValueP", depth + 1)
        if kind is Kind.STRING:
            return self._raw[begin:end]
        if kind is Kind.DOUBLE:
            return struct.unpack_from("<d", self._raw, begin)[0]
        if kind is Kind.TIMESTAMP:
            milliseconds = 0
            seen: set[int] = set()
            for number, first, last in self._fields(
                begin, end, "TimestampP", {MILLISECONDS: VARINT}
            ):
                _once(seen, number, "TimestampP")
                milliseconds = self._number(first, last)[0]
            return milliseconds
        bits, _ = self._number(begin, end)
        if kind in (Kind.NULL, Kind.BOOL):
            if bits > (kind is Kind.BOOL):
                raise _RefusedError(f"{bits} is no {kind.field}", OUT_OF_RANGE)
            return bool(bits)
        number = _signed(bits) if kind in (Kind.INT, Kind.LONG) else bits
        low, high = LIMITS[kind]
        if not low <= number <= high:
            raise _RefusedError(f"{number} does not fit {kind.field}", OUT_OF_RANGE)
        return number

    def _fields(
        self, begin: int, end: int, name: str, types: dict[int, int]
    ) -> Iterator[tuple[int, int, int]]:
        """The known fields of a message: number, and where the content stands."""
        position = begin
        while position < end:
            tag, position = self._number(position, end)
            number, wire_type = tag >> 3, tag & 7
            if not number or number >= 1 << 29:
                raise _RefusedError(f"{number} is no field number, in {name}")
            first, position = self._content_of(position, end, wire_type, name)
            expected = types.get(number)
            if expected == wire_type:
                yield number, first, position
            elif expected is not None:
                raise _RefusedError(f"field {number} of {name} has wire type {wire_type}")
            elif self._refuse_unknown:
                raise _RefusedError(f"{name} has no field {number}", UNKNOWN_FIELD)

    def _content_of(self, position: int, end: int, wire_type: int, name: str) -> tuple[int, int]:
        """Where a field's content begins and ends."""
        first = position
        if wire_type == VARINT:
            _, beyond = self._number(position, end)
        elif wire_type == LENGTH:
            size, first = self._number(position, end)
            beyond = first + size
        elif wire_type in (FIXED64, FIXED32):
            beyond = position + (8 if wire_type == FIXED64 else 4)
        else:
            raise _RefusedError(f"wire type {wire_type} is not used today, in {name}")
        if beyond > end:
            raise _RefusedError(f"{name} is cut off: a field ends beyond it")
        return first, beyond

    def _number(self, position: int, end: int) -> tuple[int, int]:
        if position < end and self._raw[position] < 0x80:
            return self._raw[position], position + 1
        value = shift = 0
        while position < end:
            symbol = self._raw[position]
            position += 1
            value |= (symbol & 0x7F) << shift
            if symbol < 0x80:
                if value >= 1 << 64:
                    break
                return value, position
            shift += 7
            if shift > 63:
                break
        else:
            raise _RefusedError("the message is cut off within a number")
        raise _RefusedError("a number has more than 64 bits")


def _once(seen: set[int], number: int, name: str) -> None:
    if number in seen:
        raise _RefusedError(f"field {number} of {name} is there twice")
    seen.add(number)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits
