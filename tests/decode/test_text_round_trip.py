"""Rows of any values as the engine writes them in text formats, against its own reading of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.engine.session import identifier, literal, run
from sluice.decode.messages.memory import memory_file
from tests.decode.support import rows
from tests.decode.test_typed_round_trip import TYPES, YEARS, decimals, integers, moments
from tests.decode.text_support import decode_text, text_of
from tests.decode.typed_support import SETTINGS
from tests.support.examples import examples

FORMATS = (
    *("JSONEachRow", "JSONCompactEachRow", "CSV", "TSV", "CSVWithNames", "TSVWithNames", "TSKV"),
)
#: Beside those of typed formats: what stands in brackets is written in another way there.
MORE: dict[str, Any] = {
    "Array(Decimal(9, 2))": st.lists(decimals(9, 2), max_size=3),
    "Array(Decimal(76, 20))": st.lists(decimals(76, 20), max_size=2),
    "Array(Int256)": st.lists(integers(256, True), max_size=2),
    "Array(UInt256)": st.lists(integers(256, False), max_size=2),
    "Array(Float64)": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    "Array(DateTime)": st.lists(moments(0, 0, 2**32 - 2), max_size=2),
    "Array(Date)": st.lists(st.dates(**YEARS).map(str), max_size=2),
    "Array(Bool)": st.lists(st.booleans(), max_size=3),
    "Array(UUID)": st.lists(st.uuids().map(str), max_size=2),
    "Map(Int256, Nullable(Decimal(9, 2)))": st.dictionaries(
        integers(256, True).map(str), st.none() | decimals(9, 2), max_size=2
    ),
    "Tuple(a Decimal(9, 2), b Array(Int256), c DateTime64(3))": st.fixed_dictionaries(
        {
            "a": decimals(9, 2),
            "b": st.lists(integers(256, True), max_size=2),
            "c": moments(3, 0, 2**32),
        }
    ),
}
ALL = TYPES | MORE
COLUMNS = tuple(Column(f"c{number}", text) for number, text in enumerate(ALL))
STRUCTURE = ", ".join(f"{identifier(column.name)} {column.type}" for column in COLUMNS)
DOCUMENTS = st.lists(
    st.fixed_dictionaries({column.name: ALL[column.type] for column in COLUMNS}),
    min_size=1,
    max_size=3,
)


def engine_says(query: str) -> list[list[Any]]:
    quoted = ", ".join(
        f"output_format_json_quote_{kind}=1" for kind in ("64bit_integers", "decimals", "denormals")
    )
    text = run(f"{query} {SETTINGS}, {quoted}", "JSONCompactEachRow").bytes().decode()
    return [json.loads(line) for line in text.split("\n") if line]


@pytest.mark.slow
@pytest.mark.examples
@pytest.mark.parametrize("format_name", FORMATS)
def test_round_trip(format_name: str) -> None:
    @settings(max_examples=examples(8), deadline=None, derandomize=True)
    @given(DOCUMENTS)
    def same(documents: list[dict[str, Any]]) -> None:
        text = "\n".join(json.dumps(document, ensure_ascii=False) for document in documents)
        with memory_file(text.encode()) as path:
            source = f"file({literal(path)}, JSONEachRow, {literal(STRUCTURE)})"
            messages = [
                run(f"SELECT * FROM {source} LIMIT 1 OFFSET {row} {SETTINGS}", format_name).bytes()
                for row in range(len(documents))
            ]
        expected: list[list[Any]] = []
        for message in messages:
            with memory_file(message) as path:
                source = f"file({literal(path)}, {format_name}, {literal(STRUCTURE)})"
                expected += engine_says(f"SELECT * FROM {source}")
        decoded = decode_text(text_of(format_name, *COLUMNS), messages)
        assert decoded.bad == ()
        assert rows(decoded) == expected

    same()


@pytest.mark.parametrize("format_name", FORMATS)
def test_empty_values_and_ten_megabytes(format_name: str) -> None:
    columns = (Column("s", "String"), Column("a", "Array(String)"), Column("n", "Nullable(Int8)"))
    part, times = "é\t\n\"'\\" * 2, 800_000
    large = f"repeat({literal(part)}, {times})"
    rows_of = [("''", "[]", "NULL"), (large, f"['', {large}]", "-128"), ("'x'", "['']", "127")]
    messages = [
        run(f"SELECT {s} AS s, {a} AS a, {n} AS n", format_name).bytes() for s, a, n in rows_of
    ]
    assert len(messages[1]) > 20 << 20
    decoded = decode_text(text_of(format_name, *columns), messages)
    assert decoded.bad == ()
    whole = part * times
    assert rows(decoded) == [["", [], None], [whole, ["", whole], -128], ["x", [""], 127]]
