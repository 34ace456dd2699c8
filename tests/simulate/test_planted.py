"""A simulator that finds nothing proves nothing: each planted bug has to be caught."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.simulate.planted import PLANTED
from sluice.simulate.runs import on_one_processor, run_seed

STEPS = 2_500
#: So many seeds at most; most bugs take one to twenty.
SEEDS_MAX = 120
#: Where to begin to look for bugs that need several rare things at once.
FIRST_SEED = {
    "failover-with-another-token": 120,
    "marks-of-the-repeat": 350,
    "stored-is-parked": 300,
    "tasks-do-not-look": 160,
    "widened-to-what-cannot-be-executed": 150,
}


@pytest.fixture(autouse=True, scope="module")
def one_processor() -> Iterator[None]:
    with on_one_processor():
        yield


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    first = FIRST_SEED.get(name, 1)
    for seed in range(first, first + SEEDS_MAX):
        result = run_seed(seed, STEPS, plant=PLANTED[name])
        if result.violations:
            print(f"{name} is caught by seed {seed}: {result.violations[0]}")
            return
    pytest.fail(f"{name} was not caught by seeds {first} to {first + SEEDS_MAX - 1}")


def test_planted_bugs_leave_nothing_behind() -> None:
    """The real code is itself again."""
    for name, plant in PLANTED.items():
        before = run_seed(2, 400).trace
        with plant():
            pass
        assert run_seed(2, 400).trace == before, name


def test_there_are_at_least_fourteen() -> None:
    assert len(PLANTED) >= 14
    assert all(plant.__doc__ for plant in PLANTED.values())
