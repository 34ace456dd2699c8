"""The commands of pods; `e2e/test_pods.py` runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sluice.spark.pod import driver_command, executor_command, main

EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "orders-exec-3",
}


def test_a_driver_is_sluice_and_its_java_gets_the_options() -> None:
    words = ["--properties-file", "/opt/spark/conf/spark.properties", "--proxy-user", "a b"]
    words += ["--class", "org.apache.spark.deploy.PythonRunner", "local:///sluice/__main__.py"]
    variables = {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2"}
    command, more = driver_command([*words, "run", "/a.toml", "--grace", "60s"], variables)
    assert command == [sys.executable, "-m", "sluice", "run", "/a.toml", "--grace", "60s"]
    assert more == {
        "PYSPARK_SUBMIT_ARGS": "--deploy-mode client --conf spark.driver.bindAddress=10.0.0.2 "
        "--properties-file /opt/spark/conf/spark.properties --proxy-user 'a b' pyspark-shell"
    }


def test_an_executor_gets_javas_options_in_their_order() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Da={number}" for number in (10, 2, 0, 1)}
    more = {"SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_CLASSPATH": "/more/*"}
    command = executor_command(Path("/java"), Path("/jars"), EXECUTOR | options | more)
    head = ["/java", "-Da=0", "-Da=1", "-Da=2", "-Da=10", "-Xms1024m", "-Xmx1024m", "-cp"]
    assert command[:9] == [*head, "/opt/spark/conf:/jars/*:/more/*"]
    given = dict(zip(command[10::2], command[11::2], strict=True))
    assert given["--hostname"] == "10.0.0.3" and given["--podName"] == "orders-exec-3"
    assert {*given.values()} == {*EXECUTOR.values()} - {"1024m"}


def test_nothing_else_is_started_in_a_pod(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert "not for 'run'" in capsys.readouterr().out
