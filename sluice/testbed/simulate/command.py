"""What `sluice simulate` does: runs, progress on stderr, and a report on stdout."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator

from sluice.core.errors import ConfigurationError
from sluice.testbed.simulate.faults import ALL_KINDS, RARE
from sluice.testbed.simulate.planted import PLANTED, nothing
from sluice.testbed.simulate.runs import (
    FAULT_RATE,
    LATE_MS,
    STEPS,
    RunResult,
    Summary,
    run_seed,
)

_PROGRESS_SECONDS = 5.0
#: From so many seeds of so many steps on, every kind of fault has to be drawn.
FLOOR_SEEDS, FLOOR_STEPS = 150, 2_000

_Job = tuple[int, int, float, int, str | None, bool]


def simulate(
    *,
    first_seed: int,
    seeds: int,
    steps: int = STEPS,
    rate: float = FAULT_RATE,
    late_ms: int = LATE_MS,
    processes: int = 1,
    plant: str | None = None,
    is_shown: bool = False,
    as_json: bool = False,
    until_broken: bool = False,
) -> int:
    """Run the seeds and report; 0 if no promise was broken and every fault was drawn, else 1.

    :param late_ms: how long after its lease an insert that is on its way may still land.
    :param plant: name of a bug to plant.
    :param until_broken: the first seed that breaks a promise is the last one.
    :raises ConfigurationError: there is no such bug.
    """
    if plant is not None and plant not in PLANTED:
        raise ConfigurationError(f"no planted bug is named {plant}", f"One of {', '.join(PLANTED)}")
    if is_shown:
        logging.getLogger("sluice").setLevel(logging.INFO)
    jobs = [
        (seed, steps, rate, late_ms, plant, is_shown)
        for seed in range(first_seed, first_seed + seeds)
    ]
    summary = Summary()
    began = shown = time.monotonic()
    for result in _results(jobs, processes):
        summary.add(result)
        summary.seconds = time.monotonic() - began
        for violation in result.violations:
            print(f"seed {result.seed}: {violation}", file=sys.stderr)
        if result.violations:
            print(_again(result.seed, steps, rate, late_ms, plant), file=sys.stderr)
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            print(_progress(summary, seeds), file=sys.stderr)
        if until_broken and result.violations:
            break
    missing = missing_kinds(summary)
    for kind in missing:
        print(f"{kind}: not once in {summary.runs} seeds", file=sys.stderr)
    _report(summary, as_json, [_again(r.seed, steps, rate, late_ms, plant) for r in summary.failed])
    return 1 if summary.failed or (missing and plant is None) else 0


def missing_kinds(summary: Summary) -> list[str]:
    """Faults and events that so many seeds should have drawn, and did not: what never happens
    proves nothing."""
    if summary.runs < FLOOR_SEEDS or summary.steps < FLOOR_STEPS * summary.runs:
        return []
    return [kind for kind in ALL_KINDS if not summary.counts[kind] and kind not in RARE]


def _results(jobs: list[_Job], processes: int) -> Iterator[RunResult]:
    if processes == 1:
        yield from map(_run, jobs)
        return
    # Forked workers would inherit threads of libraries; new ones import everything again.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap(_run, jobs, chunksize=4)


def _run(job: _Job) -> RunResult:
    seed, steps, rate, late_ms, plant, is_shown = job
    bug = nothing if plant is None else PLANTED[plant]
    return run_seed(seed, steps, rate, late_ms=late_ms, plant=bug, is_shown=is_shown)


def _again(seed: int, steps: int, rate: float, late_ms: int, plant: str | None) -> str:
    """The line that reproduces a run."""
    line = f"sluice simulate --first-seed {seed} --seeds 1 --steps {steps}"
    if rate != FAULT_RATE:
        line += f" --fault-rate {rate}"
    if late_ms != LATE_MS:
        line += f" --late-ms {late_ms}"
    return line if plant is None else f"{line} --plant {plant}"


def _progress(summary: Summary, seeds: int) -> str:
    rate = summary.steps / max(summary.seconds, 0.001)
    return (
        f"{summary.runs}/{seeds} runs, {summary.steps:,} steps, {rate:,.0f} steps/s, "
        f"{len(summary.failed)} failed"
    )


def _report(summary: Summary, as_json: bool, again: list[str]) -> None:
    never = [kind for kind in ALL_KINDS if not summary.counts[kind]]
    if as_json:
        figures = {
            "runs": summary.runs,
            "steps": summary.steps,
            "seconds": round(summary.seconds, 1),
            "virtual_seconds": round(summary.virtual_seconds),
            "commits": summary.commits,
            "messages": summary.messages,
            "rows": summary.rows,
            "failed": [result.seed for result in summary.failed],
            "reproduce": again,
            "drawn": {kind: summary.counts[kind] for kind in ALL_KINDS},
            "never_drawn": never,
        }
        print(json.dumps(figures, indent=2))
        return
    width = max(map(len, ALL_KINDS))
    for kind in ALL_KINDS:
        print(f"{kind:{width}} {summary.counts[kind]:>9,}")
    print(
        f"\n{summary.runs:,} runs, {summary.steps:,} steps in {summary.seconds:.0f} s "
        f"({summary.steps / max(summary.seconds, 0.001):,.0f} steps/s), "
        f"{summary.virtual_seconds / 3600:,.0f} hours of virtual time\n"
        f"{summary.messages:,} messages, {summary.rows:,} rows, {summary.commits:,} commits\n"
        f"{sum(summary.counts.values()):,} faults and events; "
        f"never drawn: {', '.join(never) or 'none'}\n"
        f"{len(summary.failed)} runs broke a promise"
    )
    for line in again:
        print(line)
