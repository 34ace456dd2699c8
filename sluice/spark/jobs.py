"""Jobs on Spark: ranges out, reports back, both pickled.

As an RDD: a DataFrame is planned anew for each job, which took Spark's JVM 69 to 85 ms of CPU and
the driver's Python 12, where this takes 27 to 33 and 4.5 [measured].

Several jobs run at once, each in a thread of its own; finished ones wait in a queue for
the connector's loop.
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from sluice.core.errors import InDoubtError, TerminalError
from sluice.core.receipts import TaskReport
from sluice.machine.collector import relax_collector
from sluice.spark.context import first_words
from sluice.worker.assignment import Assignment, Job, TaskEnvironment

if TYPE_CHECKING:
    from pyspark import SparkContext

_logger = logging.getLogger("sluice.spark")

#: Jobs that may wait for Spark at once.
JOBS_MAX = 64
LOOK_EVERY_SECONDS = 1.0
#: Looks in a row that find no Spark.
_LOOKS = 2


class JobLostError(InDoubtError):
    """Spark lost a job: a worker or an executor died."""

    hint = "The ranges are sent again under the same tokens; look at Spark's log if it goes on."


class SparkGoneError(TerminalError):
    """Spark's driver process is gone; nothing can be loaded any more."""

    hint = "Look at Spark's last words above (memory?), then start again; nothing is lost."


#: Words of what Spark says of a job that failed, and what to do about it.
_REMEDIES = (
    (
        ("No module named", "PYTHON_VERSION_MISMATCH", "Cannot run program"),
        "Executors need the driver's Python packages and its version of Python: "
        'docs/DEPLOYMENT.md, "Spark on a cluster".',
    ),
    (
        ("exited unexpectedly", "code 137", "OOM"),
        "A worker was killed: where memory ran out, give it more (0.6 GB for each worker), or have "
        "fewer in [spark] master.",
    ),
)
_WORDS_MAX = 600


def lost(job: str, error: Exception, *, lives: bool) -> JobLostError | SparkGoneError:
    """What a job failed by.

    :param job: its description.
    :param lives: whether Spark can run others.
    """
    why = first_words(error)
    what = f"Spark lost {job}: {why[:_WORDS_MAX]}"
    if not lives:
        return SparkGoneError(what)
    hints = (hint for words, hint in _REMEDIES if any(each in why for each in words))
    return JobLostError(what, next(hints, None))


@dataclass(frozen=True, slots=True)
class JobResult:
    """A finished job. Exactly one of `reports` and `error` is there."""

    job: Job
    reports: tuple[TaskReport, ...] = ()
    error: JobLostError | SparkGoneError | None = None


