"""What Spark can run at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.conf import SparkConf

from sluice.spark.jobs import SparkJobs

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
