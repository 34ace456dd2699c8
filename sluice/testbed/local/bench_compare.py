"""Comparing a run of the benchmark with a stored one (`sluice bench --json > FILE`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.core.errors import ConfigurationError

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
