"""Mode direct: repeats are known by their tokens, while the window surely remembers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import InsertPlan
from sluice.clickhouse.schema import describe_table
from sluice.core.errors import ConfigurationError, InDoubtError, TerminalError, TransientError
from sluice.stream.columns import check_target
from sluice.stream.commit import Epoch
from sluice.stream.direct import Direct, read_memory
from sluice.stream.errors import CheckpointSetBackError, OtherCheckpointError
from sluice.stream.marks import Mark
from sluice.stream.staging import InsertManner
from sluice.testbed.local.running import running_clickhouse
from tests.stream.committing import Target, Unlisted
from tests.support.fixtures import fresh_database

_DDL = (
    "CREATE TABLE {name} (id Int64, text String) ENGINE = MergeTree ORDER BY id "
    "SETTINGS non_replicated_deduplication_window = 20"
)


class Task:
    """One attempt of a task of a stream in mode direct."""

    def __init__(self, target: Target, epoch: int, server: Server | None = None) -> None:
        self.target = target
        self.server = server or Server(target.url)
        self.epoch = epoch
        self.facts = describe_table(self.server, target.database, target.table)

    def begin(self, chunk_rows: int = 10) -> Mark:
        memory = read_memory(self.server, self.facts)
        return self.target.committer(self.server).begin(self.epoch, memory, chunk_rows)

    def insert(self, mark: Mark, batch_rows: int, rows: int = 25) -> int:
        """Numbers of the epoch, in Spark's batches of so many rows."""
        manner = InsertManner(insert_settings(read_capabilities(self.server)), "none", 30.0)
        direct = Direct(self.server, self.facts, mark, f"{self.epoch}/0", manner)
        first = self.epoch * 100
        batches = (
            pa.record_batch(
                {
                    "id": pa.array(range(begin, min(begin + batch_rows, first + rows))),
                    "text": pa.array(["x"] * (min(begin + batch_rows, first + rows) - begin)),
                }
            )
            for begin in range(first, first + rows, batch_rows)
        )
        return direct.insert(batches)


@pytest.fixture
def target(embedded_url: str) -> Iterator[Target]:
    for database in fresh_database(embedded_url):
        yield Target(embedded_url, database, _DDL)


def test_attempts_repeat_each_other_whatever_sparks_batches_are(target: Target) -> None:
    first, second = Task(target, 0), Task(target, 0)
    mark = first.begin()
    assert second.begin() == mark
    assert first.insert(mark, batch_rows=4) == 25
    assert second.insert(mark, batch_rows=25) == 25
    assert target.ids() == list(range(25))
    epoch = Epoch(0, (), 25, False, is_direct=True)
    target.committer().commit(epoch)
    target.committer().commit(epoch)
    assert Task(target, 0).begin().state == "done"
    assert target.ids() == list(range(25))
    assert target.tables() == {"mark": 1}


def test_an_epoch_keeps_the_size_of_its_chunks(target: Target) -> None:
    """A token names a chunk by its number: of another size, it would be other rows."""
    Task(target, 0).begin()
    with pytest.raises(
        ConfigurationError, match=r"batch_rows is 7, and epoch 0 .* with 10"
    ) as said:
        Task(target, 0).begin(chunk_rows=7)
    assert 'batch_rows = "10"' in said.value.hint
    target.committer().commit(Epoch(0, (), 25, False, is_direct=True))
    assert Task(target, 0).begin(chunk_rows=7).state == "done"
    assert Task(target, 1).begin(chunk_rows=7).chunk_rows == 7


def test_an_attempt_that_the_window_may_have_forgotten_is_refused(target: Target) -> None:
    task = Task(target, 0)
    mark = task.begin()
    task.insert(mark, batch_rows=25, rows=10)
    for number in range(10):
        target.server.execute(
            f"INSERT INTO {target.database}.{target.table} VALUES ({900 + number}, 'other')"
        )
    with pytest.raises(TerminalError, match=r"\d\d blocks came to .* keeps 20"):
        Task(target, 0).insert(mark, batch_rows=25)
    assert target.ids("id < 900") == list(range(10))


