"""A pipeline: one loop for each connector, run to its end.

One connector may be down for days; the others go on.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import TYPE_CHECKING

from sluice.config import Configuration
from sluice.driver.connector import ConnectorRun
from sluice.driver.loop import ConnectorLoop
from sluice.driver.tracing import tracing_if_wanted
from sluice.machine.clock import now_ms
from sluice.spark.class_archive import archive_options
from sluice.spark.context import start_context
from sluice.spark.jobs import SparkGoneError, SparkJobs

if TYPE_CHECKING:
    from pyspark import SparkContext

_logger = logging.getLogger("sluice.pipeline")


def on_signals(stopping: threading.Event, refresh: Callable[[], None]) -> None:
    """SIGTERM and SIGINT settle and stop; SIGHUP looks at the tables' columns, at topics and at the
    configuration at once. On a terminal SIGHUP keeps its meaning: the terminal is gone."""

    def read_again(number: int, frame: FrameType | None) -> None:
        _logger.info("asked to look at the tables' columns, at topics and at the file again")
        refresh()

    def stop(number: int, frame: FrameType | None) -> None:
        _logger.info("asked to stop by %s; settling", signal.Signals(number).name)
        stopping.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        if not sys.stderr.isatty():
            signal.signal(signal.SIGHUP, read_again)


_progress_logger = logging.getLogger("sluice.progress")

TERMINAL_EVERY_MS = 500
LOG_EVERY_MS = 10_000


class Reporter:
    """Reports over all loops.

    :param loops: each gives its loop once there is one.
    """

    def __init__(self, loops: Sequence[Callable[[], ConnectorLoop | None]]) -> None:
        self._loops = loops
        self._terminal = sys.stderr.isatty()
        self._next_ms = 0
        self._last: tuple[int, int] | None = None

    def report(self, now_ms: int) -> None:
        """Report if it is time to."""
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + (TERMINAL_EVERY_MS if self._terminal else LOG_EVERY_MS)
            self._write(now_ms)

    def finish(self, now_ms: int) -> None:
        """The last report."""
        self._write(now_ms)
        if self._terminal:
            sys.stderr.write("\n")

    def _write(self, now_ms: int) -> None:
        loops = [loop for loop in (get() for get in self._loops) if loop is not None]
        if not loops:
            return
        rows = sum(loop.counters.rows for loop in loops)
        dead_letters = sum(loop.counters.dead_letters for loop in loops)
        states = [state for loop in loops for state in list(loop.states.values())]
        lag = sum(max(0, state.stable_end - state.settled) for state in states)
        stopped = sum(state.stopped is not None for state in states)
        before = self._last or (now_ms, rows)
        rate = (rows - before[1]) * 1000 / max(1, now_ms - before[0])
        self._last = (now_ms, rows)
        if self._terminal:
            line = f"{rows:,} rows loaded  {rate:,.0f} rows/s  lag {lag:,}  "
            line += f"dead letters {dead_letters:,}"
            stop = f"  stopped partitions {stopped}" if stopped else ""
            sys.stderr.write(f"\r\x1b[K{line}{stop}")
            sys.stderr.flush()
        else:
            _progress_logger.info(
                "progress",
                extra={
                    "rows": rows,
                    "rows_per_second": round(rate),
                    "lag": lag,
                    "dead_letters": dead_letters,
                    "stopped_partitions": stopped,
                },
            )


#: Connectors that do not hear that Spark is gone, since they wait for Kafka, are ended then.
_WITHOUT_SPARK_SECONDS = 5.0


def run_pipeline(
    configuration: Configuration,
    until_caught_up: bool,
    grace_seconds: float,
    *,
    examine: Callable[[Configuration, str], None] = lambda configuration, connector: None,
    observe: Callable[[Sequence[ConnectorRun]], None] = lambda runs: None,
    reload: Callable[[], None] = lambda: None,
) -> int:
    """Run all connectors; returns the exit status of `sluice run`.

    :param examine: called with the configuration and a connector's name before its first range;
        raises what keeps that connector from loading. The other connectors go on.
    :param observe: called once with all of them, before they begin, e.g. to serve metrics.
    :param reload: called in a thread of its own when somebody has changed the file, and says so.
    :raises ConfigurationError: the environment asks for traces that cannot be sent.
    """
    stopping = threading.Event()
    runs: list[ConnectorRun] = []
    on_signals(stopping, lambda: _refresh(runs, reload))
    with (
        tracing_if_wanted() as tracing,
        ThreadPoolExecutor(1, thread_name_prefix="spark-start") as pool,
    ):
        context = pool.submit(
            start_context,
            configuration.pipeline,
            configuration.spark.master,
            configuration.spark.properties(),
            archive_options(),
            configuration.spark.secret_names,
        )
        jobs: Future[SparkJobs] = pool.submit(lambda: SparkJobs(context.result()))
        runs += [
            ConnectorRun(configuration, connector, jobs, stopping, examine, tracing)
            for connector in configuration.connectors
        ]
        loops = [run.progress for run in runs]
        observe(runs)
        threads = [
            threading.Thread(
                target=run.run, args=(until_caught_up, grace_seconds), name=run.connector.name
            )
            for run in runs
        ]
        for thread in threads:
            thread.start()
        jobs.add_done_callback(lambda done: _look_after(done, runs))
        reporter = Reporter(loops)
        gave_up_after = without_spark = 0.0
        for thread in threads:
            while thread.is_alive():
                thread.join(timeout=0.2)
                reporter.report(now_ms())
                if stopping.is_set():
                    gave_up_after += 0.2
                if gave_up_after > grace_seconds:
                    for run in runs:
                        run.give_up()
                without_spark += 0.2 if any(run.has_lost_spark for run in runs) else 0.0
                if without_spark > _WITHOUT_SPARK_SECONDS:
                    # A connector whose Kafka is away must not keep the others from a new start.
                    stopping.set()
                    grace_seconds = 0.0
        reporter.finish(now_ms())
        if jobs.exception() is None:
            jobs.result().close()
            _stop(context.result())
    return max(run.status for run in runs)


def _look_after(jobs: Future[SparkJobs], runs: Sequence[ConnectorRun]) -> None:
    """Once Spark has started: let all connectors know when it ends."""

    def tell(error: SparkGoneError) -> None:
        for run in runs:
            run.lose_spark(error)

    if jobs.exception() is None:
        jobs.result().when_gone(tell)


def _stop(context: SparkContext) -> None:
    """End Spark. If it has died, that is told already, and the status stays what it is."""
    try:
        context.stop()
    except Exception as error:
        _logger.debug("stopping Spark: %s", error)


def _refresh(runs: Sequence[ConnectorRun], reload: Callable[[], None]) -> None:
    for run in runs:
        run.refresh()
    threading.Thread(target=reload, name="reload", daemon=True).start()
