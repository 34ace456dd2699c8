"""spark-submit and the configuration have to mean the same cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sluice.core.errors import ConfigurationError
from sluice.spark.context import refuse_another_master


@pytest.mark.parametrize(
    ("submitted", "master"),
    [
        ("yarn", "yarn"),
        ("k8s://https://10.0.0.1:443", "k8s://https://kubernetes.default.svc"),
        ("local[*]", "spark://master:7077"),
        ("local[2]", "local[4]"),
        ("", "yarn"),
    ],
)
def test_the_same_kind_of_cluster_is_taken(submitted: str, master: str) -> None:
    refuse_another_master(submitted, master)


@pytest.mark.parametrize(
    ("submitted", "master"),
    [("yarn", "local[2]"), ("k8s://https://10.0.0.1:443", "local"), ("spark://a:1", "yarn")],
)
def test_another_kind_is_refused(submitted: str, master: str) -> None:
    with pytest.raises(ConfigurationError, match="was told --master"):
        refuse_another_master(submitted, master)


@pytest.mark.slow
def test_a_spark_that_does_not_start_says_why() -> None:
    """Java refuses to, and then Spark does; in a process of its own, which has no Spark yet."""
    code = """
from sluice.spark.context import SparkStartError, start_context
for properties in ({"spark.driver.memory": "lots"}, {"spark.serializer": "no.such.Class"}):
    try:
        start_context("test", "local[1]", properties)
    except SparkStartError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    one, other = done.stdout.splitlines()
    assert one.startswith("Spark does not start on local[1]: [JAVA_GATEWAY_EXITED]")
    assert (
        other == "Spark does not start on local[1]: java.lang.ClassNotFoundException: no.such.Class"
    )
    assert "-Xmxlots" in done.stderr