def test_an_attempt_is_refused_once_the_window_may_have_forgotten_by_time(target: Target) -> None:
    """A window of so many seconds, as Replicated tables have."""
    task = Task(target, 0)
    task.facts = replace(task.facts, window_seconds=3600)
    mark = task.begin()
    assert task.insert(mark, batch_rows=25, rows=10) == 10
    begun = replace(mark, since_ms=mark.since_ms - 1_700_000)
    assert task.insert(begun, batch_rows=25, rows=10) == 10
    with pytest.raises(TerminalError, match=r"since epoch 0 began: .* keeps blocks for 3600 s"):
        task.insert(replace(mark, since_ms=mark.since_ms - 1_810_000), batch_rows=25)
    assert target.ids() == list(range(10))


def test_an_attempt_is_refused_where_what_the_window_knows_may_have_gone_with_parts(
    embedded_url: str,
) -> None:
    ddl = (
        "CREATE TABLE {name} (id Int64, text String) ENGINE = SummingMergeTree ORDER BY text "
        "SETTINGS non_replicated_deduplication_window = 20"
    )
    for database in fresh_database(embedded_url):
        target = Target(embedded_url, database, ddl)
        task = Task(target, 0)
        with pytest.raises(TerminalError, match="may merge to no row") as said:
            check_target(task.facts, "direct", "Atomic")
        target.server.execute(said.value.hint.split(";")[0])
        mark = task.begin()
        task = Task(target, 0)
        check_target(task.facts, "direct", "Atomic")
        with pytest.raises(TerminalError, match="may have lost what its window knows"):
            task.insert(mark, batch_rows=25)  # parts may have gone between begin and ALTER
        assert target.ids() == []


def test_an_attempt_does_not_go_on_in_another_table(target: Target) -> None:
    """Its window knows nothing of what the first one has."""
    mark = Task(target, 0).begin()
    Task(target, 0).insert(mark, batch_rows=25, rows=10)
    names = [f"{target.database}.{name}" for name in (target.table, "other")]
    target.server.execute(f"CREATE TABLE {names[1]} AS {names[0]}")
    target.server.execute(f"EXCHANGE TABLES {names[0]} AND {names[1]}")
    with pytest.raises(TerminalError, match=r"another table .* than when epoch 0 began"):
        Task(target, 0).insert(Task(target, 0).begin(), batch_rows=25)
    assert target.ids() == []
    target.server.execute(f"EXCHANGE TABLES {names[0]} AND {names[1]}")
    view = f"{target.database}.v TO {names[1]} AS SELECT id, text FROM {names[0]}"
    target.server.execute(f"CREATE MATERIALIZED VIEW {view}")
    with pytest.raises(TerminalError, match=r"another table .* or is written to"):
        Task(target, 0).insert(mark, batch_rows=25)
    target.server.execute(f"DROP TABLE {target.database}.v SYNC")
    Task(target, 0).insert(mark, batch_rows=25)
    assert target.ids() == list(range(25))


def test_no_epoch_is_begun_and_no_chunk_sent_while_a_server_does_not_list_the_target(
    target: Target,
) -> None:
    """A mark that did not know its table took it for another one for ever."""
    task = Task(target, 0, Unlisted(target))
    with pytest.raises(TransientError, match=f"does not list .*{target.table} now"):
        task.begin()
    assert target.tables() == {}
    mark = task.begin()
    assert mark.uuids == (task.facts.uuid,)
    client = Unlisted(target)
    assert Task(target, 0, client).insert(mark, batch_rows=25, rows=10) == 10
    assert target.ids() == list(range(10)) and client.looks == 2


