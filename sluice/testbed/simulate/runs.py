"""Runs of the real loader in simulated worlds, each named by its seed: figures, one line for each
failure that reproduces it, and what `sluice simulate` does with them.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sluice.core.errors import ConfigurationError
from sluice.testbed.simulate.checks import Checks
from sluice.testbed.simulate.faults import ALL_KINDS, RARE
from sluice.testbed.simulate.fleet import draw_fleet
from sluice.testbed.simulate.nemesis import Nemesis
from sluice.testbed.simulate.parts import make_parts
from sluice.testbed.simulate.patches import installed
from sluice.testbed.simulate.planted import PLANTED
from sluice.testbed.simulate.planted_fleet import FLEET_BUGS
from sluice.testbed.simulate.scheduler import START_MS, Actor
from sluice.testbed.simulate.supervisor import Supervisor
from sluice.testbed.simulate.world import World

#: A drain that takes longer is no drain.
DRAIN_MS_MAX = 4 * 3600 * 1000
DRAIN_STEPS_MAX = 40_000
#: Of a fleet each partition has to go on soon: some sleep a lease longer, then somebody is silent,
#: and something is probed a lease later. What waits for a person waits for 900 s.
FLEET_DRAIN_MS_MAX = 1_300_000
#: How often the drain looks whether it is done, in events.
LOOK_EVERY = 40


class Simulation:
    """A run of one world; its `violations` say what went wrong.

    :param steps: with faults; afterwards everything is healed and must drain.
    """

    def __init__(self, world: World, steps: int) -> None:
        self.world = world
        self.parts = make_parts(world)
        self.checks = Checks(self.parts)
        self._supervisor = Supervisor(self.parts, self.checks)
        self._nemesis = Nemesis(self.parts, self._supervisor)
        world.broker.committing = self.checks.committing
        world.scheduler.on_crash = self._crashed
        world.scheduler.is_over = self._is_over
        self._steps = steps
        self._healed_at: tuple[int, int] | None = None
        self._look_in = LOOK_EVERY

    def run(self) -> None:
        """Faults, then healing, then the drain; violations are in `checks`."""
        self._supervisor.begin()
        self._nemesis.start()
        self.world.scheduler.run()
        self.checks.final()

    def close(self) -> None:
        """End every thread."""
        self.world.faults.is_on = False
        self.world.scheduler.end()

    def _crashed(self, actor: Actor, error: BaseException) -> None:
        self.world.violate(f"{actor.process.name} ended on a bug: {type(error).__name__}: {error}")
        if self.world.is_shown:
            import traceback

            traceback.print_exception(error)

    def _is_over(self) -> bool:
        world = self.world
        if world.violations:
            return True
        if self._healed_at is None:
            if world.scheduler.steps >= self._steps:
                self._healed_at = (world.scheduler.steps, world.now)
                self._nemesis.heal()
            else:
                self._nemesis.strike()
            return False
        self._look_in -= 1
        if self._look_in > 0:
            return False
        self._look_in = LOOK_EVERY
        self._supervisor.ensure_driver()
        for driver in world.drivers:
            self.checks.look_at_stops(driver)
        if self.checks.is_drained():
            return True
        steps, at_ms = self._healed_at
        steps_max = DRAIN_STEPS_MAX * max(1, world.plan.members)
        patience_ms = FLEET_DRAIN_MS_MAX if world.plan.members else DRAIN_MS_MAX
        if world.now - at_ms > patience_ms or world.scheduler.steps - steps > steps_max:
            world.violate(f"did not drain: {self.checks.what_is_left()}")
        return False


STEPS = 4_000
FAULT_RATE = 0.01
#: How long after its lease an insert may land: what `has_expired` allows, less the clocks.
LATE_MS = 7_000


@dataclass(slots=True)
class Figures:
    """What one run did, or all together."""

    steps: int = 0
    virtual_seconds: float = 0.0
    commits: int = 0
    rows: int = 0
    messages: int = 0
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class RunResult(Figures):
    """What one seed gave.

    :param trace: names the order of everything that happened.
    """

    seed: int
    trace: int
    violations: tuple[str, ...]


def run_seed(
    seed: int,
    steps: int = STEPS,
    rate: float = FAULT_RATE,
    *,
    late_ms: int = LATE_MS,
    plant: str | None = None,
    is_shown: bool = False,
    is_fleet: bool = False,
) -> RunResult:
    """One seed from start to drain.

    :param late_ms: how long after its lease an insert that is on its way may still land.
    :param plant: name of a bug to plant.
    :param is_fleet: several drivers share the partitions: other worlds than those of the same seeds
        without it.
    :raises ConfigurationError: there is no such bug.
    """
    bugs = FLEET_BUGS if is_fleet else PLANTED
    if plant is not None and plant not in bugs:
        raise ConfigurationError(f"no planted bug is named {plant}", f"One of {', '.join(bugs)}")
    world = World(
        seed, rate, late_ms, is_shown=is_shown, draw_more=draw_fleet if is_fleet else None
    )
    simulation = Simulation(world, steps)
    with installed(simulation.parts), nullcontext() if plant is None else bugs[plant]():
        try:
            simulation.run()
        finally:
            simulation.close()
    return RunResult(
        seed=seed,
        steps=world.scheduler.steps,
        virtual_seconds=(world.scheduler.now - START_MS) / 1000,
        commits=simulation.checks.commits,
        rows=sum(len(table.rows) for table in world.clickhouse.tables()),
        messages=simulation.parts.producers.messages,
        trace=world.scheduler.trace,
        counts=world.faults.counts,
        violations=tuple(world.violations),
    )


@dataclass(slots=True)
class Summary(Figures):
    """Sums over all runs."""

    runs: int = 0
    seconds: float = 0.0
    failed: list[RunResult] = field(default_factory=list)

    def add(self, result: RunResult) -> None:
        """One more run."""
        self.runs += 1
        for name in Figures.__slots__:
            setattr(self, name, getattr(self, name) + getattr(result, name))
        if result.violations:
            self.failed.append(result)


_PROGRESS_SECONDS = 5.0
#: From so many seeds of so many steps on, every kind of fault has to be drawn.
FLOOR_SEEDS, FLOOR_STEPS = 150, 2_000


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
    is_fleet: bool = False,
) -> int:
    """Run the seeds and report; 0 if no promise was broken and every fault was drawn, else 1.

    :param until_broken: the first seed that breaks a promise is the last one.

    For all others see `run_seed`.

    :raises ConfigurationError: see there.
    """
    if is_shown:
        logging.getLogger("sluice").setLevel(logging.INFO)
    run = partial(
        run_seed,
        steps=steps,
        rate=rate,
        late_ms=late_ms,
        plant=plant,
        is_shown=is_shown,
        is_fleet=is_fleet,
    )
    summary = Summary()
    began = shown = time.monotonic()
    for result in _results(run, range(first_seed, first_seed + seeds), processes):
        summary.add(result)
        summary.seconds = time.monotonic() - began
        for violation in result.violations:
            print(f"seed {result.seed}: {violation}", file=sys.stderr)
        if result.violations:
            print(_again(result.seed, run.keywords), file=sys.stderr)
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            print(_progress(summary, seeds), file=sys.stderr)
        if until_broken and result.violations:
            break
    # Fleets have neither claims nor staged blocks, and draw nothing of them.
    missing = [] if is_fleet else missing_kinds(summary)
    for kind in missing:
        print(f"{kind}: not once in {summary.runs} seeds", file=sys.stderr)
    _report(summary, as_json, [_again(each.seed, run.keywords) for each in summary.failed])
    return 1 if summary.failed or (missing and plant is None) else 0


def missing_kinds(summary: Summary) -> list[str]:
    """Faults and events that so many seeds should have drawn, and did not: what never happens
    proves nothing."""
    if summary.runs < FLOOR_SEEDS or summary.steps < FLOOR_STEPS * summary.runs:
        return []
    return [kind for kind in ALL_KINDS if not summary.counts[kind] and kind not in RARE]


def _results(run: Callable[[int], RunResult], seeds: range, processes: int) -> Iterator[RunResult]:
    if processes == 1:
        yield from map(run, seeds)
        return
    # Forked workers would inherit threads of libraries; new ones import everything again.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap(run, seeds, chunksize=4)


def _again(seed: int, how: Mapping[str, Any]) -> str:
    """The line that reproduces a run."""
    line = f"sluice simulate --first-seed {seed} --seeds 1 --steps {how['steps']}"
    if how["is_fleet"]:
        line += " --fleet"
    if how["rate"] != FAULT_RATE:
        line += f" --fault-rate {how['rate']}"
    if how["late_ms"] != LATE_MS:
        line += f" --late-ms {how['late_ms']}"
    return line if how["plant"] is None else f"{line} --plant {how['plant']}"


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
