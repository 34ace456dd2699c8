"""A block without some of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.native import checksum, read_header
from sluice.decode.keys.kept import kept, without_rows
from tests.decode.keys.support import block_of, column, decoded_of, keyed_table
from tests.decode.support import FIRST_OFFSET, rows
from tests.support.examples import examples

COLUMNS = (
    Column("id", "Int64"),
    Column("name", "String"),
    Column("maybe", "LowCardinality(Nullable(String))"),
    Column("tags", "Array(LowCardinality(String))"),
    Column("at", "DateTime64(3)"),
    Column("day", "Date"),
    Column("_sluice_kept", "Nullable(UInt8)"),
)


def many(**changes: Any) -> TableSpec:
    facts: dict[str, Any] = {"rows": "many", "sorting_key": "id", "partition_key": "day"}
    return keyed_table(*COLUMNS, key=("id",), **(facts | changes))


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-9, 9),
            "name": st.text(max_size=4),
            "maybe": st.none() | st.sampled_from(["", "a", "ö"]),
            "tags": st.lists(st.sampled_from(["", "x", "yy"]), max_size=3),
            "at": st.integers(0, 10**9),
            "day": st.sampled_from(["2026-01-01", "2026-01-02"]),
            "_sluice_kept": st.none() | st.integers(0, 1),
        }
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=examples(30), deadline=None)
@given(ROWS, st.data(), st.booleans())
def test_the_rows_that_stay_are_those_of_the_block(
    values: list[dict[str, Any]], data: st.DataObject, is_sorted: bool
) -> None:
    """With all that is said of them; also where a column is called like the mask."""
    decoded = block_of(many(sort=is_sorted), values)
    size = len(values)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_)
    some = kept(decoded, mask)
    whole = rows(decoded)
    assert rows(some) == [row for row, stays in zip(whole, mask.tolist(), strict=True) if stays]
    assert some.columns == decoded.columns
    assert some.offsets.tolist() == decoded.offsets[mask].tolist()
    assert some.messages == some.rows == int(mask.sum())
    assert some.clickhouse_partitions == min(some.rows, decoded.clickhouse_partitions)
    assert some.checksum == checksum(some.native)
    if some.rows:
        assert read_header(some.native)[:2] == (len(decoded.columns), some.rows)
    again = kept(decoded, mask)
    assert bytes(again.native) == bytes(some.native)


def test_a_block_that_loses_nothing_is_the_same_object() -> None:
    decoded = block_of(many(), [{"id": 1}])
    assert kept(decoded, np.ones(1, np.bool_)) is decoded
    nothing = kept(decoded, np.zeros(1, np.bool_))
    assert (nothing.native, nothing.rows, nothing.messages) == (b"", 0, 0)
    assert nothing.clickhouse_partitions == 0 and not len(nothing.offsets)
    assert kept(nothing, np.ones(0, np.bool_)) is nothing


def test_what_stays_has_the_types_and_the_bytes_that_it_had() -> None:
    text = many()
    values = [{"id": n, "name": "ü", "tags": ["x"], "day": "2026-01-01"} for n in range(500)]
    decoded = block_of(text, [*values, {"id": 500}])
    mask = np.ones(501, np.bool_)
    mask[-1] = False
    assert bytes(kept(decoded, mask).native) == bytes(block_of(text, values).native)


def test_a_large_block_stays_one_block() -> None:
    decoded = block_of(many(), [{"id": n} for n in range(150_000)])
    mask = np.arange(150_000) % 20 != 0
    some = kept(decoded, mask)
    assert some.rows == read_header(some.native)[1] == 142_500


@pytest.mark.parametrize("is_sorted", [False, True])
def test_rows_that_are_stored_are_left_out(is_sorted: bool) -> None:
    """By offset and number; of other messages, and of the same one, the others stay."""
    text = many(sort=is_sorted)
    lines = [b"\n".join(b'{"id":%d}' % (n - 10 * m) for n in range(4)) for m in range(3)]
    decoded = decoded_of(text, lines)
    found = ((FIRST_OFFSET, 1, 3), (FIRST_OFFSET, 3, 4), (FIRST_OFFSET + 4, 0, 4))
    rest = without_rows(text, decoded, found)
    ids = column(rest, "id")
    expected = [0, *(n - 10 for n in range(4))]
    assert ids == [str(n) for n in (sorted(expected) if is_sorted else expected)]
    assert (rest.rows, rest.messages) == (5, 2)
    assert without_rows(text, decoded, ()) is decoded


@pytest.mark.parametrize("other", [(FIRST_OFFSET + 1, 0, 1), (FIRST_OFFSET, 1, 2), (1, 0, 1)])
def test_stored_rows_that_the_messages_do_not_make_are_refused(other: tuple[int, int, int]) -> None:
    text = many()
    decoded = block_of(text, [{"id": 1}, {"id": 2}])
    with pytest.raises(TerminalError, match="has 2 rows of these messages, of which") as refused:
        without_rows(text, decoded, ((FIRST_OFFSET + 2, 0, 1), other))
    assert "only 1: somebody else" in refused.value.message
    nothing = kept(decoded, np.zeros(2, np.bool_))
    with pytest.raises(TerminalError, match="has 1 rows of these messages"):
        without_rows(text, nothing, (other,))
