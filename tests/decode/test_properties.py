"""Whatever stands in a block: each message becomes what it becomes alone."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.text.decoder import Decoder
from tests.decode.support import decode, rows, table
from tests.support.examples import examples

COLUMNS = (
    Column("id", "UInt64"),
    Column("n", "UInt8"),
    Column("s", "String"),
    Column("at", "DateTime"),
    Column("u", "UUID"),
    Column("tags", "Array(String)"),
    Column("x", "Nullable(Decimal(9, 2))"),
    Column("d", "Date", "DEFAULT", "toDate(at)"),
)

NASTY = st.text(st.sampled_from(list('{}[]",:\\ \n\tabé0\u2028')), max_size=10)
VALUES = st.one_of(
    NASTY,
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, 255, 256, None, True, 1.5, 1.239, "x", [], {}, 2**64 + 5, 10**80]),
    st.sampled_from(["2026-01-02", "2200-01-01", "2026-02-30", 1767323045, 1767323045123]),
    st.lists(NASTY, max_size=3),
    st.dictionaries(NASTY, NASTY, max_size=2),
)
NAMES = st.sampled_from([column.name for column in COLUMNS] + ["other", "_offset"])
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
ENCODED = st.builds(
    lambda document, ascii_only, indent: json.dumps(
        document, ensure_ascii=ascii_only, indent=indent
    ).encode(),
    DOCUMENTS,
    st.booleans(),
    st.sampled_from([None, None, 1]),
)
GOOD = st.builds(
    lambda number, text: json.dumps({"id": number, "s": text, "n": number % 256}).encode(),
    st.integers(0, 2**64 - 1),
    NASTY,
)
BROKEN = st.sampled_from(
    [
        b"",
        b"[]",
        b'{"id":1}{"id":2,"s":"}',
        b'{"}',
        b'{"id":1,"z":{"q":{}',
        b'{"b":2}}}',
        b'{"id":2}{"id":3}',
        b'{"s":[{]} {"s":[}]}',
        b'{"s":["a" "b"]}',
        b'{"z":{"q":1 "w":2}}',
        b'{"s":"\\x"}',
        b'{"s":"\\ud800"}',
        b'{"u":"1"}',
        b'{"u":"61f0c404-5cb3-11e7-907b-a6006ad3dba0"}',
        b'{"id":1,"id":2}',
        b'{"id":1,}',
        b'{"id":}',
        b'{"id":1;}',
        b'{"id":1};',
        b"{id:1}",
        b"{'id':1}",
        b'{"id":1}\x00',
        b'{"s":"\xff\xc3"}',
        b'{"s":"a',
        b'b"}',
        b'{"id":' + b"1" * 90 + b"}",
        b'{"other":"' + b"1" * 90 + b'"}',
        b'{"x":' + b"0" * 90 + b"1.5}",
    ]
)
CUT = st.builds(lambda value, cut: value[: max(0, len(value) - cut)], ENCODED, st.integers(0, 4))
MESSAGES = st.lists(st.one_of(GOOD, ENCODED, BROKEN, CUT), min_size=1, max_size=8)


@pytest.fixture(scope="module", params=["ignore", "refuse"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return Decoder(table(*COLUMNS, unknown_fields=request.param))


@cache
def alone(decoder: Decoder, value: bytes) -> tuple[list[Any], list[tuple[str, str, str]]]:
    """The row of one message, or what is wrong with it."""
    decoded = decode(decoder, [value])
    assert decoded.rows + len(decoded.bad) == 1
    return rows(decoded), [(bad.reason, bad.error, bad.column) for bad in decoded.bad]


@settings(max_examples=examples(25), deadline=None)
@given(values=MESSAGES)
def test_a_block_is_its_messages_alone(decoder: Decoder, values: list[bytes]) -> None:
    together = decode(decoder, values, poll=5)
    expected_rows, expected_bad = [], []
    for index, value in enumerate(values):
        row, bad = alone(decoder, value)
        expected_rows += row
        expected_bad += [(index, *facts) for facts in bad]
    assert rows(together) == expected_rows
    found = [(bad.index, bad.reason, bad.error, bad.column) for bad in together.bad]
    assert found == expected_bad
