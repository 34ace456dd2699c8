"""An audit of what was settled before the configuration had a table, or another route."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.clickhouse.http import Server
from sluice.config import Configuration
from sluice.core.ledger import LedgerEntry, encode_entries
from sluice.core.load_spec import LoadSpec, Route
from sluice.core.ranges import Interval, Range, TopicPartition
from sluice.core.records import Kind, Record, encode
from sluice.machine.clock import now_ms
from sluice.verify.audit import AuditReport, audit
from sluice.verify.audit_chunk import Chunk, Held, TableAudit, Told
from sluice.verify.audit_source import History, Reached, Recent, histories_of
from sluice.verify.audit_specs import LoadedAs, Stretch, stretches
from sluice.verify.pace import Pace
from tests.driver.loop_world import table_spec
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka, Message, numbered
from tests.verify.test_audit import LINEAGE, Scene
from tests.verify.test_audit_rows import acknowledged, receipt


@pytest.fixture
def scene(tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str) -> Iterator[Scene]:
    for database in fresh_database(embedded_url):
        yield Scene(tmp_path, kafka, embedded, database)


class Then:
    """What the ledger says of one partition of a scene's topic, in order.

    :param values: of the topic's messages.
    """

    def __init__(self, scene: Scene, values: Sequence[Message]) -> None:
        self.scene, self.topic = scene, scene.kafka.topic()
        scene.kafka.produce(self.topic, values)

    def spec(self, entries: Mapping[str, str], **more: Any) -> str:
        """A load spec of these entries and their tables; gives its digest.

        :param more: of each of them.
        """
        tables = (
            replace(
                table_spec(name, (self.topic,)), database=self.scene.database, table=table, **more
            )
            for name, table in entries.items()
        )
        spec = LoadSpec(self.scene.name, "dc1", "chdb", 1, tuple(tables))
        body = {"type": "load_spec", "connector": "dc1", "digest": spec.digest(), "at_ms": 0}
        self.say({**body, "text": spec.canonical()})
        return spec.digest()

    def say(self, *bodies: Mapping[str, Any]) -> None:
        values = [json.dumps(body).encode() for body in bodies]
        self.scene.append(f"sluice.{self.scene.name}.ledger", values)

    def intend(self, begin: int, end: int, spec: str) -> None:
        self._commit(Record(Kind.INTEND, 1, 1, begin, end, "run-1", 0, "topicid", spec, 1, 0))

    def settle(self, end: int, spec: str) -> None:
        self._commit(Record(Kind.SETTLE, 1, 0, end, end, "run-1", 0, "topicid", spec, 0, 0))

    def load(self, begin: int, end: int, spec: str) -> None:
        """A range was loaded under a load spec."""
        self.intend(begin, end, spec)
        self.settle(end, spec)

    def _commit(self, record: Record) -> None:
        self.scene.record(self.topic, record.begin, metadata=encode(record))
        group = f"sluice.{self.scene.name}.dc1"
        self.scene.kafka.commit_as_consumer(group, self.topic, record.begin, encode(record), 0)

    def configuration(self, *entries: str, more: str = "") -> Configuration:
        """Of now, with these entries."""
        tables = "".join(
            f'[[table]]\nname = "{name}"\ntopics = ["{self.topic}"]\n{more}' for name in entries
        )
        return self.scene.configuration(self.topic, tables)


def table_of(report: AuditReport, target: str) -> TableAudit:
    (partition,) = report.partitions
    (found,) = (each for each in partition.tables if each.target.endswith(f".{target}"))
    return found


@pytest.mark.parametrize("before", [{"orders": "orders"}, {"orders": "orders", "eu": "old"}])
def test_a_table_lacks_nothing_of_before_it_was_one(scene: Scene, before: dict[str, str]) -> None:
    """Its entry came to a topic that was loaded already, or had another table. Of what it had to
    load, what is lost is found as before."""
    then = Then(scene, numbered(8))
    scene.create()
    scene.create("eu")
    scene.load(then.topic, range(8))
    scene.load(then.topic, (1, 5, 7), table="eu")  # 1: copied by hand; 6 is missing
    then.load(0, 5, then.spec(before))
    then.load(5, 8, then.spec({"orders": "orders", "eu": "eu"}))
    configuration = then.configuration("orders", "eu")
    for chunk in (2, 1_000_000):
        report = audit(configuration, chunk)
        eu = table_of(report, "eu")
        assert (eu.missing_at, eu.loaded, eu.not_demanded) == ([(6, 7)], 3, 4)
        assert (report.missing, report.doubled, report.foreign) == (1, 0, 0)
        assert (report.not_demanded, report.unrecorded) == (4, 0)
    assert list(report.not_demanded_where()) == [
        f"not demanded: 4 messages of dc1 {then.topic} in {scene.database}.eu, as in partition 0, "
        "offsets [0, 1): by the load specs of then they did not come there, or without their offset"
    ]
    recent = audit(configuration, 3, recent=Recent(0, Pace()))
    assert (recent.missing, recent.not_demanded, recent.unrecorded) == (1, 4, 0)
    former = [f"eu into {scene.database}.old"] if "eu" in before else []
    assert [*report.former] == [*recent.former] == former
    scene.load(then.topic, (1,), table="eu")
    assert table_of(audit(configuration), "eu").doubled_at == [(1, 2)]


def test_an_entry_that_was_retired_and_came_back(scene: Scene) -> None:
    """The ranges of in between are named; nobody demands their rows."""
    then = Then(scene, numbered(9))
    scene.create()
    scene.create("eu")
    scene.load(then.topic, range(9))
    scene.load(then.topic, (0, 2, 6, 7, 8), table="eu")
    both = then.spec({"orders": "orders", "eu": "eu"})
    then.load(0, 3, both)
    then.load(3, 6, then.spec({"orders": "orders"}))
    then.load(6, 9, both)
    eu = table_of(audit(then.configuration("orders", "eu")), "eu")
    assert (eu.missing_at, eu.not_demanded_at, eu.not_demanded) == ([(1, 2)], [(3, 6)], 3)


def test_a_range_in_doubt_is_what_its_last_record_says(scene: Scene) -> None:
    """[0, 3) was in doubt when the entry came, and was finished as it was recorded."""
    then = Then(scene, numbered(6))
    scene.create()
    scene.create("eu")
    scene.load(then.topic, range(6))
    scene.load(then.topic, (3, 4), table="eu")
    before = then.spec({"orders": "orders"})
    then.intend(0, 3, before)
    now = then.spec({"orders": "orders", "eu": "eu"})
    then.intend(0, 3, before)  # a renewal
    then.intend(3, 6, now)
    then.settle(6, now)
    eu = table_of(audit(then.configuration("orders", "eu")), "eu")
    assert (eu.missing_at, eu.not_demanded_at) == ([(5, 6)], [(0, 3)])


def test_what_an_entry_loaded_that_was_retired_is_named(scene: Scene) -> None:
    then = Then(scene, numbered(4))
    scene.create(lineage=f"{LINEAGE}, _source String")
    loader = scene.loader(then.topic, "String")
    scene.load(then.topic, range(4), by=loader)
    then.load(0, 2, then.spec({"orders": "orders", "eu": "orders"}))
    then.load(2, 4, then.spec({"orders": "orders"}))
    report = audit(then.configuration("orders"))
    assert (report.is_broken, report.former) == (False, (f"eu into {scene.database}.orders",))


HEADER = Route("header", "kind", "eu")
OF_HEADER = 'route = { header = "eu", name = "kind" }\n'


def routed(scene: Scene, before: Route | None, now: Route | None) -> Then:
    """Eight messages, of which those at even offsets have the header; from 4 on by the route of
    now. What the route of then took has rows, but that at 2."""
    then = Then(scene, [])
    producer = ck.Producer({"bootstrap.servers": scene.kafka.brokers})
    for number in range(8):
        headers = [("kind", b"eu")] if number % 2 == 0 else []
        producer.produce(then.topic, b"{}", headers=headers, partition=0)
    assert producer.flush(30) == 0
    scene.create("eu")
    then.load(0, 4, then.spec({"eu": "eu"}, route=before))
    then.load(4, 8, then.spec({"eu": "eu"}, route=now))
    return then


def test_a_route_that_takes_more_than_before(scene: Scene) -> None:
    then = routed(scene, HEADER, None)
    scene.load(then.topic, (0, 3, 4, 5, 7), table="eu")  # 3: copied by hand
    report = audit(then.configuration("eu"))
    eu = table_of(report, "eu")
    assert (eu.missing_at, eu.not_demanded_at) == ([(2, 3), (6, 7)], [(1, 2)])
    assert (eu.loaded, report.doubled) == (5, 0)


def test_a_route_that_takes_less_than_before(scene: Scene) -> None:
    """What was loaded has to be there still, and is no row too many."""
    then = routed(scene, None, HEADER)
    scene.load(then.topic, (0, 1, 3, 4, 5), table="eu")
    eu = table_of(audit(then.configuration("eu", more=OF_HEADER)), "eu")
    assert (eu.missing_at, eu.doubled_at) == ([(2, 3), (6, 7)], [(5, 6)])
    assert eu.not_demanded == 0


def test_an_entry_of_another_name_hides_no_doubled_row(scene: Scene) -> None:
    """Rows do not say which entry loaded them."""
    then = Then(scene, numbered(6))
    scene.create()
    scene.load(then.topic, (0, 1, 1, 3, 4, 5))
    then.load(0, 3, then.spec({"former": "orders"}))
    then.load(3, 6, then.spec({"orders": "orders"}))
    report = audit(then.configuration("orders"))
    orders = table_of(report, "orders")
    assert (orders.missing_at, orders.doubled_at, report.former) == ([(2, 3)], [(1, 2)], ())


def test_where_the_ledger_has_the_load_spec_no_more_the_entries_of_now_count(scene: Scene) -> None:
    then = Then(scene, numbered(4))
    scene.create()
    scene.load(then.topic, (0, 2, 3))
    then.load(0, 2, "f" * 16)
    then.load(2, 4, then.spec({"orders": "orders"}))
    for recent in (None, Recent(0, Pace())):
        report = audit(then.configuration("orders"), recent=recent)
        assert (report.missing, report.unrecorded, report.not_demanded) == (1, 2, 0)


def test_rows_that_carried_no_offset_then(scene: Scene) -> None:
    then = Then(scene, numbered(4))
    scene.create()
    scene.load(then.topic, (2,))
    then.load(0, 2, then.spec({"orders": "orders"}, lineage=()))
    then.load(2, 4, then.spec({"orders": "orders"}))
    orders = table_of(audit(then.configuration("orders")), "orders")
    assert (orders.missing_at, orders.not_demanded_at) == ([(3, 4)], [(0, 2)])


def test_rows_within_messages_count_as_they_did_then(scene: Scene) -> None:
    """Messages had several rows; by now they have one."""
    then = Then(scene, numbered(4))
    scene.create()
    for row in range(3):
        scene.load(then.topic, (0, 1) if row < 2 else (0,), row=row)
    scene.load(then.topic, (2, 3))
    many = then.spec({"orders": "orders"}, rows="many")
    then.intend(0, 2, many)
    block_range = Range(TopicPartition(then.topic, 0), 0, 2)
    told: list[LedgerEntry] = acknowledged(block_range, receipt(block_range, 6))
    messages = [value for _, value in encode_entries("dc1", 0, told)]
    scene.append(f"sluice.{scene.name}.ledger", messages)
    then.settle(2, many)
    then.load(2, 4, then.spec({"orders": "orders"}))
    orders = table_of(audit(then.configuration("orders")), "orders")
    assert (orders.missing, orders.missing_at, orders.uncounted) == (1, [(0, 2)], 0)


def test_rows_that_somebody_copied_are_none_of_those_that_receipts_tell_of() -> None:
    """The first and the last message were not loaded; the first one has rows all the same, and of
    the second one a row is missing."""
    tally, ones = TableAudit(), np.ones(4, np.bool_)
    rows = np.array([3, 2, 3, 0], np.int32)
    held = Held(rows, rows, np.zeros(4, np.int32))
    free = np.array([True, False, False, True])
    tally.judge(Chunk(100, ones, ones), held, 1, 104, [Told(100, 104, 6)], free)
    assert (tally.missing, tally.doubled, tally.missing_at) == (1, 0, [(100, 104)])
    assert (tally.loaded, tally.not_demanded_at) == (8, [(103, 104)])


def test_continuous_proof_knows_by_what_a_range_was_recorded(scene: Scene) -> None:
    """A look reads the record, the next one the settle; a driver's first one begins between."""
    then = Then(scene, numbered(6))
    scene.create()
    scene.create("eu")
    scene.load(then.topic, range(6))
    before = then.spec({"orders": "orders"})
    then.intend(0, 3, before)
    configuration, ledger = then.configuration("orders", "eu"), dict[str, Reached]()
    assert audit(configuration, recent=Recent(0, Pace(), ledger)).covered == 0
    now = then.spec({"orders": "orders", "eu": "eu"})  # no record names it yet
    then.settle(3, before)
    found = audit(configuration, recent=Recent(0, Pace(), ledger))
    assert (found.covered, found.missing, found.not_demanded, found.unrecorded) == (3, 0, 3, 0)
    then.load(3, 6, now)
    found = audit(configuration, recent=Recent(0, Pace(), ledger))
    assert (found.covered, found.missing, found.not_demanded, found.unrecorded) == (3, 3, 0, 0)


