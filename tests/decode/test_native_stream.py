"""A Native stream is cut between its blocks, whatever its columns are and however it comes."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.core.errors import TerminalError
from sluice.decode.engine.native import read_header
from sluice.decode.engine.native_stream import BrokenStreamError, blocks, can_be_cut
from sluice.decode.engine.session import literal, run
from sluice.decode.messages.marked import memory_file

_VALUES = {
    "a": "number",
    "b": "toString(number)",
    "c": "repeat('x', number * 7 % 300)",
    "d": "if(number % 3 = 0, NULL, toString(number))",
    "e": "toLowCardinality(toString(number % 300))",
    "f": "CAST(if(number % 5 = 0, NULL, 'v'), 'LowCardinality(Nullable(String))')",
    "g": "arrayMap(i -> toString(i), range(number % 4))",
    "h": "CAST(range(number % 3), 'Array(LowCardinality(String))')",
    "i": "tuple(number, toString(number), toLowCardinality('t'))",
    "j": "toFixedString(toString(number), 9)",
    "k": "toDecimal128(number, 4)",
    "l": "toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + number",
    "m": "CAST('one', 'Enum8(\\'one\\' = 1)')",
    "n": "generateUUIDv4(number)",
    "o": "arrayMap(i -> range(i), range(number % 3))",
    "p": "CAST((1, 2), 'Point')",
    "q": "toLowCardinality(toFixedString('abc', 3))",
}
ROWS = 1000


def stream_of(block_rows: int = 137, rows: int = ROWS) -> bytes:
    """Several blocks, as a server sends them."""
    items = ", ".join(f"{text} AS {name}" for name, text in _VALUES.items())
    query = f"SELECT {items} FROM numbers({rows}) SETTINGS max_block_size = {block_rows}"
    return bytes(run(query, "Native").bytes())


def in_pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[begin : begin + size] for begin in range(0, len(whole), size)]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 30])
def test_all_types_are_understood(size: int) -> None:
    whole = stream_of()
    found = list(blocks(in_pieces(whole, size), [*_VALUES], 300))
    assert b"".join(found) == whole
    assert len(found) > 2
    rows = []
    for some in found:
        with memory_file(memoryview(some)) as path:
            rows.append(
                int(run(f"SELECT count() FROM file({literal(path)}, Native)", "TSV").bytes())
            )
    assert sum(rows) == ROWS
    assert all(300 <= count < 300 + 137 for count in rows[:-1])


def test_nothing_is_no_block() -> None:
    assert list(blocks([], ["a"], 10)) == []
    assert list(blocks([b"", b""], ["a"], 10)) == []


def test_a_block_without_rows_is_passed() -> None:
    empty = bytes(run("SELECT * FROM (SELECT 1 AS a) WHERE 0", "Native").bytes())
    one = bytes(run("SELECT 1 AS a", "Native").bytes())
    (found,) = blocks([empty or b"\x01\x00\x01a\x05UInt8", one], ["a"], 10)
    assert found.endswith(one)


def test_a_stream_that_breaks_off_is_noticed_wherever() -> None:
    whole = stream_of(rows=20)
    for end in range(1, len(whole)):
        with pytest.raises(BrokenStreamError):
            list(blocks([whole[:end]], [*_VALUES], 10))


@pytest.mark.parametrize(
    "said",
    [
        b"Code: 241. DB::Exception: Memory limit (total) exceeded",
        b"\r\n__exception__\r\nabcdefgh\r\nCode: 241. DB::Exception: Memory limit\r\n",
    ],
)
def test_what_a_server_says_in_the_middle_is_no_block(said: bytes) -> None:
    whole = stream_of()
    stream = blocks([whole + said], [*_VALUES], 10)
    with pytest.raises(BrokenStreamError, match="Memory limit"):
        list(stream)


def test_other_columns_are_no_block() -> None:
    other = bytes(run("SELECT 1 AS b", "Native").bytes())
    with pytest.raises(BrokenStreamError):
        list(blocks([other], ["a"], 10))


def test_a_type_of_unknown_length_is_refused() -> None:
    other = bytes(run("SELECT map('a', 1) AS a", "Native").bytes())
    with pytest.raises(TerminalError, match="Map"):
        list(blocks([other], ["a"], 10))


@pytest.mark.parametrize(
    ("type_text", "can"),
    [
        ("Array(LowCardinality(Nullable(String)))", True),
        ("Tuple(a UInt8, b Decimal(9, 2))", True),
        ("Polygon", True),
        ("Map(String, UInt8)", False),
        ("Array(Dynamic)", False),
        ("JSON", False),
    ],
)
def test_which_can_be_cut(type_text: str, can: bool) -> None:
    assert can_be_cut(type_text) == can


def test_many_texts_are_read_as_long_as_they_are() -> None:
    """Lengths of one byte, and of two, at every place of a piece."""
    texts = ["x" * int(n) for n in np.arange(0, 300)]
    values = ", ".join(f"'{text}'" for text in texts)
    whole = bytes(run(f"SELECT arrayJoin([{values}]) AS a", "Native").bytes())
    assert read_header(memoryview(whole))[1] == 300
    for size in (1, 2, 3, 128, 129):
        assert b"".join(blocks(in_pieces(whole, size), ["a"], 1)) == whole
