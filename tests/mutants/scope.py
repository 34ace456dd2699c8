"""Which code is broken on purpose, and what of it cannot matter to rows."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: The pure core, the driver's decisions, the lease, the insert.
SCOPE = (
    "core/budget.py",
    "core/flights.py",
    "core/lease.py",
    "core/ledger.py",
    "core/planning.py",
    "core/ranges.py",
    "core/receipts.py",
    "core/records.py",
    "core/replay.py",
    "core/replicas.py",
    "core/rests.py",
    "core/tokens.py",
    "driver/round_planner.py",
    "driver/repeating.py",
    "driver/this_round.py",
    "worker/errors.py",
    "worker/failover.py",
    "driver/report_handler.py",
    "worker/inserting.py",
    "worker/leases.py",
    "worker/loading.py",
    "driver/monitor.py",
    "driver/parking.py",
    "driver/probing.py",
    "driver/schema_decision.py",
    "driver/state.py",
    "driver/record_updates.py",
    "driver/remembering.py",
    "worker/tasks.py",
    "kafka/recorder.py",
    "kafka/transactions.py",
    "clickhouse/http.py",
    "clickhouse/insert.py",
    "clickhouse/probe.py",
    "clickhouse/reactions.py",
    "clickhouse/replicas.py",
    "clickhouse/statements.py",
    "clickhouse/window.py",
)

#: Functions that only speak, measure or tidy up: whatever they do, the rows are the same.
NO_MATTER = frozenset(
    {
        "__repr__",
        "__str__",
        "_report",
        "_trim_heap",
        "close",
        "described",
        "release_memory",
        "too_small",
        "words_of",
    }
)

#: Names that carry words or figures for people.
WORDS = frozenset({"hint", "message", "detail", "why", "words"})

#: What is counted or timed for people.
FIGURES = (
    "began",
    "counters.",
    "clocks.",
    "self._alarmed_at_ms",
    "self._counters",
    "self.clocks",
    "self.connects",
    "self.held_back",
    "loading.clocks",
)

#: Calls that speak or measure.
SPEAKING = ("_logger.", "logger.", "log.", "warnings.", "self._metrics.", "metrics.")


def sources() -> list[Path]:
    """The files of the scope that are there."""
    return [path for name in SCOPE if (path := ROOT / "sluice" / name).exists()]
