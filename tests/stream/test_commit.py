"""The commit of an epoch, with drivers that die, come back, come twice and come late."""

from __future__ import annotations

import itertools
import pickle
import random
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.moving import Claim
from sluice.clickhouse.schema import describe_table
from sluice.core.errors import TerminalError, TransientError
from sluice.stream import commit
from sluice.stream.commit import Epoch
from sluice.stream.errors import (
    AlreadyLoadedError,
    CheckpointSetBackError,
    HalfLoadedError,
    OtherCheckpointError,
    OtherTableError,
    OvertakenError,
)
from sluice.stream.marks import Mark, Marks
from sluice.stream.source import SluiceSink, Staged
from sluice.testbed.local.running import ClickHouse
from tests.stream.committing import DiedError, Mortal, Target
from tests.support.examples import examples
from tests.support.fixtures import fresh_database

_SCHEMA = StructType(
    [StructField("id", LongType(), False), StructField("text", StringType(), False)]
)


@pytest.fixture
def target(embedded_url: str) -> Iterator[Target]:
    for database in fresh_database(embedded_url):
        yield Target(embedded_url, database)


def test_rows_arrive_and_nothing_is_left(target: Target) -> None:
    epoch = target.stage(0)
    wanted = target.ids_of(epoch)
    target.committer().commit(epoch)
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_an_epoch_is_committed_once(target: Target) -> None:
    first, second = target.stage(4), target.stage(4)
    wanted = target.ids_of(first)
    assert target.committer().commit(first)
    assert not target.committer().commit(second)
    assert not target.committer().commit(first)
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_one_name_does_not_write_an_epoch_into_two_tables(target: Target) -> None:
    other = Target(target.url, target.database)
    other.query = target.query
    target.committer().commit(target.stage(0))
    late = other.stage(0)
    for repeated in (lambda: other.committer().commit(late), lambda: other.committer().knows(0)):
        with pytest.raises(OtherTableError, match=f"has written this epoch into .*{target.table}"):
            repeated()
    assert other.ids() == []


