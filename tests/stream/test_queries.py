"""Real streaming queries, killed and restarted: every value is in the table once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.http import Server
from sluice.testbed.chaos.spark_cluster import running_spark, spark_settings
from sluice.testbed.local.processes import usage
from tests.stream.query_program import DDL, ROWS, Attempt, Program, read_attempts
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


#: Two executors with one core each, all of them processes.
_EXECUTORS: dict[str, Any] = {
    "master": "local-cluster[2,1,1024]",
    "tasks": 4,
    "properties": {
        **spark_settings(),
        # Several batches, so that an attempt has rows in its table before it ends.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
    },
    "options": {"batch_rows": "3"},
}


def _executor_of(pid: int) -> int:
    """The JVM above a Python worker."""
    while (found := usage(pid)) is not None and not found.name.startswith("java"):
        pid = found.parent
    return pid


@pytest.mark.long
def test_an_executor_is_killed_while_it_writes(query: Query) -> None:
    """SIGKILL to the executor that made its table, and in a later epoch to one whose rows arrive
    when it is dead. The tasks are repeated beside what is left of it."""
    attempts = query.folder / "attempts"
    attempts.mkdir()
    struck = dict[str, Attempt]()

    def strike(kind: str, epoch: int, statement: str) -> None:
        found = re.match(rf"{kind}.*?sluice_[0-9a-f]{{12}}_[0-9a-f]{{8}}_{epoch}_(\d+)_", statement)
        if found is None or kind in struck:
            return
        mine = [
            a for a in read_attempts(attempts) if (a.epoch, a.partition) == (epoch, int(found[1]))
        ]
        struck[kind] = max(mine, key=lambda each: each.number)
        os.kill(_executor_of(struck[kind].pid), signal.SIGKILL)

    query.watch.after = lambda statement: strike("CREATE TABLE", 0, statement)
    query.watch.before = lambda statement: strike("INSERT INTO", 1, statement)
    query.program = replace(query.program, **_EXECUTORS, attempts=str(attempts))
    words = query.run(last_epoch=2)
    assert len(struck) == 2, (struck, words)
    assert query.assert_exact() >= 3, words
    query.assert_whole()
    all_attempts = read_attempts(attempts)
    for dead in struck.values():
        assert any(
            (each.epoch, each.partition) == (dead.epoch, dead.partition)
            and each.number > dead.number
            for each in all_attempts
        ), (dead, all_attempts)


@pytest.mark.long
def test_two_attempts_of_a_task_write_at_once(query: Query) -> None:
    """Speculation: an attempt whose answer does not come has staged rows, and goes on when a second
    attempt of the task has staged its own beside it."""
    properties = {
        **_EXECUTORS["properties"],
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "50ms",
    }
    met = set[int]()

    def tables_of_first_task(kind: str, epoch: int) -> set[str]:
        with query.watch.lock:
            statements = list(query.watch.statements)
        pattern = rf"{kind}.*?(sluice_[0-9a-f]{{12}}_[0-9a-f]{{8}}_{epoch}_0_[0-9a-f]{{12}})"
        return {found[1] for each in statements if (found := re.match(pattern, each))}

    def hold(statement: str) -> None:
        found = re.match(r"INSERT INTO.*?sluice_[0-9a-f]{12}_[0-9a-f]{8}_(\d+)_0_", statement)
        if found is None or int(found[1]) > 2:
            return
        epoch, until = int(found[1]), time.monotonic() + 120
        while len(tables_of_first_task("INSERT INTO", epoch)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        if len(tables_of_first_task("INSERT INTO", epoch)) == 2:
            met.add(epoch)

    query.watch.after = hold
    with running_spark(query.folder / "cluster", ("127.0.0.1", "127.0.0.2")) as cluster:
        changes = {**_EXECUTORS, "properties": properties, "master": cluster.master}
        query.program = replace(query.program, **changes)
        words = query.run(last_epoch=2)
    assert met == {0, 1, 2}, words
    assert query.assert_exact() >= 3, words
    query.assert_whole()