@pytest.mark.parametrize("is_said_again", [False, True])
def test_a_first_look_reads_what_was_recorded_before_it(scene: Scene, is_said_again: bool) -> None:
    """In the record itself, or in a checkpoint."""
    then, at_ms = Then(scene, numbered(3)), now_ms()
    scene.create()
    scene.create("eu")
    scene.load(then.topic, range(3))
    ledger = f"sluice.{scene.name}.ledger"
    scene.append(ledger, [])
    spec = LoadSpec(
        scene.name,
        "dc1",
        "chdb",
        1,
        (replace(table_spec("orders", (then.topic,)), database=scene.database),),
    )
    digest = spec.digest()
    intended = Record(Kind.INTEND, 1, 1, 0, 3, "run-1", 0, "topicid", digest, 1, 0)
    settled = Record(Kind.SETTLE, 1, 0, 3, 3, "run-1", 0, "topicid", digest, 0, 0)
    where = {"type": "record", "topic": then.topic, "partition": 0}
    first = {**where, "begin": 0, "end": 3, "metadata": encode(intended)}
    again = {"type": "checkpoint", "parts": 1, "part": 0, "records": [first], "others": {}}
    bodies = [
        (700_000, {"type": "load_spec", "digest": digest, "text": spec.canonical()}),
        (700_000, again if is_said_again else first),
        (100_000, {**where, "begin": 3, "end": 3, "metadata": encode(settled)}),
    ]
    producer = ck.Producer({"bootstrap.servers": scene.kafka.brokers})
    for ago_ms, body in bodies:
        value = json.dumps({**body, "connector": "dc1", "at_ms": 0}).encode()
        producer.produce(ledger, value, timestamp=at_ms - ago_ms)
    assert producer.flush(30) == 0
    found = audit(then.configuration("orders", "eu"), recent=Recent(at_ms - 200_000, Pace()))
    assert (found.covered, found.missing, found.not_demanded, found.unrecorded) == (3, 0, 3, 0)


