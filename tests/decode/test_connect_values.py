"""Numbers and bytes that Connect's schema calls moments, times and decimals, up to their ends: each
is what it means, or a dead letter, and never what the column would make of the number."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.load_spec import Mapped
from sluice.decode.values.change_events import ConnectJson
from tests.decode.connect_support import connect_table, made

CONNECT, DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
HOUR = 3600


def message(value: Any, name: str, **schema: Any) -> bytes:
    field = {"field": "v", "type": "int64", "name": name, **schema}
    whole = {"schema": {"type": "struct", "fields": [field]}, "payload": {"v": value}}
    return json.dumps(whole).encode()


def decimal(unscaled: int, scale: Any) -> bytes:
    raw = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    text = base64.b64encode(raw).decode()
    return message(text, f"{CONNECT}Decimal", type="bytes", parameters={"scale": scale})


def one(type_text: str, value: bytes) -> Any:
    (found,) = made(connect_table({"v": type_text}), [value])
    return found[0] if isinstance(found, list) else found


@pytest.mark.parametrize(
    ("number", "name", "type_text", "becomes"),
    [
        (-1000, f"{DEBEZIUM}Time", "Time", "-00:00:01"),
        (-1, f"{CONNECT}Time", "Time64(3)", "-00:00:00.001"),
        (30 * HOUR * 10**6, f"{DEBEZIUM}MicroTime", "Time64(6)", "30:00:00.000000"),
        (-838 * HOUR * 10**6 - 5, f"{DEBEZIUM}MicroTime", "Time64(6)", "-838:00:00.000005"),
        (1000 * HOUR * 10**6, f"{DEBEZIUM}MicroTime", "Time64(6)", "out-of-range v"),
        (1000 * HOUR * 10**3, f"{DEBEZIUM}Time", "Time", "out-of-range v"),
        (None, f"{DEBEZIUM}Time", "Nullable(Time)", None),
        (2**63 - 1, f"{DEBEZIUM}MicroTimestamp", "DateTime64(6, 'UTC')", "out-of-range v"),
        (10**25, f"{DEBEZIUM}Timestamp", "DateTime64(3, 'UTC')", "out-of-range v"),
        (1.5, f"{DEBEZIUM}Timestamp", "DateTime64(3, 'UTC')", "cannot-parse v"),
        ("1500", f"{DEBEZIUM}Timestamp", "DateTime64(3, 'UTC')", "cannot-parse v"),
        (3_000_000, f"{DEBEZIUM}Date", "DateTime64(3, 'UTC')", "out-of-range v"),
        (3_000_000, f"{DEBEZIUM}Date", "Date32", "out-of-range v"),
    ],
)
def test_numbers_at_the_ends_of_what_they_mean(
    number: Any, name: str, type_text: str, becomes: Any
) -> None:
    assert one(type_text, message(number, name)) == becomes


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (decimal(125, "2"), "1.25"),
        (decimal(7, "-2"), "700"),
        (decimal(7, "77"), "cannot-parse v"),
        (decimal(1, "-100000"), "cannot-parse v"),
        (decimal(10**96, "0"), "out-of-range v"),
        # Base64 of three bytes, and a number to the column.
        (message("1234", f"{CONNECT}Decimal", type="bytes", parameters={}), "cannot-parse v"),
        (message("1234", f"{CONNECT}Decimal", type="bytes"), "cannot-parse v"),
        (message("", f"{CONNECT}Decimal", parameters={"scale": "2"}), "cannot-parse v"),
        (message("123.5", f"{CONNECT}Decimal", parameters={"scale": "2"}), "cannot-parse v"),
        # As a converter with decimal.format = NUMERIC writes it.
        (message(12.5, f"{CONNECT}Decimal", parameters={"scale": "2"}), "12.5"),
    ],
)
def test_decimals_are_their_numbers_or_dead_letters(value: bytes, becomes: Any) -> None:
    assert one("Decimal(18, 4)", value) == becomes


@pytest.mark.parametrize(
    ("value", "type_text", "becomes"),
    [
        ({"scale": 3, "value": "MDk="}, "Decimal(18, 4)", "12.345"),
        ({"scale": -2, "value": "Bw=="}, "Float64", 700),
        ({"scale": 3, "value": "MDk="}, "String", "12.345"),
        ({"scale": 0, "value": "/w=="}, "Nullable(Int8)", -1),
        (None, "Nullable(Decimal(18, 4))", None),
        ({"scale": 3, "value": "MDk="}, "Decimal(18, 2)", "out-of-range v"),
        ({"scale": 3000, "value": "MDk="}, "String", "cannot-parse v"),
        ({"scale": 3}, "String", "cannot-parse v"),
        ({"scale": 3, "value": None}, "String", "cannot-parse v"),
        (5, "String", "cannot-parse v"),
        (
            {"scale": 3, "value": "MDk="},
            "Tuple(scale Int32, value String)",
            {"scale": 3, "value": "MDk="},
        ),
        (
            {"scale": 3, "value": "MDk="},
            "Variant(Int8, Tuple(scale Int32, value String))",
            {"scale": 3, "value": "MDk="},
        ),
        ({"scale": 3, "value": "MDk="}, "Dynamic", {"scale": "3", "value": "MDk="}),
    ],
)
def test_decimals_with_a_scale_of_their_own(value: Any, type_text: str, becomes: Any) -> None:
    parts = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]
    name = "io.debezium.data.VariableScaleDecimal"
    assert one(type_text, message(value, name, type="struct", fields=parts)) == becomes


@pytest.mark.parametrize("type_text", ["Object('json')", "Object(Nullable('json'))", "JSON"])
def test_an_object_of_a_scale_and_bytes_stays_one_in_a_column_of_objects(type_text: str) -> None:
    payload = b'{"v":{"scale":3,"value":"MDk="}}'
    value = message({"scale": 3, "value": "MDk="}, "io.debezium.data.VariableScaleDecimal")
    found = ConnectJson(connect_table({"v": type_text})).following(value)
    assert isinstance(found, bytes) and json.loads(found) == json.loads(payload)


def test_a_value_inside_of_others_is_refused_by_the_name_of_its_field() -> None:
    field = {"field": "v", "type": "array", "items": {"type": "int64", "name": f"{CONNECT}Time"}}
    whole = {"schema": {"type": "struct", "fields": [field]}, "payload": {"v": [1000, 36 * 10**8]}}
    assert one("Array(Time)", json.dumps(whole).encode()) == "out-of-range v"


def test_fields_of_a_nested_are_what_their_schema_says() -> None:
    parts = [{"field": "t", "type": "int32", "name": f"{CONNECT}Time"}, {"field": "s"}]
    field = {"field": "n", "type": "array", "items": {"type": "struct", "fields": parts}}
    records = [{"t": 1000, "s": "a"}, {"t": 2000, "s": "b"}]
    whole = {"schema": {"type": "struct", "fields": [field]}, "payload": {"n": records}}
    nested = connect_table({"n.t": "Array(Time)", "n.s": "Array(String)"})
    assert made(nested, [json.dumps(whole).encode()]) == [[["00:00:01", "00:00:02"], ["a", "b"]]]
    arrays = [
        {"field": "n.t", "type": "array", "items": parts[0]},
        {"field": "n.s", "type": "array", "items": {"type": "string"}},
    ]
    payload = {"n.t": [1000, 2000], "n.s": ["a", "b"]}
    whole = {"schema": {"type": "struct", "fields": arrays}, "payload": payload}
    assert made(nested, [json.dumps(whole).encode()]) == [[["00:00:01", "00:00:02"], ["a", "b"]]]


MS, US = 1767225600123, 1767225600123456
MOMENTS = {"day": "Date", "ms": "DateTime64(3, 'UTC')", "us": "DateTime64(6, 'UTC')"}
NAMES = {"day": "Date", "ms": "Timestamp", "us": "MicroTimestamp"}
NUMBERS = {"day": 20454, "ms": MS, "us": US}
LOADED = ["2026-01-01", "2026-01-01 00:00:00.123", "2026-01-01 00:00:00.123456"]


@pytest.mark.parametrize("envelope", ["connect", "debezium"])
@pytest.mark.parametrize("unit", ["", "ms", "us", "ns"])
def test_the_unit_of_the_schema_counts_beside_timestamps(unit: str, envelope: str) -> None:
    fields: Any = [
        {"field": name, "type": "int64", "name": f"{DEBEZIUM}{kind}"}
        for name, kind in NAMES.items()
    ]
    payload: Any = NUMBERS
    if envelope == "debezium":
        fields = [{"field": "after", "type": "struct", "fields": fields}]
        payload = {"op": "c", "before": None, "after": NUMBERS}
    whole = {"schema": {"type": "struct", "fields": fields}, "payload": payload}
    text = connect_table(MOMENTS, timestamps=unit, envelope=envelope)
    assert made(text, [json.dumps(whole).encode()]) == [LOADED]
    mapped = connect_table(MOMENTS, timestamps=unit, envelope=envelope, require=("ms",))
    assert made(mapped, [json.dumps(whole).encode()]) == [LOADED]


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (f"{US}", ["2026-01-01", "2026-01-01 00:00:00.123456", None]),
        (f'"{US}"', ["2026-01-01", "2026-01-01 00:00:00.123456", None]),
        ("1767225600123456.0", ["2026-01-01", "2026-01-01 00:00:00.123456", None]),
        ("-1", ["1969-12-31", "1969-12-31 23:59:59.999999", None]),
        ("1.5", "cannot-parse d"),
        ("1e999", "out-of-range d"),
        ("1e99999999999", "cannot-parse d"),
        (f"{US}000000", "out-of-range d"),
    ],
)
def test_without_a_schema_numbers_are_of_the_unit(value: str, becomes: Any) -> None:
    types = {
        "d": "Date32",
        "t": "DateTime64(6, 'UTC')",
        "n": "Nullable(DateTime('UTC'))",
    }
    text = connect_table(types, timestamps="us")
    row = f'{{"d":{value},"t":{value},"n":null}}'
    values = [row, f'{{"schema":null,"payload":{row}}}', f'{{"schema":{{}},"payload":{row}}}']
    assert made(text, [one.encode() for one in values]) == [becomes] * 3


def test_what_timestamps_does_not_change_beside_an_envelope() -> None:
    types = {
        "at": "DateTime64(3, 'UTC')",
        "second": "DateTime('UTC')",
        "count": "Int64",
        "zoned": "DateTime64(3, 'UTC')",
    }
    columns = connect_table(types, timestamps="ms", mapping=(Mapped("at", "path", "a.b"),))
    default = tuple(
        replace(one, kind="DEFAULT", expression="toDateTime(7)") if one.name == "second" else one
        for one in columns.columns
    )
    row = {"a": {"b": MS}, "second": 5, "count": 6, "zoned": "2026-01-01T01:00:00.123+01:00"}
    found = made(replace(columns, columns=default), [json.dumps(row).encode()])
    moment = "2026-01-01 00:00:00.123"
    assert found == [[moment, "1970-01-01 00:00:05", "6", moment]]