def test_spark_calls_commit_twice(target: Target) -> None:
    """With the same messages, in writers that know nothing of each other."""
    options = {"url": target.url, "database": target.database, "table": target.table}
    epoch = target.stage(3)
    wanted = target.ids_of(epoch)
    messages = [Staged("c", 3, (each,), 7) for each in epoch.winners]
    for _ in range(2):
        sink = SluiceSink({**options, "query": target.query})
        writer = pickle.loads(pickle.dumps(sink.streamWriter(_SCHEMA, False)))
        writer.commit(messages, 3)
        writer.abort(messages, 3)
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_an_epoch_without_tasks_finishes_what_was_sealed(target: Target) -> None:
    epoch = target.stage(0)
    wanted = target.ids_of(epoch)
    with pytest.raises(DiedError):
        target.committer(Mortal(target.url, 0, after=True)).commit(epoch)
    options = {"url": target.url, "database": target.database, "table": target.table}
    sink = SluiceSink({**options, "query": target.query})
    for _ in range(2):
        sink.streamWriter(_SCHEMA, False).commit([], 0)
        assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_a_batch_that_cannot_be_forgotten_is_loaded(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    epoch = target.stage(0)
    wanted = target.ids_of(epoch)
    sink = SluiceSink({"url": target.url, "database": target.database, "table": target.table})
    writer = sink.writer(_SCHEMA, False)
    monkeypatch.setattr(Marks, "drop_below", _fail_once(Marks.drop_below, fails_at=2))
    writer.commit([Staged("", 0, epoch.winners, epoch.rows)])
    assert target.ids() == wanted
    assert "Tables without rows that remembered it are left" in caplog.text


def test_a_sealed_batch_without_a_name_waits_for_its_server_and_is_finished_by_its_name(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else knows of it. Written again as it was, its rows would be there twice."""
    options = {"url": target.url, "database": target.database, "table": target.table}
    now, away_until = [0.0], [500.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def set_done(marks: Marks, mark: Mark) -> None:
        if now[0] < away_until[0]:
            raise TransientError("the server is away")
        done(marks, mark)

    done = Marks.set_done
    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(commit, "time", clock)
    monkeypatch.setattr(Marks, "set_done", set_done)
    first = target.stage(0)
    wanted = target.ids_of(first)
    SluiceSink(options).writer(_SCHEMA, False).commit([Staged("", 0, first.winners, first.rows)])
    assert target.ids() == wanted and now[0] >= 500
    away_until[0] = 1e9
    second = target.stage(0)
    wanted = sorted(wanted + target.ids_of(second))
    with pytest.raises(HalfLoadedError) as raised:
        SluiceSink(options).writer(_SCHEMA, False).commit(
            [Staged("", 0, second.winners, second.rows)]
        )
    assert now[0] >= 1_100
    away_until[0] = 0
    (name,) = re.findall(r'option\("query", "(batch .*?)"\)', raised.value.hint)
    with pytest.raises(AlreadyLoadedError):
        SluiceSink({**options, "query": name}).writer(_SCHEMA, False)
    assert target.ids() == wanted


def test_a_table_that_merges_rows_is_not_replaced(target: Target) -> None:
    ddl = "CREATE TABLE {name} (id Int64, text String) ENGINE = ReplacingMergeTree ORDER BY id"
    merging = Target(target.url, target.database, ddl)
    options = {"url": target.url, "database": target.database, "table": merging.table}
    with pytest.raises(TerminalError, match=r"is a ReplacingMergeTree.*merges some away"):
        SluiceSink(options).writer(_SCHEMA, True)
    with pytest.raises(TerminalError, match="merges some away"):
        SluiceSink({**options, "query": "q"}).streamWriter(_SCHEMA, True)
    SluiceSink(options).writer(_SCHEMA, False)


def _fail_once(method: Callable[..., None], fails_at: int) -> Callable[..., None]:
    calls = itertools.count(1)

    def call(*arguments: object) -> None:
        if next(calls) == fails_at:
            raise TransientError("the server is away")
        method(*arguments)

    return call


def test_a_batch_without_a_version_is_no_version_0(target: Target) -> None:
    options = {"url": target.url, "database": target.database, "table": target.table}
    sink = SluiceSink({**options, "query": target.query})
    epoch = target.stage(0)
    sink.writer(_SCHEMA, False).commit([Staged("", 0, epoch.winners, epoch.rows)])
    with pytest.raises(AlreadyLoadedError):
        sink.writer(_SCHEMA, False)
    versioned = {**options, "query": target.query, "version": "0"}
    with pytest.raises(OtherCheckpointError, match="under the checkpoint batch without version"):
        SluiceSink(versioned).writer(_SCHEMA, False)
    heir = SluiceSink({**versioned, "takeover": "batch without version"})
    wanted, later = target.ids(), target.stage(0)
    wanted = sorted(wanted + target.ids_of(later))
    heir.writer(_SCHEMA, False).commit([Staged("", 0, later.winners, later.rows)])
    assert target.ids() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("replaces", [False, True], ids=["append", "replace"])
def test_death_at_each_statement(target: Target, replaces: bool) -> None:
    """The next driver comes with other rows for the same epoch: all of one driver's are there.

    Before the next statement is after the one before it: a driver that is dead knows nothing."""
    before = target.stage(0)
    target.committer().commit(before)
    old = target.ids()
    number = 0
    while True:
        epoch = replace(target.stage(number + 1), replaces=replaces)
        again = replace(target.stage(number + 1), replaces=replaces)
        first, second = target.ids_of(epoch), target.ids_of(again)
        server = Mortal(target.url, number)
        try:
            target.committer(server).commit(epoch)
            break
        except DiedError:
            pass
        is_sealed = _latest_epoch(target) == number + 1
        target.committer().commit(again)
        arrived = first if is_sealed else second
        old = arrived if replaces else sorted(old + arrived)
        assert target.ids() == old, server.statements
        assert set(target.tables()) == {"mark"}
        number += 1
    assert number > 8


def _latest_epoch(target: Target) -> int:
    latest = target.committer().marks.latest()
    assert latest is not None
    return latest.epoch


@pytest.mark.examples
@pytest.mark.parametrize("seed", range(examples(12)))
def test_two_drivers_statement_by_statement(target: Target, seed: int) -> None:
    """Both have staged rows of their own for each epoch, or none, and their statements mix at
    random."""
    chance = random.Random(seed)
    epochs = [
        [target.stage(number, tasks=chance.choice((2, 2, 0))) for number in range(3)]
        for _ in range(2)
    ]
    staged = [[target.ids_of(epoch) for epoch in each] for each in epochs]
    turns = _Turns(chance, 2)
    failures = list[BaseException]()

    def drive(driver: int) -> None:
        server = _Taking(target.url, turns, driver)
        try:
            for epoch in epochs[driver]:
                _until_committed(target, server, epoch)
        except BaseException as error:
            failures.append(error)
        finally:
            turns.leave(driver)

    threads = [threading.Thread(target=drive, args=(driver,)) for driver in range(2)]
    for thread in threads:
        thread.start()
    turns.deal()
    for thread in threads:
        thread.join()
    assert [error for error in failures if not isinstance(error, CheckpointSetBackError)] == []
    for number in range(3):
        arrived = target.ids(f"text = 'epoch {number}'")
        assert arrived in (staged[0][number], staged[1][number])


def _until_committed(target: Target, server: Server, epoch: Epoch) -> None:
    for _ in range(50):
        try:
            target.committer(server).commit(epoch)
            return
        except OvertakenError:
            continue
        except Exception as error:
            if getattr(error, "code", 0) != 60:  # the other one took a table over
                raise
    raise AssertionError("never committed")


class _Turns:
    """Lets one of several threads run at a time, up to its next statement."""

    def __init__(self, chance: random.Random, count: int) -> None:
        self._chance = chance
        self._gates = {driver: threading.Semaphore(0) for driver in range(count)}
        self._back = threading.Semaphore(0)
        self._left = set[int]()

    def take(self, driver: int) -> None:
        self._back.release()
        self._gates[driver].acquire()

    def leave(self, driver: int) -> None:
        self._left.add(driver)
        self._back.release()

    def deal(self) -> None:
        for _ in self._gates:
            self._back.acquire()
        while present := sorted(set(self._gates) - self._left):
            self._gates[self._chance.choice(present)].release()
            self._back.acquire()


class _Taking(Server):
    """A client that waits for its turn before each statement."""

    def __init__(self, url: str, turns: _Turns, driver: int) -> None:
        super().__init__(url)
        self._turns = turns
        self._driver = driver

    def execute(self, *arguments: object, **more: object) -> str:
        self._turns.take(self._driver)
        return super().execute(*arguments, **more)  # type: ignore[arg-type]

    def insert(self, *arguments: object) -> InsertReply:  # type: ignore[override]
        self._turns.take(self._driver)
        return super().insert(*arguments)  # type: ignore[arg-type]


def test_drivers_that_run_at_the_same_time(target: Target) -> None:
    epochs = [target.stage(0, tasks=4) for _ in range(4)]
    staged = [target.ids_of(epoch) for epoch in epochs]
    with ThreadPoolExecutor(len(epochs)) as drivers:
        for outcome in [
            drivers.submit(_until_committed, target, Server(target.url), epoch) for epoch in epochs
        ]:
            outcome.result()
    assert target.ids() in staged
    assert set(target.tables()) == {"mark"}


def test_another_checkpoint_is_refused_and_may_take_over(target: Target) -> None:
    target.committer().commit(target.stage(5))
    before = target.ids()
    late = target.stage(0, checkpoint="d")
    with pytest.raises(OtherCheckpointError) as refused:
        target.committer(checkpoint="d").commit(late)
    assert "epoch 5" in str(refused.value)
    assert 'takeover = "c"' in refused.value.hint
    with pytest.raises(OtherCheckpointError):
        target.committer(checkpoint="d").check()
    assert target.ids() == before
    wanted = sorted(before + target.ids_of(late))
    target.committer(checkpoint="d", takeover="c").commit(late)
    target.committer(checkpoint="d", takeover="c").commit(late)
    assert target.ids() == wanted
    with pytest.raises(OtherCheckpointError):
        target.committer().commit(target.stage(6))
    assert target.ids() == wanted


def test_who_takes_over_finishes_what_was_sealed(target: Target) -> None:
    epoch = target.stage(5)
    wanted = target.ids_of(epoch)
    with pytest.raises(DiedError):
        target.committer(Mortal(target.url, 1)).commit(epoch)
    late = target.stage(0, checkpoint="d")
    wanted = sorted(wanted + target.ids_of(late))
    target.committer(checkpoint="d", takeover="c").commit(late)
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_a_checkpoint_that_was_set_back_is_refused(target: Target) -> None:
    for number in (0, 1):
        target.committer().commit(target.stage(number))
    before = target.ids()
    with pytest.raises(CheckpointSetBackError, match="epoch 0"):
        target.committer().commit(target.stage(0))
    assert target.ids() == before


def test_a_checkpoint_that_was_set_back_over_epochs_without_rows_is_refused(target: Target) -> None:
    """As in append mode with a watermark, where many epochs have none: the mark follows them."""
    target.committer().commit(target.stage(10))
    before = target.ids()
    drivers = [Mortal(target.url) for _ in range(3)]
    for number, server in zip((11, 12, 12), drivers, strict=True):
        target.committer(server).commit(Epoch(number, (), 0, False))
    assert target.tables() == {"mark": 1}
    planned_anew = target.stage(10)
    with pytest.raises(CheckpointSetBackError, match=r"with epoch 10 .* has epoch 12"):
        target.committer().commit(planned_anew)
    assert [len(server.statements) for server in drivers] == [2, 2, 0]
    later = target.stage(13)
    wanted = sorted(before + target.ids_of(later))
    target.committer().commit(later)
    assert target.ids() == wanted


def test_an_epoch_that_had_no_rows_may_come_again_with_some(target: Target) -> None:
    """Also where they were staged before, by somebody who was late."""
    target.committer().commit(target.stage(6))
    late = target.stage(7)
    wanted = sorted(target.ids() + target.ids_of(late))
    target.committer().commit(Epoch(7, (), 0, False))
    assert not target.committer().knows(7)
    assert target.committer().commit(late)
    assert target.committer().knows(7) and target.ids() == wanted
    for repeated in (late, target.stage(7), Epoch(7, (), 0, False)):
        assert not target.committer().commit(repeated)
    assert target.ids() == wanted
    assert target.tables() == {"mark": 1}


def test_a_late_mark_of_a_number_that_was_in_use_counts_nothing(target: Target) -> None:
    """A driver that stood still before it sealed finds the number free again."""
    committer = target.committer()
    late = target.stage(0)
    for number in range(3):
        target.committer().commit(target.stage(number))
    before = target.ids()
    with pytest.raises(OvertakenError):
        committer._seal(None, late)
    assert target.ids() == before
    mark = Mark(1, "c", 0, "sealed", target.table, tuple(late.winners), late.rows, "00000000")
    assert target.committer().marks.create(mark)  # and died before it looked again
    target.committer().commit(target.stage(3, rows=1))
    assert target.ids()[: len(before)] == before
    assert len(target.ids()) == len(before) + 2
    assert target.tables() == {"mark": 1}


def test_an_empty_epoch_leaves_nothing(target: Target) -> None:
    target.committer().commit(Epoch(0, (), 0, False))
    assert target.ids() == []
    assert target.tables() == {}


def test_a_running_server_is_told_from_one_that_was_restarted(
    target: Target, embedded_server: ClickHouse
) -> None:
    """Killed between the moves, and the server, too: what a restart leaves is settled by parts."""
    epoch = target.stage(0)
    wanted = target.ids_of(epoch)
    with pytest.raises(DiedError):
        target.committer(Mortal(target.url, 3, after=True)).commit(epoch)
    embedded_server.stop()
    embedded_server.start()
    target.committer(Server(target.url)).commit(target.stage(0))
    assert target.ids() == wanted


def test_a_restart_while_a_table_is_taken_over_is_seen(target: Target) -> None:
    """Its new mover began when the server's older life, in which a move was broken off, went on."""
    (staged,) = target.stage(0, tasks=1).winners
    name = f"{target.database}.{staged.table}"
    wanted = [row["id"] for row in target.server.query(f"SELECT id FROM {name} ORDER BY id")]
    claim = Claim("0" * 16, 0, "deadbeef00000000")
    held = f"{name}{claim.suffix}"
    target.server.execute(f"RENAME TABLE {name} TO {held}")
    table = f"{target.database}.{target.table}"
    target.server.execute(f"ALTER TABLE {table} ATTACH PARTITION ID '0' FROM {held}")
    facts = describe_table(target.server, target.database, target.table)
    commit.move_table(target.server, facts, staged, "1" * 16)
    assert target.ids() == wanted
