"""What the benchmark says: for a person, or as JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass
from statistics import median
from typing import Any

from sluice.local.bench_rounds import ROLES, STAGES, Round, percentile

_MEGABYTE = 1_000_000
#: Share of the machine that others may use before the numbers are called disturbed.
_FOREIGN_SHARE_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was measured.

    :param server: "embedded" or the URL.
    :param latencies_ms: sorted.
    :param idle_shares: of one core, by role, over `idle_seconds` without a message.
    """

    server: str
    version: str
    unsafe_no_dedup: bool
    event_bytes: int
    rounds: list[Round]
    latencies_ms: list[int]
    latency_rows_per_second: int
    max_delay: str
    idle_seconds: int
    idle_shares: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Machine readable; medians over the rounds."""
        rounds = self.rounds
        return {
            "server": self.server,
            "clickhouse_version": self.version,
            "unsafe_no_dedup": self.unsafe_no_dedup,
            "cores": _cores(),
            "event_bytes": self.event_bytes,
            "rows": rounds[0].rows,
            "rows_per_second": round(median(one.rows_per_second for one in rounds)),
            "rounds": [
                {"rows_per_second": round(one.rows_per_second), "seconds": round(one.seconds, 3)}
                for one in rounds
            ],
            "cpu_microseconds_per_row": {
                role: round(self._microseconds(role), 3) for role in self._roles()
            },
            "peak_bytes": {
                role: max(one.peak_bytes[role] for one in rounds) for role in self._roles()
            },
            "task_share": {stage: round(share, 3) for stage, share in self._shares().items()},
            "blocks": median(one.blocks for one in rounds),
            "batches": median(one.batches for one in rounds),
            "foreign_cpu_share": round(self._foreign_share(), 3),
            "latency_ms": {
                "rows_per_second": self.latency_rows_per_second,
                "max_delay": self.max_delay,
                "rows": len(self.latencies_ms),
                **{name: percentile(self.latencies_ms, p) for name, p in _PERCENTILES.items()},
                "max": self.latencies_ms[-1],
            },
            "idle": {
                "seconds": self.idle_seconds,
                "core_share": {role: round(self.idle_shares[role], 4) for role in self._roles()},
            },
        }

    def lines(self) -> list[str]:
        """For a person."""
        rounds = self.rounds
        rates = ", ".join(f"{one.rows_per_second / 1e6:.2f}" for one in rounds)
        middle = median(one.rows_per_second for one in rounds)
        lines = [
            f"{middle:,.0f} rows/s  (median; rounds: {rates} M), {rounds[0].rows:,} events of "
            f"{self.event_bytes} bytes, {_cores()} cores",
            "",
            f"  {'':14} {'CPU µs/row':>10}  {'peak MB':>8}",
        ]
        for role in self._roles():
            peak = max(one.peak_bytes[role] for one in rounds) / _MEGABYTE
            remark = "  each at most" if role == "workers" else ""
            lines.append(f"  {role:14} {self._microseconds(role):10.2f}  {peak:8,.0f}{remark}")
        total = sum(self._microseconds(role) for role in self._roles())
        lines += [f"  {'together':14} {total:10.2f}", ""]
        shares = ", ".join(f"{stage} {share:.0%}" for stage, share in self._shares().items())
        lines.append(f"inside a task: {shares}")
        lines.append(
            f"a round: {median(one.blocks for one in rounds):.0f} blocks, "
            f"{median(one.batches for one in rounds):.0f} batches"
        )
        percentiles = ", ".join(
            f"{name} {percentile(self.latencies_ms, share):,} ms"
            for name, share in _PERCENTILES.items()
        )
        lines.append(
            f"latency at {self.latency_rows_per_second:,} rows/s with max_delay = "
            f'"{self.max_delay}": {percentiles}'
        )
        lines.append("  (from the producer's timestamp to the acknowledged insert)")
        shares = ", ".join(f"{role} {self.idle_shares[role]:.1%}" for role in self._roles())
        lines.append(f"idle, of one core over {self.idle_seconds} s: {shares}")
        return lines + self._warnings()

    def _warnings(self) -> list[str]:
        lines = []
        if self._foreign_share() > _FOREIGN_SHARE_MAX:
            lines += [
                "",
                f"Other programs used {self._foreign_share():.0%} of this machine meanwhile: "
                "alone it would be faster.",
            ]
        if self.unsafe_no_dedup:
            lines += ["", *UNSAFE_LINES]
        return lines

    def _roles(self) -> list[str]:
        return [role for role in ROLES if role in self.rounds[0].cpu_seconds]

    def _microseconds(self, role: str) -> float:
        return median(one.cpu_seconds[role] / one.rows * 1e6 for one in self.rounds)

    def _shares(self) -> dict[str, float]:
        """Of the seconds of all tasks; "other" is what no stage claims."""
        total = sum(one.stage_seconds["total"] for one in self.rounds) or 1.0
        shares = {
            stage: sum(one.stage_seconds[stage] for one in self.rounds) / total for stage in STAGES
        }
        return {**shares, "other": max(0.0, 1.0 - sum(shares.values()))}

    def _foreign_share(self) -> float:
        return median(one.foreign_cpu_seconds / one.seconds / _cores() for one in self.rounds)


_PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

UNSAFE_LINES = [
    "UNSAFE: this table cannot deduplicate. Any repeat, after a lost reply or a restart, doubles",
    "rows without a word. The number is for comparison only; do not load such tables for real.",
]


def _cores() -> int:
    return len(os.sched_getaffinity(0))
