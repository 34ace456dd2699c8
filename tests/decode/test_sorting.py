"""Blocks that the worker sorts: same rows, same lineage, in the order of the sorting key."""

from __future__ import annotations

import random

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.messages.decoded import Decoded
from sluice.decode.text.decoder import Decoder
from tests.decode.support import FIRST_OFFSET, LINEAGE, LINEAGE_NAMES, decode, rows, table

USER = Column("user", "UInt32")
TEXT = Column("s", "String")


def sorted_table(*columns: Column, key: str, **changes: object) -> TableSpec:
    return table(
        *columns,
        *LINEAGE,
        lineage=LINEAGE_NAMES,
        sorting_key=key,
        **({"sort": True} | changes),
    )


def offsets_in(decoded: Decoded) -> list[int]:
    return [int(row[-2]) for row in rows(decoded)]


def test_rows_are_sorted_and_keep_their_offsets() -> None:
    drawn = random.Random(1)
    users = [drawn.randrange(40) for _ in range(3000)]
    values = [b'{"user":%d,"s":"%d"}' % (user, n) for n, user in enumerate(users)]
    decoded = decode(Decoder(sorted_table(USER, TEXT, key="user")), values)
    expected = sorted(range(3000), key=lambda n: users[n])  # stable: ties by offset
    assert rows(decoded) == [
        [users[n], str(n), "orders", 3, str(FIRST_OFFSET + 2 * n), 0] for n in expected
    ]
    assert decoded.offsets.tolist() == [FIRST_OFFSET + 2 * n for n in expected]


def test_a_repetition_is_the_same_block() -> None:
    decoder = Decoder(sorted_table(USER, key="user % 7"))
    values = [b'{"user":%d}' % (n * 7919 % 1009) for n in range(2000)]
    first = decode(decoder, values)
    again = decode(Decoder(decoder.table), values, poll=77)
    assert (first.checksum, bytes(first.native)) == (again.checksum, bytes(again.native))


def test_bad_messages_move_nobodys_offset() -> None:
    values = [b'{"user":5}', b"[]", b'{"user":1}', b'{"user":-1}', b'{"user":3}']
    decoded = decode(Decoder(sorted_table(USER, key="user")), values)
    assert [(row[0], int(row[-2]) - FIRST_OFFSET) for row in rows(decoded)] == [
        (1, 4),
        (3, 8),
        (5, 0),
    ]
    assert [bad.offset - FIRST_OFFSET for bad in decoded.bad] == [2, 6]


def test_numbers_that_need_the_wide_reader_are_sorted_too() -> None:
    wide = Column("wide", "UInt128")
    values = [b'{"wide":%d}' % (10**30 - n) for n in range(5)]
    assert offsets_in(decode(Decoder(sorted_table(wide, key="wide")), values)) == [
        FIRST_OFFSET + 2 * n for n in (4, 3, 2, 1, 0)
    ]


def test_partitions_are_counted_as_without_sorting() -> None:
    values = [b'{"user":%d}' % (n % 12) for n in range(100)]
    for key in ("user % 4", "_offset % 3"):
        parts = [
            decode(
                Decoder(sorted_table(USER, key="-user", partition_key=key, sort=sort)), values
            ).clickhouse_partitions
            for sort in (False, True)
        ]
        assert parts[0] == parts[1] > 1


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("half, user", [0, 1, 2, 3]),  # MATERIALIZED over another
        ("_topic, _partition, _offset", [3, 1, 2, 0]),  # as they came
        ("negative", [3, 2, 1, 0]),  # ALIAS
    ],
)
def test_keys_over_columns_that_blocks_do_not_carry(key: str, expected: list[int]) -> None:
    columns = (
        USER,
        Column("half", "UInt32", "MATERIALIZED", "intDiv(user, 2)"),
        Column("negative", "Int64", "ALIAS", "-toInt64(user)"),
    )
    values = [b'{"user":%d}' % user for user in (3, 1, 2, 0)]
    decoded = decode(Decoder(sorted_table(*columns, key=key)), values)
    assert [row[0] for row in rows(decoded)] == expected


def test_a_table_without_an_order_stays_as_it_came() -> None:
    values = [b'{"user":%d}' % user for user in (3, 1, 2)]
    decoded = decode(Decoder(sorted_table(USER, key="")), values)
    assert [row[0] for row in rows(decoded)] == [3, 1, 2]


def test_a_key_over_what_is_not_inserted_is_refused() -> None:
    columns = (USER, Column("seed", "UInt32", "EPHEMERAL", "0"))
    with pytest.raises(TerminalError, match="sorting key depends on seed") as error:
        Decoder(sorted_table(*columns, key="seed"))
    assert "sort = false" in error.value.hint
