"""The archive of Spark's classes, made by set-up in this Python environment.

Most of what Spark's JVM does until its first job is load classes.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.spark import archives
from sluice.spark.context import SUBMITTED, spark_home, start_context
from sluice.spark.jobs import SparkJobs

if TYPE_CHECKING:
    import subprocess

_DUMP_SECONDS_MAX = 120.0


def archive_path() -> Path:
    """Where the archive of this Java and this environment's Spark is, if it was made."""
    jars = spark_home() / "jars"
    # Which Java PySpark starts.
    java = Path(os.environ.get("JAVA_HOME") or "/nowhere") / "bin" / "java"
    if not java.exists():
        java = Path(shutil.which("java") or java).resolve()
    folder = Path(sys.prefix) / "share" / "sluice"
    return archives.path_of("spark", folder, java, f"{jars}\n{jars.stat().st_mtime_ns}")


def archive_options() -> str:
    """Options of Java for the next start; "" where there is no archive, or Java runs already."""
    if SUBMITTED in os.environ:  # its PySpark is a zip, too
        return ""
    return " ".join(archives.options_of(archive_path()))


def main() -> int:
    """Make it unless it is there."""
    return archives.set_up("Spark", archive_path(), _run)


def _run(options: str) -> None:
    context = start_context("archive", "local[1]", {"spark.ui.enabled": "false"}, options)
    SparkJobs(context).run_idle()
    java: subprocess.Popen[bytes] = context._gateway.proc
    context.stop()
    # Java ends with its standard input, and writes the archive then.
    if java.stdin is not None:
        java.stdin.close()
    java.wait(_DUMP_SECONDS_MAX)


if __name__ == "__main__":
    sys.exit(main())
