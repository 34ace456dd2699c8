"""Messages of several rows in RowBinary and MsgPack: cut exactly, all or nothing, or dropped."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.messages.decoded import Decoded, TableDecoder
from sluice.decode.messages.fault import Fault
from sluice.decode.sequential import row_binary
from sluice.decode.sequential.msgpack import message_pack
from tests.decode.support import FIRST_OFFSET, LINEAGE, rows, table
from tests.decode.typed_support import typed_decode, typed_decoder, written
from tests.support.examples import examples

FORMATS = ("RowBinary", "RowBinaryWithNamesAndTypes", "MsgPack")
ALL_LINEAGE = ("_topic", "_partition", "_offset", "_row")
COLUMNS = (Column("id", "UInt8"), Column("s", "String"))


def decoder_of(format_name: str, *columns: Column, **changes: object) -> TableDecoder:
    return typed_decoder(
        format_name,
        *(columns or COLUMNS),
        *LINEAGE,
        lineage=ALL_LINEAGE,
        rows="many",
        **{"options": {}, **changes},
    )


def message(format_name: str, *ids: int) -> bytes:
    """A row for each id, which is an Int16 in the message."""
    select = f"toInt16(arrayJoin({list(ids)})) AS id, concat('s', toString(id)) AS s"
    if ids:
        return written(format_name, select)
    return written(format_name, "toInt16(1) AS id, '' AS s WHERE 0")


#: RowBinary is told that the messages' numbers are wider than the table's.
OPTIONS = {"RowBinary": {"columns": "id Int16, s String"}}


def found(decoded: Decoded) -> list[tuple[int, int, int]]:
    """Id, index of the message and number of the row, of each row."""
    return [(row[0], (int(row[-2]) - FIRST_OFFSET) // 2, row[-1]) for row in rows(decoded)]


@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_of_a_message_carry_its_offset_and_their_number(format_name: str) -> None:
    decoder = decoder_of(format_name, options=OPTIONS.get(format_name, {}))
    values = [message(format_name, *ids) for ids in ((1,), (2, 3), (), (4, 5, 6))]
    decoded = typed_decode(decoder, values)
    assert found(decoded) == [(1, 0, 0), (2, 1, 0), (3, 1, 1), (4, 3, 0), (5, 3, 1), (6, 3, 2)]
    assert [row[1] for row in rows(decoded)] == ["s1", "s2", "s3", "s4", "s5", "s6"]
    assert (decoded.rows, decoded.messages, decoded.bad) == (6, 3, ())
    assert decoded.empty == (FIRST_OFFSET + 4,)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_message_is_all_or_nothing(format_name: str) -> None:
    options = OPTIONS.get(format_name, {})
    values = [message(format_name, *ids) for ids in ((1, -1, 300), (9,), (-5,))]
    decoded = typed_decode(decoder_of(format_name, options=options), values)
    assert found(decoded) == [(9, 1, 0)]
    assert [(bad.index, bad.reason, bad.column) for bad in decoded.bad] == [
        (0, "out-of-range", "id"),
        (2, "out-of-range", "id"),
    ]
    assert decoded.bad[0].error.startswith("row 1: ")
    dropping = decoder_of(format_name, bad_rows="drop-row", options=options)
    decoded = typed_decode(dropping, values)
    assert found(decoded) == [(1, 0, 0), (9, 1, 0)]
    assert (decoded.bad, decoded.dropped_rows, decoded.messages) == ((), 3, 2)
    assert decoded.empty == (FIRST_OFFSET + 4,)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("bad_rows", ["dead-letter", "drop-row"])
def test_what_is_no_whole_rows_is_a_dead_letter(format_name: str, bad_rows: str) -> None:
    decoder = decoder_of(format_name, bad_rows=bad_rows, options=OPTIONS.get(format_name, {}))
    good = message(format_name, 1, 2)
    broken = [good[:-1], good + b"\x01", good[:-2], b"\xc1" * 40]
    values = [value for each in broken for value in (each, good)]
    decoded = typed_decode(decoder, values)
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [
        (index, "cannot-parse") for index in range(0, 2 * len(broken), 2)
    ]
    assert [(index, number) for _, index, number in found(decoded)] == [
        (index, number) for index in range(1, 2 * len(broken), 2) for number in (0, 1)
    ]
    assert decoded.dropped_rows == 0


def test_halves_of_rows_in_two_messages_do_not_make_one() -> None:
    """Together they would be right."""
    decoder = decoder_of("MsgPack")
    decoded = typed_decode(decoder, [b"\x01\xa1a\x02", b"\xa1b", b"\x03\xa1c\x04\xa1d"])
    assert [bad.index for bad in decoded.bad] == [0, 1]
    assert found(decoded) == [(3, 2, 0), (4, 2, 1)]


def test_what_msgpack_would_wrap_is_found_in_its_row() -> None:
    columns = (Column("u", "UInt64"), Column("m", "Map(String, Array(Int8))"))
    good, negative, nil = b"\x01\x80", b"\xff\x80", b"\x02\x81\xc0\x90"
    kind = b"\xa1x\x80"
    values = [good + negative + nil, good + nil, good + kind, good * 2]
    decoded = typed_decode(decoder_of("MsgPack", *columns), values)
    assert [(bad.index, bad.reason, bad.column, bad.error[:6]) for bad in decoded.bad] == [
        (0, "out-of-range", "u", "row 1:"),
        (1, "cannot-parse", "m", "row 1:"),
        (2, "cannot-parse", "u", "row 1:"),
    ]
    assert [(index, number) for _, index, number in found(decoded)] == [(3, 0), (3, 1)]
    values = [negative + good + nil + good, kind, kind + good, good]
    decoded = typed_decode(decoder_of("MsgPack", *columns, bad_rows="drop-row"), values)
    assert [(index, number) for _, index, number in found(decoded)] == [
        (0, 1),
        (0, 3),
        (2, 1),
        (3, 0),
    ]
    assert (decoded.bad, decoded.dropped_rows, decoded.messages) == ((), 4, 3)
    assert decoded.empty == (FIRST_OFFSET + 2,)


def test_dropped_rows_of_both_kinds_leave_the_numbers_right() -> None:
    """Left out before the engine reads them, and by it."""
    columns = (Column("u", "UInt64"), Column("i", "Int8"))
    wrapped, unfit, good = b"\xff\x01", b"\x01\xcc\xff", b"\x01\x02"
    value = wrapped + good + unfit + wrapped + good
    decoded = typed_decode(decoder_of("MsgPack", *columns, bad_rows="drop-row"), [value, value])
    assert [row[-1] for row in rows(decoded)] == [1, 4, 1, 4]
    assert decoded.dropped_rows == 6
    keeping = typed_decode(decoder_of("MsgPack", *columns), [good + unfit, good])
    assert [bad.error[:6] for bad in keeping.bad] == ["row 1:"]


def test_types_of_unknown_length_are_cut_by_the_engine() -> None:
    """Each message alone, as are long ones."""
    columns = (Column("id", "UInt8"), Column("v", "Variant(String, UInt16)"))
    select = "toUInt8(number) AS id, CAST(toUInt16(number + 7) AS Variant(String, UInt16)) AS v"
    three = written("RowBinary", f"{select} FROM numbers(3)")
    decoder = decoder_of("RowBinary", *columns)
    decoded = typed_decode(decoder, [three, three[:-1], b"", three])
    assert [(row[0], row[1]) for row in rows(decoded)] == [(n, n + 7) for n in (0, 1, 2)] * 2
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [(1, "cannot-parse")]
    assert decoded.empty == (FIRST_OFFSET + 4,)


@pytest.mark.parametrize("depth", [90, 110, 300, 450, 1400])
def test_types_nested_deeply_are_read_or_dead_letters(depth: int) -> None:
    """Whatever Python's stack bears: a message names its types itself."""
    type_text = "Array(" * depth + "UInt8" + ")" * depth
    head = b"\x01\x02id" + _length(len(type_text)) + type_text.encode()
    value = head + b"\x01" * depth + b"\x05"
    good = message("RowBinaryWithNamesAndTypes", 1)
    decoder = decoder_of("RowBinaryWithNamesAndTypes")
    decoded = typed_decode(decoder, [good, value, value[:-1], good])
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [
        (1, "cannot-parse"),
        (2, "cannot-parse"),
    ]
    assert [index for _, index, _ in found(decoded)] == [0, 3]


