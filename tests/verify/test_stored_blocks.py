"""A stream of rows is cut between its blocks, whatever its columns are and however it comes."""

from __future__ import annotations

import pytest

from sluice.decode.engine.native import column_head, read_header
from sluice.decode.engine.session import literal, run
from sluice.decode.messages.memory import memory_file
from sluice.verify.stored_keys import BrokenStreamError, blocks

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
    "r": "map(toString(number), number)",
    "s": "CAST(number, 'Variant(String, UInt64)')",
    "t": "CAST(concat('{\"a\": ', toString(number), '}'), 'JSON')",
}
ROWS = 1000
LAST = "_sluice_0123456789abcdef0123456789abcdef"


def stream_of(block_rows: int = 137, rows: int = ROWS) -> bytes:
    """Several blocks, as a server sends them."""
    named = [*_VALUES.items(), (LAST, "toUInt8(0)")]
    items = ", ".join(f"{text} AS {name}" for name, text in named)
    query = f"SELECT {items} FROM numbers({rows}) SETTINGS max_block_size = {block_rows}"
    return bytes(run(query, "Native").bytes())


def in_pieces(whole: bytes, size: int) -> list[bytes]:
    return [whole[begin : begin + size] for begin in range(0, len(whole), size)]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 30])
def test_all_types_are_understood(size: int) -> None:
    whole = stream_of()
    found = list(blocks(in_pieces(whole, size), [*_VALUES], LAST, 300))
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
    assert list(blocks([], ["a"], LAST, 10)) == []
    assert list(blocks([b"", b""], ["a"], LAST, 10)) == []


def test_a_block_without_rows_is_passed() -> None:
    empty = bytes(
        run(f"SELECT * FROM (SELECT 1 AS a, toUInt8(0) AS {LAST}) WHERE 0", "Native").bytes()
    )
    empty = empty or b"\x02\x00\x01a\x05UInt8" + column_head(LAST, "UInt8")
    one = bytes(run(f"SELECT 1 AS a, toUInt8(0) AS {LAST}", "Native").bytes())
    (found,) = blocks([empty, one], ["a"], LAST, 10)
    assert found.endswith(one)


def test_a_stream_that_breaks_off_is_noticed_wherever() -> None:
    whole = stream_of(rows=20)
    for end in range(1, len(whole)):
        with pytest.raises(BrokenStreamError):
            list(blocks([whole[:end]], [*_VALUES], LAST, 10))


@pytest.mark.parametrize(
    "said",
    [
        b"Code: 241. DB::Exception: Memory limit (total) exceeded",
        b"\r\n__exception__\r\nabcdefgh\r\nCode: 241. DB::Exception: Memory limit\r\n",
    ],
)
def test_what_a_server_says_in_the_middle_is_no_block(said: bytes) -> None:
    whole = stream_of()
    stream = blocks([whole + said], [*_VALUES], LAST, 10)
    with pytest.raises(BrokenStreamError, match="Memory limit"):
        list(stream)


@pytest.mark.parametrize("items", ["1 AS b, {last}", "1 AS a, 1 AS b, {last}", "{last}"])
def test_other_columns_are_no_block(items: str) -> None:
    text = items.format(last=f"toUInt8(0) AS {LAST}")
    with pytest.raises(BrokenStreamError, match="a server says"):
        list(blocks([bytes(run(f"SELECT {text}", "Native").bytes())], ["a"], LAST, 10))


def test_a_last_column_that_comes_in_pieces() -> None:
    """Of more rows than a piece has bytes, so that its name is there long before its end."""
    query = f"SELECT 1 AS a, toUInt8(0) AS {LAST} FROM numbers(300)"
    whole = bytes(run(query, "Native").bytes())
    assert read_header(memoryview(whole))[1] == 300
    for size in (1, 2, 3, 128, 129):
        assert list(blocks(in_pieces(whole + whole, size), ["a"], LAST, 1)) == [whole, whole]
