"""A short run of everything: seeded faults on the real stack, every row compared."""

from __future__ import annotations

import io
import json

import pytest

from sluice.cli.main import main
from sluice.core.load_spec import Delivery
from sluice.testbed.chaos.runner import ChaosPlan, run_chaos
from sluice.testbed.chaos.store import StoreKind
from tests.testbed.chaos.seeds import seed_that_begins_with

SECONDS = 25.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "delivery",
    [
        "block",
        pytest.param("staged", marks=pytest.mark.long),
        pytest.param("replacing", marks=pytest.mark.long),
    ],
)
def test_a_short_run_is_exact(delivery: Delivery) -> None:
    """How far it gets beyond the first faults is a matter of the machine."""
    told = io.StringIO()
    first = ["driver: killed", "clickhouse: killed", "broker: killed"]
    plan = ChaosPlan(SECONDS, seed_that_begins_with(first), rate=3_000, delivery=delivery)
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "first"),
    [
        ("redis", ["store of claims: started again without its data", "driver: killed"]),
        ("local", ["worker: killed", "store of claims: started again without its data"]),
    ],
)
def test_events_that_come_twice_are_one_row(store: StoreKind, first: list[str]) -> None:
    told = io.StringIO()
    seed = seed_that_begins_with(first, store=store)
    plan = ChaosPlan(2 * SECONDS, seed, rate=2_000, duplicates=0.2, store=store)
    report = run_chaos(plan, stream=told)
    assert report.is_exact, "\n".join([told.getvalue(), *report.problems])
    assert set(first) <= report.faults.keys(), told.getvalue()
    fields = json.loads(json.dumps(report.fields()))
    assert fields["unique"] == fields["loaded"] == report.rows
    assert report.duplicates > report.rows / 10
    assert fields["store_losses"] >= 1
    assert fields["produced"] == sum(
        fields[name] for name in ("unique", "duplicates", "dead_lettered", "skipped")
    )


@pytest.mark.parametrize("share", ["0", "1", "1.5", "-0.2", "a", ".0"])
def test_a_share_that_is_none(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", f"--duplicates={share}"]) == 2
    assert "is not a share above 0 and below 1" in capsys.readouterr().err


def test_duplicates_are_of_one_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--duplicates=0.2", "--replicas=2"]) == 2
    assert "--duplicates is of one server" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "a", "1e3", ""])
def test_minutes_that_are_no_minutes(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", f"--minutes={minutes}"]) == 2
    assert "is not a number of minutes above 0" in capsys.readouterr().err
