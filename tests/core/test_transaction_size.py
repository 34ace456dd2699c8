"""What a transaction may carry, by what the ones before it took."""

from __future__ import annotations

import pytest

from sluice.core.transaction_size import BYTES_FIRST, BYTES_MAX, BYTES_MIN, TransactionSize

MB = 1_000_000


def after(*transactions: tuple[float, float, bool]) -> float:
    """What the next one may carry, in MB, if these had 15 s each.

    :param transactions: MB, seconds, and whether they were committed.
    """
    size = TransactionSize()
    for carried, seconds, is_committed in transactions:
        size.learn(int(carried * MB), seconds, 15.0, is_committed=is_committed)
    return size.bytes_max / MB


def test_a_quick_way_soon_carries_as_much_as_one_may() -> None:
    assert after() == BYTES_FIRST / MB
    assert after((8, 0.5, True)) == 16
    assert after(*((8 * 2**n, 0.1 * 2**n, True) for n in range(4))) == BYTES_MAX / MB


def test_a_slow_way_carries_what_it_takes_a_third_of_the_time_out_for() -> None:
    assert after((8, 10, True)) == pytest.approx(4)  # 0.8 MB/s for 5 s
    assert after((8, 10, True), (4, 5, True)) == pytest.approx(4)
    assert after((8, 4, True), (10, 5, True)) == pytest.approx(10)
    assert after((64, 20, False)) == BYTES_FIRST / MB
    assert after((8, 16, False)) == pytest.approx(2.5)


def test_whoever_is_fenced_again_and_again_comes_to_an_end() -> None:
    assert after(*((8 / 3**n, 16, False) for n in range(3))) == BYTES_MIN / MB


@pytest.mark.parametrize("learned", [(0.01, 14, True), (0, 30, False), (8, 0.1, False)])
def test_what_says_nothing_of_the_way_changes_nothing(learned: tuple[float, float, bool]) -> None:
    """A broker that starts, or is away, or is another's: whatever the transaction carried."""
    assert after(learned) == BYTES_FIRST / MB


def test_a_transaction_with_little_does_not_let_the_next_one_carry_more() -> None:
    assert after((1, 0.01, True)) == BYTES_FIRST / MB
