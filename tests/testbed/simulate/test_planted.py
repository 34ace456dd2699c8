"""A simulator that finds nothing proves nothing: each planted bug has to be caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sluice.testbed.simulate.planted import PLANTED
from sluice.testbed.simulate.runs import first_broken, on_one_processor, run_seed

#: Seeds from the first one on, and how long each is broken: short worlds first, they cost less.
BUDGETS = ((60, 1_000), (400, 2_500))


@pytest.fixture(autouse=True, scope="module")
def one_processor() -> Iterator[None]:
    with on_one_processor():
        yield


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    tries = (first_broken(1, seeds, steps, plant=PLANTED[name]) for seeds, steps in BUDGETS)
    found = next((each for each in tries if each is not None), None)
    assert found is not None, f"{name} was not caught by any of {BUDGETS} seeds and steps"
    print(f"{name} is caught by seed {found.seed}: {found.violations[0]}")


def test_planted_bugs_leave_nothing_behind() -> None:
    """The real code is itself again."""
    before = run_seed(2, 400).trace
    with ExitStack() as stack:
        for plant in PLANTED.values():
            stack.enter_context(plant())
    assert run_seed(2, 400).trace == before


def test_there_are_at_least_fourteen() -> None:
    assert len(PLANTED) >= 14
    assert all(plant.__doc__ for plant in PLANTED.values())