def test_last_values_of_before_are_not_demanded(scene: Scene) -> None:
    """Key 1 came before the table was one, key 2 before and after, key 3 after."""
    then = Then(scene, [b'{"id": %d}' % key for key in (1, 2, 2, 3)])
    scene.server.execute(
        f"CREATE TABLE {scene.database}.orders (id UInt64, _topic String, _partition UInt32, "
        "_offset UInt64, _row UInt32, _source String) ENGINE = ReplacingMergeTree(_offset) "
        "ORDER BY id"
    )
    then.load(0, 2, then.spec({"orders": "old"}))
    then.load(2, 4, then.spec({"orders": "orders"}))
    configuration = then.configuration("orders", more='delivery = "replacing"\n')
    report = audit(configuration)
    assert [each.offset for each in report.unproven] == [2, 3]
    assert (report.not_demanded, report.is_broken) == (2, True)
    loader = scene.loader(then.topic, "String")
    values = ", ".join(f"({k}, '{then.topic}', 0, {o}, 0, '{loader}')" for k, o in ((2, 2), (3, 3)))
    scene.server.execute(f"INSERT INTO {scene.database}.orders VALUES {values}")
    report = audit(configuration)
    assert not report.is_broken
    assert table_of(report, "orders").not_demanded_at == [(0, 2)]


