"""A chaos run: produce, strike, heal, drain, compare.

1. Start broker, ClickHouse (both behind proxies), perhaps a Spark cluster, and a driver.
2. Produce at a steady rate; every few seconds a fault from the seeded schedule strikes.
3. When the time is over: heal everything, stop producing, drain.
4. Compare: our own content check, `sluice audit`, `sluice verify`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Delivery
from sluice.ops.claims import check, keyed_tables
from sluice.testbed.chaos.cluster_stage import AnyStage, Loading, running_cluster_stage
from sluice.testbed.chaos.content import ContentReport
from sluice.testbed.chaos.drivers import Say
from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.replicas import compare_replicas
from sluice.testbed.chaos.report import ChaosReport, ClaimsReport
from sluice.testbed.chaos.schedule import Strike, schedule
from sluice.testbed.chaos.sending import Production, Truth
from sluice.testbed.chaos.stage import Stage, running_stage
from sluice.testbed.chaos.store import StoreKind, Struck
from sluice.testbed.chaos.striking import Lasting, Striker
from sluice.testbed.local.lifetime import interruptible, working_folder
from sluice.testbed.local.producing import PARTITIONS
from sluice.verify.audit import audit
from sluice.verify.verifier import verify

RATE = 5_000
_TICK_SECONDS = 0.1
_FIRST_ROWS_SECONDS_MAX = 180.0
#: A fault that needs a loading pipeline waits for one so long, then strikes anyway.
_PROGRESS_SECONDS_MAX = 40.0
_LATELY_SECONDS = 2.0
_HEAL_SECONDS_MAX = 200.0


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """What to run.

    :param seconds: how long faults strike; starting and draining come on top.
    :param rate: events a second, of all connectors together.
    :param standalone: a cluster of a master and two workers instead of `local[2]`.
    :param layout: of a ClickHouse cluster; None for one embedded server.
    :param partitions: of each connector's topic.
    :param duplicates: the share of messages that come again; 0: the table does not deduplicate.
    :param store: of claims, if it does.
    :param delivery: of the tables of one server.
    """

    seconds: float
    seed: int
    rate: int = RATE
    standalone: bool = False
    layout: Layout | None = None
    partitions: int = PARTITIONS
    duplicates: float = 0.0
    store: StoreKind = "redis"
    delivery: Delivery = "block"

    @property
    def store_used(self) -> StoreKind | None:
        """The store of claims; None: there is none."""
        return self.store if self.duplicates else None


def run_chaos(plan: ChaosPlan, keep: bool = False, stream: TextIO | None = None) -> ChaosReport:
    """Run the plan on the real stack, in a temporary folder.

    :param keep: leave the folder behind, logs and data.
    :param stream: where faults are told as they strike; standard output if left out.
    :raises TerminalError: the stack did not start, or the pipeline does not drain.
    """
    with a_run("chaos", keep, stream) as (folder, say):
        if plan.layout is not None:
            return _run_cluster(plan, plan.layout, folder, say)
        return _run_single(plan, folder, say)


@contextmanager
def a_run(name: str, keep: bool, stream: TextIO | None) -> Iterator[tuple[Path, Say]]:
    """The folder of a run, and what tells its events with their time; see `run_chaos`."""
    began = time.monotonic()
    out = sys.stdout if stream is None else stream

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=out, flush=True)

    with interruptible(), working_folder(f"sluice-{name}-", keep) as folder:
        if keep:
            say(f"folder {folder}")
        yield folder, say


def _run_single(plan: ChaosPlan, folder: Path, say: Say) -> ChaosReport:
    partitions, store = plan.partitions, plan.store_used
    with running_stage(folder, plan.standalone, say, partitions, store, plan.delivery) as stage:
        topic, *more = stage.topics
        truth = Truth.of(partitions * len(stage.topics))
        production = Production(
            stage.access, topic, plan.rate, plan.seed, truth, tuple(more), plan.duplicates
        )
        with closing(Chaos(stage, say)) as chaos:
            ran = _run(plan, stage, chaos, {"": production}, say)
            report = _report(plan, stage, ran, stage.compare(truth))
            if stage.store is None:
                return report
            return replace(report, claims=_claims_report(stage, stage.store, truth))


def _claims_report(stage: Stage, store: Struck, truth: Truth) -> ClaimsReport:
    found = check(stage.configuration, keyed_tables(stage.configuration))
    return ClaimsReport(
        duplicates=truth.rows - truth.unique,
        starts=store.starts,
        losses=store.losses,
        unclaimed=sum(each.unclaimed for each in found),
        others=sum(each.others for each in found),
        examples=tuple(text for each in found for text in each.examples),
    )


def _run_cluster(plan: ChaosPlan, layout: Layout, folder: Path, say: Say) -> ChaosReport:
    loading = Loading(standalone=plan.standalone, partitions=plan.partitions)
    with running_cluster_stage(folder, layout, loading, say) as stage:
        rate = plan.rate // len(stage.centers)
        production = {
            center.name: Production(
                center.access, center.topic, rate, plan.seed + number, Truth.of(plan.partitions)
            )
            for number, center in enumerate(stage.centers.values())
        }
        # Servers that were started again end when it is closed.
        with closing(Chaos(stage, say)) as chaos:
            ran = _run(plan, stage, chaos, production, say)
            found = compare_replicas(stage, ran.truths)
            return replace(_report(plan, stage, ran, found.content), layout=layout, replicas=found)


@dataclass(frozen=True, slots=True)
class _Ran:
    """A run that has drained.

    :param truths: what was produced, by connector.
    """

    truths: dict[str, Truth]
    faults: dict[str, int]
    missed: int
    seconds: float


def _run(
    plan: ChaosPlan,
    stage: AnyStage,
    chaos: Chaos,
    production: dict[str, Production],
    say: Say,
) -> _Ran:
    try:
        stage.drivers.start()
        for each in production.values():
            each.start()
        chaos.wait_for_rows()
        say("the first rows are loaded; faults begin")
        seconds = chaos.run(plan)
        say("everything is healed; the pipeline drains")
        truths = {name: each.finish() for name, each in production.items()}
        stage.drivers.drain()
        say("drained; every row is compared")
        return _Ran(truths, dict(sorted(chaos.faults.items())), chaos.missed, seconds)
    finally:
        for each in production.values():
            each.stop()


class Chaos:
    """Carries a schedule out.

    :param say: told each fault as it strikes.
    """

    def __init__(self, stage: AnyStage, say: Say) -> None:
        self.faults: Counter[str] = Counter()
        self.missed = 0
        self._stage = stage
        self._say = say
        self._striker = Striker(stage, say)
        self._lasting: list[Lasting] = []

    def run(self, plan: ChaosPlan) -> float:
        """Strike until the time is over, then heal everything; gives the seconds."""
        began = time.monotonic()
        until = began + plan.seconds
        for strike in schedule(plan.seed, plan.standalone, plan.layout, plan.store_used or ""):
            self.wait(strike.pause_seconds, until)
            self._await_turn(strike, until)
            if time.monotonic() >= until:
                break
            self._strike(strike)
            if not strike.overlaps:
                self.wait_for(lambda: not self._lasting, plan.seconds, until)
        seconds = time.monotonic() - began
        self.heal_all()
        return seconds

    def heal_all(self) -> None:
        """End every fault as soon as it may end, and wait until all servers run.

        :raises TerminalError: they do not run in time.
        """
        for lasting in self._lasting:
            lasting.until = 0.0
        if not self.wait_for(lambda: not self._lasting, _HEAL_SECONDS_MAX):
            names = ", ".join(lasting.strike.told for lasting in self._lasting)
            raise TerminalError(
                f"after {_HEAL_SECONDS_MAX:.0f} s these faults are not healed: {names}",
                "Run chaos on a quieter machine.",
            )
        for link in self._stage.links():
            link.heal()

    def wait(self, seconds: float, until: float = float("inf")) -> None:
        """Let time pass: faults are healed when they are due, drivers restarted."""
        over = min(time.monotonic() + seconds, until)
        while time.monotonic() < over:
            self._tick()

    def wait_for(
        self, condition: Callable[[], bool], seconds: float, until: float = float("inf")
    ) -> bool:
        """Let time pass until the condition holds; False if it does not."""
        over = min(time.monotonic() + seconds, until)
        while not condition():
            if time.monotonic() >= over:
                return False
            self._tick()
        return True

    def wait_for_rows(self) -> None:
        """:raises TerminalError: none is loaded in time."""
        positions, seconds = self._stage.positions, _FIRST_ROWS_SECONDS_MAX
        if not self.wait_for(lambda: positions.settled > 0, seconds):
            raise self._stage.drivers.current.failure(f"loaded nothing within {seconds:.0f} s")

    def close(self) -> None:
        """Wait for what is still being started; what was started again may end."""
        self._striker.close()

    def _await_turn(self, strike: Strike, until: float) -> None:
        """Until nothing else happens to the same target, and the pipeline loads if it has to."""

        def is_free() -> bool:
            others = [lasting.strike.touches for lasting in self._lasting]
            if strike.is_alone:
                return not others
            return all(strike.touches.isdisjoint(each) for each in others)

        self.wait_for(is_free, float("inf"), until)
        if strike.needs_progress:
            positions = self._stage.positions
            self.wait_for(
                lambda: is_free() and positions.moved_within(_LATELY_SECONDS),
                _PROGRESS_SECONDS_MAX,
                until,
            )

    def _strike(self, strike: Strike) -> None:
        lasting = self._striker.strike(strike)
        if lasting is None:
            self.missed += 1
            self._say(f"{strike.told}: nothing to strike at")
            return
        self.faults[strike.name] += 1
        self._lasting.append(lasting)
        self._say(f"{strike.told}, {strike.seconds:.1f} s")

    def _tick(self) -> None:
        now = time.monotonic()
        for lasting in list(self._lasting):
            if lasting.healing:
                if all(each.done() for each in lasting.healing):
                    for each in lasting.healing:
                        each.result()
                    self._lasting.remove(lasting)
            elif lasting.is_due(now):
                self._striker.heal(lasting)
                if not lasting.healing:
                    self._lasting.remove(lasting)
        self._stage.drivers.supervise()
        time.sleep(_TICK_SECONDS)


def _report(plan: ChaosPlan, stage: AnyStage, ran: _Ran, content: ContentReport) -> ChaosReport:
    configuration, drivers = stage.configuration, stage.drivers
    kinds = stage.record_kinds()
    links = [link.counters for link in stage.links()]
    truths = ran.truths.values()
    bugs = drivers.logged("ends on a bug")
    return ChaosReport(
        seed=plan.seed,
        seconds=ran.seconds,
        spark="standalone" if plan.standalone else "local",
        rows=sum(truth.unique if plan.duplicates else truth.rows for truth in truths),
        broken=sum(len(truth.broken) for truth in truths),
        tombstones=sum(truth.tombstones for truth in truths),
        faults=ran.faults,
        missed=ran.missed,
        driver_restarts=drivers.restarts,
        replayed=kinds["renew"],
        probed=kinds["probe"],
        fenced=drivers.fenced,
        dropped_replies=sum(link.dropped_replies for link in links),
        resets=sum(link.resets for link in links),
        content=content,
        audited=audit(configuration),
        anomalies=len(verify(configuration, "offsets").anomalies),
        violations=(
            *drivers.violations,
            *([f"drivers' logs name {bugs} bugs"] if bugs else []),
        ),
        rows_per_event=stage.rows_per_event,
        producers_replaced=sum(truth.replaced for truth in truths),
        unknown=sum(truth.unknown for truth in truths),
        unknown_found=sum(truth.found for truth in truths),
    )
