"""The encoder of `SQLBatchRequest`: rows of Python values to the bytes of one message."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from sluice.producer.wire import (
    BINDINGS,
    BLOCK,
    BLOCK_BYTES,
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
    delimited,
    tag,
    varint,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Bound:
    """A value whose kind is said, not chosen: `Bound(Kind.INT, 5)`, not a long.

    :param value: None for NULL; milliseconds since 1970 or a datetime for TIMESTAMP; a sequence
        for LIST; str, or bytes as they are, for STRING.
    """

    kind: Kind
    value: object


#: What a binding may be. See `kind_of` for what each becomes.
Value = (
    None
    | bool
    | int
    | float
    | str
    | bytes
    | datetime
    | Decimal
    | UUID
    | Sequence["Value"]
    | Mapping["Value", "Value"]
    | Bound
)


@dataclass(frozen=True, slots=True)
class SQLBatchRequest:
    """One message: rows for one table.

    :param table: what the message names as its table; for routing.
    :param sql: `INSERT INTO t (a, b) VALUES (?, ?)`, or without columns: then the values are
        those of the table's first columns.
    :param rows: for each row one value for each `?`.
    :param native_block: a block in ClickHouse's Native format instead of `sql` and `rows`.
    """

    table: str
    sql: str = ""
    rows: Sequence[Sequence[Value]] = ()
    shard: str = ""
    schema_hashcode: int = 0
    native_block: bytes | None = None

    def encode(self) -> bytes:
        """The bytes of the message.

        :raises TypeError: a value has no kind.
        :raises ValueError: a number does not fit its kind, or `rows` and `native_block` are
            both given.
        """
        if self.native_block is None:
            rows = [b"".join([encode_value(value) for value in row]) for row in self.rows]
            bindings = [_text(SQL, self.sql), *(delimited(ROW, row) for row in rows)]
            payload = delimited(BINDINGS, b"".join(bindings))
        elif self.rows or self.sql:
            raise ValueError("a message holds either rows with their sql, or a native block")
        else:
            block = delimited(BLOCK_BYTES, self.native_block) if self.native_block else b""
            payload = delimited(BLOCK, block)
        head = _text(SHARD, self.shard) + _text(TABLE, self.table)
        return head + payload + encode_schema_hashcode(self.schema_hashcode)


def kind_of(value: Value) -> Kind:
    """The kind that a Python value gets.

    int: LONG, or ULONG above 2**63 - 1; datetime (with a time zone): TIMESTAMP; Decimal and
    UUID: STRING; list or tuple: LIST; dict: LIST of lists of key and value.

    :raises TypeError: there is none.
    """
    if isinstance(value, bool):
        return Kind.BOOL
    if isinstance(value, int):
        return Kind.LONG if value <= LIMITS[Kind.LONG][1] else Kind.ULONG
    kinds: tuple[tuple[Kind, type | tuple[type, ...]], ...] = (
        (Kind.NULL, type(None)),
        (Kind.DOUBLE, float),
        (Kind.STRING, (str, bytes, Decimal, UUID)),
        (Kind.TIMESTAMP, datetime),
        (Kind.LIST, (Sequence, Mapping)),
    )
    for kind, types in kinds:
        if isinstance(value, types):
            return kind
    raise TypeError(f"{type(value).__name__} is no value of a binding; say it as Bound(kind, …)")


def encode_value(value: Value) -> bytes:
    """A value as an element of a row or of a list."""
    if isinstance(value, Bound):
        kind, raw = value.kind, value.value
    else:
        kind, raw = kind_of(value), value
    return delimited(VALUE, encode_kind(kind, raw))


def encode_kind(kind: Kind, raw: object) -> bytes:
    """The field of a ValueP. A oneof's field is written even if it is zero or empty."""
    head = bytes([tag(kind, WIRE_TYPES[kind])])
    if kind in LIMITS:
        return head + varint(_integer(kind, raw))
    if kind is Kind.DOUBLE:
        if not isinstance(raw, float | int):
            raise TypeError(f"double_value cannot hold {raw!r}")
        return head + struct.pack("<d", raw)
    if kind in (Kind.NULL, Kind.BOOL):
        return head + varint(int(bool(raw)))
    if kind is Kind.STRING:
        content = raw if isinstance(raw, bytes) else str(raw).encode()
    elif kind is Kind.TIMESTAMP:
        milliseconds = _milliseconds(raw)
        content = bytes([tag(MILLISECONDS, VARINT)]) + varint(milliseconds) if milliseconds else b""
    else:
        content = b"".join([encode_value(item) for item in _items(raw)])
    return head + varint(len(content)) + content


def encode_schema_hashcode(value: int) -> bytes:
    """The field, absent if it is zero."""
    if not value:
        return b""
    return varint(tag(SCHEMA_HASHCODE, VARINT)) + varint(_integer(Kind.LONG, value))


def _text(field: int, text: str) -> bytes:
    """A string, absent if it is empty."""
    return delimited(field, text.encode()) if text else b""


def _integer(kind: Kind, raw: object) -> int:
    low, high = LIMITS[kind]
    if not isinstance(raw, int):
        raise TypeError(f"{kind.field} cannot hold {raw!r}")
    if not low <= raw <= high:
        raise ValueError(f"{raw} does not fit {kind.field}")
    return raw


def _milliseconds(raw: object) -> int:
    if isinstance(raw, datetime):
        if raw.tzinfo is None:
            raise ValueError(f"{raw!r} has no time zone; a timestamp is a moment")
        raw = (raw - _EPOCH) // _MILLISECOND
    return _integer(Kind.ULONG, raw)


def _items(raw: object) -> Sequence[Value]:
    if isinstance(raw, Mapping):
        return [list(pair) for pair in raw.items()]
    if isinstance(raw, Sequence) and not isinstance(raw, str | bytes):
        return raw
    raise TypeError(f"list_value cannot hold {raw!r}")
