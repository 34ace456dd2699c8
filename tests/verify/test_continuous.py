"""The audit of what was settled lately, the verifier that goes on, and how they leave room."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import confluent_kafka as ck
import pytest

from sluice.clickhouse.http import Server
from sluice.kafka.log import SourceLog
from sluice.verify.audit import AuditReport, audit
from sluice.verify.audit_source import Reached, Recent
from sluice.verify.continuous import Begin, Turn, audit_on
from sluice.verify.pace import Pace
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka, numbered
from tests.verify.test_audit import Scene, only, sums


@pytest.fixture
def scene(tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str) -> Iterator[Scene]:
    for database in fresh_database(embedded_url):
        yield Scene(tmp_path, kafka, embedded, database)


def test_each_range_is_compared_once_soon_after_it_was_settled(scene: Scene) -> None:
    scene.create()
    topic = scene.kafka.topic(2)
    scene.kafka.produce(topic, numbered(30), 0)
    scene.kafka.produce(topic, numbered(30), 1)
    scene.load(topic, [o for o in range(10) if o != 3])
    scene.settle(topic, 10)
    ledger: dict[str, Reached] = {}

    def look(pace: Pace | None = None) -> AuditReport:
        return audit(scene.configuration(topic), 4, recent=Recent(0, pace or Pace(), ledger))

    first = look()
    assert (first.covered, first.left_out, sums(first)) == (10, 0, (10, 9, 0, 0, 1, 0, 0))
    assert list(first.where()) == [
        f"missing: dc1 {topic}[0] offsets [3, 4) in {scene.database}.orders"
    ]
    again = look()
    assert (again.covered, again.partitions) == (0, ())
    scene.load(topic, range(30), 0)
    scene.load(topic, [*range(10, 20), 12], 1)
    scene.dead_letter(topic, 21)
    scene.settle(topic, 20, partition=1, start=10)
    second = look()
    assert only(second).doubled_at == [(12, 13)]
    assert (second.covered, second.missing, second.doubled) == (10, 0, 1)
    scene.settle(topic, 30, start=10)
    third = look()  # the dead letter has a row, too; what is below 10 was looked at
    assert (third.covered, only(third).doubled_at, third.missing) == (20, [(21, 22)], 0)


def test_the_newest_are_compared_first_and_what_there_is_no_time_for_is_left_out(
    scene: Scene,
) -> None:
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    scene.settle(topic, 10)
    report = audit(scene.configuration(topic), 4, recent=Recent(0, Pace(within_seconds=0)))
    assert (report.covered, report.left_out) == (2, 8)
    assert only(report).missing_at == [(8, 10)]
    report = audit(scene.configuration(topic), 4, recent=Recent(1 << 50, Pace()))
    assert (report.covered, report.left_out) == (0, 0)


def first_look(scene: Scene, topic: str, begin: Begin) -> Turn:
    configuration = scene.configuration(topic, more='[audit]\nevery = "1s"\nshare = 1.0\n')
    stop, told = threading.Event(), list[Turn]()

    def tell(turn: Turn) -> None:
        told.append(turn)
        stop.set()

    assert configuration.audit is not None
    audit_on(configuration, configuration.audit, begin, stop, tell)
    return told[0]


def test_a_driver_s_first_look_takes_what_was_settled_last_however_long_nothing_ran(
    scene: Scene,
) -> None:
    """It began so long before the start, and the last ranges were never compared."""
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    scene.load(topic, [o for o in range(10) if o != 3])
    now_ms = time.time_ns() // 1_000_000
    ledger, producer = (
        f"sluice.{scene.name}.ledger",
        ck.Producer({"bootstrap.servers": scene.kafka.brokers}),
    )
    scene.kafka.topic(1, ledger)
    for offset in (0, 10):
        where = {"connector": "dc1", "topic": topic, "partition": 0}
        body = {"type": "record", **where, "begin": offset, "end": offset, "at_ms": 0}
        producer.produce(ledger, json.dumps(body).encode(), timestamp=now_ms - 3_600_000)
    assert producer.flush(30) == 0
    found = first_look(scene, topic, Begin(now_ms))
    assert (found.error, found.covered, found.problems["missing"]) == ("", 10, 1)
    # A process that is started again goes on where the last look of this driver began.
    found = first_look(scene, topic, Begin(now_ms, {"audit": now_ms - 1_800_000}))
    assert (found.error, found.covered) == ("", 0)
    found = first_look(scene, topic, Begin(now_ms, {"audit": now_ms - 3_600_000}))
    assert (found.error, found.covered) == ("", 10)


def test_work_takes_its_share_of_the_time_and_no_more() -> None:
    began, worked, pace = time.monotonic(), 0.0, Pace(share=0.2)
    for _ in range(5):
        since = time.monotonic()
        while time.monotonic() - since < 0.01:
            pass
        worked += time.monotonic() - since
        pace.rest()
    assert worked / (time.monotonic() - began) <= 0.21
    assert not pace.is_over and Pace(within_seconds=0).is_over


class Unrested(threading.Event):
    """Nobody rests; it is kept for how long it would be."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += timeout or 0.0
        return False


def test_no_rest_pays_for_a_wait_for_open_transactions(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a wait of a minute was followed by a rest of nine, and offsets were left out."""
    monkeypatch.setattr(SourceLog, "wait_until_committed", lambda *_: time.sleep(3.0))
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(4))
    scene.load(topic, range(4))
    scene.settle(topic, 4)
    rests = Unrested()
    began = time.monotonic()
    report = audit(scene.configuration(topic), recent=Recent(0, Pace(share=0.5, stop=rests)))
    # At half of the time each rest is as long as the work before it.
    assert report.covered == 4 and 0 < rests.seconds <= time.monotonic() - began - 3.0


def test_a_wait_leaves_as_much_time_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, now = Pace(within_seconds=60), time.monotonic()
    monkeypatch.setattr("sluice.verify.pace.time", SimpleNamespace(monotonic=lambda: now))
    with pace.waiting():
        now += 100
    assert not pace.is_over
    now += 100
    assert pace.is_over


def test_a_rest_ends_when_it_is_told_to_stop() -> None:
    stop = threading.Event()
    pace = Pace(share=0.001, stop=stop)
    threading.Timer(0.2, stop.set).start()
    time.sleep(0.1)
    began = time.monotonic()
    pace.rest()  # of a hundred seconds
    assert time.monotonic() - began < 50 and pace.is_over


def test_a_log_is_read_to_its_end_with_rests() -> None:
    pace = Pace(share=1.0, within_seconds=0)
    assert list(pace.through(range(1201))) == list(range(1201))