class _Threads:
    """Threads that are used again. The process ends without them: Spark never answers a job that it
    was given while it was being stopped, and Python would wait for the threads of an executor.

    :param most: threads at once; what is more waits.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._work = queue.SimpleQueue[Callable[[], object] | None]()
        self._idle = threading.Semaphore(0)
        self._started, self._starting = 0, threading.Lock()

    def submit(self, work: Callable[[], object]) -> None:
        """Have it done; it raises nothing."""
        self._work.put(work)
        with self._starting:
            if self._started < self._most and not self._idle.acquire(blocking=False):
                name = f"{self._name}_{self._started}"
                self._started += 1
                threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            self._idle.release()

    def close(self) -> None:
        """Forget what has not begun. Each thread ends with the work that it has."""
        with suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        for _ in range(self._started):
            self._work.put(None)


class SparkJobs:
    """Runs jobs for loops.

    :param slots: tasks that Spark can run at once; it follows the executors that there are.
    :param slots_max: the most that there were; or, where Spark allocates executors by the work that
        there is, the most that it may allocate, and 1 if that is not bounded.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._threads = _Threads(JOBS_MAX, "spark-job")
        self._closed = threading.Event()
        #: Spark's names of the jobs that are out, by identity; "" before it has begun one, None
        #: where that is not to be begun.
        self._groups: dict[int, str | None] = {}
        self.slots = self._slots_now()
        #: Whether Spark ends executors that have nothing to do.
        self._is_dynamic = context.getConf().get("spark.dynamicAllocation.enabled") == "true"
        self.slots_max = _allocated_max(context) if self._is_dynamic else self.slots

    def submit(
        self, job: Job, environment: TaskEnvironment, finished: Callable[[JobResult], None]
    ) -> None:
        """Start a job; `finished` is called from another thread when it has ended."""
        self._groups[id(job)] = ""
        self._threads.submit(partial(self._run, job, environment, finished))

    def cancel(self, job: Job) -> None:
        """End a job whose tasks do not come back, as those of a worker that hangs: Spark forgets
        them, and ends the worker after some seconds. The job then comes back as lost."""
        group = self._groups.get(id(job))
        if group == "":
            self._groups[id(job)] = None
        elif group is not None:
            # Not in the loop's thread: Spark may hang as well.
            cancel = self._context.cancelJobGroup
            threading.Thread(target=cancel, args=(group,), name="spark-cancel", daemon=True).start()

    def warm(self, *, wait: bool = False) -> None:
        """Keep the Python workers alive: Spark ends them after a minute of idleness, and
        the next range would wait for a new one to load its libraries. Where Spark ends idle
        executors, too, they are left alone, but for the first time."""
        if self._is_dynamic and not wait:
            return
        ended = threading.Event()
        self._threads.submit(partial(self._warm, ended))
        if wait:
            ended.wait()

    def when_gone(self, tell: Callable[[SparkGoneError], None]) -> None:
        """Look after Spark, and tell when it can run nothing any more, from another thread: who
        has no job out would not hear of it."""
        thread = threading.Thread(target=self._watch, args=(tell,), name="spark-watch", daemon=True)
        thread.start()

    def run_idle(self) -> None:
        """A job without ranges, in all slots; ends when it has run."""
        self._context.setJobDescription("keeping the Python workers warm")
        self._in_tasks([b""] * self.slots, _idle)

    def close(self) -> None:
        """Wait for nothing: tasks that still run are ended with the context."""
        self._closed.set()
        self._threads.close()

    def _run(
        self, job: Job, environment: TaskEnvironment, finished: Callable[[JobResult], None]
    ) -> None:
        try:
            result = JobResult(job, reports=self._reports(job, environment))
        except Exception as error:
            result = JobResult(job, error=lost(job.description, error, lives=self._lives()))
        finally:
            self._groups.pop(id(job), None)
        finished(result)

    def _watch(self, tell: Callable[[SparkGoneError], None]) -> None:
        missed = 0
        while missed < _LOOKS:
            if self._closed.wait(LOOK_EVERY_SECONDS):
                return
            missed = 0 if self._lives() else missed + 1
            if not missed:
                self.slots = self._slots_now()
                if not self._is_dynamic:
                    self.slots_max = max(self.slots_max, self.slots)
        tell(SparkGoneError("Spark's driver process or its context has ended"))

    def _slots_now(self) -> int:
        return max(1, int(self._context.defaultParallelism))

    def _lives(self) -> bool:
        """Whether Spark can still run anything."""
        try:
            return not self._context._jsc.sc().isStopped()
        except Exception:
            return False

    def _reports(self, job: Job, environment: TaskEnvironment) -> tuple[TaskReport, ...]:
        context = self._context
        if self._groups.get(id(job), "") is None:
            raise JobLostError("it was ended before it began")
        group = self._groups[id(job)] = f"sluice-{uuid.uuid4().hex}"
        context.setJobGroup(group, job.description, interruptOnCancel=True)
        # What the password is read from may be on the driver's machine only.
        environment = replace(environment, clickhouse=environment.clickhouse.renewed())
        # The ranges of a task are packed together: they share records' words and classes.
        packed = self._in_tasks([pickle.dumps(task) for task in job.tasks], _loader(environment))
        return tuple(report for reports in packed for report in pickle.loads(reports))

    def _in_tasks(
        self, given: list[bytes], work: Callable[[Iterator[bytes]], Iterator[bytes]]
    ) -> list[bytes]:
        """Each in a task of its own; gives what all of them yielded."""
        answers: list[bytes] = (
            self._context.parallelize(given, len(given)).mapPartitions(work).collect()
        )
        return answers

    def _warm(self, ended: threading.Event) -> None:
        try:
            self.run_idle()
        except Exception as error:
            _logger.debug("warming failed: %s", error)
        finally:
            ended.set()


def _idle(given: Iterator[bytes]) -> Iterator[bytes]:
    from sluice.decode.engine.session import session

    for _ in given:
        session()
    yield from ()


#: Whether this worker process has set its collector up.
_is_relaxed = False


def _relax_collector_once() -> None:
    """For a worker that has loaded a range. A poll makes 500 objects that the collector follows and
    no cycles. And Spark runs a whole collection after each task, through all that the libraries
    made: 39 ms, a tenth of what a range costs [measured].
    """
    global _is_relaxed
    if not _is_relaxed:
        _is_relaxed = True
        relax_collector()


def _loader(environment: TaskEnvironment) -> Callable[[Iterator[bytes]], Iterator[bytes]]:
    """The function that Spark ships: load the ranges of a task and yield their reports."""

    def load(given: Iterator[bytes]) -> Iterator[bytes]:
        from pyspark import TaskContext

        from sluice.worker.tasks import load_task

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for packed in given:
            assignments: tuple[Assignment, ...] = pickle.loads(packed)
            reports = load_task(environment, assignments, attempt)
            _relax_collector_once()
            yield pickle.dumps(reports)

    return load


class Inbox:
    """Where finished jobs and other events of a connector wait for its loop."""

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


def _allocated_max(context: SparkContext) -> int:
    settings = context.getConf()
    executors = int(settings.get("spark.dynamicAllocation.maxExecutors", "1"))
    return executors * int(settings.get("spark.executor.cores", "1"))
