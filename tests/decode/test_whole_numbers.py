"""JSON whose writers have one kind of number, and booleans as text."""

from __future__ import annotations

import pytest

from sluice.core.load_spec import Column
from tests.decode.support import table
from tests.decode.text_support import decode_text, made

LENIENT = (("lenient", "true"),)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("UInt8", "1.0", 1),
        ("UInt8", "2.55e2", 255),
        ("UInt8", "256.0", "out-of-range"),
        ("Int8", "-0.0", 0),
        ("Int64", "-9.223372036854775808e18", "-9223372036854775808"),
        ("Int64", "9.223372036854775808e18", "out-of-range"),
        ("Nullable(Int32)", "1e3", 1000),
        ("Nullable(Int32)", "null", None),
        ("LowCardinality(Nullable(Int32))", "1E+1", 10),
        ("UInt256", "1e50", "1" + "0" * 50),
        ("UInt256", "1e999", "out-of-range"),
        ("Bool", '"true"', True),
        ("Bool", '"false"', False),
        ("Bool", '"yes"', "cannot-parse"),
        ("String", "1.0", "1.0"),
        ("String", '"true"', "true"),
        ("Float64", "1.0", 1),
    ],
)
def test_values_are_what_they_say(kind: str, written: str, value: object) -> None:
    text = table(Column("a", kind), Column("n", "UInt8"), options=LENIENT)
    (found,) = made(text, f'{{"a":{written},"n":1}}'.encode())
    assert found == ([value, 1] if found != value else value)


def test_what_is_no_integer_is_refused_as_ever() -> None:
    text = table(Column("a", "Int32"), options=LENIENT)
    values = [b'{"a":1.5}', b'{"a":1.}', b'{"a":"x"}', b'{"a":1.0}{"a":2.0}', b"[1]", b'{"a":1.0']
    plain = decode_text(table(Column("a", "Int32")), values)
    found = [(bad.index, bad.reason) for bad in decode_text(text, values).bad]
    assert found == [(bad.index, bad.reason) for bad in plain.bad]
    assert {0, 2, 3, 4, 5} <= {index for index, _ in found}