def _length(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _length(value >> 7)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_sorted_block_knows_its_rows(format_name: str) -> None:
    decoder = decoder_of(
        format_name, sort=True, sorting_key="id", options=OPTIONS.get(format_name, {})
    )
    numbers = np.random.default_rng(5).permutation(60).tolist()
    messages = [message(format_name, *numbers[at : at + 6]) for at in range(0, 60, 6)]
    places = {number: divmod(place, 6) for place, number in enumerate(numbers)}
    assert found(typed_decode(decoder, messages)) == [(n, *places[n]) for n in range(60)]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_message_of_100_000_rows_and_one_of_10_mb(format_name: str) -> None:
    decoder = typed_decoder(format_name, Column("id", "UInt32"), Column("s", "String"), rows="many")
    many = written(format_name, "toUInt32(number) AS id, 'x' AS s FROM numbers(100000)")
    repeated = ", ".join(["repeat('é', 1000000)"] * 5)
    large = written(format_name, f"toUInt32(7) AS id, concat({repeated}) AS s")
    small = written(format_name, "toUInt32(8) AS id, 'y' AS s")
    decoded = typed_decode(decoder, [many, large, small, many[:-1]])
    assert (decoded.rows, decoded.messages) == (100_002, 3)
    assert [bad.index for bad in decoded.bad] == [3]
    assert np.count_nonzero(decoded.offsets == FIRST_OFFSET) == 100_000


def test_both_ways_to_cut_make_the_same_block(monkeypatch: pytest.MonkeyPatch) -> None:
    select = "toUInt8(number + {0}) AS id, repeat('x', number) AS s FROM numbers({0})"
    values = [written("RowBinary", select.format(count)) for count in range(12)]
    values += [values[-1][:-1], b"\x05\xff\xff\xff\xff\x7f"]
    together = typed_decode(decoder_of("RowBinary"), values)
    assert together.rows == 66 and [bad.index for bad in together.bad] == [12, 13]
    monkeypatch.setattr(row_binary, "_CUT_BYTES_MAX", 1)
    alone = typed_decode(decoder_of("RowBinary"), values)
    assert bytes(alone.native) == bytes(together.native)
    assert [bad.index for bad in alone.bad] == [12, 13]


SCALARS = st.one_of(
    st.integers(0, 127).map(lambda n: bytes([n])),
    st.sampled_from(
        [b"\xc0", b"\xc1", b"\xc2", b"\xca1234", b"\xcb12345678", b"\xd8t" + b"u" * 16]
    ),
    st.binary(max_size=3).map(lambda b: bytes([0xC4, len(b)]) + b),
    st.binary(max_size=3).map(lambda b: b"\xda" + struct.pack(">H", len(b)) + b),
    st.integers(0, 2**32 - 1).map(lambda n: b"\xc6" + struct.pack(">I", n)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: bytes([0x90 + len(v)]) + b"".join(v)),
        st.lists(inner, max_size=2).map(
            lambda v: b"\xde" + struct.pack(">H", len(v)) + b"".join(v * 2)
        ),
    ),
    max_leaves=6,
)
PACKED = st.one_of(st.lists(VALUES, max_size=7).map(b"".join), st.binary(max_size=9))


