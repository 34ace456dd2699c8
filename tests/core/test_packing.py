"""How ranges share tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.planning import RANGES_OF_TASK, SMALL_SHARE_MAX, packed, share_of_task

SHARES = st.lists(
    st.builds(share_of_task, st.integers(1, 1000), st.integers(1, 1000)), max_size=200
)


@given(SHARES, st.integers(1, 40))
def test_each_range_runs_once_and_no_job_has_more_tasks_than_slots(
    shares: list[float], slots: int
) -> None:
    jobs = packed(shares, slots)
    assert sorted(p for job in jobs for task in job for p in task) == list(range(len(shares)))
    assert all(1 <= len(job) <= slots and all(job) for job in jobs)


@given(SHARES, st.integers(1, 40))
def test_no_task_is_much_heavier_than_the_largest_range(shares: list[float], slots: int) -> None:
    for task in (task for job in packed(shares, slots) for task in job):
        assert len(task) == 1 or sum(shares[p] for p in task) <= 1 + SMALL_SHARE_MAX
        assert len(task) <= RANGES_OF_TASK * (1 + SMALL_SHARE_MAX)


@given(SHARES, st.integers(1, 40))
def test_large_ranges_and_small_ones_do_not_wait_for_one_another(
    shares: list[float], slots: int
) -> None:
    for job in packed(shares, slots):
        assert len({shares[p] > SMALL_SHARE_MAX for task in job for p in task}) == 1


def test_no_slot_is_idle_while_a_task_has_several_ranges() -> None:
    assert packed([1 / 32] * 5, 2) == [[[0, 2, 4], [1, 3]]]
    assert packed([1 / 32] * 2, 4) == [[[0], [1]]]


def test_a_thousand_small_ranges_of_two_slots_are_sixteen_jobs() -> None:
    jobs = packed([share_of_task(1, 250_000)] * 1000, 2)
    assert len(jobs) == 16
    assert max(len(task) for job in jobs for task in job) <= RANGES_OF_TASK


def test_a_full_range_has_its_own_task() -> None:
    assert packed([1.0, 1 / 32, 1.0, 1.0, 1 / 32], 2) == [[[0], [2]], [[3]], [[1], [4]]]
