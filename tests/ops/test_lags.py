"""How partitions keep up, over a window of looks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.ops.running import SAMPLES, STEP_MS, Lag, Lags

WHERE = ("p.dc1", "a", 0)


def judged(
    settled: Sequence[int],
    lags: Sequence[int],
    step_ms: int = STEP_MS,
    delay_ms: int = 1_000,
    range_messages: int = 4,
) -> Lag:
    """What is said at the last of some looks."""
    of, found = Lags(), list[Lag]()
    for number, (at, lag) in enumerate(zip(settled, lags, strict=True)):
        found.append(of.judge(WHERE, at, lag, range_messages, number * step_ms, delay_ms))
    return found[-1]


@pytest.mark.parametrize(
    ("settled", "lags", "expected"),
    [
        (range(0, 60, 10), [5] * 6, "ok"),  # it loads as much as comes
        (range(0, 60, 10), range(1_000, 400, -100), "ok"),  # far behind, and catching up
        (range(0, 60, 10), range(1, 7), "behind"),  # not far behind, and it grows
        (range(0, 60, 10), [1, 5, 1, 2, 4, 6], "behind"),  # it was less for once
        (range(0, 60, 10), [1, 5, 1, 2, 4, 5], "ok"),  # not by more than a range
        (range(0, 60, 10), [900, 904, 901, 903, 900, 903], "ok"),  # it loads as much as comes
        (range(0, 60, 10), [1, 2, 0, 3, 4, 5], "ok"),  # it had loaded everything meanwhile
        ([7] * 6, [3] * 6, "stalled"),
        ([7] * 6, range(3, 9), "stalled"),
        ([7] * 6, [0] * 6, "ok"),  # nothing is there
        ([7] * 3, [3] * 3, "ok"),  # too early to tell
    ],
)
def test_what_is_said(settled: Sequence[int], lags: Sequence[int], expected: Lag) -> None:
    assert judged(settled, lags) == expected


def test_what_is_long_ago_does_not_count() -> None:
    assert judged([0] * 20, [0] * 9 + [5] * 11) == "stalled"
    assert judged([0] * (SAMPLES + 1), [0] * 2 + [5] * (SAMPLES - 1)) == "ok"


def test_looks_between_two_samples_count_as_none() -> None:
    assert judged([7] * 20, [3] * 20, step_ms=1_000) == "ok"


def test_ranges_that_may_wait_for_an_hour_are_not_stalled_for_it() -> None:
    assert judged([7] * 9, [3] * 9, step_ms=600_000, delay_ms=3_600_000) == "ok"
