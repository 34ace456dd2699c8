"""What Spark on Kubernetes starts in a pod of an image whose own program is `sluice`: the driver of
cluster mode, or an executor. A pod template names `python -m sluice.spark.pod` as its command.

The driver's pod runs `sluice` itself, as any other container does: it gets the signals, and lets
what is out settle, which a child of spark-submit could not. Its Java is told what spark-submit
would have been told.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.spark.context import spark_home
from sluice.spark.java import set_java_home

_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
#: Options of an executor, by the variables in which its pod has their values.
_EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_JAVA_OPTION = "SPARK_JAVA_OPT_"


def driver_command(
    arguments: Sequence[str], variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command of a driver, and the variables that it needs besides.

    :param arguments: for spark-submit: options, the main file, and its arguments.
    """
    options = ["--deploy-mode", "client"]
    options += ["--conf", f"spark.driver.bindAddress={variables['SPARK_DRIVER_BIND_ADDRESS']}"]
    rest = [*arguments]
    while len(rest) > 1 and rest[0].startswith("--"):
        name, value, *rest = rest
        if name != "--class":
            options += [name, value]
    command = [sys.executable, "-m", "sluice", *rest[1:]]
    return command, {"PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"])}


def executor_command(java: Path, jars: Path, variables: Mapping[str, str]) -> list[str]:
    """The command of an executor."""
    numbers = sorted(int(name[len(_JAVA_OPTION) :]) for name in variables if _JAVA_OPTION in name)
    memory = variables["SPARK_EXECUTOR_MEMORY"]
    folders = (variables.get("SPARK_CONF_DIR"), f"{jars}/*", variables.get("SPARK_CLASSPATH"))
    options = [word for name, of in _EXECUTOR_OPTIONS.items() for word in (name, variables[of])]
    return [
        str(java),
        *(variables[f"{_JAVA_OPTION}{number}"] for number in numbers),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(folder for folder in folders if folder),
        _EXECUTOR,
        *options,
    ]


def main(arguments: Sequence[str]) -> int:
    """Become a driver or an executor; returns only where it is asked for something else."""
    role, *rest = arguments or ("",)
    more: dict[str, str] = {}
    if role == "driver":
        command, more = driver_command(rest, os.environ)
    elif role == "executor":
        java = set_java_home() / "bin" / "java"
        command = executor_command(java, spark_home() / "jars", os.environ)
    else:
        print(f"sluice: Spark asks pods for a driver or an executor, not for {role!r}")
        return 2
    os.execve(command[0], command, {**os.environ, **more})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
