"""A short run of everything: seeded faults on the real stack, every row compared."""

from __future__ import annotations

import io
import json

import pytest

from sluice.chaos.layout import Layout
from sluice.chaos.runner import ChaosPlan, run_chaos
from sluice.cli.main import main

SECONDS = 35.0
CLUSTER_SECONDS = 35.0


def test_a_short_run_is_exact() -> None:
    told = io.StringIO()
    report = run_chaos(ChaosPlan(SECONDS, seed=31, rate=3_000), stream=told)
    assert report.is_exact, "\n".join([told.getvalue(), *report.problems])
    assert report.rows > SECONDS * 1_000
    assert sum(report.faults.values()) >= 3, told.getvalue()
    for name in report.faults:
        assert name in told.getvalue()
    fields = json.loads(json.dumps(report.fields()))
    assert (fields["lost"], fields["doubled"], fields["exact"]) == (0, 0, True)
    assert fields["loaded"] == report.rows
    assert "Every row exactly once." in report.lines()


@pytest.mark.parametrize("minutes", ["0", "-1", "a", "1e3", ""])
def test_minutes_that_are_no_minutes(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", f"--minutes={minutes}"]) == 2
    assert "is not a number of minutes above 0" in capsys.readouterr().err


def test_a_short_run_on_a_cluster_is_exact_on_every_replica() -> None:
    """The seed begins with a whole data center, ZooKeeper, a worker, the driver and a replica; how
    far it gets is a matter of the machine."""
    told = io.StringIO()
    layout = Layout(shards=1, replicas=4, data_centers=2)
    plan = ChaosPlan(CLUSTER_SECONDS, seed=4611, rate=1_500, layout=layout)
    report = run_chaos(plan, stream=told)
    assert report.is_exact, "\n".join([told.getvalue(), *report.problems])
    assert {"data center: killed", "zookeeper: killed"} <= report.faults.keys(), told.getvalue()
    assert report.replicas is not None
    assert len(report.replicas.rows) == 4
    assert set(report.replicas.rows.values()) == {report.rows}
    assert report.replicas.posts >= report.replicas.receipts.blocks > 0
    fields = json.loads(json.dumps(report.fields()))
    assert (fields["lost"], fields["doubled"], fields["rows_of_servers"]["s1/r4"]) == (
        0,
        0,
        report.rows,
    )