#: First byte: bytes of the value, or bytes of its length and what is counted: 0 bytes (and a type
#: for extensions), 1 or 2 values.
SIZES = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9}
SIZES |= {0xCC + n: 1 + (1 << n) for n in range(4)} | {0xD0 + n: 1 + (1 << n) for n in range(4)}
SIZES |= {0xD4 + n: 2 + (1 << n) for n in range(5)}
COUNTED = {0xC4 + n: (1 << n, 0) for n in range(3)} | {0xD9 + n: (1 << n, 0) for n in range(3)}
COUNTED |= {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def behind(value: bytes, at: int) -> int:
    """Where the value at this place ends, by MsgPack's specification."""
    first = value[at]
    if first < 0x80 or first >= 0xE0:
        return at + 1
    if first < 0xC0:
        is_text, count = first >= 0xA0, first & (0x1F if first >= 0xA0 else 0x0F)
        size, per_count = 1, 0 if is_text else 1 if first >= 0x90 else 2
    elif first in SIZES:
        return at + SIZES[first]
    elif first in COUNTED or 0xC7 <= first <= 0xC9:
        width, per_count = COUNTED.get(first, (1 << (first - 0xC7 & 3), 0))
        count = int.from_bytes(value[at + 1 : at + 1 + width], "big")
        size = 1 + width + (first not in COUNTED)
    else:
        raise IndexError
    at += size
    if not per_count:
        return at + count
    for _ in range(count * per_count):
        at = behind(value, at)
    return at


@settings(max_examples=examples(400), deadline=None)
@given(PACKED, st.integers(1, 3))
@example(b"\xdc", 1)
@example(b"\xdc\x00\x00", 1)
@example(b"\xc4", 1)
@example(b"\xc7\x01t\x00\x05", 1)
def test_values_of_any_kind_end_where_they_should(value: bytes, columns: int) -> None:
    expected: list[int] = []
    at = 0
    try:
        while at < len(value):
            for _ in range(columns):
                at = behind(value, at)
            expected.append(at)
    except IndexError:
        at = -1
    types = ("Array(Int64)", "String", "Map(UUID, UInt64)")
    for turn in range(3):
        of_columns = [Column(f"c{n}", types[(n + turn) % 3]) for n in range(columns)]
        text = table(*of_columns, format="MsgPack", rows="many", bad_rows="drop-row")
        found = message_pack(text).rows(value)
        if at == len(value):
            assert not isinstance(found, Fault) and found[0] == expected
        else:
            assert isinstance(found, Fault)


def test_msgpack_judges_a_value_by_its_own_type_not_by_its_neighbours() -> None:
    columns = (Column("m", "Map(UInt64, Int64)"), Column("a", "Array(Array(Int64))"))
    good = b"\x81\xcf" + b"\xff" * 8 + b"\xff\x91\x91\x07"
    flat, negative_key, large = b"\x80\x91\x07", b"\x81\xff\x01\x90", b"\x81\x01\xcf" + b"\xff" * 8
    dropping = decoder_of("MsgPack", *columns, bad_rows="drop-row")
    value = flat + good + negative_key + large + b"\x90" + good
    decoded = typed_decode(dropping, [value])
    assert [row[:2] + row[-1:] for row in rows(decoded)] == [
        [{str(2**64 - 1): "-1"}, [["7"]], number] for number in (1, 4)
    ]
    assert (decoded.bad, decoded.dropped_rows) == ((), 3)


@pytest.mark.parametrize("bad_rows", ["dead-letter", "drop-row"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_what_came_before_decides_nothing(format_name: str, bad_rows: str) -> None:
    """A row of another kind, a row that does not fit, and what is no rows: each alone and all
    together, whether the range before had broken messages or not."""
    decoder = decoder_of(format_name, bad_rows=bad_rows, options=OPTIONS.get(format_name, {}))
    good, large = message(format_name, 1, 2), message(format_name, 3, 300, 4)
    values = [good, large, good[:-1], good + b"\x07\x07", good + b"\x07\xa1x", b"\xc1", good]
    for some in (values, *([value] for value in values)):
        told = []
        for expects in (False, True):
            decoder._expects_broken = expects  # type: ignore[attr-defined]
            decoded = typed_decode(decoder, some)
            bad = [(one.index, one.reason, one.error) for one in decoded.bad]
            told.append((found(decoded), bad, decoded.dropped_rows, decoded.empty))
        assert told[0] == told[1], some
