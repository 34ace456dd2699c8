"""Which numbers `timestamps` is about beside an envelope in JSON, and where Connect's schema counts
before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Mapped
from sluice.decode.formats import make_decoder
from tests.decode.connect_support import connect_message, connect_table, made
from tests.decode.support import table

SECOND, MS, US = 1767225600, 1767225600123, 1767225600123456
AT_SECOND, AT_MS = "2026-01-01 00:00:00", "2026-01-01 00:00:00.123"
MILLIS = "DateTime64(3, 'UTC')"
DEFAULTED = Column("at", "DateTime('UTC')", "DEFAULT", "toDateTime(7)")
OTHER = Column("other", MILLIS)


def loaded(text: Any, message: Any) -> Any:
    (found,) = made(text, [json.dumps(message).encode()])
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"require": ("at",)},
        {"require": ("at",), "mapping": (Mapped("other", "field", "x"),)},
        {"mapping": (Mapped("at", "path", "a.at"), Mapped("other", "path", "a.x"))},
        {"require": ("at",), "mapping": (Mapped("at", "path", "a.at"),)},
        {"fields": (("at", "DateTime('UTC')"),), "check": ("at > 0",)},
    ],
)
def test_a_column_with_a_default_is_read_as_ever(changes: dict[str, Any]) -> None:
    text = table(DEFAULTED, OTHER, envelope="connect", timestamps="ms", **changes)
    row = {"at": SECOND, "x": MS, "other": MS, "a": {"at": SECOND, "x": MS}}
    assert loaded(text, row) == [AT_SECOND, AT_MS]
    assert loaded(text, {"schema": None, "payload": row}) == [AT_SECOND, AT_MS]


def test_fields_of_expressions_are_what_their_types_say() -> None:
    columns = (Column("second", "DateTime('UTC')"), Column("at", MILLIS), Column("day", "Date"))
    mapping = (
        Mapped("second", "sql", "s"),
        Mapped("at", "field", "n"),
        Mapped("day", "field", "n"),
    )
    fields = (("s", "DateTime('UTC')"), ("n", "Int64"))
    facts: dict[str, Any] = {"mapping": mapping, "fields": fields, "timestamps": "ms"}
    for required in ((), ("at",)):
        text = table(*columns, envelope="connect", require=required, **facts)
        assert loaded(text, {"s": SECOND, "n": MS}) == [AT_SECOND, AT_MS, "2026-01-01"]


def test_a_field_is_not_of_two_units() -> None:
    columns = (Column("other", "DateTime('UTC')"), DEFAULTED)
    mapping = (Mapped("other", "field", "at"),)
    text = table(*columns, envelope="connect", timestamps="ms", mapping=mapping)
    with pytest.raises(TerminalError, match="reads the field at for at and as another type"):
        make_decoder(text)


@pytest.mark.parametrize(
    ("kind", "unit"), [("int64", "ms"), ("Timestamp", "us"), ("Timestamp", "")]
)
def test_a_map_fills_a_path_and_a_struct_a_map(kind: str, unit: str) -> None:
    mapping = (Mapped("at", "path", "a.b"),)
    by_path = connect_table({"at": MILLIS}, timestamps=unit, mapping=mapping)
    for outer in (("string", kind), {"b": kind}):
        message = connect_message({"a": outer}, {"a": {"b": MS}})
        assert made(by_path, [message]) == [[AT_MS]]
        for type_text in (f"Map(String, {MILLIS})", f"Tuple(b {MILLIS})"):
            text = connect_table({"a": type_text}, timestamps=unit)
            assert made(text, [message]) == [[{"b": AT_MS}]]


@pytest.mark.parametrize("type_text", ["Date", "Nullable(Date32)"])
def test_a_date_gets_the_day_of_a_moment(type_text: str) -> None:
    message = connect_message({"d": "Timestamp"}, {"d": -1})
    assert made(connect_table({"d": "Date32"}, timestamps="us"), [message]) == [["1969-12-31"]]
    message = connect_message({"d": "Timestamp"}, {"d": MS})
    assert made(connect_table({"d": type_text}, timestamps="us"), [message]) == [["2026-01-01"]]
    assert made(connect_table({"d": type_text}), [message]) == ["out-of-range d"]


def test_texts_of_digits_are_numbers_of_the_unit() -> None:
    text = connect_table({"d": "Date", "t": "DateTime('UTC')"}, timestamps="ms")
    assert loaded(text, {"d": "20260101", "t": "20260000"}) == ["1970-01-01", "1970-01-01 05:37:40"]
    assert loaded(text, {"d": "2026-01-01", "t": "2026-01-01 00:00:00"}) == [
        "2026-01-01",
        AT_SECOND,
    ]


def test_numbers_in_the_records_of_a_nested_are_of_the_unit() -> None:
    records = {"n": [{"a": MS, "s": "x"}]}
    flat = connect_table({"n.a": f"Array({MILLIS})", "n.s": "Array(String)"}, timestamps="ms")
    assert loaded(flat, records) == [[AT_MS], ["x"]]
    assert loaded(flat, {"n.a": [MS], "n.s": ["x"]}) == [[AT_MS], ["x"]]
    whole = connect_table({"n": f"Nested(a {MILLIS}, s String)"}, timestamps="ms")
    assert loaded(whole, records) == [[{"a": AT_MS, "s": "x"}]]
    message = connect_message({"n": [{"a": "Timestamp", "s": "string"}]}, records)
    assert made(connect_table({"n": f"Nested(a {MILLIS}, s String)"}), [message]) == [
        [[{"a": AT_MS, "s": "x"}]]
    ]
    defaulted = table(
        Column("n.a", "Array(DateTime('UTC'))", "DEFAULT", "[]"),
        Column("n.b", f"Array({MILLIS})"),
        envelope="connect",
        timestamps="ms",
    )
    assert loaded(defaulted, {"n": [{"a": SECOND, "b": MS}]}) == [[AT_SECOND], [AT_MS]]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_an_event_says_its_own_moments_in_their_own_units(unit: str) -> None:
    ticks = {"ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    micros = "DateTime64(6, 'UTC')"
    facts: dict[str, Any] = {"envelope": "debezium", "timestamps": unit}
    source = {"ts_ms": MS, "ts_us": US, "lsn": 5}
    event = {"op": "c", "after": {"at": SECOND * ticks}, "source": source, "ts_ms": MS}
    types = {"at": "DateTime('UTC')", "__ts_ms": MILLIS}
    as_tuple = connect_table(types | {"__source": f"Tuple(ts_ms {MILLIS}, lsn Int8)"}, **facts)
    expected = [AT_SECOND, AT_MS, {"ts_ms": AT_MS, "lsn": 5}]
    assert loaded(as_tuple, event) == expected
    whole = {"schema": {"type": "struct", "fields": []}, "payload": event}
    assert loaded(as_tuple, whole) == expected
    mapping = (
        Mapped("told", "field", "__ts_ms"),
        Mapped("ms", "path", "__source.ts_ms"),
        Mapped("us", "path", "__source.ts_us"),
    )
    types = {"at": "DateTime('UTC')", "told": MILLIS, "ms": MILLIS, "us": micros}
    by_path = connect_table(types, mapping=mapping, **facts)
    assert loaded(by_path, event) == [AT_SECOND, AT_MS, AT_MS, f"{AT_MS}456"]
