"""The message `SQLBatchRequest` as it stands on the wire (proto3): fields, kinds, tags.

message SQLBatchRequest {
  string shard = 1;
  string table = 2;
  oneof value {
    SqlWithBatchBindings nucolumnarEncoding = 3;
    ClickHouseNativeBlock clickHouseEncoding = 4;
  }
  int64 schema_hashcode = 5;
}
message SqlWithBatchBindings { string sql = 1; repeated DataBindingList batch_bindings = 2; }
message DataBindingList { repeated ValueP values = 1; }
message ClickHouseNativeBlock { bytes block = 1; }
message ValueP { oneof value { … one field for each Kind … } }
message TimestampP { uint64 milliseconds = 1; }
message ListValueP { repeated ValueP value = 1; }
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import IntEnum

#: Fields of SQLBatchRequest.
SHARD, TABLE, BINDINGS, BLOCK, SCHEMA_HASHCODE = 1, 2, 3, 4, 5
#: Fields of SqlWithBatchBindings.
SQL, ROW = 1, 2
#: The only field of DataBindingList and of ListValueP, of ClickHouseNativeBlock, of TimestampP.
VALUE = BLOCK_BYTES = MILLISECONDS = 1

#: Wire types.
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class Kind(IntEnum):
    """What a ValueP holds; the number is its field."""

    NULL = 1
    INT = 2
    LONG = 3
    UINT = 4
    ULONG = 5
    DOUBLE = 6
    STRING = 7
    BOOL = 8
    TIMESTAMP = 9
    LIST = 10

    @property
    def field(self) -> str:
        """Its name in the .proto file."""
        if self in (Kind.TIMESTAMP,):
            return "timestamp"
        return f"{self.name.lower()}_value"


WIRE_TYPES = dict.fromkeys(Kind, VARINT) | {
    Kind.DOUBLE: FIXED64,
    Kind.STRING: LENGTH,
    Kind.TIMESTAMP: LENGTH,
    Kind.LIST: LENGTH,
}

#: The smallest and the greatest number of each kind of integers.
LIMITS = {
    Kind.INT: (-(2**31), 2**31 - 1),
    Kind.LONG: (-(2**63), 2**63 - 1),
    Kind.UINT: (0, 2**32 - 1),
    Kind.ULONG: (0, 2**64 - 1),
}


def tag(field: int, wire_type: int) -> int:
    """The number before a field's value; one byte for all fields of these messages."""
    return field << 3 | wire_type


def varint(value: int) -> bytes:
    """LEB128 of a number; a negative one as 64 bits in two's complement."""
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    value &= 0xFFFFFFFFFFFFFFFF
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def delimited(field: int, content: bytes) -> bytes:
    """A field of strings, bytes or messages."""
    return varint(tag(field, LENGTH)) + varint(len(content)) + content


def schema_hashcode(columns: Iterable[tuple[str, str]]) -> int:
    """Sluice's hash of a table's columns: the first 8 bytes of the SHA-256 of "name type" lines,
    big endian, signed.

    The hash of eBay's loader cannot be computed from what is published; any other number that
    producers agree on can be named in the table's options.

    :param columns: names and types of the columns that messages may fill, in the table's order.
    """
    text = "".join(f"{name} {type_text}\n" for name, type_text in columns)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
