"""The lease: how long a task may still insert."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.lease import (
    CLOCK_SKEW_MS_MAX,
    ClockError,
    deadline_ms,
    has_expired,
    lease_seconds_max,
    remaining_ms,
)

NOW = 1_800_000_000_000
SKEW = st.integers(-CLOCK_SKEW_MS_MAX, CLOCK_SKEW_MS_MAX)


def test_a_lease_is_wall_time() -> None:
    assert deadline_ms(NOW, 600) == NOW + 600_000


@given(SKEW, SKEW, st.integers(0, 3_600_000), st.integers(1, 600_000), st.integers(0, 60_000))
def test_whoever_sees_it_expired_sees_no_insert_begin(
    skew: int, observer_skew: int, queued: int, lease: int, later: int
) -> None:
    """By true time the worker has nothing left once anybody's clock says expired."""
    deadline = NOW + lease
    left = remaining_ms(deadline, NOW, NOW + queued + skew)
    assert left <= lease
    ends_at = NOW + queued + left
    true_time = deadline - observer_skew + later
    if has_expired(deadline, true_time + observer_skew):
        assert true_time >= ends_at


def test_a_clock_that_is_behind_is_refused() -> None:
    assert remaining_ms(NOW + 10, NOW, NOW - CLOCK_SKEW_MS_MAX) == 10
    with pytest.raises(ClockError, match=r"5\.0 s behind") as caught:
        remaining_ms(NOW + 10, NOW, NOW - CLOCK_SKEW_MS_MAX - 1)
    assert "chrony" in caught.value.hint


@given(st.integers(0, 600_000), st.integers(0, 600_000), st.integers(1, 600_000))
def test_a_clock_that_is_behind_adds_no_more_than_the_task_was_queued(
    behind: int, queued: int, lease: int
) -> None:
    try:
        left = remaining_ms(NOW + lease, NOW, NOW + queued - behind)
    except ClockError:
        assert behind - queued > CLOCK_SKEW_MS_MAX
        return
    assert behind - queued <= CLOCK_SKEW_MS_MAX
    assert queued + left - lease == min(behind, queued)


def test_a_late_task_has_nothing_left() -> None:
    assert remaining_ms(NOW + 1000, NOW, NOW + 4000) == -3000


def test_expired_means_after_the_grace_too() -> None:
    grace_ms = 2 * CLOCK_SKEW_MS_MAX
    assert not has_expired(NOW, NOW)
    assert not has_expired(NOW, NOW + grace_ms)
    assert has_expired(NOW, NOW + grace_ms + 1)


def test_a_lease_is_a_sixth_of_the_windows_memory() -> None:
    assert lease_seconds_max(3600) == 600
    assert lease_seconds_max(None) is None
