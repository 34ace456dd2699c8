"""spark-submit and the configuration have to mean the same cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from sluice.core.errors import ConfigurationError
from sluice.spark.context import SUBMITTED, _set_programs, refuse_another_master, spark_home


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


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", SUBMITTED):
        monkeypatch.setenv(name, "")  # so that all of them are as before in the end
        monkeypatch.delenv(name)
    return monkeypatch


def test_another_spark_of_the_environment_is_passed_over(
    environment: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment.setenv("SPARK_HOME", str(tmp_path))
    _set_programs({}, is_here=True)
    assert os.environ["SPARK_HOME"] == str(spark_home())
    assert f"SPARK_HOME is {tmp_path}" in caplog.text
    caplog.clear()
    _set_programs({}, is_here=True)
    assert not caplog.messages


def test_the_same_spark_elsewhere_is_used(
    environment: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{pyspark.__version__}.jar").touch()
    environment.setenv("SPARK_HOME", str(tmp_path))
    _set_programs({}, is_here=False)
    assert os.environ["SPARK_HOME"] == str(tmp_path) and not caplog.messages


def test_spark_submit_has_started_its_spark_already(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("SPARK_HOME", str(tmp_path))
    environment.setenv("PYSPARK_PYTHON", "/other/python")
    environment.setenv(SUBMITTED, "1234")
    _set_programs({}, is_here=True)
    assert os.environ["SPARK_HOME"] == str(tmp_path)
    assert os.environ["PYSPARK_PYTHON"] == "/other/python"


@pytest.mark.parametrize(
    ("is_here", "properties", "python"),
    [
        (True, {}, sys.executable),
        (True, {"spark.pyspark.python": "/named/python"}, "/named/python"),
        (False, {}, "/other/python"),
    ],
)
def test_the_python_of_the_workers(
    environment: pytest.MonkeyPatch, is_here: bool, properties: dict[str, str], python: str
) -> None:
    environment.setenv("PYSPARK_PYTHON", "/other/python")
    _set_programs(properties, is_here=is_here)
    assert os.environ["PYSPARK_PYTHON"] == python
