"""How much work a partition is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.fleet.balance import CATCH_UP_SECONDS, MESSAGES_A_RANGE, work_of


def test_ranges_are_what_little_traffic_costs() -> None:
    idle, little, more, much = (work_of(rate, 0, 1.0) for rate in (0, 1, 10, 100_000))
    assert 0 < idle < 10
    assert little > MESSAGES_A_RANGE
    assert more - little < MESSAGES_A_RANGE / 10
    assert 100_000 < much < 101_000
    # Where ranges wait longer, there are fewer of them.
    assert work_of(1, 0, 60.0) < 20


def test_what_waits_is_work_too() -> None:
    assert work_of(0, int(1000 * CATCH_UP_SECONDS), 1.0) == work_of(1000, 0, 1.0)


@given(st.floats(-1e6, 1e9), st.integers(-10, 1 << 62), st.floats(0.001, 3600.0))
def test_it_is_a_number_from_one(rate: float, lag: int, delay_seconds: float) -> None:
    work = work_of(rate, lag, delay_seconds)
    assert work >= 1
    assert work_of(rate, lag + 1, delay_seconds) >= work
