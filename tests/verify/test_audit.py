"""The audit against a real broker and both real kinds of ClickHouse."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.http import Server
from sluice.config import Configuration
from sluice.core.dead_letters import TABLE_HEADER
from sluice.core.errors import ConfigurationError
from sluice.core.receipts import DeadLetter
from sluice.core.records import Kind, Record, encode
from sluice.core.tokens import row_source, source_number
from sluice.kafka.dead_letters import wrap
from sluice.kafka.log import SourceLog
from sluice.producer import SQLBatchRequest
from sluice.verify.audit import AuditReport, audit
from sluice.verify.audit_chunk import TableAudit
from tests.config.support import load_text
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka, numbered

LINEAGE = "_topic String, _partition UInt32, _offset UInt64, _row UInt32"
SOURCES = ("LowCardinality(String)", "String", "UInt64")


@dataclass
class Scene:
    """A pipeline that was played by hand: whatever it is said to have done, it did."""

    folder: Path
    kafka: Kafka
    server: Server
    database: str
    name: str = field(default_factory=lambda: f"p{uuid.uuid4().hex[:8]}")

    def configuration(self, topic: str, tables: str = "", more: str = "") -> Configuration:
        entry = tables or f'[[table]]\nname = "orders"\ntopics = ["{topic}"]\n'
        return load_text(
            self.folder,
            f"""
