"""What a report says where nothing is said."""

from __future__ import annotations

from sluice.core.errors import InDoubtError
from sluice.core.receipts import Failed, Loaded, Receipt


def test_a_failure_without_more_is_not_known_to_have_stored_nothing() -> None:
    failed = Failed(InDoubtError("cut"))
    assert (failed.entry, failed.is_unstored, failed.inserted) == ("", False, ())


def test_rows_of_all_blocks_count() -> None:
    receipts = tuple(
        Receipt("t", "d.t", shard, "token", rows, 9, "sum", "http://h", 1, 5)
        for shard, rows in (("s1", 3), ("s2", 4))
    )
    assert Loaded(receipts, (), 7, 100, 0).rows == 7
    assert Loaded((), (), 7, 100, 7).rows == 0
    plain = receipts[0]
    assert (plain.failed_over, plain.in_doubt, plain.messages) == ((), False, None)
