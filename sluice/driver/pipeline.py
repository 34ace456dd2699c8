"""A pipeline: one loop for each connector, run to its end.

One connector may be down for days; the others go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from sluice.config import Configuration
from sluice.driver.connector import ConnectorRun, now_ms
from sluice.driver.progress import Reporter
from sluice.driver.signals import on_signals
from sluice.spark.class_archive import archive_options
from sluice.spark.context import start_context
from sluice.spark.jobs import SparkGoneError, SparkJobs

if TYPE_CHECKING:
    from pyspark import SparkContext

_logger = logging.getLogger("sluice.pipeline")

#: Connectors that do not hear that Spark is gone, since they wait for Kafka, are ended then.
_WITHOUT_SPARK_SECONDS = 5.0


def run_pipeline(
    configuration: Configuration,
    until_caught_up: bool,
    grace_seconds: float,
    *,
    examine: Callable[[str], None] = lambda connector: None,
    observe: Callable[[Sequence[ConnectorRun]], None] = lambda runs: None,
) -> int:
    """Run all connectors; returns the exit status of `sluice run`.

    :param examine: called with a connector's name before its first range; raises what
        keeps that connector from loading. The other connectors go on.
    :param observe: called once with all of them, before they begin, e.g. to serve metrics.
    """
    stopping = threading.Event()
    runs: list[ConnectorRun] = []
    on_signals(stopping, lambda: _refresh(runs))
    with ThreadPoolExecutor(1, thread_name_prefix="spark-start") as pool:
        context = pool.submit(
            start_context,
            configuration.pipeline,
            configuration.spark.master,
            configuration.spark.properties(),
            archive_options(),
        )
        jobs: Future[SparkJobs] = pool.submit(lambda: SparkJobs(context.result()))
        runs += [
            ConnectorRun(configuration, connector, jobs, stopping, examine)
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


def _refresh(runs: Sequence[ConnectorRun]) -> None:
    for run in runs:
        run.refresh()
