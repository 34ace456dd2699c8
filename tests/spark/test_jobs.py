"""What Spark can run at once."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.conf import SparkConf

from sluice.spark.jobs import (
    JOBS_MAX,
    JobLostError,
    JobResult,
    SparkGoneError,
    SparkJobs,
    _Threads,
    lost,
)
from sluice.worker.assignment import Job, TaskEnvironment
from tests.support.world import wait_for

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 3),
        (DYNAMIC, 1),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "6"}, 6),
        (
            DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "6", "spark.executor.cores": "4"},
            24,
        ),
    ],
)
def test_the_most_slots_are_those_that_were_or_may_be_allocated(
    settings: dict[str, str], most: int
) -> None:
    """A fleet's shares go by them: executors that come with the work move no partitions."""
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    context: Any = SimpleNamespace(getConf=lambda: conf, defaultParallelism=3)
    jobs = SparkJobs(context)
    assert (jobs.slots, jobs.slots_max) == (3, most)
    jobs.close()


CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe."
ABORTED = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed: "
RAISED = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 830, in main
    raise
"""


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        (
            f"{CALL}\n: {ABORTED}{RAISED}ModuleNotFoundError: No module named 'sluice'\n\n\tat x.y",
            "PythonException: ModuleNotFoundError: No module named 'sluice'",
            "Spark on a cluster",
        ),
        (
            f"{CALL}\n: {ABORTED}Python worker exited unexpectedly (crashed)\n\tat x.y",
            "exited unexpectedly (crashed)",
            "memory",
        ),
        (f"{CALL}\n: {ABORTED}no space\n\tat x.y", f"{ABORTED}no space", "Spark's log"),
        ("Answer from Java side is empty\nmore", "Answer from Java side is empty", "Spark's log"),
        ("", "RuntimeError", "Spark's log"),
    ],
)
def test_a_lost_job_says_why(text: str, why: str, hint: str) -> None:
    error = lost("3 ranges", RuntimeError(text), lives=True)
    assert isinstance(error, JobLostError)
    assert error.message.startswith("Spark lost 3 ranges: ") and error.message.endswith(why)
    assert "collectAndServe" not in error.message and hint in error.hint
    assert isinstance(lost("3 ranges", RuntimeError(text), lives=False), SparkGoneError)


class WithoutJavaError(RuntimeError):
    def __str__(self) -> str:
        raise ConnectionRefusedError


def test_what_java_cannot_say_any_more_is_no_second_error() -> None:
    assert lost("a", WithoutJavaError(), lives=False).message == "Spark lost a: WithoutJavaError"


def test_a_job_that_is_ended_before_spark_has_begun_it_comes_back_as_lost() -> None:
    """Spark knows no group of it yet, so nobody else would end it."""
    conf, begun = SparkConf(loadDefaults=False), list[str]()
    context: Any = SimpleNamespace(
        getConf=lambda: conf,
        defaultParallelism=3,
        setJobGroup=lambda *_, **__: begun.append("begun"),
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)),
    )
    jobs, results, job = SparkJobs(context), list[JobResult](), Job("c", 1, ())
    waits = threading.Event()
    for _ in range(JOBS_MAX):  # all threads are taken
        jobs._threads.submit(waits.wait)
    jobs.submit(job, cast(TaskEnvironment, None), results.append)
    jobs.cancel(job)
    waits.set()
    wait_for(lambda: bool(results), 60, "the job's end")
    (result,) = results
    assert "was ended before it began" in str(result.error) and not begun


def test_threads_are_used_again_and_are_no_more_than_there_may_be() -> None:
    threads, names, held = _Threads(2, "job"), list[str](), threading.Event()

    def note() -> None:
        names.append(threading.current_thread().name)

    for count in range(1, 4):
        threads.submit(note)
        wait_for(lambda expected=count: len(names) == expected, 60, "the work")  # type: ignore[misc]
        wait_for(lambda: threads._idle._value == 1, 60, "its thread")
    assert set(names) == {"job_0"}
    for _ in range(2):
        threads.submit(held.wait)
    threads.submit(note)
    wait_for(lambda: threads._work.qsize() == 1, 60, "two at work")
    mine = [each for each in threading.enumerate() if each.name in ("job_0", "job_1")]
    threads.close()
    held.set()
    for each in mine:
        each.join(60)
    assert len(mine) == 2 and not any(each.is_alive() for each in mine)
    assert len(names) == 3, "what had not begun was done"


#: A context that never answers, as one that is stopped while it is given a job.
SILENT = """
import threading
from types import SimpleNamespace
from sluice.spark.jobs import SparkJobs

given = threading.Event()

class Silent:
    defaultParallelism = 1
    getConf = lambda self: SimpleNamespace(get=lambda name: None)
    setJobDescription = lambda self, text: None
    parallelize = lambda self, *given: self
    mapPartitions = lambda self, work: self

    def collect(self):
        given.set()
        threading.Event().wait()

jobs = SparkJobs(Silent())
jobs.warm()
given.wait()
jobs.close()
"""


def test_a_job_that_spark_never_answers_keeps_no_driver_from_its_end() -> None:
    """Who was fenced, or asked to stop, while the workers were kept warm stood for ever."""
    subprocess.run([sys.executable, "-c", SILENT], check=True, timeout=60)
