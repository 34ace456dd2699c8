"""Protobuf with a configured schema and with a registry's: values, hostile messages, presence."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.schema.protobuf import Protobuf, ProtobufConfluent, _packed, _unpacked
from sluice.decode.schema.protobuf_schema import MAIN_FILE, compile_files
from sluice.decode.schema.registry import provide
from sluice.decode.typed.decoder import TypedDecoder
from sluice.producer.wire import varint
from tests.decode.protobuf_support import (
    COLUMNS,
    HOSTILE,
    ONE,
    SCHEMA,
    Deep,
    Order,
    Second,
    assert_equal,
    decode,
    part,
    protobuf,
    tag,
)
from tests.decode.support import rows, table


@pytest.fixture(scope="module")
def orders() -> TypedDecoder:
    return protobuf(*COLUMNS)


def test_the_empty_message_is_all_defaults(orders: TypedDecoder) -> None:
    (row,) = rows(decode(orders, [b""]))
    assert_equal(row, Order())


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_message_costs_no_neighbour(orders: TypedDecoder, value: bytes) -> None:
    for places in ((0,), (39,), (10, 11), range(0, 40, 2)):
        values = [value if n in places else ONE for n in range(40)]
        decoded = decode(orders, values)
        assert [(one.index, one.reason) for one in decoded.bad] == [
            (n, HOSTILE[value]) for n in places
        ]
        assert [row[0] for row in rows(decoded)] == ["1"] * (40 - len(places))


@pytest.mark.parametrize(
    "value",
    [
        tag(99, 0) + b"\x05",
        tag(99, 1) + b"abcdefgh",
        part(99, b"\xff\xff"),
        tag(536_870_911, 5) + b"abcd",
        tag(1, 0) + b"\x80\x00",
        b"\x88\x00\x01",
        tag(5, 0) + b"\x05" + part(5, b"\x06\x07"),
        part(23, b"\x01\x05"),
        part(6, tag(1, 0) + b"\x09") + part(6, part(2, b"q")),
        tag(1, 0) + b"\x07" + tag(1, 0) + b"\x08",
        part(8, b""),
        part(8, tag(2, 0) + b"\x03"),
    ],
)
def test_unusual_but_legal_messages_are_read_as_the_library_does(
    orders: TypedDecoder, value: bytes
) -> None:
    decoded = decode(orders, [ONE, value, ONE])
    assert decoded.bad == ()
    assert_equal(rows(decoded)[1], Order.FromString(value))


@pytest.mark.parametrize(
    "value",
    [
        part(2, b"abc") + part(2, b"d"),
        part(2, b"abc") + part(2, b"abc"),
        part(9, b"abc") + part(9, b"d"),
        part(14, b"\x01") + part(14, b""),
        part(600, b"") + part(600, part(1, b"x")),
        part(27, tag(1, 0) + b"\x05") + part(27, part(600, part(1, b"x"))),
        part(8, part(1, b"a") + part(1, b"b")),
    ],
)
def test_a_text_that_comes_late_is_not_lost(orders: TypedDecoder, value: bytes) -> None:
    """Parsers take the last one; the engine makes an empty one of it."""
    decoded = decode(orders, [ONE, value, ONE])
    assert [(one.index, one.reason) for one in decoded.bad] == [(1, "cannot-parse")]
    assert "twice" in decoded.bad[0].error


def test_what_is_merged_without_a_text(orders: TypedDecoder) -> None:
    value = part(6, tag(1, 0) + b"\x09") + part(6, tag(3, 0) + b"\x02" + part(2, b"q"))
    decoded = decode(orders, [value])
    assert_equal(rows(decoded)[0], Order.FromString(value))


def test_a_message_of_ten_megabytes(orders: TypedDecoder) -> None:
    large = Order(id=7, name="x" * 10_000_000, nums=range(99_999)).SerializeToString()
    decoded = decode(orders, [ONE, large, large[:-1], ONE])
    assert [one.index for one in decoded.bad] == [2]
    found = rows(decoded)
    assert [row[0] for row in found] == ["1", "7", "1"]
    assert (len(found[1][1]), found[1][4]) == (10_000_000, list(range(99_999)))


def test_presence_inside_of_messages_follows_the_column() -> None:
    value = Order(item={"count": 1}, items=[{"limit": 5}, {}]).SerializeToString()
    plain = "Tuple(count Int32, limit Int32)"
    decoder = protobuf(Column("item", plain), Column("items", f"Array({plain})"))
    assert rows(decode(decoder, [value])) == [
        [{"count": 1, "limit": 0}, [{"count": 0, "limit": 5}, {"count": 0, "limit": 0}]]
    ]


def test_a_field_without_a_column_is_refused_only_where_a_message_has_it() -> None:
    decoder = protobuf(Column("id", "UInt64"), unknown_fields="refuse")
    values = [Order(id=1), Order(id=2, name="x"), Order(id=3)]
    decoded = decode(decoder, [value.SerializeToString() for value in values])
    assert rows(decoded) == [["1"], ["3"]]
    assert [(one.index, one.reason, one.column) for one in decoded.bad] == [
        (1, "unknown-field", "name")
    ]
    with pytest.raises(TerminalError, match="no column of message type"):
        protobuf(Column("other", "Int8"), unknown_fields="refuse")


def test_unknown_fields_are_refused_where_that_is_wanted() -> None:
    decoder = protobuf(
        *(Column(name, "String") for name in ("x",)),
        schema='syntax="proto3"; message M { string x = 1; }',
        message="M",
        unknown_fields="refuse",
    )
    decoded = decode(decoder, [part(1, b"a"), part(1, b"a") + part(9, b"b")])
    assert [(one.index, one.reason) for one in decoded.bad] == [(1, "unknown-field")]
    assert "field 9" in decoded.bad[0].error


def test_narrow_columns_are_strict() -> None:
    decoder = protobuf(Column("id", "UInt8"), Column("d", "Float32"))
    values = [Order(id=255, d=1.5), Order(id=256), Order(d=1e300)]
    decoded = decode(decoder, [value.SerializeToString() for value in values])
    assert rows(decoded) == [[255, 1.5]]
    assert [(one.index, one.reason, one.column) for one in decoded.bad] == [
        (1, "out-of-range", "id"),
        (2, "out-of-range", "d"),
    ]


def test_the_defaults_of_proto2() -> None:
    schema = """syntax = "proto2";
    enum E { ONE = 1; TWO = 2; ALSO_TWO = 2; }
    message M { optional int32 a = 1 [default = -42]; optional string b = 2 [default = "q\\"\\\\é"];
      optional E c = 3 [default = ALSO_TWO]; optional bool d = 4 [default = true];
      optional double e = 5 [default = -inf]; optional E f = 6; optional int64 g = 7;
      optional bytes h = 8 [default = "\\001\\n"]; required int32 i = 9; }""".replace(
        "enum E {", "enum E { option allow_alias = true;"
    )
    names = {
        "a": "Int32",
        "b": "String",
        "c": "String",
        "d": "Bool",
        "e": "Float64",
        "f": "String",
        "g": "Nullable(Int64)",
        "h": "String",
        "i": "Int32",
    }
    columns = [Column(name, kind) for name, kind in names.items()]
    decoder = protobuf(*columns, schema=schema, message="M")
    values = [tag(9, 0) + b"\x01", tag(1, 0) + b"\0" + part(2, b"") + tag(9, 0) + b"\x01"]
    decoded = decode(decoder, values)
    assert rows(decoded) == [
        [-42, 'q"\\é', "TWO", True, "-inf", "ONE", None, "\x01\n", 1],
        [0, "", "TWO", True, "-inf", "ONE", None, "\x01\n", 1],
    ]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("DateTime", ["2026-01-02 03:04:05", "1970-01-01 00:00:00", None, None, None]),
        (
            "DateTime64(3)",
            ["2026-01-02 03:04:05.123", "1970-01-01 00:00:00.000", "1969-12-31 23:59:59.000"]
            + [None] * 2,
        ),
        (
            "Nullable(DateTime64(9, 'UTC'))",
            ["2026-01-02 03:04:05.123456789", "null", "1969-12-31 23:59:59.000000005"] + [None] * 2,
        ),
        ("Nullable(Date)", [None, "null", None, None, None]),
        (
            "Tuple(seconds Int64)",
            [{"seconds": str(n)} for n in (1_767_323_045, 0, -1, 2**62, 5)],
        ),
    ],
)
def test_timestamps_are_instants(target: str, expected: list[Any]) -> None:
    facts = [(1_767_323_045, 123_456_789), None, (-1, 5), (2**62, 0), (5, -1)]
    values = [
        Order() if one is None else Order(at={"seconds": one[0], "nanos": one[1]}) for one in facts
    ]
    decoder = protobuf(Column("at", target), fractions="cut")
    decoded = decode(decoder, [value.SerializeToString() for value in values])
    bad = {one.index for one in decoded.bad}
    found = iter(rows(decoded))
    shown = [None if index in bad else next(found)[0] or "null" for index in range(len(values))]
    assert shown == expected


WELL_KNOWN = """syntax = "proto3";
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message M {
  uint64 id = 1;
  google.protobuf.Struct struct = 2;
  google.protobuf.Value value = 3;
  google.protobuf.ListValue list = 4;
  google.protobuf.Any any = 5;
  google.protobuf.Duration duration = 6;
  google.protobuf.FieldMask mask = 7;
  google.protobuf.Int64Value wrapper = 8;
  google.protobuf.Timestamp at = 9;
  google.protobuf.Empty empty = 10;
  Sub sub = 11;
  repeated Sub n = 12;
}
message Sub { string k = 1; uint32 v = 2; google.protobuf.Struct inner = 3; Deep deep = 4; }
message Deep { int64 z = 1; }
"""


def well_known(value: bytes, columns: list[Column], **changes: Any) -> Any:
    """What a message M becomes behind its id: a row, or the reason."""
    options = (("message", "M"), ("schema", WELL_KNOWN))
    text = table(Column("id", "UInt64"), *columns, format="Protobuf", options=options, **changes)
    decoded = decode(TypedDecoder(text, Protobuf(text)), [b"\x08\x07" + value])
    return rows(decoded)[0][1:] if decoded.rows else decoded.bad[0].reason


def field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2, len(body)]) + body


STRUCT = field(1, field(1, b"a") + field(2, b"\x11" + bytes(8)))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("struct", field(2, STRUCT), "cannot-parse"),
        ("struct", b"", [""]),
        ("value", field(3, field(3, b"x")), "cannot-parse"),
        ("list", field(4, b""), "cannot-parse"),
        ("any", field(5, field(1, b"u")), "cannot-parse"),
        ("duration", field(6, b"\x08\x05"), "cannot-parse"),
        ("mask", field(7, field(1, b"a")), "cannot-parse"),
        ("wrapper", field(8, b"\x08\x05"), ["5"]),
        ("empty", field(10, b""), "cannot-parse"),
        ("sub", field(11, field(1, b"a")), "cannot-parse"),
    ],
)
def test_messages_are_no_text(name: str, value: bytes, expected: Any) -> None:
    assert well_known(value, [Column(name, "String")]) == expected
    assert well_known(value, [Column("other", "String")]) == [""]


@pytest.mark.parametrize(
    ("nanos", "shown"),
    [(123_456_789, "123456789"), (123_456_000, "123456"), (0, "000000"), (5, "000000005")],
)
def test_a_timestamp_keeps_its_nanoseconds_as_text(nanos: int, shown: str) -> None:
    seconds = b"\x08" + varint(1_767_323_045)
    value = field(9, seconds + (b"\x10" + varint(nanos) if nanos else b""))
    text = f"2026-01-02 03:04:05.{shown}"
    assert well_known(value, [Column("at", "String")]) == [text]
    assert well_known(value, [Column("at", "Nullable(String)")]) == [text]
    exact = nanos % 1000 == 0
    micros = well_known(value, [Column("at", "DateTime64(6)")])
    assert micros == ([text] if exact else "out-of-range")
    cut = well_known(value, [Column("at", "DateTime")], fractions="cut")
    assert cut == ["2026-01-02 03:04:05"]


def test_an_absent_message_is_null_where_null_may_be() -> None:
    null = "Nullable(Tuple(k String, v UInt8))"
    sub = field(11, field(1, b"q") + b"\x10\x03")
    assert well_known(b"", [Column("sub", null)]) == [None]
    assert well_known(sub, [Column("sub", null)]) == [{"k": "q", "v": 3}]
    assert well_known(b"", [Column("sub", null[9:-1])]) == [{"k": "", "v": 0}]
    inner = [Column("sub", "Tuple(k String, deep Nullable(Tuple(z Int8)))")]
    assert well_known(sub, inner) == [{"k": "q", "deep": None}]
    deep = field(11, field(4, b"\x08\x05"))
    assert well_known(deep, inner) == [{"k": "", "deep": {"z": 5}}]
    too_large = field(11, field(4, b"\x08" + varint(300)))
    assert well_known(too_large, inner) == "out-of-range"


def test_what_no_column_can_hold_is_refused_only_where_it_is_wanted() -> None:
    value = field(11, field(1, b"q") + field(3, STRUCT))
    assert well_known(value, [Column("sub", "Tuple(k String)")]) == [{"k": "q"}]
    wanting = [Column("sub", "Tuple(k String, inner String)")]
    assert well_known(value, wanting) == "cannot-parse"
    assert well_known(field(11, field(1, b"q")), wanting) == [{"k": "q", "inner": ""}]


def test_unknown_fields_inside_of_messages() -> None:
    value = field(11, field(1, b"q") + b"\x10\x03")
    refused = {"unknown_fields": "refuse"}
    assert well_known(value, [Column("sub", "Tuple(k String)")], **refused) == "unknown-field"
    whole = [Column("sub", "Tuple(k String, v UInt8)")]
    assert well_known(value, whole, **refused) == [{"k": "q", "v": 3}]
    less = field(11, field(1, b"q"))
    assert well_known(less, [Column("sub", "Tuple(k String)")], **refused) == [{"k": "q"}]


def test_repeated_messages_fill_the_columns_of_a_nested() -> None:
    value = field(12, field(1, b"a") + b"\x10\x01") + field(12, field(1, b"b"))
    columns = [Column("n.k", "Array(String)"), Column("n.v", "Array(UInt8)")]
    assert well_known(value, columns) == [["a", "b"], [1, 0]]
    assert well_known(value, columns[:1], unknown_fields="refuse") == "unknown-field"
    assert well_known(b"", columns) == [[], []]


def test_names_that_the_engine_would_mix_up() -> None:
    schema = """syntax = "proto3";
    message M { int32 user_id = 1; int32 user = 2; User users = 3; int32 USERID_ = 4;
      enum E { a = 0; b = 1; } E e = 5; }
    message User { int32 id = 1; }"""
    columns = [Column(name, "Int32") for name in ("user_id", "user", "USERID_")]
    decoder = protobuf(*columns, Column("users", "Tuple(id Int32)"), schema=schema, message="M")
    value = tag(1, 0) + b"\1" + tag(2, 0) + b"\2" + part(3, tag(1, 0) + b"\3") + tag(4, 0) + b"\4"
    assert rows(decode(decoder, [value])) == [[1, 2, 4, {"id": 3}]]


@pytest.mark.parametrize(
    ("schema", "message", "words"),
    [
        ("message M {", "M", "cannot be read"),
        ('syntax = "proto3"; message M { int32 a = 1; }', "N", "no message type N"),
        ('syntax = "proto3"; message M { }', "M", "no field"),
        ('syntax = "proto3"; message M { M m = 1; }', "M", "no field"),
        ('syntax = "proto3"; import "no/file.proto"; message M { int32 a = 1; }', "M", "no/file"),
        (
            'syntax = "proto2"; message M { optional group G = 1 { optional int32 a = 1; } }',
            "M",
            "group",
        ),
        (
            'syntax = "proto3"; message M { N n = 1; } message N { int32 a_b = 1; int32 ab = 2; }',
            "M",
            "differ in case",
        ),
    ],
)
def test_schemas_that_cannot_be_used_are_refused_at_once(
    schema: str, message: str, words: str
) -> None:
    with pytest.raises(TerminalError, match=words):
        protobuf(Column("a", "Int32"), schema=schema, message=message)


def test_options_that_are_missing_are_named() -> None:
    with pytest.raises(TerminalError, match="message"):
        protobuf(Column("a", "Int32"), options=(("schema", SCHEMA),))
    with pytest.raises(TerminalError, match="schema"):
        protobuf(Column("a", "Int32"), options=(("message", "Order"),))


def test_imported_files_and_descriptor_sets() -> None:
    schema = 'syntax = "proto3"; import "a/b.proto"; message M { a.B b = 1; }'
    imported = 'syntax = "proto3"; package a; message B { int32 x = 1; }'
    options: tuple[tuple[str, str], ...] = (
        ("message", "M"),
        ("schema", schema),
        ("schema:a/b.proto", imported),
    )
    column = Column("b", "Tuple(x Int64)")
    value = part(1, tag(1, 0) + b"\x05")
    assert rows(decode(protobuf(column, options=options), [value])) == [[{"x": "5"}]]
    compiled = compile_files({MAIN_FILE: schema, "a/b.proto": imported}, MAIN_FILE)
    options = (("message", "M"), ("descriptors", base64.b64encode(compiled).decode()))
    assert rows(decode(protobuf(column, options=options), [value])) == [[{"x": "5"}]]
    for text in ("x", base64.b64encode(b"abc").decode(), base64.b64encode(b"").decode() or "-"):
        with pytest.raises(TerminalError):
            protobuf(column, options=(("message", "M"), ("descriptors", text)))


# ---- With a registry's header ----

URL = "http://protobuf.test"


class Schemas:
    def schema(self, number: int) -> RegisteredSchema | None:
        if number == 6:
            return RegisteredSchema("PROTOBUF", SCHEMA)
        return RegisteredSchema("AVRO", '"int"') if number == 7 else None


provide(URL, Schemas())
HEAD = struct.pack(">BI", 0, 6)


def test_the_header_says_the_type() -> None:
    text = table(
        Column("id", "UInt64"),
        Column("name", "String"),
        format="ProtobufConfluent",
        options=(("registry", URL),),
        schemas=(6, 7),
    )
    decoder = TypedDecoder(text, ProtobufConfluent(text))
    order, second = Order(id=1, name="o").SerializeToString(), Second(id=2, name="s")
    deep = Deep(id=3).SerializeToString()
    values = [
        HEAD + b"\0" + order,
        HEAD + b"\x02\x04" + second.SerializeToString(),  # [2]: after Item comes Order, Second
        HEAD + b"\x02\x06" + second.SerializeToString(),
        HEAD + b"\x04\x04\x00" + second.SerializeToString(),
        HEAD + b"\x02\x02" + order,
        HEAD,
        HEAD + b"\x02",
        HEAD + b"\x01",
        HEAD + b"\x02\x01",
        HEAD[:3],
        struct.pack(">BI", 0, 7) + b"\0",
        struct.pack(">BI", 0, 8) + b"\0",
        HEAD + b"\x02\x02" + b"\xff",
        HEAD + b"\xff\xff\xff\xff\xff\x01" + order,
        HEAD + b"\x04\x04\x00" + deep,
    ]
    decoded = decode(decoder, values)
    by_index = {one.index: one.error for one in decoded.bad}
    good = [index for index in range(len(values)) if index not in by_index]
    assert good == [1, 3, 4, 14]
    # Type 0 is Item, whose field 1 is no id and whose field 2 is no name.
    assert by_index[0].startswith("the message fills no column of the table")
    assert rows(decoded) == [["2", "s"], ["2", ""], ["1", "o"], ["3", ""]]
    # With the option `message`, other types are bad.
    text = replace(text, options=(("message", "Order"), ("registry", URL)))
    decoded = decode(TypedDecoder(text, ProtobufConfluent(text)), values)
    assert rows(decoded) == [["1", "o"]]
    assert "not Order" in decoded.bad[1].error
    assert "not PROTOBUF" in by_index[10] and "did not know schema 8" in by_index[11]
    assert "[3]" in by_index[2]


@pytest.mark.parametrize(
    "path", [(0,), (1,), (2**29 - 1,), (0, 0), (16_383, 1), (0, 511, 3), (1,) * 7]
)
def test_places_of_types_fit_into_a_key(path: tuple[int, ...]) -> None:
    packed = _packed(path)
    assert packed is not None and packed < 2**32 and _unpacked(packed) == path


@pytest.mark.parametrize("path", [(2**29,), (16_384, 0), (0,) * 8])
def test_places_of_types_that_do_not_fit(path: tuple[int, ...]) -> None:
    assert _packed(path) is None
