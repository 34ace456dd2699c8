"""The driver and the executors of an image, started as Spark on Kubernetes starts them in pods: by
the same command, options and variables. Kubernetes is not there; a standalone master without
workers takes its place.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.testbed.chaos.spark_cluster import LOOPBACK, SparkCluster, running_spark, spark_settings
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.processes import command_of
from tests.support.driver import Driver
from tests.support.world import Truth, World, assert_exact, use_cluster, wait_for

POD = (sys.executable, "-m", "sluice.spark.pod")
PARTITIONS, ROWS, EXECUTORS = 4, 40_000, 2
#: What Spark gives each Java of its own on Java 17, here by the variables of a pod.
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with running_spark(tmp_path / "spark", ()) as made:
        yield made


def start_driver(world: World, folder: Path, configuration: Path) -> Driver:
    """As in a pod of cluster mode."""
    properties = folder / "spark.properties"
    conf = spark_settings() | {"spark.submit.deployMode": "cluster"}
    conf["spark.driver.port"] = str(free_ports(1)[0])
    properties.write_text("".join(f"{name}={value}\n" for name, value in conf.items()))
    command = ["driver", "--properties-file", str(properties)]
    command += ["--class", "org.apache.spark.deploy.PythonRunner", "local:///of/image/__main__.py"]
    log = folder / "driver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*POD, *command, "run", str(configuration), "--grace", "60s"],
            stdout=output,
            stderr=output,
            cwd=folder,
            env=os.environ | {"SPARK_DRIVER_BIND_ADDRESS": LOOPBACK},
        )
    driver = Driver(process, log)
    world.drivers.append(driver)
    return driver


def start_executor(folder: Path, number: int, port: str) -> subprocess.Popen[bytes]:
    options = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
    variables = {f"SPARK_JAVA_OPT_{each}": option for each, option in enumerate(options)} | {
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{LOOPBACK}:{port}",
        "SPARK_EXECUTOR_ID": str(number),
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": "orders",
        "SPARK_EXECUTOR_POD_IP": LOOPBACK,
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": f"orders-exec-{number}",
    }
    work = folder / f"executor-{number}"
    work.mkdir()
    with (folder / f"executor-{number}.log").open("wb") as output:
        return subprocess.Popen(
            [*POD, "executor"], stdout=output, stderr=output, cwd=work, env=os.environ | variables
        )


@pytest.mark.long
def test_a_driver_and_executors_as_in_pods_load_and_settle(
    world: World, cluster: SparkCluster, tmp_path: Path
) -> None:
    truth, topic = Truth(), "orders-pods"
    world.create_topic(topic, PARTITIONS)
    world.create_table("pods")
    world.produce(topic, ROWS, truth, partitions=PARTITIONS)
    path = world.configure({"pods": [topic]}, max_messages=1_000)
    use_cluster(path, cluster.master, {})
    driver = start_driver(world, tmp_path, path)
    port = (tmp_path / "spark.properties").read_text().partition("driver.port=")[2].split()[0]
    wait_for(lambda: is_listening(int(port)), 240, "the start of Spark")
    executors = [start_executor(tmp_path, each, port) for each in range(EXECUTORS)]
    try:
        world.wait_for_rows("pods", truth.rows // 4, driver)
        # The driver is the first process of its pod: it gets the signals.
        assert " -m sluice run " in command_of(driver.process.pid)
        executors[0].send_signal(signal.SIGKILL)
        world.wait_for_rows("pods", truth.rows, driver)
        driver.signal(signal.SIGTERM)
        assert driver.wait() == 0, driver.text()[-4000:]
        # An executor ends with its driver, whatever Kubernetes does with it.
        assert executors[1].wait(60) is not None
    finally:
        for executor in executors:
            executor.kill()
            executor.wait()
    assert_exact(world, "pods", truth)
    assert world.sluice("audit", str(path)).returncode == 0


def is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((LOOPBACK, port)) == 0
