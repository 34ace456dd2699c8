"""Rows of lines and arrays as JSON objects; and values that the engine reads as something else than
they say, each of which is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.messages.brackets import OBJECTS
from sluice.decode.text.objects import Dialect, Parts, ValueLayout, objects_of
from tests.decode.slow_brackets import is_one_row
from tests.decode.support import rows
from tests.decode.text_support import decode_text, made, text_of
from tests.support.examples import examples

PARSE, RANGE = "cannot-parse", "out-of-range"


def one(fmt: str, type_text: str, cell: str) -> Any:
    """What a value becomes, far from the end of the file and near to it."""
    quoted = f'"{cell}"' if fmt == "CSV" and cell[0] in "[{" else cell
    separator = "," if fmt == "CSV" else "\t"
    text = text_of(fmt, Column("a", type_text), Column("s", "String"))
    far, near = (f"{quoted}{separator}{'x' * size}".encode() for size in (600, 1))
    (first,), (second, _) = made(text, near), made(text, near, far)
    assert first == second or first[0] == second[0]
    return first[0] if isinstance(first, list) else first


@pytest.mark.parametrize("type_text", ["Int8", "UInt64", "Int128", "Nullable(Int8)", "Float64"])
@pytest.mark.parametrize("cell", ["-", "+", "--1", "+-1", "-+1"])
@pytest.mark.parametrize("fmt", ["CSV", "TSV"])
def test_signs(fmt: str, cell: str, type_text: str) -> None:
    assert one(fmt, type_text, cell) == PARSE


IN_BRACKETS = [
    *((f"Array({t})", f"[{v}]") for t in ("Int8", "Time", "Decimal(9, 2)") for v in ("-", "1, - ")),
    *(
        (f"Array({t})", v)
        for t in ("Int8", "Int256", "Float32")
        for v in ("[,]", "[1,,2]", "[ ,1]")
    ),
    *(("Array(Float64)", v) for v in ("[--1]", "[1,-+1]")),
    *(("Array(Decimal(9, 2))", v) for v in ("[+]", "[e]", "[1e]", "[1.2.3]", "[.]", "[1,abc]")),
    ("Array(Int256)", "[0x10]"),
    ("Map(String, Int8)", "{'a':}"),
    ("Map(Int8, Int8)", "{:1}"),
    ("Array(Tuple(Int8, Decimal(9, 2)))", "[(1,-)]"),
]


@pytest.mark.parametrize(("type_text", "cell"), IN_BRACKETS)
@pytest.mark.parametrize("fmt", ["CSV", "TSV"])
def test_in_brackets(fmt: str, type_text: str, cell: str) -> None:
    assert one(fmt, type_text, cell) == PARSE


@pytest.mark.parametrize(
    ("type_text", "cell", "expected"),
    [
        ("Array(Decimal(9, 2))", "[1.239]", RANGE),
        ("Array(Decimal(9, 2))", "[10000000]", RANGE),
        ("Array(Decimal(9, 2))", "[-10000000]", RANGE),
        ("Array(Decimal(9, 2))", "[12345678901]", RANGE),
        ("Array(Decimal(9, 2))", "[-9999999.99,1e1,+5,007]", ["-9999999.99", "10", "5", "7"]),
        ("Array(Decimal(9, 2))", "[1.2300000000000000000000000000000000000000000000000]", ["1.23"]),
        ("Array(Decimal(9, 2))", f"[1.{'0' * 70}1]", RANGE),
        ("Array(Decimal(76, 2))", "[1.239]", RANGE),
        ("Array(Decimal(76, 2))", f"[{10**74 - 1}.99]", [f"{10**74 - 1}.99"]),
        ("Array(Decimal(76, 2))", f"[{10**74}]", RANGE),
        ("Array(UInt256)", f"[{2**256 - 1}]", [str(2**256 - 1)]),
        ("Array(UInt256)", f"[{2**256}]", RANGE),
        ("Array(UInt256)", "[-1]", RANGE),
        ("Array(Int256)", "[1.5]", RANGE),
        ("Array(Int256)", "[1e3]", RANGE),
        ("Array(Int256)", f"[-{2**255}]", [str(-(2**255))]),
        ("Array(Int256)", f"[-{2**255 + 1}]", RANGE),
        ("Array(UInt8)", "[256]", RANGE),
        ("Array(String)", "['-','--1']", ["-", "--1"]),
        ("String", "-", "-"),
        ("String", "--1", "--1"),
        ("Date", "1970-01-02", "1970-01-02"),
    ],
)
@pytest.mark.parametrize("fmt", ["CSV", "TSV"])
def test_numbers_that_fit(fmt: str, type_text: str, cell: str, expected: Any) -> None:
    assert one(fmt, type_text, cell) == expected


def test_elements_of_a_tuple() -> None:
    """A row of CSV has a value for each, TSV brackets."""
    types = "Tuple(Int8, Tuple(Decimal(9, 2), Int256))"
    csv, tsv = (text_of(fmt, Column("a", types)) for fmt in ("CSV", "TSV"))
    assert made(csv, b"1,2.5,-3", b"-,2.5,3", b"1,-,3") == [[[1, ["2.5", "-3"]]], PARSE, PARSE]
    lines = (b"(1,(2.5,-3))", b"(-,(2.5,3))", b"(1,(-,3))", b"(1,)")
    assert made(tsv, *lines) == [[[1, ["2.5", "-3"]]], PARSE, PARSE, PARSE]


def test_two_signs_anywhere_in_json_arrays() -> None:
    text = text_of("JSONCompactEachRow", Column("f", "Float64"), Column("s", "String"))
    good, bad = b'[1,"--1"]', b'[--1,"x"]'
    for messages in ([bad], [good, bad], [bad, *[good] * 200], [*[good] * 200, bad]):
        outcomes = made(text, *messages)
        assert outcomes[messages.index(bad)] == "not-one-row"
        assert outcomes.count([1, "--1"]) == len(messages) - 1


def csv_rows(message: str) -> list[list[str | None]] | None:
    """The rows as CSV has them, looked at one symbol after the other; None for a value that is
    absent, for all of them if a quote is not closed. A value with something behind its quote is
    GARBAGE."""
    rows: list[list[str | None]] = [[]]
    at = 0
    while True:
        value: str | None = ""
        if message[at : at + 1] == '"':
            at += 1
            while message[at : at + 1] != '"' or message[at + 1 : at + 2] == '"':
                if at >= len(message):
                    return None
                value += message[at]
                at += 2 if message[at] == '"' else 1
            at += 1
            if message[at : at + 1] not in ("", ",", "\n"):
                value = "GARBAGE"
            while message[at : at + 1] not in ("", ",", "\n"):
                at += 1
        else:
            while message[at : at + 1] not in ("", ",", "\n"):
                value += message[at]
                at += 1
            value = value or None
        rows[-1].append(value)
        if at >= len(message):
            return rows
        if message[at] == "\n":
            if at + 1 == len(message):
                return rows
            rows.append([])
        at += 1


NAMES = ("a", "b")
PIECES = st.lists(st.sampled_from([*list('ab",,\n\n{}[]\\ '), '""', '"a"', ',"']), max_size=14)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(PIECES.map("".join).filter(str.strip), min_size=1, max_size=6))
def test_objects_hold_what_csv_says(messages: list[str]) -> None:
    expected: list[tuple[int, object]] = []
    for number, message in enumerate(messages):
        for row in csv_rows(message) or ():
            document = {name: one for name, one in zip(NAMES, row, strict=False) if one is not None}
            is_bad = len(row) != 2 or "GARBAGE" in row
            expected.append((number, None if is_bad else document or None))
    found = objects(messages, dict.fromkeys(NAMES, "String"), Dialect.CSV)
    assert found == expected


#: Bytes of every kind of value and of its edges.
HOSTILE = st.lists(
    st.sampled_from(
        [*list("1.-+eN'\"\\,:;[](){} \tab\r\n"), "NULL", "true", "\\N", "[", "'a'", "]"]
    ),
    min_size=1,
    max_size=16,
).map("".join)
HOSTILE_TYPES = ("UInt8", "Bool", "Array(String)", "Map(String, UInt8)", "JSON", "Variant(Int8)")


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(HOSTILE, min_size=1, max_size=5),
    st.sampled_from(HOSTILE_TYPES),
    st.sampled_from([Dialect.CSV, Dialect.TSV, Dialect.PLAIN]),
)
def test_whatever_a_line_says_its_object_is_one(
    messages: list[str], type_text: str, dialect: Dialect
) -> None:
    """No value gets out of its place: what stands between the brackets of the row is its own."""
    rows_of: list[int] = []
    for owner, row in raw_objects(messages, {"a": type_text, "b": "String"}, dialect):
        assert row.count(b"\n") == 0 and is_one_row(row, OBJECTS), row
        rows_of.append(owner)
    assert rows_of == sorted(rows_of)


def raw_objects(
    messages: list[str], types: dict[str, str], dialect: Dialect
) -> Iterator[tuple[int, bytes]]:
    """The place of the message of each row, and its object."""
    encoded = [message.encode() for message in messages]
    ends = np.cumsum([len(one) + 1 for one in encoded], dtype=np.int64)
    begins = np.concatenate(([0], ends[:-1]))
    layout = ValueLayout.of(tuple(types), types, dialect)
    chosen = np.zeros(len(ends), np.int64)
    text = b"\n".join([*encoded, b""])
    parts = Parts(text, begins, ends - 1, chosen, [layout], chosen, {})
    delimiter = b"," if dialect is Dialect.CSV else b"\t"
    found = objects_of(parts, dialect, delimiter, b"\\N")
    begin = 0
    for owner, end in zip(found.owners.tolist(), found.ends.tolist(), strict=True):
        yield owner, found.text[begin:end]
        begin = end + 1


def objects(messages: list[str], types: dict[str, str], dialect: Dialect) -> list[tuple[int, Any]]:
    """The same as Python reads them; None for a row that is none."""
    read = ((owner, json.loads(row)) for owner, row in raw_objects(messages, types, dialect))
    return [(owner, document or None) for owner, document in read]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.decimals(-(10**7) + 1, 10**7 - 1, places=2), max_size=4),
    st.dictionaries(st.text("ab',é\\", max_size=4), st.integers(-(2**255), 2**255 - 1), max_size=3),
)
def test_numbers_in_brackets_round_trip(decimals: list[Decimal], numbers: dict[str, int]) -> None:
    def text(value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    cells = [
        "[" + ",".join(map(str, decimals)) + "]",
        "{" + ",".join(f"{text(key)}:{number}" for key, number in numbers.items()) + "}",
    ]
    columns = (Column("d", "Array(Decimal(9, 2))"), Column("m", "Map(String, Int256)"))
    in_tsv = "\t".join(cells).encode()
    in_csv = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells).encode()
    for fmt, line in (("TSV", in_tsv), ("CSV", in_csv)):
        decoded = decode_text(text_of(fmt, *columns), [line])
        assert not decoded.bad
        ((found_decimals, found_numbers),) = rows(decoded)
        assert [Decimal(one) for one in found_decimals] == decimals
        assert {key: int(number) for key, number in found_numbers.items()} == numbers
