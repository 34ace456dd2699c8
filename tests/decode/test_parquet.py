"""What the engine's reader of Parquet does not tell: structs that are null, and times of day."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from sluice.core.load_spec import Column
from tests.decode.support import rows
from tests.decode.typed_support import typed_decode, typed_decoder

PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
STRUCTS = {
    "i": pa.array([1, 2], pa.int32()),
    "s": pa.array([None, {"a": 1, "b": None}], PAIR),
    "l": pa.array([[{"a": 1, "b": "x"}, None], []], pa.list_(PAIR)),
    "o": pa.array([{"s": None}, {"s": {"a": None, "b": None}}], pa.struct([("s", PAIR)])),
    "u": pa.array([None, uuid.UUID(int=7).bytes], pa.uuid()),
    "at": pa.array([1767323045678, None], pa.timestamp("ms")),
}
NULLABLE = "Nullable(Tuple(a Nullable(Int32), b Nullable(String)))"
PLAIN = NULLABLE.removeprefix("Nullable(").removesuffix(")")


def written(format_name: str, columns: dict[str, Any]) -> bytes:
    out, made = io.BytesIO(), pa.table(columns)
    if format_name == "Parquet":
        parquet.write_table(made, out)
    else:
        with ipc.new_file(out, made.schema) as file:
            file.write_table(made)
    return out.getvalue()


def loaded(format_name: str, columns: dict[str, Any], types: dict[str, str], **more: Any) -> Any:
    """The rows, or what is said."""
    named = (Column(name, kind) for name, kind in types.items())
    decoder = typed_decoder(format_name, *named, rows="many", **more)
    decoded = typed_decode(decoder, [written(format_name, columns)])
    return [(one.reason, one.error) for one in decoded.bad] or rows(decoded)


def test_structs_that_are_null_are_null() -> None:
    types = {"i": "Int32", "s": NULLABLE, "l": f"Array({NULLABLE})", "o": f"Tuple(s {NULLABLE})"}
    types |= {"u": "Nullable(UUID)", "at": "Nullable(DateTime64(3, 'UTC'))"}
    nothing = {"a": None, "b": None}
    assert loaded("Parquet", STRUCTS, types) == [
        [1, None, [{"a": 1, "b": "x"}, None], {"s": None}, None, "2026-01-02 03:04:05.678"],
        [2, {"a": 1, "b": None}, [], {"s": nothing}, str(uuid.UUID(int=7)), None],
    ]


@pytest.mark.parametrize("format_name", ["Parquet", "Arrow"])
@pytest.mark.parametrize(("name", "kind"), [("s", PLAIN), ("l", f"Array({PLAIN})")])
def test_where_no_null_may_be_it_is_said_or_the_default(
    format_name: str, name: str, kind: str
) -> None:
    refused = loaded(format_name, STRUCTS, {name: kind})
    assert refused == [("null-in-column", f"row 0: null in column {name} {kind}")]
    found = loaded(format_name, STRUCTS, {name: kind}, on_null="default")
    nothing = {"a": None, "b": None}
    first = [{"a": 1, "b": "x"}, nothing] if name == "l" else nothing
    assert found[0] == [first]


def test_files_without_null_structs_are_left_to_the_engine() -> None:
    some = {"s": STRUCTS["s"][1:], "u": STRUCTS["u"][1:]}
    types = {"s": PLAIN, "u": "UUID"}
    assert loaded("Parquet", some, types) == [[{"a": 1, "b": None}, str(uuid.UUID(int=7))]]


TIME = dt.time(12, 34, 56, 789_000)
TIMES = {
    "s": pa.array([dt.time(12, 34, 56)], pa.time32("s")),
    "m": pa.array([TIME], pa.time32("ms")),
    "u": pa.array([None], pa.time64("us")),
    "n": pa.array([45296_789_123_456], pa.time64("ns")),
    "l": pa.array([[TIME, None]], pa.list_(pa.time64("us"))),
    "t": pa.array([{"x": TIME}], pa.struct([("x", pa.time32("ms"))])),
}


@pytest.mark.parametrize("format_name", ["Parquet", "Arrow"])
def test_times_of_day(format_name: str) -> None:
    types = {"s": "Time", "m": "Time64(3)", "u": "Nullable(Time64(6))", "n": "Time64(9)"}
    types |= {"l": "Array(Nullable(Time64(6)))", "t": "Tuple(x String)"}
    assert loaded(format_name, TIMES, types) == [
        [
            "12:34:56",
            "12:34:56.789",
            None,
            "12:34:56.789123456",
            ["12:34:56.789000", None],
            {"x": "12:34:56.789"},
        ]
    ]
    assert loaded(format_name, TIMES, {"s": "Time64(6)"}) == [["12:34:56.000000"]]
    said = [("out-of-range", "row 0: 12:34:56.789 does not fit column m Time")]
    assert loaded(format_name, TIMES, {"m": "Time"}) == said
    assert loaded(format_name, TIMES, {"m": "Time"}, fractions="cut") == [["12:34:56"]]


@pytest.mark.parametrize("kind", ["DateTime", "DateTime64(3)", "Date", "UInt32"])
def test_a_time_of_day_is_no_moment_of_1970(kind: str) -> None:
    ((reason, said),) = loaded("Parquet", TIMES, {"m": kind})
    assert reason == "cannot-parse"
    assert said == f"row 0: 12:34:56.789 Nullable(Time64(3)) cannot be read as column m {kind}"
