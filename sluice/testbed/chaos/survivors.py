"""Half of each shard's replicas are killed under full load: what the survivors take, shown before,
during and after.

1. A backlog waits in Kafka; a driver begins to load it.
2. A third of the time nothing happens; then half of the replicas are killed; a third of the time
   later they are started again.
3. What is left is loaded; every replica is compared.

Rows are counted by the moment at which a server acknowledged them, as the ledger's receipts say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, TextIO

from sluice.core.errors import TerminalError
from sluice.machine.clock import now_ms
from sluice.testbed.chaos.cluster_stage import ClusterStage, Loading, running_cluster_stage
from sluice.testbed.chaos.drivers import Say
from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.replicas import ReceiptFindings, examine_receipts, of_shards, whole_tables
from sluice.testbed.chaos.runner import Chaos, a_run
from sluice.testbed.local.console import aligned, unexpected
from sluice.testbed.local.producing import PARTITIONS, produce_with_defects
from sluice.verify.audit import AuditReport, audit

#: Several blocks fit in it.
WINDOW_SECONDS = 5.0
_PHASES = ("before", "during", "after")
_LOADING = Loading(max_messages=50_000, max_delay="1s", lease_seconds=60)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run.

    :param windows: rows acknowledged in each window, per second.
    :param pause_seconds: the longest time without an acknowledgement.
    """

    name: str
    windows: tuple[float, ...]
    pause_seconds: float
    receipts: ReceiptFindings

    @property
    def rows_per_second(self) -> float:
        """The median of the windows; 0 where there is none."""
        return median(self.windows) if self.windows else 0.0


