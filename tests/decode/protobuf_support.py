"""Protobuf messages, schemas and decoders for tests, and rows as the library sees them."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from sluice.core.load_spec import Column
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from sluice.decode.messages.framing import BYTES
from sluice.decode.schema.protobuf import Protobuf
from sluice.decode.schema.protobuf_schema import MAIN_FILE, compile_files
from sluice.decode.typed.decoder import TypedDecoder
from sluice.producer.wire import varint
from tests.decode.support import fill, table

SCHEMA = """syntax = "proto3";
package shop;
import "google/protobuf/wrappers.proto";
import "google/protobuf/timestamp.proto";
enum Color { RED = 0; GREEN = 1; DARK_BLUE = 5; ODD = -3; }
message Item { int32 count = 1; repeated string tags = 2; optional int32 limit = 3;
  Color color = 4; }
message Order {
  uint64 id = 1;
  string name = 2;
  optional int32 opt = 3;
  Color color = 4;
  repeated int32 nums = 5;
  Item item = 6;
  repeated Item items = 7;
  map<string, int64> counts = 8;
  oneof choice { string text = 9; int64 number = 10; }
  double d = 11;
  float f = 12;
  bool b = 13;
  bytes raw = 14;
  fixed32 f32 = 15;
  fixed64 f64 = 16;
  sfixed32 s32 = 17;
  sfixed64 s64 = 18;
  sint32 z32 = 19;
  sint64 z64 = 20;
  uint32 u32 = 21;
  int64 i64 = 22;
  repeated Color colors = 23 [packed = false];
  repeated double doubles = 24;
  google.protobuf.StringValue wrapped = 25;
  google.protobuf.Timestamp at = 26;
  Order parent = 27;
  message Inside { string x = 1; }
  Inside inside = 600;
}
message Second { uint64 id = 1; string name = 2; message Deep { uint64 id = 1; } }
"""


def pool_of(descriptors: bytes) -> DescriptorPool:
    """The message types of a FileDescriptorSet, for the library."""
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def message_class(schema: str, name: str = "Row") -> Any:
    """The class of a message type of a .proto text."""
    pool = pool_of(compile_files({MAIN_FILE: schema}, MAIN_FILE))
    return GetMessageClass(pool.FindMessageTypeByName(name))


DESCRIPTORS = compile_files({MAIN_FILE: SCHEMA}, MAIN_FILE)
POOL = pool_of(DESCRIPTORS)
Order: Any = GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))
Second: Any = GetMessageClass(POOL.FindMessageTypeByName("shop.Second"))
Deep: Any = GetMessageClass(POOL.FindMessageTypeByName("shop.Second.Deep"))

COLOR = "Enum8('RED' = 0, 'GREEN' = 1, 'DARK_BLUE' = 5, 'ODD' = -3)"
ITEM = f"Tuple(count Int32, tags Array(String), limit Nullable(Int32), color {COLOR})"
COLUMNS = (
    Column("id", "UInt64"),
    Column("name", "String"),
    Column("opt", "Nullable(Int32)"),
    Column("color", COLOR),
    Column("nums", "Array(Int32)"),
    Column("item", ITEM),
    Column("items", f"Array({ITEM})"),
    Column("counts", "Map(String, Int64)"),
    Column("text", "Nullable(String)"),
    Column("number", "Nullable(Int64)"),
    Column("d", "Float64"),
    Column("f", "Float32"),
    Column("b", "Bool"),
    Column("raw", "String"),
    Column("f32", "UInt32"),
    Column("f64", "UInt64"),
    Column("s32", "Int32"),
    Column("s64", "Int64"),
    Column("z32", "Int32"),
    Column("z64", "Int64"),
    Column("u32", "UInt32"),
    Column("i64", "Int64"),
    Column("colors", "Array(String)"),
    Column("doubles", "Array(Float64)"),
    Column("wrapped", "Nullable(String)"),
)


def protobuf(
    *columns: Column, schema: str = SCHEMA, message: str = "Order", **changes: Any
) -> TypedDecoder:
    options = (("message", message), ("schema", schema))
    text = table(*columns, format="Protobuf", **({"options": options} | changes))
    return TypedDecoder(text, Protobuf(text))


def decode(decoder: TypedDecoder, values: list[bytes]) -> Decoded:
    with MessageBuffer(BYTES) as buffer:
        return decoder.decode(fill(buffer, values), alone("orders", 3))


def tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def part(number: int, content: bytes) -> bytes:
    return tag(number, 2) + varint(len(content)) + content


def expected(message: Any) -> list[Any]:
    """The row, as the library sees the message."""

    def item(one: Any) -> dict[str, Any]:
        return {
            "count": one.count,
            "tags": list(one.tags),
            "limit": one.limit if one.HasField("limit") else None,
            "color": name(one.color),
        }

    def name(number: int) -> str:
        return {0: "RED", 1: "GREEN", 5: "DARK_BLUE", -3: "ODD"}[number]

    def number(value: float) -> Any:
        return {float("inf"): "inf", float("-inf"): "-inf"}.get(value, value)

    return [
        str(message.id),
        message.name,
        message.opt if message.HasField("opt") else None,
        name(message.color),
        list(message.nums),
        item(message.item),
        [item(one) for one in message.items],
        {key: str(value) for key, value in message.counts.items()},
        message.text if message.HasField("text") else None,
        str(message.number) if message.HasField("number") else None,
        number(message.d),
        number(message.f),
        message.b,
        message.raw.decode(errors="replace"),
        message.f32,
        str(message.f64),
        message.s32,
        str(message.s64),
        message.z32,
        str(message.z64),
        message.u32,
        str(message.i64),
        [name(one) for one in message.colors],
        [number(one) for one in message.doubles],
        message.wrapped.value if message.HasField("wrapped") else None,
    ]


def assert_equal(found: list[Any], message: Any) -> None:
    wanted = expected(message)
    # A float is written with as few digits as tell it.
    found[11] = struct.unpack("f", struct.pack("f", float(found[11])))[0]
    wanted[11] = float(wanted[11])
    found[10], wanted[10] = float(found[10]), float(wanted[10])
    found[23], wanted[23] = [*map(float, found[23])], [*map(float, wanted[23])]
    assert found == wanted


ONE = Order(id=1, name="x").SerializeToString()
HOSTILE = {
    tag(1, 0): "cannot-parse",
    tag(1, 0) + b"\x80": "cannot-parse",
    tag(1, 0) + b"\xff" * 9 + b"\x02": "cannot-parse",
    tag(1, 0) + b"\x80" * 10 + b"\0": "cannot-parse",
    part(1, b"a"): "cannot-parse",
    tag(1, 1) + b"abcdefgh": "cannot-parse",
    tag(2, 0) + b"\x01": "cannot-parse",
    tag(2, 1) + b"abcdefgh": "cannot-parse",
    tag(2, 2) + b"\x05abc": "cannot-parse",
    tag(77, 2) + b"\x05abc": "cannot-parse",
    tag(77, 3) + tag(77, 4): "cannot-parse",
    tag(77, 4): "cannot-parse",
    tag(77, 6): "cannot-parse",
    b"\0\0": "cannot-parse",
    b"\xf8\xff\xff\xff\xff\x0f\x01": "cannot-parse",
    tag(4, 0) + varint(3): "out-of-range",
    tag(4, 0) + varint(2**32 + 1): "out-of-range",
    tag(4, 0) + varint(2**64 - 4): "out-of-range",
    part(23, varint(3)): "out-of-range",
    part(6, tag(4, 0) + varint(3)): "out-of-range",
    tag(13, 0) + varint(2): "out-of-range",
    tag(13, 0) + varint(256): "out-of-range",
    tag(3, 0) + varint(2**31): "out-of-range",
    tag(3, 0) + varint(2**32 + 7): "out-of-range",
    tag(21, 0) + varint(2**32 + 7): "out-of-range",
    tag(19, 0) + varint(2**40): "out-of-range",
    part(5, b"\x01\x80"): "cannot-parse",
    part(24, b"abc"): "cannot-parse",
    part(6, tag(1, 0)): "cannot-parse",
    part(6, tag(2, 2) + b"\x09xx") + tag(1, 0) + b"\x05": "cannot-parse",
    part(9, b"x") + tag(10, 0) + b"\x05": "cannot-parse",
    part(27, part(27, tag(1, 0))): "cannot-parse",
}
