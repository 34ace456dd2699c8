"""Values that are what their column takes, in a way that only some writers of JSON have: integers
with a point or an exponent, booleans and objects as texts, NaN where no column is."""

from __future__ import annotations

import pytest

from sluice.core.load_spec import Column
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.text.rewriting import Rewriting
from tests.decode.support import rows, table
from tests.decode.text_support import decode_text, made

PARSE, RANGE = "cannot-parse", "out-of-range"


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("UInt8", "1.0", 1),
        ("UInt8", "2.55e2", 255),
        ("UInt8", "256.0", PARSE),
        ("Int8", "-0.0", 0),
        ("Int64", "-9.223372036854775808e18", "-9223372036854775808"),
        ("Int64", "9.223372036854775808e18", PARSE),
        ("Nullable(Int32)", "1e3", 1000),
        ("Nullable(Int32)", "null", None),
        ("LowCardinality(Nullable(Int32))", "1E+1", 10),
        ("UInt256", "1e50", "1" + "0" * 50),
        ("UInt256", "1e999", RANGE),
        ("Bool", '"true"', True),
        ("Bool", '"false"', False),
        ("Bool", '"yes"', PARSE),
        ("String", "1.0", "1.0"),
        ("String", '"true"', "true"),
        ("Float64", "1.0", 1),
    ],
)
def test_values_are_what_they_say(kind: str, written: str, value: object) -> None:
    text = table(Column("a", kind), Column("n", "UInt8"))
    (found,) = made(text, f'{{"a":{written},"n":1}}'.encode())
    assert found == ([value, 1] if found != value else value)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("Array(Int32)", "[1.0, 1e3, null]", "null-in-column"),
        ("Array(Nullable(Int32))", "[1.0, 1e3, null, 7]", [1, 1000, None, 7]),
        ("Map(String, Array(UInt8))", '{"1.0":[2.0],"b":[]}', {"1.0": [2], "b": []}),
        ("Tuple(n Int8, s String, b Bool)", '{"b":"true","n":1.0,"s":"1.0"}', None),
        ("Tuple(Int8, String)", '[1e1,"1.0"]', [10, "1.0"]),
        ("Array(Tuple(n Int8))", '[{"n":1.0},{"n":2}]', [{"n": 1}, {"n": 2}]),
        ("Array(Bool)", '["true",false]', [True, False]),
        ("Array(UInt8)", "[1.0,1.5]", PARSE),
        ("Array(String)", "[1.0]", ["1.0"]),
        ("Map(String, Int32)", '{"a":1.0,"a":2.0}', PARSE),
        ("Array(Tuple(n Int8))", '[{"n":1.0,"n":2.0}]', PARSE),
        ("Variant(Bool, String)", '"true"', "true"),
        ("Dynamic", '"true"', "true"),
    ],
)
def test_inside_of_other_values(kind: str, written: str, value: object) -> None:
    if value is None:
        value = {"n": 1, "s": "1.0", "b": True}
    (found,) = made(table(Column("a", kind)), f'{{"a":{written}}}'.encode())
    assert found == ([value] if not isinstance(value, str) or kind[:2] in ("Va", "Dy") else value)


def test_a_name_that_stands_twice_inside_stays_as_it_is() -> None:
    (found,) = made(
        table(Column("a", "Int8"), Column("m", "Map(String, Int8)")), b'{"a":1.0,"m":{"k":1,"k":2}}'
    )
    assert (
        found
        == made(
            table(Column("a", "Int8"), Column("m", "Map(String, Int8)")),
            b'{"a":1,"m":{"k":1,"k":2}}',
        )[0]
    )


def test_what_is_not_exact_is_said_as_the_message_spells_it() -> None:
    columns = (Column("a", "Int32"), Column("b", "Bool"), Column("u", "UInt256"))
    values = [
        b'{"a":1.5}',
        b'{"a":1e30}',
        b'{"a":2147483648.0}',
        b'{"a":"1.0"}',
        b'{"a":1.0,"b":"yes"}',
        b'{"u":1e78}',
        b'{"a":1.,"b":true}',
        b'{"a":1.0,"a":1.0}',
    ]
    bad = decode_text(table(*columns), values).bad
    assert [(one.reason, one.column, one.error) for one in bad[:6]] == [
        (PARSE, "a", "1.5 cannot be read as column a Int32"),
        (PARSE, "a", "1e30 cannot be read as column a Int32"),
        (PARSE, "a", "2147483648.0 cannot be read as column a Int32"),
        (PARSE, "a", '"1.0" cannot be read as column a Int32'),
        (PARSE, "b", '"yes" cannot be read as column b Bool'),
        (RANGE, "u", "1e78 does not fit column u UInt256"),
    ]
    assert bad[6].error.startswith("the message is not JSON: ")
    assert bad[7].error == "the field a stands there twice"


@pytest.mark.slow
def test_neighbours_are_what_they_are_alone() -> None:
    """Whatever else stands in a range: what is plain, written otherwise, and at fault."""
    columns = (Column("a", "Int16"), Column("b", "Bool"), Column("f", "Float64"))
    kinds = [
        '{"a":%d}',
        '{"a":%d.0,"b":"true"}',
        '{"a":%de1}',
        '{"a":%d.5}',
        '{"f":Infinity,"a":%d}',
    ]
    values = [(kinds[n % 5] % n).encode() for n in range(300)]
    text = table(*columns)
    alone = [made(text, one)[0] for one in values[:25]]
    assert made(text, *values)[:25] == alone
    assert alone[:4] == [[0, False, 0], [1, True, 0], [20, False, 0], PARSE]
    many = table(*columns, rows="many", bad_rows="drop-row")
    joined = b"[" + b",".join(values) + b"]"
    decoded = decode_text(many, [joined, values[1]])
    assert [row[0] for row in rows(decoded)][:4] == [0, 1, 20, 4]
    assert (len(decoded.offsets), decoded.dropped_rows, decoded.bad) == (241, 60, ())
    (bad,) = decode_text(table(*columns, rows="many"), [values[1], joined]).bad
    assert (bad.index, bad.reason) == (1, PARSE)


def test_clean_messages_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Rewriting, "values", fail)
    text = table(Column("a", "Int16"), Column("f", "Float64"))
    assert made(text, b'{"a":1,"f":1.0}') == [[1, 1]]
    with pytest.raises(AssertionError):
        made(text, b'{"a":1.0}')


def test_only_marked_messages_are_taken_apart() -> None:
    types = {"a": "Int16", "b": "Bool", "j": "JSON"}
    values = [
        b'{"a":1.0,"x":"1.5"}',
        b'{"a":1,"x":"1.0","f":1.5,"g":1.50}',
        b'{"b":"true"}',
        b'{"b":"truest","x":"\\"false"}',
        b'{"j":"{}"}',
        b'{"x":"say \\"{\\"","y":null}',
        b'{"x":[-Infinity]}',
    ]
    with MessageBuffer() as buffer:
        buffer.add(values, range(len(values)))
        found = Rewriting(types, True).values(buffer, buffer.ends.argsort())
        assert list(found) == [0, 2, 4, 6]
        assert list(Rewriting(types, False).values(buffer, buffer.ends.argsort())) == [0, 2, 4]
    assert found[0] == b'{"a":1,"x":"1.5"}' and found[6] == b"{}"
