"""A short run of everything on two data centers: every row compared on every replica."""

from __future__ import annotations

import io
import json

import pytest

from sluice.core.errors import TerminalError
from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.runner import ChaosPlan, run_chaos
from tests.testbed.chaos.seeds import seed_that_begins_with

SECONDS = 30.0


@pytest.mark.long
def test_a_short_run_on_a_cluster_is_exact_on_every_replica() -> None:
    told = io.StringIO()
    layout = Layout(shards=1, replicas=4, data_centers=2)
    first = ["zookeeper: killed", "data center: killed"]
    seed = seed_that_begins_with(first, layout)
    plan = ChaosPlan(SECONDS, seed, rate=1_500, layout=layout)
    try:
        report = run_chaos(plan, stream=told)
    except TerminalError as error:
        pytest.fail(f"{told.getvalue()}\n{error}")
    assert report.is_exact, "\n".join([told.getvalue(), *report.problems])
    assert set(first) <= report.faults.keys(), told.getvalue()
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
