"""Jobs on Spark: ranges out as a DataFrame, reports back as a DataFrame.

Several jobs run at once, each in a thread of its own; finished ones wait in a queue for
the lane's loop.
"""

from __future__ import annotations

import gc
import logging
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.core.errors import InDoubtError, TerminalError
from sluice.core.receipts import TaskReport
from sluice.spark.assignment import Assignment, Job, Surroundings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_logger = logging.getLogger("sluice.spark")

_RANGES = "topic string, partition int, begin bigint, end bigint, assignment binary"
_REPORTS = "topic string, partition int, begin bigint, end bigint, outcome string, report binary"

#: Jobs that may wait for Spark at once.
JOBS_MAX = 64


class JobLostError(InDoubtError):
    """Spark lost a job: a worker or an executor died."""

    hint = "The ranges are sent again under the same tokens; look at Spark's log if it goes on."


class SparkGoneError(TerminalError):
    """Spark's driver process is gone; nothing can be loaded any more."""

    hint = "Look at Spark's last words above (memory?), then start again; nothing is lost."


@dataclass(frozen=True, slots=True)
class JobResult:
    """A finished job. Exactly one of `reports` and `error` is there."""

    job: Job
    reports: tuple[TaskReport, ...] = ()
    error: JobLostError | SparkGoneError | None = None


class SparkJobs:
    """Runs jobs for lanes.

    :param slots: tasks that Spark can run at once.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._pool = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="spark-job")
        self._lock = threading.Lock()
        self.slots: int = max(1, int(session.sparkContext.defaultParallelism))

    def submit(self, job: Job, around: Surroundings, finished: Callable[[JobResult], None]) -> None:
        """Start a job; `finished` is called from another thread when it has ended."""
        self._pool.submit(self._run, job, around, finished)

    def warm(self) -> None:
        """Keep the Python workers alive: Spark ends them after a minute of idleness, and
        the next range would wait for a new one to load its libraries."""
        self._pool.submit(self._warm)

    def close(self) -> None:
        """Wait for nothing: tasks that still run are ended with the session."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Job, around: Surroundings, finished: Callable[[JobResult], None]) -> None:
        try:
            result = JobResult(job, reports=self._reports(job, around))
        except Exception as error:
            text = str(error).strip().splitlines()
            first = text[0][:300] if text else type(error).__name__
            what = f"Spark lost {job.description}: {first}"
            result = JobResult(
                job, error=JobLostError(what) if self._lives() else SparkGoneError(what)
            )
        finished(result)

    def _lives(self) -> bool:
        """Whether Spark can still run anything."""
        try:
            return not self._session.sparkContext._jsc.sc().isStopped()
        except Exception:
            return False

    def _reports(self, job: Job, around: Surroundings) -> tuple[TaskReport, ...]:
        context = self._session.sparkContext
        context.setJobDescription(job.description)
        ranges = self._session.createDataFrame(_table([_row(a) for a in job.assignments]), _RANGES)
        # The file of the password may be on the driver's machine only.
        around = replace(around, clickhouse=around.clickhouse.renewed())
        reports = ranges.mapInArrow(_loader(around), _REPORTS).toArrow()
        return tuple(pickle.loads(report) for report in reports.column("report").to_pylist())

    def _warm(self) -> None:
        try:
            self._session.sparkContext.setJobDescription("keeping the Python workers warm")
            ranges = self._session.createDataFrame(
                _table([("", 0, 0, 0, b"")] * self.slots), _RANGES
            )
            ranges.mapInArrow(_idle, _REPORTS).toArrow()
        except Exception as error:
            _logger.debug("warming failed: %s", error)


def _row(assignment: Assignment) -> tuple[str, int, int, int, bytes]:
    block_range = assignment.block_range
    return (
        block_range.source.topic,
        block_range.source.partition,
        block_range.begin,
        block_range.end,
        pickle.dumps(assignment),
    )


def _table(rows: list[tuple[str, int, int, int, bytes]]) -> pa.Table:
    """One row for each range; Spark makes a task of each while there are enough slots.

    As an Arrow table: from a list of rows a job took Spark's JVM 72 ms of CPU and ended after
    123 ms, from this 41 and 54 [measured].
    """
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    types = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary())
    names = [field.split(" ")[0] for field in _RANGES.split(", ")]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.table(arrays, names=names)


def _idle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from sluice.decode.engine.session import session

    for _ in batches:
        session()
    yield from ()


#: Whether this worker process has set its collector up.
_is_relaxed = False


def _relax_collector() -> None:
    """For a worker that has its libraries and has loaded a range. Only its first call works.

    A poll makes 500 objects that the collector follows and no cycles: with the default of
    700 it would run for almost every poll. And Spark runs a whole collection after each
    task, through all that the libraries made: 39 ms, a tenth of what a range costs
    [measured]. What is frozen is not looked at again.
    """
    global _is_relaxed
    if not _is_relaxed:
        _is_relaxed = True
        gc.set_threshold(100_000)
        gc.collect()
        gc.freeze()


def _loader(
    around: Surroundings,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark ships: for each range, load it and yield its report."""

    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        from sluice.spark.loading import load_range

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for batch in batches:
            for packed in batch.column("assignment").to_pylist():
                assignment: Assignment = pickle.loads(packed)
                report = load_range(around, assignment, attempt)
                _relax_collector()
                block_range = assignment.block_range
                yield pa.RecordBatch.from_pydict(
                    {
                        "topic": [block_range.source.topic],
                        "partition": pa.array([block_range.source.partition], pa.int32()),
                        "begin": [block_range.begin],
                        "end": [block_range.end],
                        "outcome": [type(report.outcome).__name__],
                        "report": pa.array([pickle.dumps(report)], pa.binary()),
                    }
                )

    return load


class Inbox:
    """Where finished jobs and other events of a lane wait for its loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()

    def put(self, event: object) -> None:
        """Called from any thread."""
        self._queue.put(event)

    def take(self, timeout_seconds: float) -> list[object]:
        """All that has come; waits for the first one."""
        events: list[object] = []
        try:
            events.append(self._queue.get(timeout=timeout_seconds))
            while True:
                events.append(self._queue.get_nowait())
        except queue.Empty:
            return events
