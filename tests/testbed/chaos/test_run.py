"""A short run of everything: seeded faults on the real stack, every row compared."""

from __future__ import annotations

import io
import json

import pytest

from sluice.cli.main import main
from sluice.testbed.chaos.runner import ChaosPlan, run_chaos
from tests.testbed.chaos.seeds import seed_that_begins_with

SECONDS = 25.0


@pytest.mark.long
def test_a_short_run_is_exact() -> None:
    """How far it gets beyond the first faults is a matter of the machine."""
    told = io.StringIO()
    first = ["driver: killed", "clickhouse: killed", "broker: killed"]
    plan = ChaosPlan(SECONDS, seed_that_begins_with(first), rate=3_000)
    report = run_chaos(plan, stream=told)
    assert report.is_exact, "\n".join([told.getvalue(), *report.problems])
    assert report.rows > SECONDS * 1_000
    assert set(first) <= report.faults.keys(), told.getvalue()
    for name in report.faults:
        assert name in told.getvalue()
    fields = json.loads(json.dumps(report.fields()))
    assert (fields["lost"], fields["doubled"], fields["exact"]) == (0, 0, True)
    assert fields["loaded"] == 2 * report.rows
    assert "Every row exactly once." in report.lines()


@pytest.mark.parametrize("minutes", ["0", "-1", "a", "1e3", ""])
def test_minutes_that_are_no_minutes(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", f"--minutes={minutes}"]) == 2
    assert "is not a number of minutes above 0" in capsys.readouterr().err
