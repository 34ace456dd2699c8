"""The example of docs/STREAMS.md as its reader runs it: a program that is killed at will."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.spark.java import set_java_home
from tests.stream.examples import code_of, create_table, rows_of_clicks, write_clicks
from tests.stream.striking import Watch, run_watch

_RUN_SECONDS_MAX = 600


def _run(watch: Watch, folder: Path, what: str, kill_at: int | None) -> tuple[int, str]:
    """Its exit status and last words; killed before the nth statement from now on."""
    first = len(watch.statements)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(folder / "clicks.py"), what, str(folder), watch.url],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def strike(_: str) -> None:
        if kill_at is not None and len(watch.statements) > first + kill_at:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    watch.before = strike
    try:
        status = process.wait(_RUN_SECONDS_MAX)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return status, log.read_text(errors="replace")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_example_is_killed_and_audited(
    embedded_url: str, embedded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    # Of what runs for seconds the second compiler of Java takes most of the time.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    set_java_home()
    (tmp_path / "clicks.py").write_text(code_of("docs/STREAMS.md", "python", "by_minute"))
    create_table(embedded, "docs/STREAMS.md", "clicks_by_minute")
    write_clicks(tmp_path)
    with run_watch(embedded_url) as watch:
        status, words = _run(watch, tmp_path, "load", 6)
        assert status == -signal.SIGKILL, words
        status, words = _run(watch, tmp_path, "load", None)
        assert status == 0, words
        rows = embedded.query("SELECT * FROM shop.clicks_by_minute ORDER BY minute, country")
        found = [(row["minute"], row["country"], row["clicks"], row["users"]) for row in rows]
        assert found == rows_of_clicks()
        status, words = _run(watch, tmp_path, "audit", None)
    assert status == 0, words
    for answer in ("missing or other: 0", "doubled or other: 0"):  # Spark's progress between
        assert answer in words
    embedded.execute("DROP DATABASE shop SYNC")
