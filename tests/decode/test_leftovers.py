"""A value that cannot be read leaves nothing behind for the rows after it.

The engine's tolerant reader goes on with the next row; of some types it had already put half a
value into the column, and the next rows got the values of their neighbours [measured: decimals].
"""

from __future__ import annotations

import pytest

from sluice.core.load_spec import Column
from tests.decode.text_support import ID, made, text_of

BAD = (
    *('"],["', '"1x"', '"1.1.1.25"', '"16ad3dba0"', "[1]", '{"a":1}', '"\\ud800"', '"2026-13-45"'),
    "tru",
)
#: Type: good values.
GOOD = {
    "Decimal(9, 2)": ('"-7"', "1.25", '"3.5"'),
    "Decimal(38, 10)": ('"-7"', "1.25", '"3.5"'),
    "Decimal(60, 2)": ('"-7"', "1.25", '"3.5"'),
    "Int8": ('"-7"', "1", '"3"'),
    "UInt64": ('"7"', "18446744073709551615", '"3"'),
    "Int256": ('"-7"', "1", '"3"'),
    "Float32": ('"-7"', "1.25", '"3.5"'),
    "Float64": ('"-7"', "1.25", '"3.5"'),
    "Bool": ("true", "false", "true"),
    "String": ('"a"', '"b"', '""'),
    "FixedString(3)": ('"a"', '"bcd"', '""'),
    "UUID": (
        '"61f0c404-5cb3-11e7-907b-a6006ad3dba0"',
        '"61f0c404-5cb3-11e7-907b-a6006ad3dba1"',
        '"61f0c404-5cb3-11e7-907b-a6006ad3dba2"',
    ),
    "IPv4": ('"1.2.3.4"', '"1.2.3.5"', '"1.2.3.6"'),
    "IPv6": ('"::1"', '"::2"', '"::3"'),
    "Date": ('"2026-01-02"', '"2026-01-03"', "5"),
    "Date32": ('"2026-01-02"', '"2026-01-03"', "5"),
    "DateTime": ('"2026-01-02 03:04:05"', "1767323045", '"2026-01-03T00:00:00Z"'),
    "DateTime64(3)": ('"2026-01-02 03:04:05"', "1767323045", '"2026-01-03T00:00:00.5Z"'),
    "Time64(3)": ('"01:02:03"', "5", '"00:00:09"'),
    "Enum8('a' = 1, 'b' = 2)": ('"a"', '"b"', '"a"'),
    "LowCardinality(String)": ('"a"', '"b"', '""'),
    "Array(Int32)": ("[1]", "[2,3]", "[]"),
    "Map(String, Int32)": ('{"k":1}', '{"k":2,"l":3}', "{}"),
    "Tuple(p Int32, q String)": ('{"p":1,"q":"a"}', '{"p":2,"q":"b"}', '{"p":3}'),
}
#: These cannot stand inside of Nullable.
_NEVER_NULL = ("Array", "Map", "Tuple", "LowCardinality")
PLACES = [(kind, False) for kind in GOOD]
PLACES += [(kind, True) for kind in GOOD if not kind.startswith(_NEVER_NULL)]


@pytest.mark.parametrize(("type_text", "is_nullable"), PLACES)
def test_good_rows_behind_bad_ones(type_text: str, is_nullable: bool) -> None:
    full = f"Nullable({type_text})" if is_nullable else type_text
    text = text_of("JSONEachRow", ID, Column("x", full))
    fields = GOOD[type_text] + (("null",) if is_nullable else ())
    good = [f'{{"id":{n},"x":{field}}}'.encode() for n, field in enumerate(fields * 3)]
    expected = made(text, *good)
    assert all(isinstance(row, list) for row in expected)
    tried = [f'{{"id":99,"x":{field}}}'.encode() for field in BAD]
    verdicts = zip(tried, made(text, *tried), strict=True)
    bad = [value for value, verdict in verdicts if isinstance(verdict, str)]
    assert bad or type_text == "String"
    pairs = zip(good, (bad or tried) * 12, strict=False)
    many = [value for pair in pairs for value in pair]
    # A message without the field, too: the engine fills it in after the next rows were read.
    few = [(bad or tried)[0], b"{}", *good]
    for values in (few, many):
        pairs_made = zip(values, made(text, *values), strict=True)
        found = [row for value, row in pairs_made if value not in (*tried, b"{}")]
        assert found == expected
