"""The verifier on a real broker: both sources, a person's decisions, foreign hands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sluice.config import load
from sluice.core.anomalies import Anomaly, Event, Place
from sluice.core.errors import TerminalError
from sluice.core.ledger import (
    Background,
    Commit,
    LedgerEntry,
    checkpoint_entries,
    receipt_entry,
    record_entry,
    settled_entry,
    spec_entry,
)
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.ranges import Range
from sluice.core.receipts import DeadLetter, Loaded, Receipt
from sluice.core.records import Kind, Record
from sluice.kafka.errors import kafka_error
from sluice.kafka.recorder import Recorder
from sluice.ops.partition_decisions.carrying_out import apply
from sluice.ops.partition_decisions.positions import plan_adopt, plan_rewind
from sluice.ops.partition_decisions.resolving import plan_resolve
from sluice.ops.verify_metrics import VerifierCollector
from sluice.verify import history as history_module
from sluice.verify import verifier as verifier_module
from sluice.verify.verifier import Source, Verifier, VerifyReport, follow, verify
from tests.core.histories import Writer
from tests.kafka.groups import NOW, letter
from tests.ops.pipelines import Pipeline, settled
from tests.support.kafka import Kafka

SOURCES: tuple[Source, ...] = ("offsets", "ledger")


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(kafka, tmp_path)
    made.fill(100)
    yield made
    made.close()


class Driving:
    """A driver that loads ranges of partition 0, as the ledger and the group show it."""

    def __init__(self, pipeline: Pipeline, owner: str = "run-1") -> None:
        self.pipeline = pipeline
        self.source = pipeline.sources[0]
        self.spec = spec_of(pipeline)
        taken = (recorder := pipeline.recorder(owner)).take_over([self.source])
        found = taken.found[self.source]
        if found is None:
            record = settled(0, batch=1, owner=owner, topic_id=pipeline.topic_id)
        else:
            last = pipeline.record()
            record = replace(last, batch=last.batch + 1, owner=owner)
            if last.in_doubt:
                record = replace(record, kind=Kind.RENEW, attempt=last.attempt + 1)
        self.record = replace(record, spec=self.spec.digest())
        entries = (
            spec_entry(self.spec.digest(), self.spec.canonical()),
            record_entry(self.source, self.record, Background()),
            *checkpoint_entries([record_entry(self.source, self.record, Background())], []),
        )
        recorder.finish_take_over(taken, Commit({self.source: self.record}, entries))
        self.recorder: Recorder = recorder
        self.until_seen()

    def next(self, **changes: Any) -> Record:
        """The record behind the last."""
        made = replace(self.record, batch=self.record.batch + 1, attempt=1, deadline_ms=NOW)
        return replace(made, **changes)

    def intend(
        self, end: int, rows: int | None = None, dead_letters: tuple[DeadLetter, ...] = ()
    ) -> None:
        """Settle what is in doubt; intend what comes next."""
        record = self.next(kind=Kind.INTEND, begin=self.record.end, end=end, rest="")
        self.commit(record, self.loaded(rows, dead_letters), dead_letters)

    def settle(self, rows: int | None = None, dead_letters: tuple[DeadLetter, ...] = ()) -> None:
        """Settle what is in doubt."""
        end = self.record.end
        record = self.next(
            kind=Kind.SETTLE, begin=end, end=end, attempt=0, reservation=0, deadline_ms=0
        )
        self.commit(record, self.loaded(rows, dead_letters), dead_letters)

    def loaded(
        self, rows: int | None, dead_letters: tuple[DeadLetter, ...]
    ) -> tuple[LedgerEntry, ...]:
        """Ledger entries of the range in doubt."""
        record, source = self.record, self.source
        if not record.in_doubt:
            return ()
        messages = record.end - record.begin
        receipt = Receipt(
            entry="orders",
            target="shop.orders",
            shard="s1",
            token=f"any/{record.begin}-{record.end}",
            rows=messages - len(dead_letters) if rows is None else rows,
            bytes=9,
            checksum="c",
            replica="http://one:8123",
            entries=1,
            insert_ms=1,
        )
        loaded = Loaded((receipt,), dead_letters, messages, bytes=100, skipped=0)
        block_range = Range(source, record.begin, record.end)
        return (
            receipt_entry(block_range, record.batch, record.attempt, receipt),
            settled_entry(block_range, record.batch, record.attempt, loaded),
        )

    def commit(
        self,
        record: Record,
        entries: tuple[LedgerEntry, ...] = (),
        dead_letters: tuple[DeadLetter, ...] = (),
    ) -> None:
        """One transaction."""
        own = record_entry(self.source, record, Background())
        self.recorder.record(Commit({self.source: record}, (*entries, own), dead_letters), {})
        self.record = record
        self.until_seen()

    def until_seen(self) -> None:
        """Wait until who reads the group or the ledger sees what was committed."""
        assert self.pipeline.holds(self.record)
        self.pipeline.kafka.until_stable(self.pipeline.ledger)


def spec_of(pipeline: Pipeline) -> LoadSpec:
    table = TableSpec(
        entry="orders",
        database="shop",
        table="orders",
        topics=(pipeline.topic,),
        format="JSONEachRow",
        columns=(),
        lineage=(),
        partition_key="",
        sorting_key="",
        unknown_fields="ignore",
        on_null="dead-letter",
        time_zone="UTC",
        shards=("s1",),
    )
    return LoadSpec(pipeline.pipeline, "dc1", "chdb", 1000, (table,))


def found(report: VerifyReport) -> list[str]:
    return [anomaly.kind.value for anomaly in report.anomalies]


@pytest.mark.slow
def test_a_real_history_is_clean_from_both_sources(pipeline: Pipeline) -> None:
    """Ranges, dead letters, a take-over in doubt, a person's decisions."""
    first = Driving(pipeline)
    first.intend(10)
    first.intend(20, dead_letters=(letter(offset=3), letter(offset=4)))
    second = Driving(pipeline, "run-2")
    second.intend(30)
    second.settle()
    configuration = pipeline.configuration
    taken_over = pipeline.select(take_over=True)
    plan = plan_adopt(configuration, taken_over, offset=60)
    apply(configuration, plan)
    Driving(pipeline, "run-3").intend(70)
    plan = plan_resolve(configuration, taken_over, outcome="loaded")
    apply(configuration, plan)
    plan = plan_rewind(configuration, taken_over, to=15)
    apply(configuration, plan)
    last = Driving(pipeline, "run-4")
    last.intend(25)
    last.settle()
    for source in SOURCES:
        report = verify(configuration, source)
        assert (report.anomalies, report.unjudged) == ((), ())
        (partition,) = report.partitions
        assert (partition.connector, partition.topic, partition.partition) == (
            "dc1",
            pipeline.topic,
            0,
        )
        steps = {"settle": 8, "intend": 5, "renew": 1, "decision": 3, "take-over": 3}
        assert {step: partition.steps[step] for step in steps} == steps
        assert partition.last is not None and partition.last.offset == 25
        (log,) = report.logs
        assert log.instances == 14 and log.end > 14
        if source == "ledger":
            assert (partition.messages, partition.rows) == (40, {"orders": 38})


