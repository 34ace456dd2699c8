"""Workers on machines without the packages that tasks need: the driver sends them along."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from sluice.spark.context import spark_home
from sluice.testbed.chaos.spark_cluster import SparkCluster, running_spark, spark_settings
from sluice.testbed.local.processes import command_of, descendants
from tests.support.world import Truth, World, assert_exact, use_cluster

PARTITIONS, ROWS = 4, 40_000
ROOT = Path(__file__).parents[2]
#: Sluice, and all packages beside Spark's, are not there for the command after it.
WITHOUT_PACKAGES = """set -e
mount -t tmpfs tmpfs "$1" && mkdir "$1/spark" && mount --bind "$2" "$1/spark"
mount -t tmpfs tmpfs "$(dirname "$2")" && mkdir "$2" && mount --bind "$1/spark" "$2"
mount -t tmpfs tmpfs "$3"
shift 3
exec "$@"
"""


@pytest.fixture
def bare(tmp_path: Path) -> list[str]:
    """What starts a command on a machine with Java, Python and Spark alone."""
    hidden = [str(spark_home()), str(Path(sluice.__file__).parent)]
    (tmp_path / "held").mkdir()
    command = ["env", "-u", "PYTHONPATH", "unshare", "--mount", "sh", "-c", WITHOUT_PACKAGES, "sh"]
    command += [str(tmp_path / "held"), *hidden]
    if os.geteuid():
        pytest.skip("mounts nothing here")
    return command


@pytest.fixture
def cluster(tmp_path: Path, bare: list[str]) -> Iterator[SparkCluster]:
    with running_spark(tmp_path / "spark", ()) as made:
        made.add_worker(inside=bare)
        made.wait_for_workers()
        yield made


def packed(folder: Path) -> Path:
    """This environment, as docs/DEPLOYMENT.md packs one, with Sluice from the checkout, and without
    what only tests need: each Spark process unpacks it."""
    archive, package = folder / "environment.tar.gz", Path(sluice.__file__).parent
    site = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    tests_only = re.findall(r"^([\w-]+)==", (ROOT / "requirements-tests.lock").read_text(), re.M)
    left_out = ["pyspark/jars", "__pycache__", "__editable__*", "*__mypyc*.so", *tests_only]
    command = ["tar", "-cf", archive, "--use-compress-program=gzip -1"]
    command += [f"--exclude={name}" for name in left_out]
    command += [f"--transform=s,^{package.name}/,{site}/{package.name}/,", "-C", sys.prefix]
    command += ["bin/python", "bin/python3", "pyvenv.cfg", "lib"]
    command += ["-C", package.parent, package.name]
    subprocess.run(command, check=True)
    return archive


@pytest.mark.long
def test_an_environment_is_sent_along(
    world: World, cluster: SparkCluster, bare: list[str], tmp_path: Path
) -> None:
    looked = subprocess.run(
        [*bare, sys.executable, "-c", "import sluice"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert looked.stderr.endswith("No module named 'sluice'\n"), looked.stderr
    truth, topic = Truth(), "orders-environment"
    world.create_topic(topic, PARTITIONS)
    world.create_table("environment")
    world.produce(topic, ROWS, truth, partitions=PARTITIONS)
    settings = spark_settings() | {
        "spark.archives": f"{packed(tmp_path)}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.cores.max": "1",
    }
    del settings["spark.executorEnv.PYTHONPATH"]
    path = world.configure({"environment": [topic]}, max_messages=1_000)
    use_cluster(path, cluster.master, settings)
    driver = world.run(path)
    world.wait_for_rows("environment", truth.rows, driver, 600)
    below = (child.pid for worker in cluster.workers for child in descendants(worker))
    daemons = [words for words in map(command_of, below) if "pyspark.daemon" in words]
    assert daemons and all(each.startswith("./environment/bin/python ") for each in daemons)
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "environment", truth)