def history(*records: tuple[int, str, str]) -> History:
    """Of records with their begins, load specs and whys."""
    found = History(0, 0)
    for begin, spec, why in records:
        record = Record(Kind.SETTLE, 1, 0, begin, begin, "o", 0, "topicid", spec, 0, 0)
        found.take({"begin": begin, "metadata": encode(record), "why": why})
    return found


def test_what_the_ledger_says_that_a_partition_was_loaded_under() -> None:
    chain = [(0, "a", ""), (10, "a", ""), (10, "b", ""), (20, "b", ""), (30, "a", "")]
    assert history(*chain).loaded_under == [(0, 10, "a"), (10, 30, "b")]
    adopted = history(*chain, (40, "a", "adopt --offset 40"), (50, "a", ""))
    assert adopted.loaded_under == [(0, 10, "a"), (10, 30, "b"), (40, 50, "a")]
    resolved = history(*chain, (40, "a", "resolve --as loaded"))
    assert resolved.loaded_under[-1] == (30, 40, "a")
    rewound = history(*chain, (5, "a", "rewind --to 5"), (30, "c", ""), (31, "c", ""))
    assert rewound.loaded_under == [(0, 30, "a"), (30, 31, "c")]
    later = rewound.going_on()
    later.take({"begin": 35, "metadata": ""})
    later.take({"begin": 40, "metadata": ""})
    assert later.loaded_under == [(31, 35, "c"), (35, 40, "")]
    again = Record(Kind.SETTLE, 1, 0, 3, 3, "o", 0, "another-one", "a", 0, 0)
    rewound.take({"begin": 3, "metadata": encode(again)})
    assert rewound.loaded_under == []


