"""Finding, replaying and purging dead letters, on a real broker."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import NewPartitions

from sluice.config import Configuration, load
from sluice.core.receipts import Origin
from sluice.kafka import clients
from sluice.kafka.errors import UnknownCommitError
from sluice.kafka.replaying import DeadLetterWriter, OvertakenError, replayed_message
from sluice.kafka.waiting import Waiting
from sluice.ops.dead_letters import (
    Count,
    DeadLetterSelection,
    NoSuchDeadLetterError,
    advice,
    find,
    find_one,
    summarise,
)
from sluice.ops.dead_letters_purging import NothingToPurgeError, plan_purge
from sluice.ops.dead_letters_replaying import ReplayReport, plan_replay, replay
from tests.kafka.groups import NOW
from tests.ops.dead_letters import ALL, DeadLetters, offsets_of, pipeline
from tests.support.kafka import Kafka, wait_for_leaders

__all__ = ["pipeline"]


@pytest.mark.slow
def test_filters(pipeline: DeadLetters) -> None:
    pipeline.write(1, 2, reason="cannot-parse")
    pipeline.write(3, table="other", column="")
    pipeline.write(4, connector="elsewhere.dc1")  # of another pipeline with the same topic
    pipeline.write(9, origin=Origin(pipeline.topic, 0, 5, NOW), attempt=2)
    assert offsets_of(pipeline, ALL) == [1, 2, 3, 9]
    assert offsets_of(pipeline, DeadLetterSelection(reason="cannot-parse")) == [1, 2]
    assert offsets_of(pipeline, DeadLetterSelection(table="other")) == [3]
    assert offsets_of(pipeline, DeadLetterSelection(topic="elsewhere")) == []
    assert offsets_of(pipeline, DeadLetterSelection(before_ms=NOW + 2)) == [1]
    assert offsets_of(pipeline, DeadLetterSelection(connector="dc1", offset=5)) == [9]
    assert offsets_of(pipeline, DeadLetterSelection(offset=9)) == [9]


def test_a_look_opens_one_client_however_many_partitions_there_are(
    pipeline: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each logs in, which takes a second with OAuth; beside it one asks how many there are."""
    pipeline.write(1, 2)
    more = pipeline.kafka.admin.create_partitions([NewPartitions(pipeline.dead_letters, 5)])
    more[pipeline.dead_letters].result(30)
    wait_for_leaders(pipeline.kafka.admin, pipeline.dead_letters, 5)
    made, make = list[str](), clients._make

    def counting(kind: Any, *rest: Any, **own: Any) -> Any:
        made.append(kind.__name__)
        return make(kind, *rest, **own)

    monkeypatch.setattr(clients, "_make", counting)
    assert offsets_of(pipeline, ALL) == [1, 2]
    assert sorted(made) == ["AdminClient", "Consumer"]
    made.clear()
    assert plan_purge(pipeline.configuration, ALL).dead_letters == 2
    assert sorted(made) == ["AdminClient", "Consumer", "Consumer"], "one sees open transactions"
    made.clear()
    waiting = Waiting(pipeline.kafka.access(), pipeline.dead_letters, f"{pipeline.pipeline}.dc1")
    waiting.look(lambda messages: messages)
    assert sum(waiting.by_table().values()) == 2
    assert sorted(made) == ["AdminClient", "Consumer"]


def test_since_reads_from_there_on(pipeline: DeadLetters) -> None:
    pipeline.write(1, attempted_at_ms=0)  # of a version before this header: the record's time
    assert offsets_of(pipeline, DeadLetterSelection(since_ms=1000)) == [1]
    assert offsets_of(pipeline, DeadLetterSelection(since_ms=NOW)) == []


def test_one_message_and_what_to_do(pipeline: DeadLetters) -> None:
    pipeline.write(1, reason="out-of-range")
    pipeline.write(1, reason="no-route", table="")
    first, second = find_one(
        pipeline.configuration, DeadLetterSelection(topic=pipeline.topic, partition=0, offset=1)
    )
    assert "widen the column" in advice(first) and "--offset 1" in advice(first)
    assert "No table entry takes the message" in advice(second)
    with pytest.raises(NoSuchDeadLetterError, match="offset 2"):
        find_one(
            pipeline.configuration, DeadLetterSelection(topic=pipeline.topic, partition=0, offset=2)
        )


