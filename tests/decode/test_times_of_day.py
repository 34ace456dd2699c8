"""Times of day of Avro, and of what Connect and Debezium say of numbers."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from sluice.core.load_spec import Column
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.connect_support import connect_message, connect_table, made
from tests.decode.support import table


def logical(base: str, name: str) -> dict[str, str]:
    return {"type": base, "logicalType": name}


MILLIS, MICROS = logical("int", "time-millis"), logical("long", "time-micros")
NANOS = logical("long", "timestamp-nanos")
LOCAL = logical("long", "local-timestamp-millis")
TIME = dt.time(12, 34, 56, 789_000)


def loaded(kind: Any, value: Any, type_text: str, **more: Any) -> Any:
    """What a message with one field becomes."""
    schema = record(("a", kind))
    message = framed(SCHEMAS.add(schema), body(schema, {"a": value}))
    options = (("registry", URL),)
    text = table(Column("a", type_text), format="AvroConfluent", options=options, **more)
    (found,) = made(text, [message])
    return found[0] if isinstance(found, list) else found


@pytest.mark.parametrize(
    ("kind", "value", "type_text", "becomes"),
    [
        (MILLIS, TIME, "Time64(3)", "12:34:56.789"),
        (MILLIS, TIME, "Time64(6)", "12:34:56.789000"),
        (MILLIS, TIME, "Time", "out-of-range a"),
        (MILLIS, TIME.replace(microsecond=0), "Time", "12:34:56"),
        (MILLIS, TIME, "String", "12:34:56.789"),
        (MILLIS, TIME, "UInt32", 45296789),
        (MILLIS, TIME, "Float64", 45296789),
        (MILLIS, TIME, "DateTime", "cannot-parse a"),
        (MILLIS, TIME, "Dynamic", "12:34:56.789"),
        (MICROS, TIME, "Variant(String, Time64(6))", "12:34:56.789000"),
        (MICROS, dt.time(0, 0, 0, 1), "Time64(6)", "00:00:00.000001"),
        (["null", MICROS], None, "Nullable(Time64(6))", None),
        (["null", MICROS], TIME, "Nullable(Time64(6))", "12:34:56.789000"),
        (
            {"type": "array", "items": ["null", MILLIS]},
            [TIME, None],
            "Array(Nullable(Time64(3)))",
            ["12:34:56.789", None],
        ),
        (
            {"type": "map", "values": MICROS},
            {"k": TIME},
            "Map(String, Time64(3))",
            {"k": "12:34:56.789"},
        ),
        (["string", MICROS], TIME, "Variant(String, Time64(6))", "12:34:56.789000"),
        (["string", MICROS], "x", "Variant(String, Time64(6))", "x"),
        (NANOS, 5, "DateTime64(9, 'UTC')", "1970-01-01 00:00:00.000000005"),
        (
            {"type": "array", "items": NANOS},
            [5],
            "Array(DateTime64(9, 'UTC'))",
            ["1970-01-01 00:00:00.000000005"],
        ),
        (
            LOCAL,
            dt.datetime(1970, 1, 1, 0, 0, 9, 5000),
            "DateTime64(3, 'UTC')",
            "1970-01-01 00:00:09.005",
        ),
        (LOCAL, dt.datetime(1970, 1, 1, 0, 0, 9), "DateTime('UTC')", "1970-01-01 00:00:09"),
        (LOCAL, dt.datetime(1970, 1, 1), "Date", "1970-01-01"),
        (LOCAL, dt.datetime(1970, 1, 1, 0, 0, 9), "Int64", "9000"),
    ],
)
def test_times_of_avro(kind: Any, value: Any, type_text: str, becomes: Any) -> None:
    assert loaded(kind, value, type_text) == becomes


def test_numbers_beyond_a_time_are_refused() -> None:
    for number, becomes in (
        (3599999999, "999:59:59.999"),
        (3600000000, "out-of-range a"),
        (-1, "-00:00:00.001"),
    ):
        schema = record(("a", "long"))
        said = record(("a", logical("long", "time-nanos")))
        nanos = number * 10**6
        message = framed(SCHEMAS.add(said), body(schema, {"a": nanos}))
        text = table(Column("a", "Time64(3)"), format="AvroConfluent", options=(("registry", URL),))
        (found,) = made(text, [message])
        assert (found[0] if isinstance(found, list) else found) == becomes


def test_numbers_that_connect_calls_times_are_times() -> None:
    text = connect_table({"t": "Time64(3)", "n": "Nullable(Time)", "i": "UInt32"})
    kinds = {"t": "Time", "n": "Time?", "i": "Time"}
    values = [
        {"t": 45296789, "n": 5000, "i": 7},
        {"t": 0, "n": None, "i": 7},
        {"t": 45296789, "n": 5001, "i": 7},
    ]
    assert made(text, [connect_message(kinds, value) for value in values]) == [
        ["12:34:56.789", "00:00:05", 7],
        ["00:00:00.000", None, 7],
        "cannot-parse n",
    ]


@pytest.mark.parametrize(
    ("name", "per_second"), [("Time", 10**3), ("MicroTime", 10**6), ("NanoTime", 10**9)]
)
def test_numbers_that_debezium_calls_times_are_times(name: str, per_second: int) -> None:
    field = {"field": "t", "type": "int64", "name": f"io.debezium.time.{name}"}
    row = {"field": "after", "type": "struct", "fields": [field]}
    schema = {"type": "struct", "fields": [row]}
    payload = {"after": {"t": 5 * per_second + per_second // 4}, "op": "c"}
    text = table(Column("t", "Time64(3)"), envelope="debezium")
    message = json.dumps({"schema": schema, "payload": payload}).encode()
    assert made(text, [message]) == [["00:00:05.250"]]
    kind = {"type": "int" if name == "Time" else "long", "connect.name": f"io.debezium.time.{name}"}
    after = {"type": "record", "name": "Value", "fields": [{"name": "t", "type": kind}]}
    event = record(("before", ["null", after]), ("after", ["null", "shop.Value"]), ("op", "string"))
    value = {"before": None, **payload}
    raw = framed(SCHEMAS.add(event), body(event, value))
    options = (("registry", URL),)
    text = table(
        Column("t", "Time64(3)"), envelope="debezium", format="AvroConfluent", options=options
    )
    assert made(text, [raw]) == [["00:00:05.250"]]
