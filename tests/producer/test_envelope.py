"""The encoder's bytes, against those of the official runtime and a second reader's eyes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.decode.engine.session import run
from sluice.decode.messages.memory import memory_file
from sluice.producer import Bound, Kind, SQLBatchRequest, Value, schema_hashcode
from sluice.producer.envelope import kind_of
from sluice.producer.wire import varint
from tests.support.examples import examples

SCHEMA = """syntax = "proto3";
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
enum NullValueP { NULL_VALUE = 0; }
message ValueP {
  oneof value {
    NullValueP null_value = 1;
    int32 int_value = 2;
    int64 long_value = 3;
    uint32 uint_value = 4;
    uint64 ulong_value = 5;
    double double_value = 6;
    string string_value = 7;
    bool bool_value = 8;
    TimestampP timestamp = 9;
    ListValueP list_value = 10;
  }
}
message TimestampP { uint64 milliseconds = 1; }
message ListValueP { repeated ValueP value = 1; }
"""

#: Field, value, and what protobuf 7.36.2 for Python writes for a ValueP with it.
OFFICIAL: list[tuple[Value, str]] = [
    (None, "0800"),
    (Bound(Kind.INT, 0), "1000"),
    (Bound(Kind.INT, -1), "10ffffffffffffffffff01"),
    (Bound(Kind.INT, 2**31 - 1), "10ffffffff07"),
    (0, "1800"),
    (-(2**63), "1880808080808080808001"),
    (2**63 - 1, "18ffffffffffffffff7f"),
    (Bound(Kind.UINT, 2**32 - 1), "20ffffffff0f"),
    (2**63, "2880808080808080808001"),
    (2**64 - 1, "28ffffffffffffffffff01"),
    (1.5, "31000000000000f83f"),
    (-0.0, "310000000000000080"),
    (float("inf"), "31000000000000f07f"),
    ("", "3a00"),
    ("é", "3a02c3a9"),
    (False, "4000"),
    (True, "4001"),
    (Bound(Kind.TIMESTAMP, 0), "4a00"),
    (datetime(2026, 1, 2, 3, 4, 5, 678999, UTC), "4a0708ae9ea6e5b733"),
    (Bound(Kind.TIMESTAMP, 2**64 - 1), "4a0b08ffffffffffffffffff01"),
    ([], "5200"),
    ([1, None, ["x"]], "52110a0218010a0208000a0752050a033a0178"),
]


@pytest.mark.parametrize(("value", "expected"), OFFICIAL, ids=[str(v)[:40] for v, _ in OFFICIAL])
def test_values_are_the_official_bytes(value: Value, expected: str) -> None:
    message = SQLBatchRequest(table="", rows=[[value]]).encode()
    content = bytes.fromhex(expected)
    row = b"\x0a" + varint(len(content)) + content
    rows = b"\x12" + varint(len(row)) + row
    assert message == b"\x1a" + varint(len(rows)) + rows


def test_whole_messages_are_the_official_bytes() -> None:
    request = SQLBatchRequest(
        table="t",
        sql="INSERT INTO t VALUES (?, ?)",
        rows=[(1, "a"), ()],
        shard="s",
        schema_hashcode=-1,
    )
    assert request.encode().hex() == (
        "0a01731201741a2a0a1b494e5345525420494e544f20742056414c55455320283f2c203f29"
        "12090a0218010a033a0161120028ffffffffffffffffff01"
    )
    block = SQLBatchRequest(table="t", native_block=b"xy")
    assert block.encode().hex() == "12017422040a027879"
    assert SQLBatchRequest(table="", native_block=b"").encode() == b"\x22\x00"


def test_python_values_get_kinds() -> None:
    zone = timezone(timedelta(hours=2))
    moment = datetime(2026, 1, 2, 5, 4, 5, tzinfo=zone)
    same: list[tuple[Value, Value]] = [
        (moment, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (Decimal("1.50"), "1.50"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        ({"a": 1, "b": None}, [["a", 1], ["b", None]]),
        ((1, 2), [1, 2]),
        (b"\x00", "\x00"),
    ]
    for value, other in same:
        assert _encoded(value) == _encoded(other)


def _encoded(value: Value) -> bytes:
    return SQLBatchRequest(table="", rows=[[value]]).encode()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Bound(Kind.INT, 2**31), "2147483648 does not fit int_value"),
        (Bound(Kind.UINT, -1), "-1 does not fit uint_value"),
        (2**64, "does not fit ulong_value"),
        (-(2**63) - 1, "does not fit long_value"),
        (datetime(2026, 1, 2), "has no time zone"),
        (datetime(1969, 1, 2, tzinfo=UTC), "does not fit ulong_value"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(value: Value, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _encoded(value)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        Bound(Kind.INT, "5"),
        Bound(Kind.LIST, "abc"),
        Bound(Kind.DOUBLE, "5"),
        Bound(Kind.TIMESTAMP, "today"),
    ],
)
def test_values_without_a_kind_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        _encoded(value)


def test_rows_and_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="either"):
        SQLBatchRequest(table="t", rows=[[1]], native_block=b"").encode()


def test_hash_of_a_schema() -> None:
    columns = [("id", "UInt64"), ("name", "String")]
    assert (
        schema_hashcode(columns) == 0x561B0C67832C8CB3
    )  # printf 'id UInt64\nname String\n' | sha256sum
    assert schema_hashcode(columns[::-1]) != schema_hashcode(columns)
    assert -(2**63) <= schema_hashcode([]) < 2**63


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-(2**31), 2**31 - 1).map(lambda number: Bound(Kind.INT, number)),
    st.integers(0, 2**32 - 1).map(lambda number: Bound(Kind.UINT, number)),
    st.floats(allow_nan=False),
    st.text(),
)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "envelope.proto"
    path.write_text(SCHEMA)
    return path


_KINDS = (
    "null_value Nullable(Int8), int_value Nullable(Int32), long_value Nullable(Int64),"
    " uint_value Nullable(UInt32), ulong_value Nullable(UInt64), double_value Nullable(Float64),"
    " string_value Nullable(String), bool_value Nullable(Bool)"
)
_BINDINGS = f"Array(Tuple(values Array(Tuple({_KINDS}))))"
STRUCTURE = (
    "shard String, table String, `nucolumnarEncoding.sql` String,"
    f" `nucolumnarEncoding.batch_bindings` {_BINDINGS}"
)


def _as_read(value: Value) -> dict[str, Any]:
    """As the engine writes a tuple of one value among nulls."""
    kind, raw = (value.kind, value.value) if isinstance(value, Bound) else (kind_of(value), value)
    read: dict[str, Any] = {kind.field: None for kind in Kind if kind < Kind.TIMESTAMP}
    if kind is Kind.NULL:
        raw = 0
    elif kind in (Kind.LONG, Kind.ULONG):
        raw = str(raw)
    read[kind.field] = raw
    return read


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.lists(SCALARS, max_size=6), max_size=6), st.text(), st.text())
def test_the_engine_reads_what_was_written(
    schema: Path, values: list[list[Value]], table: str, shard: str
) -> None:
    """With a reader of Protocol Buffers that shares nothing with the encoder."""
    message = SQLBatchRequest(table=table, shard=shard, sql="s", rows=values).encode()
    with memory_file(varint(len(message)) + message) as path:
        answer = run(
            f"SELECT * FROM file('{path}', Protobuf, '{STRUCTURE}') "
            f"SETTINGS format_schema='{schema}:SQLBatchRequest',"
            "output_format_json_quote_64bit_integers=1, output_format_json_quote_denormals=1",
            "JSONCompactEachRow",
        )
    found_shard, found_table, sql, rows = json.loads(answer.bytes())
    assert (found_shard, found_table, sql) == (shard, table, "s")
    for value in (value for row in rows for value in row["values"]):
        if value["double_value"] is not None:
            value["double_value"] = float(value["double_value"])
    assert rows == [{"values": [_as_read(value) for value in row]} for row in values]
