"""Which fields get a column, and of which type."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from sluice.core.dynamic import (
    PASSED_OVER_MAX,
    DynamicColumns,
    Number,
    answer_to,
    kind_of,
    merged,
    type_of,
    why_no_answer,
)
from sluice.core.load_spec import parse_spec
from tests.core.test_load_spec import TEXT

RULES = DynamicColumns(allow=("attr_.*", "x"), deny=("attr_tmp.*", "trace"), columns_max=3)


def number(text: str) -> Number:
    return Number(text)


KINDS: list[tuple[object, str]] = [
    (None, "Null"),
    (True, "Bool"),
    (number("0"), "Int"),
    (number("-9007199254740992"), "Int"),
    (number("9007199254740993"), "Long"),
    (number("9223372036854775807"), "Long"),
    (number("-9223372036854775808"), "Long"),
    (number("9223372036854775808"), "String"),  # no number loses a digit
    (number("9" * 5000), "String"),
    (number("1.0"), "Float"),
    (number("1e5"), "Float"),
    (number("1e400"), "String"),
    (number("NaN"), "String"),
    ("", "String"),
    ("5", "String"),
    ("2026-01-02T03:04:05Z", "Time3"),
    ("2026-01-02T03:04:05.123+02:00", "Time3"),
    ("2026-01-02T03:04:05.1234Z", "Time6"),
    ("2026-01-02T03:04:05.123456789-11:30", "Time9"),
    ("2026-01-02 03:04:05", "String"),  # of no zone
    ("2026-01-02T03:04:05", "String"),
    ("2026-02-30T03:04:05Z", "String"),
    ("2026-01-02T03:04:60Z", "String"),
    ("1815-01-02T03:04:05Z", "String"),
    ("2262-01-02T03:04:05Z", "String"),
    ("2026-01-02T03:04:05Z ", "String"),
    ("2026-01-02", "String"),
    ({"a": number("1")}, "String"),
    ([], "Array(Null)"),
    ([None, number("1")], "Array(Int)"),
    ([number("1"), "a"], "Array(String)"),
    (["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1234567Z"], "Array(Time9)"),
    ([[number("1")]], "String"),
    ([{}], "String"),
]


@pytest.mark.parametrize(("value", "kind"), KINDS)
def test_the_kind_of_a_value(value: object, kind: str) -> None:
    assert kind_of(value) == kind


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("Null", "Int", "Int"),
        ("Null", "String", "String"),
        ("Null", "Array(Int)", "String"),  # an array cannot be null
        ("Int", "Long", "Long"),
        ("Int", "Float", "Float"),
        ("Long", "Float", "String"),  # a float does not hold it
        ("Int", "Bool", "String"),
        ("Int", "String", "String"),
        ("Time3", "Time9", "Time9"),
        ("Time3", "String", "String"),
        ("Array(Null)", "Array(Int)", "Array(Int)"),
        ("Array(Int)", "Array(Float)", "Array(Float)"),
        ("Array(Int)", "Int", "String"),
    ],
)
def test_values_of_two_kinds(one: str, other: str, both: str) -> None:
    assert merged(one, other) == merged(other, one) == both


def test_the_order_of_values_does_not_matter() -> None:
    """Else two attempts of one range could ask for different columns."""
    kinds = sorted({kind for _, kind in KINDS})
    for a, b, c in itertools.product(kinds, repeat=3):
        assert merged(merged(a, b), c) == merged(a, merged(b, c)), (a, b, c)


@pytest.mark.parametrize(
    ("kind", "new", "old"),
    [
        ("Null", "Nullable(String)", "Nullable(String)"),
        ("Bool", "Nullable(Bool)", "Nullable(UInt8)"),
        ("Int", "Nullable(Int64)", "Nullable(Int64)"),
        ("Long", "Nullable(Int64)", "Nullable(Int64)"),
        ("Float", "Nullable(Float64)", "Nullable(Float64)"),
        ("Time6", "Nullable(DateTime64(6, 'UTC'))", "Nullable(String)"),
        ("Array(Bool)", "Array(Nullable(Bool))", "Array(Nullable(UInt8))"),
        ("Array(Null)", "Array(Nullable(String))", "Array(Nullable(String))"),
    ],
)
def test_the_type_of_a_column(kind: str, new: str, old: str) -> None:
    assert type_of(kind) == new
    assert type_of(kind, has_bool=False, has_times=False) == old


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("attr_a", "add"),
        ("x", "add"),
        ("attr_ü 東`\"'\\", "add"),
        ("attr_tmp1", "pass-over"),
        ("trace", "pass-over"),
        ("xy", None),  # whole names
        ("my_attr_a", None),
        ("attr_known", None),
        ("attr_a.b", None),
        ("attr_\n", None),
        ("attr_\ufffd", None),
        ("attr_\ud800", None),
        ("attr_" + "a" * 195, "add"),
        ("attr_" + "a" * 196, None),  # no name of a file
        ("attr_" + "ü" * 33, None),
    ],
)
def test_what_is_done_about_a_field(name: str, answer: str | None) -> None:
    assert answer_to(RULES, {"id", "attr_known"}, name) == answer


@pytest.mark.parametrize("name", ["", "_offset", "_part", "_x", "a.b"])
def test_names_that_no_rule_takes(name: str) -> None:
    rules = DynamicColumns(allow=(".*",), deny=("never",))
    assert answer_to(rules, {"id"}, name) is None
    assert "a name like this" in why_no_answer(rules, {"id"}, name)


def test_room_is_counted_in_columns_that_the_rules_take() -> None:
    two = {"id", "attr_a", "attr_b", "attr_tmp", "other"}
    assert answer_to(RULES, two, "attr_c") == "add"
    three = {*two, "x"}
    assert answer_to(RULES, three, "attr_c") is None
    assert "dynamic_columns.max = 3" in why_no_answer(RULES, three, "attr_c")
    assert why_no_answer(RULES, two, "attr_c") == why_no_answer(RULES, two, "other1") == ""
    seen = tuple(f"attr_tmp{number}" for number in range(PASSED_OVER_MAX))
    full = replace(RULES, passed_over=seen)
    assert answer_to(full, {"id"}, "trace") is None and answer_to(full, {"id"}, seen[0]) is None
    assert "200 names are passed over" in why_no_answer(full, {"id"}, "trace")
    assert why_no_answer(full, {"id"}, seen[0]) == ""


def test_the_rules_are_part_of_the_text() -> None:
    tables = tuple(replace(table, dynamic=RULES) for table in TEXT.tables)
    text = replace(TEXT, tables=tables)
    assert text.digest() != TEXT.digest()
    assert parse_spec(text.canonical()) == text
    assert '"dynamic"' not in TEXT.canonical()