[pipeline]
name = "{self.name}"
[[connector]]
name = "dc1"
brokers = "{self.kafka.brokers}"
topics = ["{topic}"]
{more}
[batch]
[clickhouse]
database = "{self.database}"
shards = {{ s1 = ["{self.server.url}"] }}
durability = "single"
{entry}""",
        )

    def create(self, table: str = "orders", lineage: str = LINEAGE) -> None:
        self.server.execute(
            f"CREATE TABLE {self.database}.{table} (id UInt64{',' if lineage else ''} {lineage}) "
            "ENGINE = MergeTree ORDER BY id"
        )

    def load(
        self,
        topic: str,
        offsets: Iterable[int],
        partition: int = 0,
        table: str = "orders",
        row: int = 0,
        by: str | int | None = None,
    ) -> None:
        """:param by: what the column `_source` says, where the table has it."""
        last = "" if by is None else f", {by!r}"
        values = ", ".join(f"({o}, '{topic}', {partition}, {o}, {row}{last})" for o in offsets)
        self.server.execute(f"INSERT INTO {self.database}.{table} VALUES {values}")

    def loader(self, topic: str, kind: str, **more: Any) -> str | int:
        """What `_source` of this type says of rows that this pipeline loads."""
        log = SourceLog(self.kafka.admin)
        known = {"pipeline": self.name, "connector": "dc1", "entry": "orders", "generation": 0}
        found = row_source(**{"topic_id": log.topics([topic])[topic][0], **known, **more})
        return source_number(found) if kind == "UInt64" else found

    def settle(
        self,
        topic: str,
        offset: int,
        partition: int = 0,
        start: int = 0,
        generation: int = 0,
        connector: str = "dc1",
    ) -> None:
        """The group and the ledger say that everything from start to offset is settled."""
        for begin in (start, offset):
            self.record(topic, begin, partition, connector=connector)
        record = Record(
            Kind.SETTLE, 1, 0, offset, offset, "run-1", generation, "topicid", "text", 0, 0
        )
        self.kafka.commit_as_consumer(
            f"sluice.{self.name}.{connector}", topic, offset, encode(record), partition
        )

    def record(
        self,
        topic: str,
        begin: int,
        partition: int = 0,
        why: str = "",
        connector: str = "dc1",
        metadata: str = "",
    ) -> None:
        body = {"type": "record", "connector": connector, "topic": topic, "partition": partition}
        body |= {"begin": begin, "end": begin} | ({"why": why} if why else {})
        body |= {"metadata": metadata} if metadata else {}
        self.append(f"sluice.{self.name}.ledger", [json.dumps({**body, "at_ms": 0}).encode()])

    def dead_letter(
        self, topic: str, offset: int, entry: str = "orders", connector: str = "", **more: Any
    ) -> None:
        letter = DeadLetter(
            topic, 0, offset, None, None, b"x", (), "json", "bad", entry, connector=connector
        )._replace(**more)
        name = f"sluice.{self.name}.dead-letters"
        wrapped = wrap(name, letter, 1_000_000)
        self.append(name, [])
        producer = self.kafka.writer()
        producer.begin_transaction()
        producer.produce(name, wrapped.value, wrapped.key, headers=wrapped.headers)
        self.kafka.end_transaction(producer, name)

    def append(self, name: str, messages: list[bytes]) -> None:
        if name not in self.kafka.admin.list_topics(timeout=10).topics:
            self.kafka.topic(1, name)
        self.kafka.produce(name, messages)


@pytest.fixture
def scene(tmp_path: Path, kafka: Kafka, server: Server, database: str) -> Iterator[Scene]:
    yield Scene(tmp_path, kafka, server, database)


@pytest.fixture
def embedded_scene(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str
) -> Iterator[Scene]:
    for database in fresh_database(embedded_url):
        yield Scene(tmp_path, kafka, embedded, database)


def only(report: AuditReport) -> TableAudit:
    (partition,) = report.partitions
    (table,) = partition.tables
    return table


def sums(report: AuditReport) -> tuple[int, ...]:
    return (
        *(report.produced, report.loaded, report.dead_lettered, report.skipped),
        *(report.missing, report.doubled, report.foreign),
    )


def test_each_kind_of_finding(scene: Scene) -> None:
    """Chunks of 7 offsets: what is found lies across their edges."""
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(40))
    scene.kafka.produce(topic, [None, b"40", (b"key", None)])  # tombstones at 40 and 42
    scene.load(topic, [o for o in range(42) if o not in (5, 12, 13, 14, 20, 21, 40)])
    scene.dead_letter(topic, 5)
    scene.dead_letter(topic, 30)  # and its row is there
    scene.load(topic, [7, 8, 8])  # twice, three times
    scene.load(topic, [40, 99])  # the tombstone, and beyond the end
    scene.load(topic, [3], partition=4)  # no such partition
    scene.load("another", [3])  # not this pipeline's
    scene.settle(topic, 43)
    configuration = scene.configuration(topic)
    report = audit(configuration, 7)
    assert sums(report) == (43, 34, 2, 2, 5, 4, 3)
    known, unknown = report.partitions
    (table,) = known.tables
    assert (known.log_begin, known.stable_end, known.settled) == (0, 43, 43)
    assert table.missing_at == [(12, 15), (20, 22)]
    assert table.doubled_at == [(7, 9), (30, 31)]
    assert table.foreign_at == [(40, 41), (43, 100)]
    assert (unknown.partition, unknown.tables[0].foreign) == (4, 1)
    assert sums(audit(configuration)) == sums(report)
    assert scene.server.version() < (22,) or on_spark(configuration, 7) == report  # once is enough


def on_spark(configuration: Configuration, chunk_offsets: int) -> AuditReport:
    """The same audit in a process of its own, whose Spark ends with it."""
    program = (
        "import pickle, sys; from functools import partial; "
        "from sluice.spark.class_archive import archive_options; "
        "from sluice.spark.context import spread, start_context; "
        "from sluice.verify.audit import audit; "
        "context = start_context('audit', 'local[2]', {}, archive_options()); "
        f"report = audit(pickle.load(sys.stdin.buffer), {chunk_offsets}, "
        "partial(spread, context)); "
        "sys.stdout.buffer.write(pickle.dumps(report)); context.stop()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(configuration),
        capture_output=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    report = pickle.loads(done.stdout)
    assert isinstance(report, AuditReport)
    return report


def test_everything_in_order(scene: Scene) -> None:
    scene.create()
    topic = scene.kafka.topic(2)
    scene.kafka.produce(topic, numbered(10), 0)
    scene.kafka.produce(topic, numbered(5), 1)
    scene.load(topic, range(10), 0)
    scene.load(topic, range(5), 1)
    scene.settle(topic, 10, 0)
    scene.settle(topic, 5, 1)
    report = audit(scene.configuration(topic))
    assert sums(report) == (15, 15, 0, 0, 0, 0, 0)
    assert [p.settled for p in report.partitions] == [10, 5]
    assert report.unaudited == ()


def test_what_is_not_settled_is_not_missing(scene: Scene) -> None:
    scene.create()
    topic = scene.kafka.topic()
    configuration = scene.configuration(topic)
    scene.kafka.produce(topic, numbered(10))
    report = audit(configuration)
    assert sums(report) == (10, 0, 0, 0, 0, 0, 0)
    assert (only(report).not_yet_loaded, report.partitions[0].settled) == (10, None)
    scene.settle(topic, 6)
    scene.load(topic, [0, 1, 2, 3, 4, 7])
    report = audit(configuration)
    assert sums(report) == (10, 6, 0, 0, 1, 0, 0)
    assert (only(report).not_yet_loaded, only(report).missing_at) == (3, [(5, 6)])


def test_what_came_before_the_start_or_was_adopted_away_is_given_up(embedded_scene: Scene) -> None:
    scene = embedded_scene
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(30))
    scene.settle(topic, 10, start=5)
    scene.record(topic, 20, why="adopt --offset 20")
    scene.settle(topic, 30, start=20)
    scene.load(topic, [5, 6, 7, 8, 9, *range(20, 29)])
    report = audit(scene.configuration(topic))
    assert sums(report) == (30, 14, 0, 0, 1, 0, 0)
    assert (only(report).given_up, only(report).missing_at) == (15, [(29, 30)])


def test_a_foreign_commit_does_not_move_what_is_settled(embedded_scene: Scene) -> None:
    scene = embedded_scene
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    scene.settle(topic, 4)
    scene.load(topic, range(4))
    scene.kafka.commit_as_consumer(f"sluice.{scene.name}.dc1", topic, 9)
    report = audit(scene.configuration(topic))
    assert (report.missing, report.partitions[0].settled) == (0, 4)


def test_expired_messages_cannot_be_judged(embedded_scene: Scene) -> None:
    scene = embedded_scene
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    scene.load(topic, [0, 1, 1, *range(4, 10)])
    scene.settle(topic, 10)
    scene.kafka.delete_records(topic, 4)
    report = audit(scene.configuration(topic))
    assert sums(report) == (6, 6, 0, 0, 0, 0, 0)
    assert (only(report).unjudged, report.partitions[0].log_begin) == (3, 4)


def test_aborted_messages_and_markers_are_holes(embedded_scene: Scene) -> None:
    scene = embedded_scene
    scene.create()
    topic = scene.kafka.topic()
    for commit in (True, False, True):
        scene.kafka.transaction(topic, numbered(3), commit=commit)
    scene.load(topic, [0, 1, 2, 8, 9, 10])
    scene.settle(topic, 12)
    assert sums(audit(scene.configuration(topic), 5)) == (6, 6, 0, 0, 0, 0, 0)
    scene.load(topic, [4])  # a row of an aborted message
    assert only(audit(scene.configuration(topic))).foreign_at == [(4, 5)]


def test_rows_of_one_message_are_told_apart_by_row(embedded_scene: Scene) -> None:
    scene = embedded_scene
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(2))
    scene.load(topic, [0, 1], row=0)
    scene.load(topic, [1], row=1)
    scene.settle(topic, 2)
    assert sums(audit(scene.configuration(topic)))[1:] == (3, 0, 0, 0, 0, 0)
    scene.load(topic, [1], row=1)
    assert sums(audit(scene.configuration(topic)))[1:] == (3, 0, 0, 0, 1, 0)


def test_entries_that_share_a_table_or_carry_no_offset(embedded_scene: Scene) -> None:
    scene = embedded_scene
    scene.create()
    scene.create("bare", lineage="")
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(3))
    entry = f'topics = ["{topic}"]\n'
    tables = f'[[table]]\nname = "one"\ntarget = "orders"\n{entry}'
    tables += f'[[table]]\nname = "two"\ntarget = "orders"\n{entry}'
    bare = f'[[table]]\nname = "bare"\nlineage = false\n{entry}'
    scene.load(topic, [0, 1, 2])
    scene.load(topic, [0, 2, 2])
    scene.dead_letter(topic, 1, "two")
    scene.settle(topic, 3)
    report = audit(scene.configuration(topic, tables + bare))
    assert sums(report) == (3, 5, 1, 0, 0, 1, 0)
    assert report.unaudited == ("bare",) and only(report).entries == ("one", "two")
    with pytest.raises(ConfigurationError, match="nothing can be audited"):
        audit(scene.configuration(topic, bare))
    twin = f'[[connector]]\nname = "dc2"\nbrokers = "{scene.kafka.brokers}"\n{entry}'
    with pytest.raises(ConfigurationError, match="dc1 and dc2 both load"):
        audit(scene.configuration(topic, more=twin))


def test_holes_everywhere_stay_fast_and_exact(embedded_scene: Scene) -> None:
    scene = embedded_scene
    scene.create()
    topic, count = scene.kafka.topic(), 200_000
    for _ in range(4):
        scene.kafka.produce(topic, [b"x"] * (count // 4))
    scene.server.execute(
        f"INSERT INTO {scene.database}.orders SELECT number, '{topic}', 0, number * 2, 0 "
        f"FROM numbers({count // 2})"
    )
    scene.settle(topic, count)
    begun, used = time.monotonic(), time.process_time()
    report = audit(scene.configuration(topic), 60_000)
    assert time.process_time() - used < 15  # whatever else the machine does
    assert time.monotonic() - begun < 60, "the server takes long for a question"
    assert sums(report) == (count, count // 2, 0, 0, count // 2, 0, 0)


@pytest.mark.parametrize("kind", SOURCES)
def test_what_two_pipelines_on_one_table_lose_is_listed(embedded_scene: Scene, kind: str) -> None:
    """Rows of another pipeline at the same offsets of a topic of the same name hide nothing."""
    scene = embedded_scene
    scene.create(lineage=f"{LINEAGE}, _source {kind}")
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    mine = scene.loader(topic, kind)
    theirs = scene.loader(topic, kind, pipeline="another", topic_id="othercluster")
    scene.load(topic, [o for o in range(10) if o not in (3, 4)], by=mine)
    scene.load(topic, range(12), by=theirs)
    scene.load(topic, [1], partition=7, by=theirs)
    scene.settle(topic, 10)
    configuration = scene.configuration(topic)
    report = audit(configuration, 4)
    assert sums(report) == (10, 8, 0, 0, 2, 0, 13)
    known, unknown = (partition.tables[0] for partition in report.partitions)
    assert known.missing_at == [(3, 5)]
    assert (known.foreign_sources, known.foreign_at) == ({str(theirs): 12}, [(0, 12)])
    assert (unknown.foreign, unknown.foreign_sources) == (1, {str(theirs): 1})


@pytest.mark.parametrize("kind", SOURCES)
def test_rows_of_each_generation_and_from_before_the_column_are_ours(
    embedded_scene: Scene, kind: str
) -> None:
    scene = embedded_scene
    scene.create(lineage=f"{LINEAGE}, _source {kind}")
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(10))
    scene.load(topic, range(3), by=0 if kind == "UInt64" else "")
    scene.load(topic, range(3, 6), by=scene.loader(topic, kind))
    scene.load(topic, range(5, 9), by=scene.loader(topic, kind, generation=3))
    scene.settle(topic, 10, generation=3)
    report = audit(scene.configuration(topic))
    assert sums(report) == (10, 9, 0, 0, 1, 1, 0)
    assert (only(report).missing_at, only(report).doubled_at) == ([(9, 10)], [(5, 6)])
    former = scene.loader(topic, kind, topic_id="formertopic")
    scene.load(topic, [9], by=former)
    report = audit(scene.configuration(topic))
    assert sums(report) == (10, 9, 0, 0, 1, 1, 1)
    assert only(report).foreign_sources == {str(former): 1}


def test_entries_and_connectors_that_rows_tell_apart_are_judged_each_for_itself(
    embedded_scene: Scene,
) -> None:
    scene = embedded_scene
    scene.create(lineage=f"{LINEAGE}, _source String")
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(4))
    entry = f'topics = ["{topic}"]\n'
    twin = f'[[connector]]\nname = "dc2"\nbrokers = "{scene.kafka.brokers}"\n{entry}'
    tables = "".join(
        f'[[table]]\nname = "{name}"\ntarget = "orders"\n{entry}' for name in ("one", "two")
    )
    configuration = scene.configuration(topic, tables, twin)

    def load(offsets: Iterable[int], connector: str, name: str) -> None:
        by = scene.loader(topic, "String", connector=connector, entry=name)
        scene.load(topic, offsets, by=by)

    load([0, 1, 2, 3, 3], "dc1", "one")
    load([0, 1, 3], "dc1", "two")
    load([0, 1, 2, 3], "dc2", "one")
    load([0, 1, 2], "dc2", "two")
    scene.dead_letter(topic, 3, "two", f"{scene.name}.dc2")
    for connector in ("dc1", "dc2"):
        scene.settle(topic, 4, connector=connector)
    report = audit(configuration, 3)
    found = {
        (partition.connector, table.entries): (table.loaded, table.missing_at, table.doubled_at)
        for partition in report.partitions
        for table in partition.tables
    }
    assert found == {
        ("dc1", ("one",)): (4, [], [(3, 4)]),
        ("dc1", ("two",)): (3, [(2, 3)], []),
        ("dc2", ("one",)): (4, [], []),
        ("dc2", ("two",)): (3, [], []),
    }
    assert (report.foreign, report.dead_lettered) == (0, 1)
    scene.load(topic, [0], by="")  # from before the column was added: nobody knows whose
    with pytest.raises(ConfigurationError, match="dc1 and dc2 both load"):
        audit(configuration)


def test_entries_that_are_routed_by_envelope(embedded_scene: Scene) -> None:
    scene, names = embedded_scene, ("sales", "returns", "sales", "returns", "sales")
    topic = scene.kafka.topic()
    values = [
        SQLBatchRequest(name, f"INSERT INTO {name} (id) VALUES (?)", [(number,)]).encode()
        for number, name in enumerate(names)
    ]
    scene.kafka.produce(topic, values)
    entry = f'topics = ["{topic}"]\nformat = "SQLBatchRequest"\nrows = "many"\n'
    tables = ""
    for name, offsets in (("sales", (0, 2)), ("returns", (1, 3))):
        scene.create(name)
        scene.load(topic, offsets, table=name)
        tables += f'[[table]]\nname = "{name}"\n{entry}route = {{ envelope = "" }}\n'
    scene.settle(topic, 5)
    configuration = scene.configuration(topic, tables)

    def audited() -> list[tuple[object, ...]]:
        (partition,) = audit(configuration, 2).partitions
        return [(t.entries, t.loaded, t.missing_at, t.doubled_at) for t in partition.tables]

    returns = (("returns",), 2, [], [])
    assert audited() == [returns, (("sales",), 2, [(4, 5)], [])]
    scene.load(topic, [4], table="sales")
    assert audited() == [returns, (("sales",), 3, [], [])]
    scene.load(topic, [4], table="sales")
    assert audited() == [returns, (("sales",), 3, [], [(4, 5)])]


@pytest.mark.slow
def test_what_came_back_for_an_entry_that_is_not_audited_is_not_missing_in_others(
    embedded_scene: Scene,
) -> None:
    scene = embedded_scene
    scene.create()
    scene.create("bare", lineage="")
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(2))
    producer = scene.kafka.writer()
    producer.begin_transaction()
    producer.produce(topic, b'{"id":1}', headers=[(TABLE_HEADER, b"bare")])
    scene.kafka.end_transaction(producer, topic)
    entry = f'topics = ["{topic}"]\n'
    tables = f'[[table]]\nname = "orders"\n{entry}'
    tables += f'[[table]]\nname = "bare"\nlineage = false\n{entry}'
    scene.load(topic, [0, 1])
    scene.settle(topic, 3)
    report = audit(scene.configuration(topic, tables))
    assert report.unaudited == ("bare",)
    assert sums(report) == (3, 2, 0, 0, 0, 0, 0)
