"""Three faults by themselves, on a Spark cluster of a master and two workers.

The tests share the stack, and each goes on where the one before ended: what was produced
adds up, and every one compares the whole table.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from sluice.testbed.chaos.proxy import Kind, LinkFault
from sluice.testbed.chaos.runner import Chaos
from sluice.testbed.chaos.sending import Production, Truth
from sluice.testbed.chaos.stage import TOPIC, Stage, running_stage
from sluice.testbed.local.processes import descendants

RATE = 3_000
#: Generous: the machine may be slow, and a lost executor is noticed late.
PATIENCE_SECONDS = 240.0


class Play:
    """The stack, its supervisor, and what was produced so far."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.told: list[str] = []
        self.chaos = Chaos(stage, self.told.append)
        self.truth = Truth()
        self.production = Production(stage.access, TOPIC, RATE, seed=1)

    def produce(self) -> None:
        """Begin to produce."""
        seed = 1 + self.truth.events
        self.production = Production(self.stage.access, TOPIC, RATE, seed, self.truth)
        self.production.start()

    def wait_for_progress(self, events: int) -> None:
        """Until so many more events are settled."""
        target = self.stage.positions.settled + events
        assert self.chaos.wait_for(
            lambda: self.stage.positions.settled >= target, PATIENCE_SECONDS
        ), self.last_words()

    def assert_exact(self) -> None:
        """Stop producing, wait until all is settled, compare every row."""
        self.production.finish()
        assert self.chaos.wait_for(
            lambda: self.stage.positions.settled == self.truth.events, PATIENCE_SECONDS
        ), self.last_words()
        report = self.stage.compare(self.truth)
        assert report.is_exact, report
        assert report.loaded == self.truth.rows * self.stage.rows_per_event
        assert not self.stage.drivers.violations

    def last_words(self) -> str:
        text = self.stage.drivers.current.log.read_text(errors="replace")
        return "\n".join([*self.told, text[-4000:]])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    told: list[str] = []
    with running_stage(tmp_path_factory.mktemp("chaos"), True, told.append) as stage:
        play = Play(stage)
        stage.drivers.start()
        yield play
        play.production.stop()
        play.chaos.close()


@pytest.fixture
def play(running: Play) -> Iterator[Play]:
    running.produce()
    running.wait_for_progress(1)
    yield running
    running.stage.kafka_link.heal()
    running.stage.clickhouse_link.heal()


@pytest.mark.long
def test_lost_acknowledgements_of_committed_inserts(play: Play) -> None:
    """The server stored the block, the worker hears nothing: it is repeated and ignored."""
    link = play.stage.clickhouse_link
    log = play.stage.drivers.current.log
    failures = log.read_text(errors="replace").count("is not loaded yet")
    dropped = link.counters.dropped_replies
    link.strike(LinkFault(Kind.DROP_REPLY))
    assert play.chaos.wait_for(
        lambda: link.counters.dropped_replies >= dropped + 3, PATIENCE_SECONDS
    ), play.last_words()
    link.heal()
    play.assert_exact()
    # Under the same record while its lease lasts, so the ledger need not show it.
    repeated = log.read_text(errors="replace").count("is not loaded yet") - failures
    assert repeated, play.last_words()


@pytest.mark.long
def test_a_driver_that_slept_in_the_middle_of_an_insert_is_succeeded(play: Play) -> None:
    """Driver and workers stop while an insert is on its way; they wake after their lease,
    when a successor has loaded their ranges."""
    stage = play.stage
    old, before = stage.drivers.current, stage.positions.owners
    assert stage.spark is not None
    roots = [old.process.pid, *stage.spark.workers]
    pids = [each.pid for root in roots for each in descendants(root)] + [old.process.pid]
    struck = threading.Event()

    def stop() -> None:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        struck.set()

    stage.clickhouse_link.ambush(0.0, stop)
    try:
        assert play.chaos.wait_for(struck.is_set, PATIENCE_SECONDS), play.last_words()
        stage.drivers.start()
        assert play.chaos.wait_for(lambda: not stage.positions.owners & before, PATIENCE_SECONDS), (
            play.last_words()
        )
        play.wait_for_progress(1)
    finally:
        for pid in pids:
            _signal(pid, signal.SIGCONT)
    stage.drivers.woken(old)
    fenced = stage.drivers.fenced
    assert play.chaos.wait_for(lambda: stage.drivers.fenced > fenced, PATIENCE_SECONDS), (
        play.last_words()
    )
    play.assert_exact()


@pytest.mark.long
def test_a_spark_worker_dies_with_its_executor(play: Play) -> None:
    cluster = play.stage.spark
    assert cluster is not None
    before = cluster.workers
    executors = [each.pid for pid in before for each in descendants(pid)]
    killed = cluster.kill_worker(0)
    assert cluster.workers == [pid for pid in before if pid != killed]
    play.wait_for_progress(RATE)
    now = [each.pid for pid in cluster.workers for each in descendants(pid)]
    assert set(now) != set(executors), "no executor was lost"
    time.sleep(1)
    cluster.add_worker()
    play.assert_exact()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
