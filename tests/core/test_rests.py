"""What a probe found missing, as it stands in the ledger."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core import rests
from sluice.core.ledger import Background, LedgerView, encode_entry, record_entry
from sluice.core.ranges import TopicPartition, intervals_of
from sluice.core.records import Kind, Record
from tests.support.examples import examples


@settings(max_examples=examples(60))
@given(st.sets(st.integers(0, 6000), max_size=3000), st.integers(0, 2**40), st.integers(0, 30))
def test_what_is_written_is_read(offsets: set[int], first: int, dense: int) -> None:
    """Few intervals and many, and a run."""
    offsets = offsets | set(range(dense))
    intervals = intervals_of(first + offset for offset in offsets)
    value = json.loads(json.dumps(rests.written(intervals)))
    assert rests.read(value) == intervals
    assert rests.count(value) == len(offsets)


def test_few_intervals_stay_readable_as_before() -> None:
    assert rests.written(((3, 5), (7, 9))) == [[3, 5], [7, 9]]
    assert rests.read([[3, 5], [7, 9]]) == ((3, 5), (7, 9))
    assert rests.written(()) == []


def test_a_shard_that_lacks_its_block_of_the_largest_range_fits_the_ledger() -> None:
    """As intervals, half of a million offsets would be 9 MB, and a message is 1 MB at most."""
    first = 10**12
    missing = intervals_of(
        first + offset for offset in range(1_000_000) if offset * 2654435761 >> 7 & 1
    )
    assert len(missing) > 100_000
    source = TopicPartition("orders", 0)
    record = Record(Kind.PROBE, 1, 2, first, first + 10**6, "a", 0, "id", "text", 1, 1, "rest")
    entry = record_entry(source, record, Background(rest={"orders": missing}))
    _, value = encode_entry("dc1", 0, entry)
    assert len(value) < 300_000
    view = LedgerView(records={source: json.loads(value)})
    assert view.background(source).rest == {"orders": missing}


@given(
    st.lists(
        st.tuples(st.integers(0, 2**62), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=50
    )
)
def test_rows_are_read_as_they_were_written(rows: list[tuple[int, int, int]]) -> None:
    stored = tuple(sorted(rows))
    assert rests.read_rows(json.loads(json.dumps(rests.written_rows(stored)))) == stored


def test_many_messages_of_equally_many_rows_are_short() -> None:
    rows = tuple((offset, 0, 3) for offset in range(10**9, 10**9 + 250_000))
    assert len(rests.written_rows(rows)) < 10_000
