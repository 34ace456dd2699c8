"""The simulator itself: nothing breaks, everything is drawn, and a seed is a schedule."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from sluice.cli.main import main
from sluice.testbed.simulate import faults
from sluice.testbed.simulate.runs import Summary, run_seed

#: The fixed budget: about 30 s of one processor.
SEEDS, STEPS = 60, 2_500
#: They draw what comes seldom: a lock that is lost, a Spark that is gone, a load spec that its
#: first task refuses; a store of claims that gives no answer, or late, an event that comes long
#: after, offsets that expire.
SELDOM_SEEDS = (543, 131, 99, 108, 89, 177, 143)

#: Of worlds in which a person freezes and resumes.
FREEZING_SEEDS = (105, 112, 119)
#: Of worlds in which one is at the servers.
SERVER_SEEDS = (100, 107, 114)

#: Faults that a seed may draw, and what they are called here.
HAZARDS = {
    "eviction counted in ClickHouse partitions": "range refused for its reservation",
    "a foreign writer filling the window": "foreign writer fills the window",
    "lease expiry between ping and POST": "lease over before the insert",
    "a worker that sleeps between check and POST": "paused between lease check and insert",
    "a zombie under another id": "job lost, its task sleeps and wakes up",
    "a driver that sleeps past lease and window": "driver paused beyond lease and window",
    "foreign commit": "foreign commit",
    "reset of the group": "offsets expired",
    "a decoder flipping good and bad between attempts": "decoder judges messages differently",
    "a partition key that changes": "ClickHouse partition key changes",
    "a column added under ranges in doubt": "column added to a table",
    "a task that wakes up after it": "job lost, its task wakes after a column was added",
    "a load spec that its first task refuses": "load spec refused by its first task",
    "a range that waits for columns of its fields": "range refused for its new fields",
    "commit time-out followed by success": "commit: request late",
    "fenced by one's own time-out": "own transaction timed out",
    "a stable offset that never moves": "stable offset that never moves",
    "re-created topic": "topic created again",
    "oversize dead letter": "oversize dead letter",
    "a server that knows a block and lost its part": "insert: server dies between token and part",
    "an insert counter that fell": "newest foreign parts are dropped",
    "an answer that is older than it looks": "answer of a query is slow",
    "a block whose quorum never came": "insert: quorum error after storing",
}


@pytest.mark.slow
def test_a_fixed_budget_of_seeds_breaks_no_promise_and_draws_every_fault() -> None:
    summary = Summary()
    for seed in range(1, SEEDS + 1):
        summary.add(run_seed(seed, STEPS))
    assert [(r.seed, r.violations) for r in summary.failed] == []
    assert summary.runs == SEEDS
    assert summary.steps > SEEDS * STEPS
    assert summary.rows > 50 * SEEDS and summary.commits > 30 * SEEDS
    drawn = summary.counts
    for seed in SELDOM_SEEDS:
        seldom = run_seed(seed, STEPS)
        assert not seldom.violations
        drawn = drawn + seldom.counts
    never = {kind for kind in faults.ALL_KINDS if not drawn[kind]}
    never -= {*faults.CONTENT_OF_FREEZES}  # they have a test of their own
    assert never - faults.RARE == set()
    assert set(summary.counts) <= set(faults.ALL_KINDS)
    assert set(HAZARDS.values()) <= set(faults.ALL_KINDS)


@pytest.mark.slow
def test_a_person_freezes_and_resumes() -> None:
    """R23, in worlds where everything else breaks, too."""
    drawn = Counter[str]()
    for seed in FREEZING_SEEDS + SERVER_SEEDS:
        result = run_seed(seed, STEPS)
        assert not result.violations
        drawn += result.counts
    assert all(drawn[kind] for kind in faults.CONTENT_OF_FREEZES)


def test_a_seed_is_a_schedule() -> None:
    first, again, other = (run_seed(seed, 1_500) for seed in (11, 11, 12))
    assert first == again
    assert first.trace != other.trace


def test_without_faults_the_same_world_loads_in_peace() -> None:
    result = run_seed(5, 3_000, 0.0)
    assert result.violations == ()
    assert result.rows > 50
    struck = set(result.counts) - {*faults.CONTENT, *faults.CONTENT_OF_REPLACING}
    assert struck == set()


@pytest.mark.slow
def test_the_order_does_not_depend_on_the_process() -> None:
    """Sets of strings have another order in each process; nothing may hang on it."""
    code = (
        "from sluice.testbed.simulate.runs import run_seed\n"
        "print([run_seed(s, 1200).trace for s in (3, 4, 289)])"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(traces) == 1 and "[" in traces.pop()


def test_a_failing_seed_prints_the_line_that_reproduces_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["simulate", "--seeds", "30", "--steps", "1500", "--until-broken"]
    plant = ["--plant", "token-without-table"]
    assert main([*words, *plant]) == 1
    out, err = capsys.readouterr()
    line = out.splitlines()[-1]
    seed = line.split()[3]
    assert line == " ".join(
        ["sluice simulate --first-seed", seed, "--seeds 1 --steps 1500", *plant]
    )
    assert f"seed {seed}: " in err and line in err
    assert main(line.split()[1:]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_a_bug_that_does_not_exist_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--plant", "no-such-bug"]) == 2
    err = capsys.readouterr().err
    assert "no planted bug is named no-such-bug" in err
    assert "token-without-table" in err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert main(["simulate", "--seeds", "2", "--steps", "300", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["runs"] == 2 and figures["failed"] == [] and figures["drawn"]["take-over"] >= 2
