"""The archive of Spark's classes, which set-up makes: used, and harmless where it cannot be."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.spark import archives, class_archive
from sluice.spark.archives import is_whole
from sluice.spark.class_archive import archive_options, archive_path
from sluice.spark.java import set_java_home

#: Starts Spark with an archive, and tells which archives its JVM has mapped; before that, what a
#: worker has loaded when its first task begins.
_START = """
import sys
from pathlib import Path
from sluice.spark.class_archive import archive_options
from sluice.spark.context import start_context
from sluice.spark.jobs import SparkJobs
options = sys.argv[1] if sys.argv[1:] else archive_options()
context = start_context("test", "local[1]", {"spark.ui.enabled": "false"}, options)
modules = "sluice.worker.tasks", "sluice.spark.jobs", "chdb"
print(context.parallelize([0], 1).map(lambda _: [m in sys.modules for m in modules]).collect())
SparkJobs(context).run_idle()
maps = Path(f"/proc/{context._gateway.proc.pid}/maps").read_text()
print(sorted({line.split()[-1] for line in maps.splitlines() if line.endswith(".jsa")}))
"""


@pytest.fixture(autouse=True)
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    set_java_home()


def mapped_archives(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _START, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_spark_starts_from_the_archive_that_set_up_has_made() -> None:
    assert is_whole(archive_path()), "make setup"
    told = mapped_archives()
    assert str(archive_path().resolve()) in told
    assert "[[True, True, False]]" in told, "workers are forked with all but the engine loaded"


def test_an_archive_that_was_cut_off_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java would die of it."""
    whole = archive_path()
    cut = tmp_path / whole.name
    cut.write_bytes(whole.read_bytes())
    shutil.copy(whole.with_suffix(".size"), tmp_path)
    monkeypatch.setattr(class_archive, "archive_path", lambda: cut)
    assert str(cut) in archive_options()
    with cut.open("r+b") as file:
        file.truncate(1 << 20)
    assert archive_options() == ""


@pytest.mark.slow
def test_an_archive_of_something_else_stops_nothing(tmp_path: Path) -> None:
    other = tmp_path / "other.jsa"
    other.write_bytes(bytes(1 << 20))
    assert str(other) not in mapped_archives(f"-XX:SharedArchiveFile={other}")


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = archive_path()
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    other = archive_path()
    (tmp_path / "release").write_text('JAVA_VERSION="99"')
    assert len({ours, other, archive_path()}) == 3
    assert archive_options() == ""


def test_an_environment_behind_a_link_has_the_same_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark names its jars to Java without the link."""
    ours = archive_path()
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    (tmp_path / "pyspark").symlink_to(Path(found.origin).parent)
    found.origin = str(tmp_path / "pyspark" / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    assert archive_path() == ours


def test_set_up_goes_on_where_none_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(class_archive, "archive_path", lambda: tmp_path / "file" / "a.jsa")
    assert class_archive.main() == 0
    assert capsys.readouterr().out.startswith("none, Spark starts without: ")


def test_set_up_makes_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(archives, "_make", lambda path, run: pytest.fail("made again"))
    assert class_archive.main() == 0
    assert str(archive_path()) in capsys.readouterr().out


def test_a_java_that_runs_already_gets_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under spark-submit PySpark is imported from a zip, beside which there are no jars."""
    found = importlib.util.spec_from_loader("pyspark", None, origin="/x/pyspark.zip/pyspark/a.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(OSError):
        archive_path()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "12345")
    assert archive_options() == ""
