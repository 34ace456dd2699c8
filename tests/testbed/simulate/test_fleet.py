"""Drivers that share partitions, in simulated worlds: no promise breaks, and each planted bug is
caught (R25)."""

from __future__ import annotations

import pytest

from sluice.testbed.simulate.planted_fleet import FLEET_BUGS
from sluice.testbed.simulate.runs import Summary, run_seed

SEEDS, STEPS = 24, 3_000

#: What seeds with fleets draw.
DRAWN = (
    "member of a fleet joins",
    "partition handed over",
    "report lost",
    "report late",
    "view is wrong",
    "view stands still",
    "heir hesitates",
    "owner id written off",
    "fleet's topic made anew",
)

#: The seed that noticed each planted bug; when it notices no more, these are searched.
CAUGHT_BY = {
    "dead-are-fenced-after-reading": 8,
    "handed-over-in-doubt": 17,
    "handed-over-and-not-forgotten": 3,
    "taken-without-reading-the-owner": 2,
    "own-id-initialised-by-a-take-over": 1,
    "an-heir-that-was-fenced-tries-again": 26,
    "half-a-window-beside-others": 1,
    "a-floor-that-is-not-counted": 3,
    "a-floor-that-is-forgotten": 2,
    "late-inserts-have-no-floor": 90,
}
SEARCHED = 300


@pytest.mark.slow
def test_a_fixed_budget_of_seeds_breaks_no_promise() -> None:
    summary = Summary()
    for seed in range(1, SEEDS + 1):
        summary.add(run_seed(seed, STEPS, is_fleet=True))
    assert [(r.seed, r.violations) for r in summary.failed] == []
    assert [kind for kind in DRAWN if not summary.counts[kind]] == []
    assert summary.counts["partition handed over"] > 2 * SEEDS


def test_a_seed_is_a_schedule() -> None:
    one, two = (run_seed(3, 600, is_fleet=True) for _ in range(2))
    assert one.trace == two.trace and one.counts == two.counts


@pytest.mark.parametrize("name", FLEET_BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in (CAUGHT_BY.get(name, 1), *range(1, SEARCHED + 1)):
        found = run_seed(seed, STEPS, plant=name, is_fleet=True)
        if found.violations:
            break
    assert found.violations, f"{name} was not caught by any of {SEARCHED} seeds"
    assert "TypeError" not in found.violations[0] and "AttributeError" not in found.violations[0]
    print(f"{name} is caught by seed {found.seed}: {found.violations[0]}")
