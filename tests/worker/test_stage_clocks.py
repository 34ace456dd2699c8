"""Where a task's time goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sluice.core.receipts import Stages
from sluice.worker import stage_clocks
from sluice.worker.stage_clocks import StageClocks


def test_a_stage_is_the_sum_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that fails, and of each call of what is timed."""
    now = [100.0]

    def takes(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], process_time=lambda: now[0] / 2)
    monkeypatch.setattr(stage_clocks, "time", clock)
    clocks = StageClocks(started=100.0, cpu_started=50.0)
    with clocks.timing("fetch"):
        takes(1.0)
        deliver = clocks.timing("check")(takes)
        deliver(2.0)
        deliver(seconds=4.0)
    with pytest.raises(ValueError, match="no row"), clocks.timing("decode"):
        takes(8.0)
        raise ValueError("no row")
    with clocks.timing("decode"):
        takes(16.0)
    assert clocks.stages() == Stages(fetch=7.0, check=6.0, decode=24.0, total=31.0, cpu=15.5)
