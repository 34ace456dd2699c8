"""A simulator that finds nothing proves nothing: each planted bug has to be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest

from sluice.testbed.simulate.plan import Plan
from sluice.testbed.simulate.planted import PLANTED
from sluice.testbed.simulate.planted_claims import CLAIM_BUGS
from sluice.testbed.simulate.planted_rules import BUNDLE_BUGS
from sluice.testbed.simulate.planted_tables import REPLACING_BUGS, STAGING_BUGS
from sluice.testbed.simulate.runs import RunResult, run_seed
from sluice.testbed.simulate.world import World

#: Seeds from the first one on, and how long each is broken: short worlds first, they cost less.
BUDGETS = ((60, 1_000), (600, 2_500), (200, 4_000))

#: The seed that noticed each when somebody looked last; it is tried first, since a search takes
#: minutes. When it notices no more (a change of the loader may change the schedule of a seed), all
#: are searched again; seeds.py tells which ones are, and what to write here.
CAUGHT_BY = {
    "parked-without-a-look": 414,
    "sent-again-under-any-spec": 241,
    "quorums-that-were-given-up-are-believed": 311,
    "what-is-frozen-is-sent": 112,
    "frozen-replicas-are-sent-blocks": 100,
    "settle-before-acknowledgement": 3,
    "token-without-table": 2,
    "token-without-partition": 7,
    "token-with-attempt": 2,
    "probe-token-without-digest": 1,
    "other-cut-on-replay": 2,
    "replay-beyond-the-range": 2,
    "take-over-under-own-id": 1,
    "take-over-without-fencing": 43,
    "unstable-reads": 2,
    "whoever-has-the-name-is-read": 24,
    "no-read-before-record": 2,
    "dead-letters-outside-transaction": 1,
    "dead-letters-uncut": 2,
    "begin-instead-of-end": 1,
    "lease-checked-too-early": 2,
    "servers-clock-is-not-asked": 47,
    "budget-in-blocks": 3,
    "insert-counters-of-the-repeat": 1,
    "todays-configuration": 5,
    "shorten-after-insert": 5,
    "cached-watermark": 4,
    "range-before-intent": 20,
    "unknown-commit-is-lost": 36,
    "window-never-forgets": 7,
    "no-late-inserts": 44,
    "stop-on-half-a-view": 21,
    "repeat-under-todays-spec": 5,
    "hashes-without-columns": 18,
    "tasks-do-not-look": 18,
    "spec-is-not-recorded": 1,
    "spec-changed-after-insert": 5,
    "only-first-attempts-ask-for-columns": 4,
    "failover-with-another-token": 44,
    "stored-is-parked": 22,
    "window-swallows-repeats": 192,
    "what-may-come-again-is-there": 29,
    "refusal-is-certain": 73,
    "probe-before-lease-end": 2,
    "same-probe-not-recorded": 12,
    "rest-is-forgotten": 5,
    "stored-rows-are-loaded-again": 16,
    "some-rows-are-all": 56,
    "schemas-are-judged-without-a-look": 141,
    "merged-rows-are-counted": 33,
    "windows-of-views-do-not-count": 17,
    "probe-does-not-read-what-routes-go-by": 14,
    "probe-counts-everybodys-rows": 11,
    "ledger-is-read-to-its-stable-end": 9,
    "renewals-are-young": 1,
    "second-attempts-insert": 1,
    "newest-hold-only": 54,
    "largest-reservation-only": 2,
    "no-grace-after-the-lease": 16,
    "late-inserts-are-not-recorded": 7,
    "late-inserts-end-with-their-lease": 18,
    "inserts-outlive-their-lease": 2,
    "unknown-status-is-success": 172,
    "errors-after-the-headers-are-not-read": 8,
    "undelivered-is-not-dropped": 4,
    "lost-answers-are-transient": 44,
    "probe-ignores-running-inserts": 23,
    "probe-looks-into-one-shard": 2,
    "age-does-not-matter": 85,
    "insert-counters-are-stamped-after-reading": 12,
    "nobody-looks-at-windows": 7,
    "successors-get-no-time": 20,
    "cuts-are-not-looked-for": 21,
    "take-over-drops-late-inserts": 106,
    "old-looks-are-good-enough": 27,
    "probe-does-not-wait-for-replicas": 271,
    "stopped-commits-count": 38,
    "claims-are-owned-by-ranges": 9,
    "claims-are-owned-by-attempts": 40,
    "repeated-under-another-run": 289,
    "claimed-before-validation": 10,
    "store-opened-while-tasks-are-out": 119,
    "lost-claims-are-not-made-again": 10,
    "claims-are-made-again-since-now": 79,
    "claims-end-by-the-clock": 399,
    "tasks-do-not-compare-runs": 10,
    "half-a-claim-is-done": 19,
    "duplicates-by-order-of-arrival": 40,
    "claims-are-swept-when-over": 399,
    "staged-claimed-by-another-is-moved": 548,
    "staged-blocks-named-by-attempt": 18,
    "staged-moved-without-a-claim": 48,
    "staged-what-is-still-there-was-not-moved": 48,
    "staged-markers-go-with-their-range": 18,
    "staged-blocks-of-others-go-at-once": 18,
    "staged-token-with-rest": 18,
    "rows-in-order-of-arrival": 42,
    "bundle-named-by-its-partitions": 27,
    "each-member-keeps-its-lease": 5,
    "all-bundles-are-one-hold": 145,
    "former-leaders-are-believed": 21,
    "restarted-servers-are-believed": 14,
    "given-back-while-it-may-land": 23,
    "members-are-recorded-one-by-one": 1,
    "staged-done-before-moved": 8,
    "staged-dropped-before-done": 8,
    "staged-gone-is-moved": 98,
    "staged-views-are-not-moved": 38,
    "staged-moved-before-all-are-sealed": 38,
}


def _has_replicas(plan: Plan) -> bool:
    return len(plan.replicas(plan.shards[0])) > 1


#: Bugs that only worlds with such a plan can notice, or hardly another one: no other is searched.
NOTICED_WITH: tuple[tuple[Iterable[str], Callable[[Plan], bool]], ...] = (
    (("failover-with-another-token", "probe-does-not-wait-for-replicas"), _has_replicas),
    (("quorums-that-were-given-up-are-believed",), lambda plan: plan.is_quorum),
    (("merged-rows-are-counted",), lambda plan: any(shape.merges for shape in plan.tables)),
    (("windows-of-views-do-not-count",), lambda plan: any(shape.view for shape in plan.tables)),
    (("schemas-are-judged-without-a-look",), lambda plan: bool(plan.registered)),
    (("refusal-is-certain", "stored-is-parked"), lambda plan: plan.refuses),
    (BUNDLE_BUGS, lambda plan: plan.max_partitions > 1),
    (CLAIM_BUGS, lambda plan: plan.claims is not None),
    (REPLACING_BUGS, lambda plan: any(shape.replaces for shape in plan.tables)),
    (STAGING_BUGS, lambda plan: bool(plan.staged)),
    (("probe-does-not-read-what-routes-go-by",), lambda plan: bool(plan.routes)),
)


def broken_runs(name: str, first_seed: int, seeds: int, steps: int) -> Iterator[RunResult]:
    """The runs of these seeds that break a promise, with a bug planted."""
    needs = [holds for names, holds in NOTICED_WITH if name in names]
    for seed in range(first_seed, first_seed + seeds):
        plan = World(seed, 0.0, 0).plan
        if all(holds(plan) for holds in needs):
            run = run_seed(seed, steps, plant=name)
            if run.violations:
                yield run


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    known = [(CAUGHT_BY[name], 1, steps) for _, steps in BUDGETS if name in CAUGHT_BY]
    tries = [*known, *((1, seeds, steps) for seeds, steps in BUDGETS)]
    found = next((broken for each in tries for broken in broken_runs(name, *each)), None)
    assert found is not None, f"{name} was not caught by any of {BUDGETS} seeds and steps"
    # What is planted has to be run, and not to be a fault of its own.
    assert "unexpected TypeError" not in found.violations[0], found.violations[0]
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
    assert set(CAUGHT_BY) <= set(PLANTED)
    assert max(CAUGHT_BY.values()) <= max(seeds for seeds, _ in BUDGETS)
    assert all(plant.__doc__ for plant in PLANTED.values())