@pytest.mark.slow
def test_summary(pipeline: DeadLetters) -> None:
    pipeline.fill(10)
    pipeline.write(1, 2, 3, reason="a")
    pipeline.write(4, table="other", reason="b")
    assert pipeline.replay(DeadLetterSelection(offset=2)).replayed == 1
    assert summarise(find(pipeline.configuration, ALL)) == [
        Count("dc1", "orders", "a", 3, 2, NOW + 1, NOW + 3),
        Count("dc1", "other", "b", 1, 1, NOW + 4, NOW + 4),
    ]


def test_nothing_ever_ran(pipeline: DeadLetters) -> None:
    pipeline.kafka.delete_topic(pipeline.dead_letters)
    assert offsets_of(pipeline, ALL) == []
    with pytest.raises(NothingToPurgeError):
        plan_purge(pipeline.configuration, ALL)


# Replaying


@pytest.mark.slow
def test_a_replay_writes_each_message_once(pipeline: DeadLetters) -> None:
    pipeline.fill(10)
    pipeline.write(3, 5, 7)
    plan = plan_replay(pipeline.configuration, DeadLetterSelection(), limit=2)
    assert (plan.dead_letters, plan.replayed_before) == (2, 0)
    assert "produce 2 messages" in plan.steps()[0] and "table entry orders" in plan.steps()[0]
    assert replay(pipeline.configuration, plan) == ReplayReport(replayed=2)
    assert replay(pipeline.configuration, plan) == ReplayReport(replayed_before=2)
    *_, third, fifth = pipeline.written()
    assert (third.key(), third.value()) == (b"key", b"3")
    headers = dict(fifth.headers())
    assert headers["trace"] == b"t" and headers["empty"] is None
    assert headers["sluice.table"] == b"orders"
    assert headers["sluice.origin"] == f"{pipeline.topic}/0/5".encode()
    assert headers["sluice.attempt"] == b"2"
    assert pipeline.replay() == ReplayReport(replayed=1)
    again = plan_replay(pipeline.configuration, ALL)
    assert (again.dead_letters, again.replayed_before) == (0, 3)
    assert len(pipeline.written()) == 13
    marked = [found.replayed for found in find(pipeline.configuration, ALL)]
    assert all(mark is not None and "@" in mark.by for mark in marked)
    assert offsets_of(pipeline, DeadLetterSelection(replayed=False)) == []


