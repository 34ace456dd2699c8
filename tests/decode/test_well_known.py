"""Google's messages that are one value, wherever they stand in a Protobuf message."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.load_spec import Column
from tests.decode.protobuf_support import message_class
from tests.decode.support import rows, table
from tests.decode.text_support import decode_text

SCHEMA = """syntax = "proto3";
import "google/protobuf/wrappers.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
message In {
  google.protobuf.Timestamp at = 1;
  google.protobuf.Int64Value n = 2;
  google.protobuf.StringValue s = 3;
  repeated google.protobuf.Timestamp ats = 4;
}
message Row {
  In one = 2;
  repeated In many = 3;
  repeated google.protobuf.Timestamp times = 4;
  repeated google.protobuf.Int32Value nums = 5;
  map<string, google.protobuf.Timestamp> by = 6;
  google.protobuf.Timestamp at = 7;
  google.protobuf.BoolValue b = 8;
  oneof c { google.protobuf.Timestamp ct = 9; google.protobuf.StringValue cs = 10; int32 ci = 11; }
  oneof e { google.protobuf.Timestamp et = 12; google.protobuf.Duration ed = 13; }
}"""
ROW = message_class(SCHEMA)


def outcomes(types: dict[str, str], *values: dict[str, Any], **changes: Any) -> list[Any]:
    """Of each message its row, or the reason and the words."""
    options = (("message", "Row"), ("schema", SCHEMA))
    columns = [Column(name, kind) for name, kind in types.items()]
    text = table(*columns, format="Protobuf", options=options, **changes)
    decoded = decode_text(text, [ROW(**value).SerializeToString() for value in values])
    bad = {one.index: (one.reason, one.error) for one in decoded.bad}
    good = iter(rows(decoded))
    return [bad[index] if index in bad else next(good) for index in range(len(values))]


def moment(seconds: int, nanos: int = 0) -> dict[str, int]:
    return {"seconds": seconds, "nanos": nanos}


FULL = {
    "one": {"at": moment(1767225600, 123456789), "n": {"value": 0}, "ats": [moment(1), moment(2)]},
    "many": [{"at": moment(5)}, {"n": {"value": 7}, "s": {"value": "x"}}, {}],
    "times": [moment(0), moment(-1), moment(1767225600, 5000)],
    "nums": [{"value": 0}, {"value": 3}],
    "by": {"a": moment(9)},
}


def test_inside_of_messages_and_repeated() -> None:
    types = {
        "one": "Tuple(at Nullable(DateTime64(9)), n Nullable(Int8), s String, ats Array(DateTime))",
        "many": "Array(Tuple(at Nullable(DateTime64(3)), n Nullable(Int64), s String))",
        "times": "Array(DateTime64(6))",
        "nums": "Array(UInt8)",
        "by": "Map(String, DateTime64(3))",
    }
    day, second = "1970-01-01 00:00:0", "1970-01-01 00:00:05.000"
    there = [
        {"at": "2026-01-01 00:00:00.123456789", "n": 0, "s": "", "ats": [f"{day}1", f"{day}2"]},
        [
            {"at": second, "n": None, "s": ""},
            {"at": None, "n": "7", "s": "x"},
            {"at": None, "n": None, "s": ""},
        ],
        [f"{day}0.000000", "1969-12-31 23:59:59.000000", "2026-01-01 00:00:00.000005"],
        [0, 3],
        {"a": f"{day}9.000"},
    ]
    absent = [{"at": None, "n": None, "s": "", "ats": []}, [], [], [], {}]
    assert outcomes(types, FULL, {}) == [there, absent]


def test_in_the_columns_of_a_nested() -> None:
    types = {"many.at": "Array(Nullable(DateTime))", "many.n": "Array(Nullable(Int32))"}
    at = ["1970-01-01 00:00:05", None, None]
    assert outcomes(types, FULL, {}) == [[at, [None, 7, None]], [[], []]]


def test_their_own_fields_still_fill_tuples() -> None:
    types = {
        "one": "Tuple(at Tuple(seconds Int64, nanos Int32), n Tuple(value Int64))",
        "times": "Array(Tuple(seconds Int64))",
        "at": "Nullable(Tuple(seconds Int64, nanos Int32))",
    }
    one = {"at": {"seconds": "1767225600", "nanos": 123456789}, "n": {"value": "0"}}
    times = [{"seconds": "0"}, {"seconds": "-1"}, {"seconds": "1767225600"}]
    assert outcomes(types, FULL) == [[one, times, None]]
    refused = outcomes({"times": "Array(Tuple(seconds Int64))"}, {}, FULL, unknown_fields="refuse")
    assert refused[0] == [[]] and refused[1][0] == "unknown-field"


@pytest.mark.parametrize(
    ("types", "value", "words"),
    [
        ({"times": "Array(DateTime64(6))"}, {"times": [moment(1, 1)]}, "[(1,1)]"),
        ({"times": "Array(String)"}, {"times": [moment(1, -5)]}, "[(1,-5)]"),
        ({"at": "Nullable(DateTime64(3))"}, {"at": moment(253402300800)}, "(253402300800,0)"),
        ({"at": "DateTime64(3)"}, {"at": moment(1, 5)}, "1970-01-01 00:00:01.000000005"),
        ({"nums": "Array(Int8)"}, {"nums": [{"value": 300}]}, "[(300)]"),
    ],
)
def test_what_does_not_fit(types: dict[str, str], value: dict[str, Any], words: str) -> None:
    ((reason, error),) = outcomes(types, value)
    assert reason == "out-of-range" and f"{words} does not fit column" in error


def test_a_type_that_takes_none_of_them() -> None:
    ((reason, error),) = outcomes({"at": "Int64"}, {"at": moment(3)})
    assert (reason, error.split(" DateTime64")[0]) == ("cannot-parse", "1970-01-01 00:00:03.000000")
    ((reason, _),) = outcomes({"nums": "Array(Array(Int8))"}, FULL)
    assert reason == "cannot-parse"


def test_cut_moments() -> None:
    types = {"times": "Array(DateTime)", "at": "DateTime64(3)"}
    value = {"times": [moment(1, 999999999)], "at": moment(2, 1999999)}
    expected = [["1970-01-01 00:00:01"], "1970-01-01 00:00:02.001"]
    assert outcomes(types, value, fractions="cut") == [expected]


def test_values_of_any_type() -> None:
    """Absent fields are null there; two types that look alike stay what they look like."""
    types = {"at": "Dynamic", "b": "Variant(String, Bool)", "c": "Dynamic", "e": "Dynamic"}
    values = [
        {"at": moment(3), "b": {"value": False}, "ct": moment(4, 1)},
        {},
        {"cs": {"value": "q"}, "et": moment(5)},
        {"ci": 5, "ed": moment(6)},
    ]
    day = "1970-01-01 00:00:0"
    assert outcomes(types, *values) == [
        [f"{day}3.000000000", False, f"{day}4.000000001", None],
        [None, None, None, None],
        [None, None, "q", {"seconds": "5", "nanos": 0}],
        [None, None, 5, {"seconds": "6", "nanos": 0}],
    ]