def test_a_wrong_count_is_in_the_ledger_only(pipeline: Pipeline) -> None:
    driver = Driving(pipeline)
    driver.intend(10)
    driver.settle(rows=9)
    assert found(verify(pipeline.configuration, "offsets")) == []
    report = verify(pipeline.configuration, "ledger")
    (anomaly,) = report.anomalies
    assert anomaly.kind.value == "count" and anomaly.tables == ("orders",)
    assert anomaly.what == "10 messages, but 9 rows, 0 dead letters and 0 skipped"


@pytest.mark.parametrize(
    ("begin", "end", "kind"), [(0, 5, "backward"), (5, 30, "overlap"), (25, 30, "gap")]
)
def test_a_wrong_range_is_found_by_both(
    pipeline: Pipeline, begin: int, end: int, kind: str
) -> None:
    driver = Driving(pipeline)
    driver.intend(10)
    driver.intend(20)
    driver.commit(driver.next(kind=Kind.INTEND, begin=begin, end=end))
    for source in SOURCES:
        report = verify(pipeline.configuration, source)
        assert kind in found(report)
        anomaly = next(a for a in report.anomalies if a.kind.value == kind)
        assert anomaly.tables == ("orders",)
        before, after = anomaly.before, anomaly.after
        assert before is not None and before.record is not None and after.record is not None
        assert (before.record.begin, after.record.begin) == (10, begin)


@pytest.mark.slow
def test_foreign_hands_in_the_group(pipeline: Pipeline) -> None:
    driver = Driving(pipeline)
    driver.intend(10)
    group, topic = pipeline.configuration.group("dc1"), pipeline.topic
    pipeline.kafka.commit_as_consumer(group, topic, 7)
    (anomaly,) = verify(pipeline.configuration, "offsets").anomalies
    assert anomaly.kind.value == "foreign"
    assert anomaly.what == "offset 7 was committed without metadata"
    assert found(verify(pipeline.configuration, "ledger")) == []
    # The ledger's last record is restored by a person; that step is none.
    taken_over = pipeline.select(take_over=True)
    plan = plan_adopt(pipeline.configuration, taken_over, offset=0)
    apply(pipeline.configuration, plan)
    assert found(verify(pipeline.configuration, "offsets")) == ["foreign"]


def test_foreign_hands_in_the_ledger(pipeline: Pipeline) -> None:
    Driving(pipeline).intend(10)
    pipeline.kafka.produce(pipeline.ledger, [(b"k", b"from a console")])
    report = verify(pipeline.configuration, "ledger")
    (anomaly,) = report.anomalies
    assert [partition.topic for partition in report.partitions] == [pipeline.topic]
    assert anomaly.kind.value == "foreign"
    assert "is not an entry of the ledger" in anomaly.what


