"""Blocks of typed formats: boundaries, order, keys, several rows in a message, determinism."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.decode.messages.decoded import Decoded
from sluice.decode.sequential.msgpack import message_pack
from sluice.decode.sequential.row_binary import row_binary
from tests.decode.support import FIRST_OFFSET, LINEAGE, rows, table
from tests.decode.typed_support import typed_decode, typed_decoder, written

ALL_LINEAGE = ("_topic", "_partition", "_offset", "_row")
COLUMNS = (
    Column("id", "UInt16"),
    Column("s", "String"),
    Column("tags", "Array(String)"),
    Column("n", "Nullable(Int8)"),
)
#: id 1, "ab", ["x"], null; and the same in MsgPack.
ROW = b"\x01\x00\x02ab\x01\x01x\x01"
PACKED = b"\x01\xa2ab\x91\xa1x\xc0"


def faults_of(decoded: Decoded) -> list[tuple[int, str]]:
    return [(bad.index, bad.reason) for bad in decoded.bad]


@pytest.mark.parametrize("row", [ROW, PACKED], ids=["RowBinary", "MsgPack"])
def test_a_message_is_exactly_one_row(row: bytes) -> None:
    decoder = typed_decoder("RowBinary" if row is ROW else "MsgPack", *COLUMNS)
    broken = [
        b"",
        row[:-1],
        row[1:],
        row + b"\x00",
        row + row,
        row + row[:-1],
        row[:3],
        b"\xff" * 30,
        b"\n",
    ]
    messages = [row]
    for value in broken:
        messages += [value, row]
    for _ in range(3):
        decoded = typed_decode(decoder, messages)
        assert [bad.index for bad in decoded.bad] == list(range(1, len(messages), 2))
        assert rows(decoded) == [[1, "ab", ["x"], None]] * (len(broken) + 1)
        assert decoded.offsets.tolist() == [FIRST_OFFSET + 4 * i for i in range(len(broken) + 1)]


def test_halves_of_a_row_do_not_make_one() -> None:
    """Messages that are broken in such a way that together they would be right."""
    decoder = typed_decoder("RowBinary", *COLUMNS)
    for cut in range(1, len(ROW)):
        messages = [ROW, ROW[:cut], ROW[cut:], ROW]
        decoded = typed_decode(decoder, messages)
        assert [bad.index for bad in decoded.bad] == [1, 2]
        assert decoded.rows == 2


def test_a_claimed_length_takes_no_memory() -> None:
    decoder = typed_decoder("RowBinary", Column("s", "String"), Column("a", "Array(UInt64)"))
    huge = b"\xff\xff\xff\xff\x7f"
    decoded = typed_decode(decoder, [huge, b"\x00" + huge, b"\x00\x00"])
    assert faults_of(decoded) == [(0, "cannot-parse"), (1, "cannot-parse")]


def test_a_large_message_between_small_ones() -> None:
    decoder = typed_decoder("RowBinary", Column("s", "String"))
    large = b"\x80\x80\x80\x05" + b"z" * (10 << 20)
    decoded = typed_decode(decoder, [b"\x01a", large, b"\x01b", large[:-1]])
    assert faults_of(decoded) == [(3, "cannot-parse")]
    assert [len(row[0]) for row in rows(decoded)] == [1, 10 << 20, 1]


@pytest.mark.parametrize("format_name", ["Native", "Parquet", "Arrow"])
def test_blobs_of_different_columns_are_one_block(format_name: str) -> None:
    decoder = typed_decoder(
        format_name,
        Column("a", "UInt8"),
        Column("b", "String", "DEFAULT", "toString(a + 1)"),
        Column("l", "LowCardinality(String)"),
        *LINEAGE,
        lineage=ALL_LINEAGE,
        rows="many",
        partition_key="a % 2",
        sorting_key="b",
        sort=True,
    )
    messages = [
        written(format_name, "toInt64(number + 7) AS a FROM numbers(2)"),
        written(format_name, "'x' AS b, toFloat64(3) AS a, 'low' AS l"),
        written(format_name, "toInt64(number + 255) AS a FROM numbers(2)"),
        b"no such file",
        written(format_name, "toInt64(1) AS a FROM numbers(0)"),
    ]
    decoded = typed_decode(decoder, messages)
    assert rows(decoded) == [
        [7, "8", "", "orders", 3, str(FIRST_OFFSET), 0],
        [8, "9", "", "orders", 3, str(FIRST_OFFSET), 1],
        [3, "x", "low", "orders", 3, str(FIRST_OFFSET + 2), 0],
    ]
    assert decoded.clickhouse_partitions == 2
    # A Native file without rows is an empty message.
    nothing = [(4, "cannot-parse")] if format_name == "Native" else []
    assert faults_of(decoded) == [(2, "out-of-range"), (3, "cannot-parse"), *nothing]
    assert decoded.bad[0].error == "row 1: 256 does not fit column a UInt8"
    assert decoded.messages == 2
    assert list(decoded.empty) == ([] if nothing else [FIRST_OFFSET + 8])


def test_one_row_and_dropped_rows() -> None:
    columns = (Column("a", "UInt8"), *LINEAGE)
    two = written("Native", "toInt64(number + 254) AS a FROM numbers(3)")
    one = written("Native", "toInt64(5) AS a")
    decoder = typed_decoder("Native", *columns, lineage=ALL_LINEAGE)
    good = written("Native", "toInt64(number) AS a FROM numbers(2)")
    decoded = typed_decode(decoder, [good, one, two])
    assert faults_of(decoded) == [(0, "not-one-row"), (2, "out-of-range")]
    assert decoded.bad[0].error == "the message has 2 rows"
    assert [row[0] for row in rows(decoded)] == [5]
    decoder = typed_decoder(
        "Native", *columns, lineage=ALL_LINEAGE, rows="many", bad_rows="drop-row"
    )
    three = written("Native", "toInt64(257 - number) AS a FROM numbers(4)")
    decoded = typed_decode(decoder, [three, one, two])
    assert [[row[0], row[4]] for row in rows(decoded)] == [
        [255, 2],
        [254, 3],
        [5, 0],
        [254, 0],
        [255, 1],
    ]
    assert (decoded.dropped_rows, decoded.bad, decoded.messages) == (3, (), 3)


@pytest.mark.parametrize("format_name", ["Native", "Parquet"])
@pytest.mark.parametrize("sort", [False, True])
def test_more_rows_than_the_engine_reads_at_a_time_are_one_block(
    format_name: str, sort: bool
) -> None:
    """In one message, and as parts that are joined."""
    decoder = typed_decoder(
        format_name, Column("a", "UInt32"), rows="many", sort=sort, sorting_key="a"
    )
    many = written(format_name, "toUInt32(99999 - number) AS a FROM numbers(100000)")
    for messages in ([many], [many] * 2):
        decoded = typed_decode(decoder, messages)
        assert (decoded.rows, decoded.bad) == (100_000 * len(messages), ())
        values = [row[0] for row in rows(decoded)]
        expected = list(range(99_999, -1, -1)) * len(messages)
        assert values == (sorted(expected) if sort else expected)


def head(names: list[str], types: list[str]) -> bytes:
    texts = [text.encode() for text in names + types]
    return bytes([len(names)]) + b"".join(bytes([len(text)]) + text for text in texts)


def test_each_message_has_its_own_head() -> None:
    decoder = typed_decoder("RowBinaryWithNamesAndTypes", *COLUMNS)
    first = head(["id", "s"], ["UInt8", "String"])
    second = head(["s", "zz", "id"], ["LowCardinality(String)", "UInt8", "Nullable(Int64)"])
    messages = [
        first + b"\x05\x01a",
        second + b"\x01b\x00\x00" + (6).to_bytes(8, "little"),
        first + b"\x07\x01c",
        second + b"\x01b\x00\x01",
        first + b"\x07\x01",
        head(["id"], ["AggregateFunction(sum, UInt8)"]) + b"\x00" * 8,
        head(["id"], ["NoSuchType"]) + b"\x00",
        head(["id", "id"], ["UInt8", "UInt8"]) + b"\x00\x00",
        first[:-1],
        b"",
    ]
    decoded = typed_decode(decoder, messages)
    assert [row[:2] for row in rows(decoded)] == [[5, "a"], [6, "b"], [7, "c"]]
    assert faults_of(decoded) == [
        (3, "null-in-column"),
        *((index, "cannot-parse") for index in range(4, 10)),
    ]
    strict = typed_decoder("RowBinaryWithNamesAndTypes", *COLUMNS, unknown_fields="refuse")
    decoded = typed_decode(strict, messages[:3])
    assert faults_of(decoded) == [(1, "unknown-field")]
    assert decoded.bad[0].column == "zz"


def test_msgpack_integers_do_not_wrap() -> None:
    decoder = typed_decoder("MsgPack", Column("u", "UInt64"), Column("i", "Int64"))
    widest = b"\xcf" + b"\xff" * 8
    decoded = typed_decode(
        decoder, [widest + b"\x01", b"\x01" + widest, b"\xff\x01", b"\x01\xff", b"\xc0\x01"]
    )
    assert rows(decoded) == [[str(2**64 - 1), "1"], ["1", "-1"]]
    assert faults_of(decoded) == [
        (1, "out-of-range"),
        (2, "out-of-range"),
        (4, "null-in-column"),
    ]
    decoder = typed_decoder("MsgPack", Column("m", "Map(String, Array(Int8))"))
    decoded = typed_decode(
        decoder,
        [
            b"\x81\xa1k\x91\x7f",
            b"\x81\xc0\x90",
            b"\x81\xa1k\xc0",
            b"\xc0",
            b"\x81\xa1k\x91\xcc\x80",
        ],
    )
    assert rows(decoded) == [[{"k": [127]}]]
    assert [reason for _, reason in faults_of(decoded)] == [
        "cannot-parse",
        "null-in-column",
        "null-in-column",
        "out-of-range",
    ]


def test_faults_cost_no_neighbour_however_many() -> None:
    decoder = typed_decoder("RowBinary", *COLUMNS)
    wide = ROW[:-1] + b"\x00\x05"
    messages = [(ROW, wide, ROW[:-2])[i % 7 % 3] for i in range(5000)]
    decoded = typed_decode(decoder, messages)
    assert [bad.index for bad in decoded.bad] == [i for i in range(5000) if i % 7 % 3 == 2]
    assert decoded.rows == 5000 - len(decoded.bad)


def test_a_default_that_throws_is_its_messages_fault() -> None:
    columns = (Column("a", "UInt8"), Column("b", "UInt8", "DEFAULT", "intDiv(10, a)"))
    decoder = typed_decoder("RowBinary", *columns, options={"columns": "a UInt8"})
    decoded = typed_decode(decoder, [b"\x05", b"\x00", b"\x02"] * 3)
    assert rows(decoded) == [[5, 2], [2, 5]] * 3
    assert [bad.index for bad in decoded.bad] == [1, 4, 7]


PROGRAM = """
import sys
from tests.decode.test_typed_blocks import COLUMNS, ROW
from tests.decode.typed_support import typed_decode, typed_decoder
decoder = typed_decoder("RowBinary", *COLUMNS)
decoded = typed_decode(decoder, [ROW, b"", ROW[:-1] + b"\\x00\\x07", b"\\xff" * 9, ROW])
print(decoded.checksum, [(bad.index, bad.reason, bad.error) for bad in decoded.bad])
"""


def test_two_processes_make_the_same_bytes() -> None:
    """Their marks differ; nothing of them is in the block or in the words."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1


def test_what_cannot_be_declared_is_refused() -> None:
    text = table(Column("a", "UInt8"), format="RowBinary")
    for option in ("a", "a NoSuchType", "a AggregateFunction(sum, UInt8)", "a UInt8, a UInt8"):
        with pytest.raises(TerminalError):
            row_binary(replace(text, options=(("columns", option),)))
    with pytest.raises(TerminalError, match="MsgPack"):
        message_pack(replace(text, options=(("columns", "a Date"),)))
    with pytest.raises(TerminalError, match="MsgPack"):
        message_pack(table(Column("a", "Tuple(UInt8)"), format="MsgPack"))
