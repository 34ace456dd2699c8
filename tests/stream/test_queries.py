"""Real streaming queries, killed and restarted: every value is in the table once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.http import Server
from tests.stream.query_program import DDL, ROWS, Program
from tests.stream.striking import Watch, run_watch
from tests.support.fixtures import fresh_database

_RUN_SECONDS_MAX = 600


@dataclass
class Query:
    """A query, a table of its own, and the process that runs it."""

    server: Server
    watch: Watch
    program: Program
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    killed_at: str = ""
    count: int = field(default=0)

    def start(self, **changes: Any) -> None:
        self.count += 1
        program = replace(self.program, **changes)
        log = (self.folder / f"run{self.count}.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.stream.query_program", program.text()],
            stderr=log,
            stdout=log,
            start_new_session=True,
        )

    def wait(self) -> str:
        """Until it ends; its last words."""
        assert self.process is not None
        self.process.wait(_RUN_SECONDS_MAX)
        self.kill()
        return (self.folder / f"run{self.count}.log").read_text(errors="replace")

    def run(self, **changes: Any) -> str:
        self.start(**changes)
        return self.wait()

    def kill(self) -> None:
        """Spark's driver, its JVM and its workers at once."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_at(self, number: int, *, after: bool) -> None:
        """When the nth statement from now on comes, or is done."""
        first = len(self.watch.statements)

        def strike(statement: str) -> None:
            if len(self.watch.statements) == first + number + 1 and not self.killed_at:
                self.killed_at = statement
                self.kill()

        self.killed_at = ""
        self.watch.before = self.watch.after = lambda statement: None
        setattr(self.watch, "after" if after else "before", strike)

    def spare(self) -> None:
        self.watch.before = self.watch.after = lambda statement: None

    def rows(self) -> list[dict[str, Any]]:
        table = f"{self.program.database}.{self.program.table}"
        return self.server.query(f"SELECT * FROM {table} ORDER BY value")

    def assert_exact(self) -> int:
        """Each value of the epochs that are there is there once; gives how many epochs."""
        rows = self.rows()
        assert [row["value"] for row in rows] == list(range(len(rows)))
        assert all(row["text"] == f"v{row['value']}" for row in rows)
        assert len(rows) % ROWS == 0
        return len(rows) // ROWS

    def assert_whole(self) -> None:
        """All rows of a task are of one attempt of it."""
        attempts = dict[tuple[int, int], set[str]]()
        for row in self.rows():
            place = row["value"] // ROWS, row["value"] % ROWS % self.program.tasks
            attempts.setdefault(place, set()).add(row["attempt"])
        assert all(len(each) == 1 for each in attempts.values()), attempts


@pytest.fixture
def query(embedded_url: str, tmp_path: Path) -> Iterator[Query]:
    name = f"q {uuid.uuid4().hex[:8]}"
    for database in fresh_database(embedded_url):
        server = Server(embedded_url)
        server.execute(DDL.format(name=f"{database}.t"))
        with run_watch(embedded_url) as watch:
            checkpoint = str(tmp_path / "checkpoint")
            program = Program(watch.url, database, "t", name, checkpoint, 1)
            running = Query(server, watch, program, tmp_path)
            try:
                yield running
            finally:
                if running.process is not None:
                    running.kill()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_at_each_statement(query: Query) -> None:
    """kill -9 of the query's processes at each statement of an epoch; rand() makes other rows each
    time. The restarted query is killed at the next one."""
    seen = list[str]()
    for number in range(12):
        query.kill_at(number, after=number % 2 == 0)
        query.run(last_epoch=1_000)
        seen.append(query.killed_at)
    query.spare()
    epochs = query.assert_exact()
    query.run(last_epoch=epochs + 1)
    assert query.assert_exact() > epochs
    query.assert_whole()
    for kind in ("CREATE", "INSERT", "RENAME", "ALTER", "DROP"):
        assert any(kind in statement for statement in seen), seen


@pytest.mark.long
def test_the_last_entry_of_the_commit_log_is_deleted(query: Query) -> None:
    query.run(last_epoch=1)
    epochs = query.assert_exact()
    before = query.rows()
    log = Path(query.program.checkpoint) / "commits"
    last = max(int(each.name) for each in log.iterdir() if each.name.isdecimal())
    for each in (log / str(last), log / f".{last}.crc"):
        each.unlink(missing_ok=True)
    query.run(last_epoch=last + 1)
    assert query.assert_exact() > epochs
    assert query.rows()[: len(before)] == before


@pytest.mark.long
def test_a_lost_checkpoint_is_refused_with_words(query: Query) -> None:
    query.run(last_epoch=1)
    before = query.rows()
    words = query.run(checkpoint=f"{query.program.checkpoint}2", last_epoch=3)
    assert "OtherCheckpointError" in words
    assert "would be in the table twice" in words
    assert query.rows() == before