@dataclass(frozen=True, slots=True)
class SurvivorReport:
    """What was measured, and whether every row is there once."""

    layout: Layout
    rows: int
    phases: tuple[Phase, ...]
    servers: Mapping[str, int]
    audited: AuditReport
    problems: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Every row once, on every replica."""
        return not self.problems

    def fields(self) -> dict[str, object]:
        """For JSON."""
        return {
            "shards": self.layout.shards,
            "replicas": self.layout.replicas,
            "rows": self.rows,
            "phases": {
                phase.name: {
                    "rows_per_second": round(phase.rows_per_second),
                    "windows": [round(window) for window in phase.windows],
                    "pause_seconds": round(phase.pause_seconds, 1),
                    "blocks": phase.receipts.blocks,
                    "blocks_failed_over": phase.receipts.failed_over,
                    "blocks_of_servers": phase.receipts.by_replica,
                    "replicas_passed_by": phase.receipts.passed,
                }
                for phase in self.phases
            },
            "rows_of_servers": self.servers,
            "lost": self.audited.missing,
            "doubled": self.audited.doubled,
            "exact": self.is_exact,
            "problems": self.problems,
        }

    def lines(self) -> list[str]:
        """For people."""
        rows: list[tuple[str, object, str]] = []
        for phase in self.phases:
            found = phase.receipts
            rows += [
                (
                    phase.name,
                    f"{phase.rows_per_second:,.0f}",
                    f"rows/s, median of {len(phase.windows)} windows of {WINDOW_SECONDS:.0f} s",
                ),
                ("  blocks", found.blocks, f"of {len(found.by_replica)} replicas"),
                ("  failed over", found.failed_over, _named(found.passed)),
                ("  longest pause", f"{phase.pause_seconds:.1f}", "s without a block"),
            ]
        rows += [
            ("rows", self.rows, f"on each of {len(self.servers)} servers"),
            ("lost", self.audited.missing, ""),
            ("doubled", self.audited.doubled, ""),
        ]
        broken = (f"  BROKEN: {problem}" for problem in self.problems)
        verdict = ["Every row exactly once, on every replica."] if self.is_exact else []
        return ["", *aligned(rows).splitlines(), "", *broken, *verdict]


def run_survivors(
    layout: Layout, seconds: float, rows: int, keep: bool = False, stream: TextIO | None = None
) -> SurvivorReport:
    """Load a backlog while half of each shard's replicas are killed and started again.

    :param seconds: of the three phases together; the rest of the backlog comes on top.
    :param rows: of the backlog, which has to last; spread over the connectors.
    :param stream: where events are told; standard output if left out.
    :raises TerminalError: the stack did not start, or the backlog was used up too early.
    """
    with (
        a_run("survivors", keep, stream) as (folder, say),
        running_cluster_stage(folder, layout, _LOADING, say) as stage,
    ):
        share = rows // len(stage.centers)
        for seed, center in enumerate(stage.centers.values(), 1):
            produce_with_defects(
                center.access, center.topic, PARTITIONS, share, 0, seed, lambda done: None
            )
        say(f"{share * len(stage.centers):,} messages wait")
        with closing(Chaos(stage, say)) as chaos:
            times = _phases(stage, chaos, seconds, share * len(stage.centers), say)
            say("the rest is loaded")
            stage.drivers.drain()
            stage.make_whole()
            return _report(stage, times, share * len(stage.centers))


def _phases(
    stage: ClusterStage, chaos: Chaos, seconds: float, rows: int, say: Say
) -> list[tuple[int, int]]:
    """Begin and end of each phase, in milliseconds of wall time. The last one ends early when
    the backlog is used up.

    :raises TerminalError: it was before.
    """

    def is_used_up() -> bool:
        return stage.positions.settled >= rows

    stage.drivers.start()
    chaos.wait_for_rows()
    names = [
        name
        for name in stage.layout.servers
        if int(name.rpartition("/r")[2]) > stage.layout.replicas - stage.layout.replicas // 2
    ]
    victims = [stage.server(name) for name in names]
    times = []
    for phase in _PHASES:
        if phase == "during":
            for victim in victims:
                victim.server.kill()
            say(f"{', '.join(names)} are killed")
        elif phase == "after":
            for victim in victims:
                victim.start()
            say(f"{', '.join(names)} are back")
        began_ms = now_ms()
        if chaos.wait_for(is_used_up, seconds / len(_PHASES)) and phase != _PHASES[-1]:
            raise TerminalError(
                f"the backlog was used up in the phase {phase!r}",
                "Give a larger --rate: as many messages wait as it makes in that time.",
            )
        times.append((began_ms, now_ms()))
    return times


def _report(stage: ClusterStage, times: Sequence[tuple[int, int]], rows: int) -> SurvivorReport:
    receipts = [entry for entry in stage.ledger() if entry["type"] == "receipt"]
    urls = of_shards(stage)
    phases = tuple(
        measured(name, receipts, urls, *between)
        for name, between in zip(_PHASES, times, strict=True)
    )
    problems = list(examine_receipts(receipts, urls).problems)
    servers = whole_tables(stage, problems)
    audited = audit(stage.configuration)
    compared = [
        # Within a shard all replicas have the same.
        ("rows of all shards", sum(servers[f"{s}/r1"] for s in stage.cluster.shards), rows),
        ("audit: loaded", audited.loaded, rows),
        ("audit: lost", audited.missing, 0),
        ("audit: doubled", audited.doubled, 0),
        ("audit: foreign", audited.foreign, 0),
    ]
    problems += unexpected(compared)
    return SurvivorReport(stage.layout, rows, phases, servers, audited, tuple(problems))


def measured(
    name: str,
    receipts: Sequence[Mapping[str, Any]],
    urls: Mapping[str, tuple[str, ...]],
    begin_ms: int,
    end_ms: int,
) -> Phase:
    """What was acknowledged between two moments. Pure."""
    within = [each for each in receipts if begin_ms <= each["acknowledged_at_ms"] < end_ms]
    window_ms = int(WINDOW_SECONDS * 1000)
    sums = [0] * ((end_ms - begin_ms) // window_ms)
    for each in within:
        number = (each["acknowledged_at_ms"] - begin_ms) // window_ms
        if number < len(sums):  # the last one may be cut short
            sums[number] += each["rows"]
    moments = sorted([begin_ms, end_ms, *(each["acknowledged_at_ms"] for each in within)])
    pause_ms = max(after - before for before, after in pairwise(moments))
    return Phase(
        name,
        tuple(total / WINDOW_SECONDS for total in sums),
        pause_ms / 1000,
        examine_receipts(within, urls),
    )


def _named(passed: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in passed.items())
