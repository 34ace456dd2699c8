"""Infinity and NaN are values where a message says so, whatever stands around them; what is only
too large for a float is refused, and so is null."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.core.load_spec import Column
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.connect_support import made
from tests.decode.support import rows, table
from tests.decode.text_support import decode_text

COLUMNS = (
    Column("x", "Float64"),
    Column("y", "Array(Float32)"),
    Column("m", "Map(String, Float64)"),
    Column("t", "Tuple(a Float64, b Nullable(Float32))"),
    Column("p", "Point"),
)
INFINITE, NONE = float("inf"), float("nan")
VALUES: list[dict[str, Any]] = [
    {
        "x": INFINITE,
        "y": [-INFINITE, 1.5],
        "m": {"k": NONE},
        "t": {"a": NONE, "b": INFINITE},
        "p": [1, -INFINITE],
    },
    {
        "x": -INFINITE,
        "y": [NONE],
        "m": {"k": 0.25},
        "t": {"a": INFINITE, "b": None},
        "p": [NONE, 0],
    },
    {"x": 1.7976931348623157e308, "y": [], "m": {}, "t": {"a": 5e-324, "b": NONE}, "p": [0, 0.5]},
]


def shown(value: Any) -> Any:
    """A value as the engine shows it."""
    if isinstance(value, float) and (value != value or abs(value) == INFINITE):
        return repr(value)
    if isinstance(value, dict):
        return {key: shown(one) for key, one in value.items()}
    return [shown(one) for one in value] if isinstance(value, list) else value


ROWS = [[shown(one) for one in value.values()] for value in VALUES]
OTHERS = json.dumps({"x": 2.5, "y": [1e30], "t": {"a": -0.5}})


@pytest.mark.parametrize("quoted", [False, True])
def test_all_json_takes_what_python_writes(quoted: bool) -> None:
    texts = [json.dumps(value) for value in VALUES]
    if quoted:
        texts = [
            text.replace("-Infinity", '"-Infinity"')
            .replace(" Infinity", ' "Infinity"')
            .replace("NaN", '"NaN"')
            for text in texts
        ]
    plain = [2.5, [1e30], {}, {"a": -0.5, "b": None}, [0, 0]]
    found = made(table(*COLUMNS), [texts[0].encode(), OTHERS.encode(), *map(str.encode, texts[1:])])
    assert [shown(row) for row in found] == [ROWS[0], plain, *ROWS[1:]]
    values = [f"[{texts[0]},{OTHERS}]".encode(), texts[2].encode()]
    many = rows(decode_text(table(*COLUMNS, rows="many"), values))
    assert [shown(row) for row in many] == [ROWS[0], plain, ROWS[2]]
    framed_text = table(*COLUMNS, format="JSONConfluent", options=(("registry", URL),))
    assert [shown(r) for r in made(framed_text, [framed(1, texts[1].encode())])] == [ROWS[1]]
    array = json.dumps(list(VALUES[0].values()))
    compact = made(table(*COLUMNS, format="JSONCompactEachRow"), [array.encode()])
    assert [shown(row) for row in compact] == [ROWS[0]]


@pytest.mark.parametrize(
    ("format_name", "line"),
    [
        ("CSV", "inf,nan\n"),
        ("CSV", "-Infinity,NaN"),
        ("TSV", "Infinity\t-inf"),
        ("TSKV", "a=-inf\tb=nan"),
        ("CSVWithNames", "a,b\ninf,-inf"),
    ],
)
def test_lines_take_what_pandas_and_others_write(format_name: str, line: str) -> None:
    text = table(Column("a", "Float64"), Column("b", "Nullable(Float32)"), format=format_name)
    (row,) = made(text, [line.encode()])
    words = line.lower().replace("infinity", "inf").replace("a=", "").replace("b=", "")
    assert row == words.strip().split("\n")[-1].replace("\t", ",").split(",")


REFUSED = [
    ('{"x":1e999}', "out-of-range", "x"),
    ('{"x":"-1e999"}', "out-of-range", "x"),
    ('{"x":Infinity,"y":[1e39]}', "out-of-range", "y"),
    ('{"x":Infinity,"m":{"k":1e400}}', "out-of-range", "m"),
    (f'{{"x":{"9" * 400}}}', "out-of-range", "x"),
    (f'{{"y":[{"9" * 45}]}}', "out-of-range", "y"),
    ('{"x":01,"y":[1e39]}', "out-of-range", "y"),
    ('{"x":null}', "null-in-column", "x"),
    ('{"t":{"a":null}}', "null-in-column", "t"),
    ('{"t":{"a":1e999}}', "out-of-range", "t"),
    ('{"x":Infinity,"t":{"a":NaN,"b":1e39}}', "out-of-range", "t"),
]


def test_what_is_too_large_and_null_are_refused_beside_infinity() -> None:
    good = json.dumps(VALUES[0]).encode()
    values = [one for text, *_ in REFUSED for one in (text.encode(), good)]
    found = made(table(*COLUMNS), values)
    assert found[::2] == [f"{reason} {column}" for _, reason, column in REFUSED]
    assert [shown(row) for row in found[1::2]] == [ROWS[0]] * len(REFUSED)
    # What a message becomes does not depend on its neighbours.
    assert [made(table(*COLUMNS), [text.encode()]) for text, *_ in REFUSED[:7]] == [
        [f"{reason} {column}"] for _, reason, column in REFUSED[:7]
    ]


@pytest.mark.parametrize(
    "kind", ["Int32", "UInt256", "Decimal(9, 2)", "DateTime", "String", "UUID", "Array(UInt8)"]
)
def test_where_no_float_is_it_is_said(kind: str) -> None:
    word = "[Infinity]" if kind.startswith("Array") else "Infinity"
    text = table(Column("n", kind), Column("x", "Float64"))
    (bad,) = decode_text(text, [f'{{"n":{word},"x":1}}'.encode()]).bad
    assert bad.reason == "cannot-parse"
    assert bad.error == f"{word} cannot be read as column n {kind}"


def test_fields_without_a_column_are_passed_over() -> None:
    values = [b'{"id":1,"other":NaN}', b'{"id":2,"other":{"k":[Infinity,"NaN"]},"s":"NaN"}']
    columns = (Column("id", "Int32"), Column("s", "String"))
    refusing = decode_text(table(*columns, unknown_fields="refuse"), values).bad
    assert [one.reason for one in refusing] == ["unknown-field"] * 2
    assert made(table(*columns), values) == [[1, ""], [2, "NaN"]]


def test_texts_of_other_formats_say_it_too() -> None:
    schema = record(("x", "string"))
    number = SCHEMAS.add(schema)
    texts = ["Infinity", "-inf", "NaN", "1e999", "1.5"]
    values = [framed(number, body(schema, {"x": one})) for one in texts]
    text = table(Column("x", "Float64"), format="AvroConfluent", options=(("registry", URL),))
    assert made(text, values) == [["inf"], ["-inf"], ["nan"], "out-of-range x", [1.5]]
