"""Spark's classes, read and verified once for all later starts (Java's class data sharing).

Most of what Spark's JVM does until its first job is load classes. An archive of them, made by
set-up in this Python environment, is mapped into memory instead. It is named after the Java and
the jars that it was made of; Java compares it with both once more, and goes on without where they
differ.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.spark.context import start_context
from sluice.spark.jobs import SparkJobs

if TYPE_CHECKING:
    import subprocess

#: Java says what it left out, or why it goes on without: for set-up that is nothing to act on.
_QUIET = "-Xlog:cds=error -Xlog:cds+dynamic=error"
_DUMP_SECONDS_MAX = 120.0


def archive_path() -> Path:
    """Where the archive of this Java and this environment's Spark is, if it was made."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None, "pyspark is not installed"
    # As PySpark names them to Java, also in an environment that a link leads to.
    jars = Path(found.origin).resolve().parent / "jars"
    made_of = f"{_release_of_java()}\n{jars}\n{jars.stat().st_mtime_ns}"
    name = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "sluice" / f"spark-classes-{name}.jsa"


def _release_of_java() -> str:
    """What the Java that PySpark starts says of itself: version, vendor, build."""
    program = Path(os.environ.get("JAVA_HOME") or "/nowhere") / "bin" / "java"
    if not program.exists():
        program = Path(shutil.which("java") or program).resolve()
    try:
        return f"{program}\n{(program.parent.parent / 'release').read_text()}"
    except OSError:
        return str(program)


def archive_options() -> str:
    """Options of Java for the next start; "" where there is no archive, or Java runs already."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # of spark-submit, whose PySpark is a zip, too
        return ""
    path = archive_path()
    return f"-XX:SharedArchiveFile={path} {_QUIET}" if is_whole(path) else ""


def is_whole(path: Path) -> bool:
    """Whether it is as long as when it was made: of one that was cut off Java dies [measured],
    with other damage in its head it goes on without."""
    try:
        return path.stat().st_size == int(_size_of(path).read_text())
    except (OSError, ValueError):
        return False


def _size_of(path: Path) -> Path:
    return path.with_suffix(".size")


def make_archive() -> Path | None:
    """Start Spark, run a job, and keep the classes that it took.

    :returns: the archive; None if this Java makes none, as one without an archive of its own
        classes.
    """
    path = archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob("spark-classes-*"):
        old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        options = f"-XX:ArchiveClassesAtExit={made} {_QUIET}"
        context = start_context("archive", "local[1]", {"spark.ui.enabled": "false"}, options)
        SparkJobs(context).run_idle()
        java: subprocess.Popen[bytes] = context._gateway.proc
        context.stop()
        # Java ends with its standard input, and writes the archive then.
        if java.stdin is not None:
            java.stdin.close()
        java.wait(_DUMP_SECONDS_MAX)
        if not made.is_file():
            return None
        made.chmod(0o644)
        _size_of(path).write_text(str(made.stat().st_size))
        made.replace(path)
    return path


def main() -> int:
    """Make the archive unless it is there. Nothing depends on it, so nothing fails here."""
    path = archive_path()
    try:
        made = path if is_whole(path) else make_archive()
    except Exception as error:
        print(f"none, Spark starts without: {type(error).__name__}: {error}")
        return 0
    if made is None:
        print("none, Spark starts without: this Java makes none")
        return 0
    print(f"{path} ({path.stat().st_size >> 20} MiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