def test_many_dead_letters_go_in_several_transactions(
    pipeline: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.ops.dead_letters_replaying._BATCH_LETTERS", 10)
    pipeline.fill(35)
    pipeline.write(*range(35))
    assert pipeline.replay() == ReplayReport(replayed=35)
    assert sorted(int(m.value()) for m in pipeline.written()[35:]) == list(range(35))


@pytest.mark.slow
def test_a_replay_that_died_is_as_if_it_never_was(pipeline: DeadLetters) -> None:
    pipeline.fill(10)
    pipeline.write(3)
    (found,) = find(pipeline.configuration, ALL)
    dead = DeadLetterWriter(pipeline.kafka.access(), pipeline.dead_letters)
    dead.open()
    producer = dead._producer
    assert producer is not None
    producer.begin_transaction()
    message = replayed_message(pipeline.dead_letters, found.stored)
    producer.produce(pipeline.topic, message.value, message.key, partition=0)
    producer.flush(30)  # it wrote, and was killed before it committed
    assert pipeline.replay() == ReplayReport(replayed=1)
    assert [int(m.value()) for m in pipeline.written()[10:]] == [3]
    with pytest.raises(ck.KafkaException):
        producer.commit_transaction(15)  # it was only paused, and comes back
    assert len(pipeline.written()) == 11


@pytest.mark.slow
def test_two_operators_at_once(pipeline: DeadLetters, monkeypatch: pytest.MonkeyPatch) -> None:
    """One looks, the other looks and replays, then the first one wants to replay."""
    pipeline.fill(10)
    pipeline.write(3, 5)
    plan = plan_replay(pipeline.configuration, ALL)
    looked, go = threading.Event(), threading.Event()
    real = DeadLetterWriter.write

    def wait_and_write(self: DeadLetterWriter, messages: object) -> None:
        looked.set()
        assert go.wait(60)
        real(self, messages)  # type: ignore[arg-type]

    errors: list[BaseException] = []

    def first() -> None:
        try:
            replay(pipeline.configuration, plan)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(DeadLetterWriter, "write", wait_and_write)
    thread = threading.Thread(target=first)
    thread.start()
    assert looked.wait(60)
    monkeypatch.setattr(DeadLetterWriter, "write", real)
    assert pipeline.replay() == ReplayReport(replayed=2)
    go.set()
    thread.join(60)
    assert [type(error) for error in errors] == [OvertakenError]
    assert sorted(int(m.value()) for m in pipeline.written()[10:]) == [3, 5]


def test_a_replay_that_is_killed_goes_on_where_it_was(pipeline: DeadLetters) -> None:
    count = 3000
    pipeline.fill(1)
    pipeline.write(*range(count))
    command = [sys.executable, "-m", "sluice", "dead-letters", "replay", str(pipeline.path)]
    process = subprocess.Popen([*command, "--yes"], stdout=subprocess.DEVNULL)
    pipeline.kafka.until(
        lambda: process.poll() is not None or pipeline.kafka.written_end(pipeline.topic) > 700, 90
    )
    process.kill()
    process.wait()
    report = pipeline.replay()
    assert report.refused == 0
    assert sorted(int(m.value()) for m in pipeline.written()[1:]) == list(range(count))
    assert plan_replay(pipeline.configuration, ALL).replayed_before == count


@pytest.mark.slow
@pytest.mark.parametrize("is_committed", [True, False])
def test_an_unknown_outcome_is_found_out(
    is_committed: bool, pipeline: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.fill(10)
    pipeline.write(3, 5)
    real: Callable[..., None] = DeadLetterWriter.write
    calls: list[int] = []

    def unknown(self: DeadLetterWriter, messages: object) -> None:
        calls.append(1)
        if len(calls) > 1 or is_committed:
            real(self, messages)
        if len(calls) == 1:
            raise UnknownCommitError("no answer")

    monkeypatch.setattr(DeadLetterWriter, "write", unknown)
    assert pipeline.replay() == ReplayReport(replayed=2)
    assert sorted(int(m.value()) for m in pipeline.written()[10:]) == [3, 5]


def test_a_cut_letter_is_read_from_its_topic_again(pipeline: DeadLetters) -> None:
    pipeline.fill(10)
    whole = pipeline.written()[4]
    pipeline.write(
        4,
        value=None,
        key=None,
        headers=(),
        truncated=True,
        timestamp_ms=whole.timestamp()[1],
    )
    assert pipeline.replay() == ReplayReport(replayed=1)
    assert pipeline.written()[-1].value() == whole.value()


@pytest.mark.parametrize("what", ["expired", "another"])
def test_a_cut_letter_whose_message_is_gone_is_refused(pipeline: DeadLetters, what: str) -> None:
    pipeline.fill(10)
    timestamp_ms = pipeline.written()[4].timestamp()[1]
    if what == "expired":
        pipeline.kafka.delete_records(pipeline.topic, 5)
    else:
        timestamp_ms += 1
    pipeline.write(4, value=None, key=None, truncated=True, timestamp_ms=timestamp_ms)
    report = pipeline.replay()
    assert (report.replayed, report.refused) == (0, 1)
    assert "was cut" in report.refusals[0].why
    assert len(pipeline.written()) == (5 if what == "expired" else 10)


@pytest.mark.slow
def test_what_has_no_place_any_more_is_refused(pipeline: DeadLetters, tmp_path: Path) -> None:
    pipeline.fill(10)
    pipeline.write(1, table="renamed")
    pipeline.write(2, partition=7)
    pipeline.write(3, topic="elsewhere")
    pipeline.write(4)
    report = pipeline.replay()
    assert (report.replayed, report.refused) == (1, 3)
    first, second, third = (refusal.why for refusal in report.refusals)
    assert "no table entry renamed" in first
    assert "no partition 7" in second
    assert "does not load the topic elsewhere" in third
    assert len(plan_replay(pipeline.configuration, ALL).places["dc1"]) == 3


def test_a_message_that_its_topic_does_not_take_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    pipeline = DeadLetters(kafka, tmp_path)
    small = kafka.topic(max_message_bytes="2000")
    pipeline.write(1, topic=small, value=b"x" * 1900)
    pipeline.path.write_text(pipeline.path.read_text().replace(pipeline.topic, small))
    configuration: Configuration = load(pipeline.path, {})
    report = replay(configuration, plan_replay(configuration, ALL))
    assert (report.replayed, report.refused) == (0, 1)
    assert "takes 2000" in report.refusals[0].why
    pipeline.close()


# Purging
