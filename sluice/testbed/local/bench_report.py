"""What the benchmark says: for a person, or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sluice.core.errors import ConfigurationError
from sluice.testbed.local.bench_rounds import (
    ROLES,
    STAGES,
    Latency,
    ProducerAlone,
    Round,
    percentile,
)
from sluice.testbed.local.bench_settings import BenchSettings

_MEGABYTE = 1_000_000
#: Share of the machine that others may use before the numbers are called disturbed.
_FOREIGN_SHARE_MAX = 0.05
#: Share of a rate that the producer must reach for the latency to be at that rate.
_REACHED_SHARE_MIN = 0.95
_DRIVER = ("driver JVM", "driver Python")


@dataclass(frozen=True, slots=True)
class Drained:
    """A backlog that was there when the pipeline started, from its start to the last settle."""

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was measured.

    :param server: "embedded" or the URL.
    :param start_seconds: from the start of the driver's process until the first row was seen in
        its table; the message waited in the topic.
    :param latencies: one for each rate.
    :param idle_shares: of one core, by role, while no message came.
    """

    settings: BenchSettings
    server: str
    version: str
    rounds: list[Round]
    start_seconds: float
    latencies: list[Latency]
    idle_shares: dict[str, float]
    drained: Drained | None = None
    producer_alone: ProducerAlone | None = None

    def as_json(self) -> dict[str, Any]:
        """Machine readable; medians over the rounds."""
        rounds = self.rounds
        return {
            "server": self.server,
            "clickhouse_version": self.version,
            "cores": _cores(),
            "settings": self.settings.as_json_settings(),
            "event_bytes": self.settings.shape.event_bytes,
            "messages": rounds[0].messages,
            "rows": rounds[0].rows,
            "rows_per_second": round(self._median(lambda one: one.rows_per_second)),
            "messages_per_second": round(self._median(lambda one: one.messages_per_second)),
            "rounds": [
                {
                    "rows_per_second": round(one.rows_per_second),
                    "seconds": round(one.seconds, 3),
                    "rows": one.rows,
                    "dead_letters": one.letters,
                }
                for one in rounds
            ],
            "cpu_microseconds_per_row": {
                role: round(self._microseconds(role), 3) for role in self._roles()
            },
            "peak_bytes": {
                role: max(one.peak_bytes[role] for one in rounds) for role in self._roles()
            },
            "workers": {
                "processes": max(one.workers[0] for one in rounds),
                "peaks_bytes": max(one.workers[1] for one in rounds),
            },
            "task_share": {stage: round(share, 3) for stage, share in self._shares().items()},
            "blocks": self._median(lambda one: one.blocks),
            "ranges": self._median(lambda one: one.ranges),
            "batches": self._median(lambda one: one.batches),
            "driver_cpu_ms_per_batch": {
                name: round(value, 2) for name, value in self._batch_milliseconds().items()
            },
            "driver_cpu_ms_per_batch_not_idle": {
                name: round(value, 2) for name, value in self._batch_milliseconds(1).items()
            },
            "foreign_cpu_share": round(self._foreign_share(), 3),
            "start_to_first_row_seconds": round(self.start_seconds, 2),
            "latency_ms": [self._latency_json(one) for one in self.latencies],
            "broker_producer_alone": _alone_json(self.producer_alone),
            "backlog": [self._backlog(one.wanted) for one in self.latencies],
            "drained": None
            if self.drained is None
            else {
                "messages": self.drained.messages,
                "seconds": round(self.drained.seconds, 2),
                "messages_per_second": round(self.drained.messages / self.drained.seconds),
            },
            "idle": {
                "seconds": self.settings.idle_seconds,
                "core_share": {role: round(self.idle_shares[role], 4) for role in self._roles()},
            },
        }

    def lines(self) -> list[str]:
        """For a person."""
        return [
            *self._speed_lines(),
            *self._process_lines(),
            *self._driver_lines(),
            *self._latency_lines(),
            *self._backlog_lines(),
            *self._warnings(),
        ]

    def _speed_lines(self) -> list[str]:
        settings, rounds = self.settings, self.rounds
        rates = ", ".join(f"{one.rows_per_second:,.0f}" for one in rounds)
        lines = [
            f"{self._median(lambda one: one.rows_per_second):,.0f} rows/s  (median of: "
            f"{rates}), {rounds[0].messages:,} events {settings.kind_of_events}, {_cores()} cores"
        ]
        if settings.tables > 1:
            lines.append(
                f"  each message into {settings.tables} tables: rows are messages x tables; "
                f"{self._median(lambda one: one.messages_per_second):,.0f} messages/s"
            )
        if settings.bad_share:
            lines.append(
                f"  a share of {settings.bad_share:g} is broken: "
                f"{self._median(lambda one: one.letters):,.0f} dead letters in a round"
            )
        return [*lines, ""]

    def _process_lines(self) -> list[str]:
        lines = [f"  {'':14} {'CPU µs/row':>10}  {'peak MB':>8}"]
        for role in self._roles():
            peak = max(one.peak_bytes[role] for one in self.rounds) / _MEGABYTE
            remark = ""
            if role == "workers":
                count, together = max(one.workers for one in self.rounds)
                remark = (
                    f"  each at most; {count} processes with Spark's daemon, their peaks added "
                    f"up {together / _MEGABYTE:,.0f}"
                )
            lines.append(f"  {role:14} {self._microseconds(role):10.2f}  {peak:8,.0f}{remark}")
        total = sum(self._microseconds(role) for role in self._roles())
        shares = ", ".join(f"{stage} {share:.0%}" for stage, share in self._shares().items())
        return [*lines, f"  {'together':14} {total:10.2f}", "", f"inside a task: {shares}"]

    def _driver_lines(self) -> list[str]:
        each, busy = self._batch_milliseconds(), self._batch_milliseconds(1)
        return [
            f"a round: {self._median(lambda one: one.blocks):.0f} blocks, "
            f"{self._median(lambda one: one.ranges):.0f} ranges, "
            f"{self._median(lambda one: one.batches):.0f} batches; driver CPU for each batch: "
            f"{each['together']:.1f} ms (Python {each['driver Python']:.1f}, "
            f"JVM {each['driver JVM']:.1f}), "
            f"{busy['together']:.1f} (Python {busy['driver Python']:.1f}, JVM "
            f"{busy['driver JVM']:.1f}) without what an idle driver uses in that time; "
            f"{self._topics()}, tables: {self.settings.tables:,}",
            f"start: {self.start_seconds:.1f} s from the driver's start, cold, to the first row in "
            "its table",
        ]

    def _latency_lines(self) -> list[str]:
        lines = []
        for one in self.latencies:
            percentiles = ", ".join(
                f"{name} {percentile(one.values_ms, share):,} ms"
                for name, share in _PERCENTILES.items()
            )
            lines.append(
                f"latency at {one.wanted:,} rows/s with max_delay = "
                f'"{self.settings.max_delay}": {percentiles}'
            )
            lines += self._steady_lines(one)
            if one.reached < _REACHED_SHARE_MIN * one.wanted:
                lines.append(f"  (the producer only reached {one.reached:,.0f} rows/s)")
        lines.append("  (from the producer's timestamp to the acknowledged insert)")
        shares = ", ".join(f"{role} {self.idle_shares[role]:.1%}" for role in self._roles())
        lines.append(f"idle, of one core over {self.settings.idle_seconds:g} s: {shares}")
        return lines

    def _steady_lines(self, one: Latency) -> list[str]:
        costs = _costs(one)
        shares = one.core_shares
        shown = ", ".join(f"{role} {costs[role]:.2f} ({shares[role]:.1%})" for role in costs)
        into = "the table" if self.settings.tables == 1 else "each table"
        lines = [
            f"  inserts/s into {into}: {self._inserts_per_second(one):.2f}",
            f"  CPU µs/message (of one core): {shown}; together {sum(costs.values()):.2f} "
            f"({sum(shares.values()):.1%})",
        ]
        alone = self.producer_alone
        if alone is not None and alone.wanted == one.wanted:
            lines += _alone_lines(alone)
        if one.growth:
            lines.append("  what the processes held early and late:")
            lines += [f"    {role:14} {growth.text}" for role, growth in one.growth.items()]
        return lines

    def _backlog_lines(self) -> list[str]:
        lines = []
        for one in self.latencies:
            backlog = self._backlog(one.wanted)
            while_coming = backlog["seconds_while_more_comes"]
            lines.append(
                f"after {self.settings.backlog_seconds:,.0f} s away at {one.wanted:,} messages/s: "
                f"{backlog['messages']:,} drain in {backlog['seconds']:,.0f} s, "
                + (f"{while_coming:,.0f} s" if while_coming is not None else "never")
                + " while more comes (extrapolated from the rounds)"
            )
        if self.drained is not None:
            lines.append(
                "  measured, from the driver's start to the last settle: "
                f"{self.drained.messages:,} messages in {self.drained.seconds:,.1f} s, "
                "nothing coming"
            )
        return lines

    def _warnings(self) -> list[str]:
        lines = []
        if self._foreign_share() > _FOREIGN_SHARE_MAX:
            lines += [
                "",
                f"Other programs used {self._foreign_share():.0%} of this machine meanwhile: "
                "alone it would be faster.",
            ]
        return lines

    def _latency_json(self, one: Latency) -> dict[str, Any]:
        return {
            "rows_per_second": one.wanted,
            "reached_rows_per_second": round(one.reached),
            "max_delay": self.settings.max_delay,
            "rows": len(one.values_ms),
            **{name: percentile(one.values_ms, share) for name, share in _PERCENTILES.items()},
            "max": one.values_ms[-1],
            "inserts_per_second": round(self._inserts_per_second(one), 3),
            "cpu_microseconds_per_message": {
                role: round(cost, 3) for role, cost in _costs(one).items()
            },
            "core_share": {role: round(share, 4) for role, share in one.core_shares.items()},
            "growth": {role: asdict(growth) for role, growth in one.growth.items()},
        }

    def _inserts_per_second(self, one: Latency) -> float:
        """Into one table; all tables get every row, and so alike many blocks."""
        return one.blocks / one.seconds / self.settings.tables

    def _topics(self) -> str:
        topics, partitions = self.settings.topics, self.settings.partitions
        if topics == 1:
            return f"partitions: {partitions:,}"
        return f"topics: {topics:,}, partitions of each: {partitions:,}"

    def _backlog(self, rate: int) -> dict[str, Any]:
        """What was left over by a pipeline that was away, at the speed of the rounds."""
        messages = round(rate * self.settings.backlog_seconds)
        speed = self._median(lambda one: one.messages_per_second)
        return {
            "messages": messages,
            "rows_per_second": rate,
            "seconds": round(messages / speed, 1),
            "seconds_while_more_comes": (
                round(messages / (speed - rate), 1) if speed > rate else None
            ),
            "extrapolated": True,
        }

    def _median(self, figure: Callable[[Round], float]) -> float:
        return median(map(figure, self.rounds))

    def _roles(self) -> list[str]:
        return [role for role in ROLES if role in self.rounds[0].cpu_seconds]

    def _microseconds(self, role: str) -> float:
        return self._median(lambda one: one.cpu_seconds[role] / max(1, one.rows) * 1e6)

    def _batch_milliseconds(self, idle_part: int = 0) -> dict[str, float]:
        """What a batch costs the driver, the tasks' part in Spark's JVM included.

        :param idle_part: 1 to take off what an idle driver uses in the same time.
        """

        def of_batch(one: Round, role: str) -> float:
            idle = idle_part * self.idle_shares[role] * one.seconds
            return max(0.0, one.cpu_seconds[role] - idle) / one.batches * 1e3

        found = {role: median(of_batch(one, role) for one in self.rounds) for role in _DRIVER}
        return {**found, "together": sum(found.values())}

    def _shares(self) -> dict[str, float]:
        """Of the seconds of all tasks; "other" is what belongs to no stage."""
        total = sum(one.stage_seconds["total"] for one in self.rounds) or 1.0
        shares = {
            stage: sum(one.stage_seconds[stage] for one in self.rounds) / total for stage in STAGES
        }
        return {**shares, "other": max(0.0, 1.0 - sum(shares.values()))}

    def _foreign_share(self) -> float:
        return self._median(lambda one: one.foreign_cpu_seconds / one.seconds / _cores())


_PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def _costs(one: Latency) -> dict[str, float]:
    """CPU microseconds for each message, by role."""
    return {role: seconds / one.messages * 1e6 for role, seconds in one.cpu_seconds.items()}


def _alone_lines(alone: ProducerAlone) -> list[str]:
    lines = [
        f"  broker, producer alone: {alone.cpu_seconds / alone.messages * 1e6:.2f} "
        f"({alone.cpu_seconds / alone.seconds:.1%})"
    ]
    if alone.reached < _REACHED_SHARE_MIN * alone.wanted:
        lines.append(f"    (the producer only reached {alone.reached:,.0f} rows/s)")
    return lines


def _alone_json(alone: ProducerAlone | None) -> dict[str, Any] | None:
    if alone is None:
        return None
    return {
        "rows_per_second": alone.wanted,
        "reached_rows_per_second": round(alone.reached),
        "messages": alone.messages,
        "seconds": round(alone.seconds, 2),
        "cpu_microseconds_per_message": round(alone.cpu_seconds / alone.messages * 1e6, 3),
        "core_share": round(alone.cpu_seconds / alone.seconds, 4),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


Report = Mapping[str, Any]

#: What a run says about itself besides its settings.
_CIRCUMSTANCES = ("server", "clickhouse_version", "cores")
_HINT = "Store a run with `sluice bench --json > FILE`, then name that file."


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs side by side.

    :param figures: name -> (then, now); those that both runs have.
    :param different: setting -> (then, now); what makes the runs hard to compare.
    """

    file: Path
    figures: dict[str, tuple[float, float]]
    different: dict[str, tuple[object, object]]

    def as_json(self) -> dict[str, Any]:
        """Machine readable: now divided by then; None where then was 0."""
        return {
            "file": str(self.file),
            "ratios": {name: _ratio(*pair) for name, pair in self.figures.items()},
            "different": {name: list(pair) for name, pair in self.different.items()},
        }

    def lines(self) -> list[str]:
        """For a person."""
        lines = [f"against {self.file}:", f"  {'':34} {'then':>12} {'now':>12} {'ratio':>7}"]
        for name, (then, now) in self.figures.items():
            ratio = _ratio(then, now)
            shown = "-" if ratio is None else f"{ratio:.2f}"
            lines.append(f"  {name:34} {_number(then):>12} {_number(now):>12} {shown:>7}")
        lines += [
            f"  not measured alike: {name} was {then}, is {now}"
            for name, (then, now) in self.different.items()
        ]
        return lines


def read_stored(path: Path) -> Report:
    """A stored run.

    :raises ConfigurationError: the file is not one.
    """
    try:
        stored = json.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"--compare {path}: {error.strerror}", _HINT) from None
    except ValueError as error:
        raise ConfigurationError(f"--compare {path} is not JSON: {error}", _HINT) from None
    if not isinstance(stored, dict) or "cpu_microseconds_per_row" not in stored:
        raise ConfigurationError(f"--compare {path} is not a run of `sluice bench`", _HINT)
    return stored


def compared(file: Path, then: Report, now: Report) -> Comparison:
    """Figure by figure. What only one run has is left out."""
    before, after = figures(then), figures(now)
    return Comparison(
        file,
        {name: (before[name], value) for name, value in after.items() if name in before},
        _different(then, now),
    )


def figures(report: Report) -> dict[str, float]:
    """The figures of a run by name; more is better for "rows/s" only."""
    found: dict[str, float] = {}
    _take(found, "rows/s", report.get("rows_per_second"))
    by_role = report.get("cpu_microseconds_per_row", {})
    for role, value in by_role.items():
        _take(found, f"CPU µs/row, {role}", value)
    _take(found, "CPU µs/row, together", round(sum(by_role.values()), 3))
    for role, value in report.get("peak_bytes", {}).items():
        _take(found, f"peak MB, {role}", value / 1e6)
    _take(found, "driver CPU ms/batch", report.get("driver_cpu_ms_per_batch", {}).get("together"))
    latencies = report.get("latency_ms", [])
    for latency in [latencies] if isinstance(latencies, dict) else latencies:
        rate = f"{latency['rows_per_second']:,}"
        _take(found, f"inserts/s at {rate} rows/s", latency.get("inserts_per_second"))
        for name in ("p50", "p95", "p99"):
            _take(found, f"latency ms, {name} at {rate} rows/s", latency.get(name))
    for role, value in report.get("idle", {}).get("core_share", {}).items():
        _take(found, f"idle % of a core, {role}", value * 100)
    _take(found, "start to first row, s", report.get("start_to_first_row_seconds"))
    return found


def _take(found: dict[str, float], name: str, value: object) -> None:
    if isinstance(value, int | float):
        found[name] = float(value)


def _different(then: Report, now: Report) -> dict[str, tuple[object, object]]:
    before = {name: then.get(name) for name in _CIRCUMSTANCES} | dict(then.get("settings", {}))
    after = {name: now.get(name) for name in _CIRCUMSTANCES} | dict(now.get("settings", {}))
    return {
        name: (before[name], value)
        for name, value in after.items()
        if name in before and before[name] != value
    }


def _ratio(then: float, now: float) -> float | None:
    return round(now / then, 4) if then else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"