def test_a_tombstone_and_a_restored_record(pipeline: Pipeline) -> None:
    driver = Driving(pipeline)
    driver.intend(10)
    group = pipeline.configuration.group("dc1")
    pipeline.kafka.admin.delete_consumer_groups([group])[group].result(30)
    (partition,) = verify(pipeline.configuration, "offsets").partitions
    assert partition.steps["forgotten"] == 1
    taken_over = pipeline.select(take_over=True)
    plan = plan_adopt(pipeline.configuration, taken_over, offset=0)
    apply(pipeline.configuration, plan)
    for source in SOURCES:
        assert found(verify(pipeline.configuration, source)) == []


def test_nothing_was_ever_committed(kafka: Kafka, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka, tmp_path)
    text = pipeline.path.read_text().replace(pipeline.ledger, "no-such-ledger")
    pipeline.path.write_text(text)
    report = verify(load(pipeline.path, {}), "ledger")
    assert (report.logs, report.partitions, report.anomalies) == ((), (), ())
    pipeline.close()


def test_an_offsets_topic_that_is_closed_to_us(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's broker has no access rights; so the refusal is librdkafka's, made by hand."""
    refusal = ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)

    def refuse(*_: object) -> int:
        raise kafka_error("asking for topic __consumer_offsets", refusal)

    monkeypatch.setattr(history_module, "partition_count", refuse)
    with pytest.raises(TerminalError) as caught:
        verify(pipeline.configuration, "offsets")
    assert "TOPIC_AUTHORIZATION_FAILED" in str(caught.value)
    assert "--source ledger" in caught.value.hint


def test_following_gives_anomalies_as_they_come(pipeline: Pipeline) -> None:
    driver = Driving(pipeline)
    driver.intend(10)
    came: list[Anomaly] = []
    stop, counts = threading.Event(), []
    following = Verifier(pipeline.configuration, "offsets")

    def run() -> None:
        counts.append(follow(following, stop, came.append))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        Kafka.until(lambda: following.instances() == {"dc1": 2}, 60)
        assert came == []
        driver.commit(driver.next(kind=Kind.INTEND, begin=15, end=20))
        # The marker of the transaction is read after the anomaly that stands before it.
        Kafka.until(lambda: bool(came) and following.lags() == {"dc1": 0}, 60)
    finally:
        stop.set()
        thread.join(60)
    assert [anomaly.kind.value for anomaly in came] == ["gap"]
    assert counts == [1]
    assert {kind.value for kind, *_ in following.totals.anomalies} == {"gap"}
    assert following.lags() == {"dc1": 0}
    registry = CollectorRegistry()
    registry.register(VerifierCollector(following))
    metrics = generate_latest(registry).decode()
    where = f'connector="dc1",kind="gap",partition="0",topic="{pipeline.topic}"'
    for line in (
        'sluice_verify_anomalies_total{kind="gap"} 1.0',
        'sluice_verify_anomalies_total{kind="backward"} 0.0',
        f"sluice_verify_partition_anomalies_total{{{where}}} 1.0",
        'sluice_verify_instances_total{connector="dc1"} 3.0',
        "sluice_verify_unjudged_total 0.0",
        'sluice_verify_lag_messages{connector="dc1"} 0.0',
    ):
        assert line in metrics.splitlines(), metrics


# What compaction makes uncertain


class ScriptedTail:
    """Where a scripted log stands."""

    topic, partition, log_begin = "log", 0, 0

    def __init__(self, events: list[Event]) -> None:
        self.stable_end, self.position = len(events), 0

    @property
    def caught_up(self) -> bool:
        return self.position >= self.stable_end


class ScriptedHistory:
    """A history whose first instances are compacted away while it is read."""

    connector, complete = "dc1", False

    def __init__(self, events: list[Event], gone: int) -> None:
        self._events, self._gone = events, gone
        self.tail: Any = ScriptedTail(events)

    def poll(self, timeout_seconds: float) -> list[Event]:
        self.tail.position = len(self._events)
        return self._events

    def still_holds(self, place: Place) -> bool:
        return place.offset >= self._gone

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("gone", "certain"), [(0, True), (10, True), (20, False)])
def test_a_gap_that_compaction_may_have_made_is_no_anomaly(
    pipeline: Pipeline, gone: int, certain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record between the two was there, and is gone by now."""
    writer = Writer(ledger=False)
    for _ in range(3):
        writer.intend(10)
    events = [writer.events[1], writer.events[3]]  # read at offsets 10 and 30
    history = ScriptedHistory(events, gone)
    monkeypatch.setattr(verifier_module, "open_offsets", lambda *_: history)
    report = verify(pipeline.configuration, "offsets")
    assert found(report) == (["gap"] if certain else [])
    assert len(report.unjudged) == (not certain)