def test_an_epoch_that_was_begun_directly_is_not_ended_otherwise(target: Target) -> None:
    task = Task(target, 3)
    task.insert(task.begin(), batch_rows=25)
    with pytest.raises(CheckpointSetBackError, match="mode direct"):
        target.committer().commit(target.stage(3))
    with pytest.raises(CheckpointSetBackError, match="was begun and not ended"):
        Task(target, 4).begin()
    target.committer().commit(Epoch(3, (), 25, False, is_direct=True))
    later = target.stage(4)
    wanted = sorted(list(range(300, 325)) + target.ids_of(later))
    target.committer().commit(later)
    assert target.ids() == wanted


def test_an_epoch_that_was_begun_directly_is_not_taken_over(target: Target) -> None:
    task = Task(target, 3)
    task.insert(task.begin(), batch_rows=25)
    heir = target.committer(checkpoint="d", takeover="c")
    late = target.stage(0, checkpoint="d")
    for refused in (lambda: heir.commit(late), lambda: heir.knows(0), heir.check):
        with pytest.raises(OtherCheckpointError, match=r"has begun epoch 3 .* with mode direct"):
            refused()
    assert target.ids() == list(range(300, 325))
    target.committer().commit(Epoch(3, (), 25, False, is_direct=True))
    heir.commit(late)
    assert len(target.ids()) == 25 + late.rows


def test_nothing_is_repeated_after_a_restart_of_the_server(tmp_path: Path) -> None:
    """It may know blocks whose parts it lost."""
    with running_clickhouse(tmp_path) as server:
        Server(server.url).execute("CREATE DATABASE d")
        target = Target(server.url, "d", _DDL)
        mark = Task(target, 0).begin()
        server.stop()
        server.start()
        with pytest.raises(TerminalError, match="was restarted while epoch 0"):
            Task(target, 0).insert(mark, batch_rows=25)
        assert target.ids() == []


class Failing(Server):
    """A client: its first insert is stored, then something happens, and the answer is lost.

    :param answers: what happened came before the insert, which was a repeat, and is answered.
    """

    def __init__(self, url: str, happens: Callable[[], None], *, answers: bool = False) -> None:
        super().__init__(url)
        self._happens = happens
        self._answers = answers
        self.inserts = 0

    def insert(self, plan: InsertPlan, *arguments: Any) -> InsertReply:
        self.inserts += 1
        reply = super().insert(plan, *arguments)
        if self.inserts == 1:
            self._happens()
            if not self._answers:
                raise InDoubtError("the answer was lost")
            reply = super().insert(plan, *arguments)
        return reply


@pytest.mark.parametrize("answers", [False, True], ids=["repeat", "answer"])
def test_a_chunk_that_a_restarted_server_only_knows_is_not_taken_for_stored(
    tmp_path: Path, answers: bool
) -> None:
    """The last chunk of a task: no other one looks after it."""
    with running_clickhouse(tmp_path) as server:
        Server(server.url).execute("CREATE DATABASE d")
        target = Target(server.url, "d", _DDL)
        mark = Task(target, 0).begin()

        def happens() -> None:
            delete = f"ALTER TABLE d.{target.table} DELETE WHERE 1"
            Server(server.url).execute(delete, settings={"mutations_sync": "2"})
            server.stop()
            server.start()

        client = Failing(server.url, happens, answers=answers)
        with pytest.raises(TerminalError, match="was restarted while epoch 0"):
            Task(target, 0, client).insert(mark, batch_rows=25, rows=10)
        assert client.inserts == 1 and target.ids() == []


def test_a_chunk_is_not_repeated_after_others_have_filled_the_window(target: Target) -> None:
    mark = Task(target, 0).begin()

    def happens() -> None:
        for number in range(20):
            row = f"({900 + number}, 'other')"
            target.server.execute(f"INSERT INTO {target.database}.{target.table} VALUES {row}")

    with pytest.raises(TerminalError, match=r"\d\d blocks came to .* keeps 20"):
        client = Failing(target.url, happens)
        Task(target, 0, client).insert(mark, batch_rows=25, rows=10)
    assert target.ids("id < 900") == list(range(10))
