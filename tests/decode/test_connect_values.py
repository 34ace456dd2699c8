"""Numbers and bytes that Connect's schema calls moments, times and decimals, up to their ends: each
is what it means, or a dead letter, and never what the column would make of the number."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

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


def test_a_value_inside_of_others_is_refused_by_the_name_of_its_field() -> None:
    field = {"field": "v", "type": "array", "items": {"type": "int64", "name": f"{CONNECT}Time"}}
    whole = {"schema": {"type": "struct", "fields": [field]}, "payload": {"v": [1000, 36 * 10**8]}}
    assert one("Array(Time)", json.dumps(whole).encode()) == "out-of-range v"
