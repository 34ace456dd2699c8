"""Runs of many seeds: figures, and one line for each failure that reproduces it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from sluice.testbed.simulate.patches import installed
from sluice.testbed.simulate.scheduler import START_MS
from sluice.testbed.simulate.simulation import Simulation
from sluice.testbed.simulate.world import World

STEPS = 4_000
FAULT_RATE = 0.01
#: How long after its lease an insert may land: what `has_expired` allows, less the clocks.
LATE_MS = 7_000


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one seed gave.

    :param trace: names the order of everything that happened.
    """

    seed: int
    steps: int
    virtual_seconds: float
    commits: int
    rows: int
    messages: int
    trace: int
    counts: Counter[str]
    violations: tuple[str, ...]


def run_seed(
    seed: int,
    steps: int = STEPS,
    rate: float = FAULT_RATE,
    *,
    late_ms: int = LATE_MS,
    plant: Callable[[], AbstractContextManager[None]] = nullcontext,
    is_shown: bool = False,
) -> RunResult:
    """One seed from start to drain.

    :param plant: breaks the real code on purpose.
    """
    world = World(seed, rate, late_ms, is_shown=is_shown)
    simulation = Simulation(world, steps)
    with installed(simulation.parts), plant():
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
class Summary:
    """Sums over all runs."""

    runs: int = 0
    steps: int = 0
    virtual_seconds: float = 0.0
    commits: int = 0
    rows: int = 0
    messages: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[RunResult] = field(default_factory=list)

    def add(self, result: RunResult) -> None:
        """One more run."""
        self.runs += 1
        self.steps += result.steps
        self.virtual_seconds += result.virtual_seconds
        self.commits += result.commits
        self.rows += result.rows
        self.messages += result.messages
        self.counts.update(result.counts)
        if result.violations:
            self.failed.append(result)
