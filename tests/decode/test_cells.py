"""Values of lines that the engine reads as something else than they say: each is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.messages.framing import LINES
from sluice.decode.messages.marked import buffer_of
from sluice.decode.text.cells import LineCells, nested
from sluice.decode.text.line_formats import Csv, Tsv
from tests.decode.support import rows
from tests.decode.text_support import decode_text, made, text_of

PARSE, RANGE = "cannot-parse", "out-of-range"


def one(fmt: str, type_text: str, cell: str) -> Any:
    """What a value becomes, far from the end of the file and near to it."""
    quoted = f'"{cell}"' if fmt == "CSV" and cell[0] in "[{" else cell
    separator = "," if fmt == "CSV" else "\t"
    text = text_of(fmt, Column("a", type_text), Column("s", "String"))
    far, near = (f"{quoted}{separator}{'x' * size}".encode() for size in (600, 1))
    (first,), (second,), (third, _) = made(text, far), made(text, near), made(text, near, far)
    assert first == second == third or first[0] == second[0] == third[0]
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
    *(("Array(Int256)", v) for v in ("[1.5]", "[1e3]", "[0x10]")),
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
        ("Array(UInt256)", "[-1]", PARSE),
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


WORDS = st.sampled_from(
    [
        "1",
        "-1.5",
        "-",
        "+",
        "--1",
        "1e",
        "1e5",
        "",
        "NULL",
        "nan",
        ".5",
        "9" * 19,
        "'12'",
        "'a'",
        "x",
    ]
)
NESTS = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda some: f"[{','.join(some)}]"),
        st.lists(inner, max_size=3).map(lambda some: f"({', '.join(some)})"),
        st.lists(st.tuples(inner, inner), max_size=2).map(
            lambda some: "{" + ",".join(f"{k}:{v}" for k, v in some) + "}"
        ),
    ),
    max_leaves=5,
)
TYPES = [
    *("Int8", "Float64", "DateTime", "Array(Int8)", "Array(Nullable(Decimal(9, 2)))"),
    *("Map(String, Int256)", "Tuple(Float64, DateTime)", "Array(Map(Int8, Decimal(76, 2)))"),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(NESTS, min_size=1, max_size=4), min_size=1, max_size=8), st.data())
def test_quick_and_slow_agree(values: list[list[str]], data: st.DataObject) -> None:
    columns = [(f"c{n}", data.draw(st.sampled_from(TYPES))) for n in range(4)]
    for lines, delimiter in ((Csv(), ","), (Tsv(), "\t")):
        cells = lines.look(columns, False)
        assert isinstance(cells, LineCells)
        quote = (lambda v: f'"{v}"' if "," in v else v) if delimiter == "," else str
        messages = [delimiter.join(map(quote, row)).encode() or b"x" for row in values]
        slow = {i: fault for i, row in enumerate(messages) if (fault := cells._judge(row))}
        with buffer_of(messages, LINES) as buffer:
            assert cells.faults(buffer) == slow


@settings(max_examples=60, deadline=None)
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


def test_nests_are_taken_apart() -> None:
    assert nested("[1, 'a\\'b', ('c'), {}]")[1:] == ["a'b", ["c"], ()]
    assert nested("1]") is None