def test_a_look_that_fails_is_made_again_from_the_same_place() -> None:
    where = {"type": "record", "connector": "dc1", "topic": "orders", "partition": 0}
    ledger = [{**where, "begin": begin, "metadata": ""} for begin in (35, 40)]
    stood = {TopicPartition("orders", 0): history((30, "a", "")).going_on()}
    first, again = (histories_of("dc1", ledger, stood) for _ in range(2))
    assert first == again
    (found,) = again.values()
    assert found.loaded_under == [(30, 35, "a"), (35, 40, "")]


def test_rows_are_counted_together_only_where_they_were_loaded_alike() -> None:
    found = History(0, 0)
    for begin, spec in ((0, "a"), (5, "a"), (10, "b")):
        record = Record(Kind.INTEND, 1, 1, begin, begin + 5, "o", 0, "topicid", spec, 1, 0)
        found.take({"begin": begin, "metadata": encode(record)})
        block_range = Range(TopicPartition("orders", 0), begin, begin + 5)
        for entry in acknowledged(block_range, receipt(block_range, 7)):
            found.take_receipts(entry.body)
    assert found.told == {"orders": [(0, 10, 14), (10, 15, 7)]}


def loads(name: str) -> dict[str, LoadedAs]:
    return {name: LoadedAs("d.orders", None, False, True)}


BY = {"a": loads("one"), "b": loads("two"), "c": loads("one")}
cuts = st.lists(st.integers(0, 30), min_size=2, max_size=8, unique=True).map(sorted)


@given(cuts, st.lists(st.sampled_from("abcx"), min_size=8, max_size=8), cuts, cuts)
def test_each_offset_is_judged_by_what_it_was_loaded_by(
    edges: list[int], specs: list[str], holes: list[int], log: list[int]
) -> None:
    """ "x" is not in the ledger any more."""
    under = [(b, e, s) for (b, e), s in zip(pairwise(edges), specs, strict=False)]
    assigned: list[Interval] = list(zip(holes[::2], holes[1::2], strict=False))
    within, today = (log[0], log[-1]), BY["a"]
    found = stretches(within, assigned, under, today, BY.get)
    assert [each.begin for each in found[1:]] == [each.end for each in found[:-1]]
    assert (found[0].begin, found[-1].end) == within
    assert all(one[2:] != other[2:] for one, other in pairwise(found))
    for offset in range(*within):
        (stretch,) = (each for each in found if each.begin <= offset < each.end)
        spec = next((s for b, e, s in under if b <= offset < e), "")
        is_assigned = any(b <= offset < e for b, e in assigned)
        expected = BY.get(spec, today), spec in BY or not is_assigned
        assert (stretch.by, stretch.is_recorded) == expected
    assert Stretch(0, 1, today).loading("d.orders") == ("one",)
