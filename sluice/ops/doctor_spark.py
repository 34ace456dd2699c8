"""What `doctor` looks at of the machine where the driver runs, and a local master's workers."""

from __future__ import annotations

import os

from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.ops.doctor_findings import Examination, Finding
from sluice.spark.context import SUBMITTED
from sluice.spark.java import require_java
from sluice.spark.room import (
    REST_BYTES,
    WORKER_BYTES,
    local_workers,
    memory_bytes,
    workers_that_fit,
)


def look_at_spark(configuration: Configuration) -> list[Finding]:
    """Whether Spark starts here, and whether its workers have room, if they run here."""
    master = configuration.spark.master
    found = Examination(f"[spark] master = {master}, on this machine")
    if SUBMITTED not in os.environ:  # else Java runs already
        try:
            require_java()
        except SluiceError as error:
            found.refused("java", error)
        found.ok("java", "there is one for Spark")
    workers = local_workers(master)
    if workers is not None:
        check_room(found, workers, memory_bytes())
    return found.findings


def check_room(found: Examination, workers: int, memory: int) -> None:
    """Whoever takes more memory than there is is killed, with ranges in doubt, again and again."""
    fitting = workers_that_fit(memory)
    need, rest, have = workers * WORKER_BYTES / 1e9, REST_BYTES / 1e9, memory / 1e9
    if workers > fitting:
        found.warning(
            "spark-memory",
            f"{workers} Python workers take up to {need:.1f} GB under load, and {rest:.1f} GB the "
            f"rest of the driver; there are {have:.1f} GB: when it is all taken, something is "
            "killed",
            f'master = "local[{fitting}]" in [spark], or more memory',
        )
    found.ok("spark-memory", f"{workers} Python workers, {have:.1f} GB")
