"""What Spark can run at once."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.conf import SparkConf

from sluice.spark.jobs import JOBS_MAX, JobResult, SparkJobs
from sluice.worker.assignment import Job, TaskEnvironment

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
        jobs._pool.submit(waits.wait)
    jobs.submit(job, cast(TaskEnvironment, None), results.append)
    jobs.cancel(job)
    waits.set()
    jobs._pool.shutdown()
    (result,) = results
    assert "was ended before it began" in str(result.error) and not begun
