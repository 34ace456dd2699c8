"""Which recorded seeds of planted bugs notice nothing any more, and which ones do now.

    .venv/bin/python -m tests.testbed.simulate.seeds [--search SECONDS] [NAME …]

A change of the loader may change the schedule of a seed. The tests search then, in each run, for
minutes; this tells in one minute of CPU which ones they are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator

from sluice.testbed.simulate.planted_fleet import FLEET_BUGS
from sluice.testbed.simulate.runs import RunResult, run_seed
from tests.testbed.simulate import test_fleet as fleets
from tests.testbed.simulate import test_planted as planted

RECORDED = {**planted.CAUGHT_BY, **fleets.CAUGHT_BY}


def runs_of(name: str, seeds: Iterable[int] | None = None) -> Iterator[RunResult | None]:
    """A run of each of these seeds with a bug planted, for as long as its test goes on; None for
    one that a world of this seed cannot show.

    :param seeds: None for those that the test searches.
    """
    if name in FLEET_BUGS:
        for seed in seeds or range(1, fleets.SEARCHED + 1):
            yield run_seed(seed, fleets.STEPS, plant=name, is_fleet=True)
        return
    for count, steps in planted.BUDGETS:
        for seed in seeds or range(1, count + 1):
            yield next(planted.broken_runs(name, seed, 1, steps), None)


def first_broken(
    runs: Iterable[RunResult | None], cpu_seconds: float = float("inf")
) -> RunResult | None:
    """The first run that breaks a promise, unless none does within this time."""
    until = time.process_time() + cpu_seconds
    for run in runs:
        if run is not None and run.violations:
            return run
        if time.process_time() > until:
            break
    return None


def main() -> int:
    """Tell, and search.

    :returns: 1 if a seed that is recorded notices nothing any more.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="of bugs; none for all")
    parser.add_argument("--search", metavar="SECONDS", type=float, help="of CPU for each bug")
    asked = parser.parse_args()
    names = asked.names or list(RECORDED)
    stale = [name for name in names if first_broken(runs_of(name, [RECORDED[name]])) is None]
    for name in stale:
        print(f"{name}: {RECORDED[name]} notices nothing", flush=True)
        if asked.search is not None:
            run = first_broken(runs_of(name), asked.search)
            found = "none was found" if run is None else f"{run.seed} does: {run.violations[0]}"
            print(f"    {found}", flush=True)
    print(f"{len(stale)} of {len(names)} recorded seeds notice nothing")
    return int(bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
