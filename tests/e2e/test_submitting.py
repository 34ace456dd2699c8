"""`sluice run` by way of spark-submit, in a folder that has what a container of cluster mode has:
the main file and the configuration, under their bare names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sluice.__main__
from sluice.spark.context import spark_home
from tests.support.world import Truth, World, assert_exact

PARTITIONS, ROWS = 4, 20_000


@pytest.mark.long
def test_a_submitted_driver_loads_and_refuses_another_cluster(world: World, tmp_path: Path) -> None:
    truth, topic = Truth(), "orders-submitted"
    world.create_topic(topic, PARTITIONS)
    world.create_table("submitted")
    world.produce(topic, ROWS, truth, partitions=PARTITIONS)
    path = world.configure({"submitted": [topic]}, max_messages=5_000)
    container = tmp_path / "container"
    container.mkdir()
    shutil.copy(sluice.__main__.__file__, container)
    shutil.copy(path, container / "sluice.toml")

    def submitted(master: str) -> subprocess.CompletedProcess[str]:
        submit = [str(spark_home() / "bin" / "spark-submit"), "--master", master]
        submit += ["--files", "sluice.toml", "__main__.py"]
        return subprocess.run(
            [*submit, "run", "sluice.toml", "--until-caught-up"],
            cwd=container,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "HADOOP_CONF_DIR": str(container)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    refused = submitted("yarn")
    assert refused.returncode == 2, refused.stdout[-2000:] + refused.stderr[-4000:]
    assert "spark-submit was told --master yarn" in refused.stdout + refused.stderr
    assert world.count("submitted") == 0
    loaded = submitted("local[2]")
    assert loaded.returncode == 0, loaded.stdout[-2000:] + loaded.stderr[-4000:]
    assert_exact(world, "submitted", truth)
    assert {each.name for each in container.iterdir()} <= {
        "__main__.py",
        "sluice.toml",
        "artifacts",
    }
