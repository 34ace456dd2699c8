"""Rows within messages of several: how many there are is compared with the ledger's receipts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sluice.clickhouse.http import Server
from sluice.core.ledger import LedgerEntry, encode_entries, receipt_entry, settled_entry
from sluice.core.load_spec import Sharding
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Loaded, Receipt
from sluice.core.tokens import block_token
from sluice.verify.audit import audit
from sluice.verify.audit_chunk import Chunk, Held, TableAudit, Told
from sluice.verify.audit_source import STRETCH_OFFSETS, History, Recent, histories_of
from sluice.verify.audit_tables import _MISPLACED, Loaders, _asked
from sluice.verify.pace import Pace
from tests.ops.doctor_facts import plain
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka, numbered
from tests.verify.test_audit import Scene, only

SOURCE = TopicPartition("orders", 0)
ROWS = 3


@pytest.fixture
def scene(tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str) -> Iterator[Scene]:
    for database in fresh_database(embedded_url):
        yield Scene(tmp_path, kafka, embedded, database)


def receipt(block_range: Range, rows: int, rest: str = "", shard: str = "s1") -> Receipt:
    token = block_token(
        pipeline="p",
        generation=0,
        connector="dc1",
        topic_id="topicid",
        block_range=block_range,
        entry="orders",
        target="d.orders",
        shard=shard,
        rest=rest,
    )
    return Receipt("orders", "d.orders", shard, token, rows, 1, "", "http://a", 1, 1)


def acknowledged(block_range: Range, *receipts: Receipt) -> list[LedgerEntry]:
    loaded = Loaded(receipts, (), block_range.end - block_range.begin, 1, 0)
    entries = [receipt_entry(block_range, 1, 1, each) for each in receipts]
    return [*entries, settled_entry(block_range, 1, 1, loaded)]


def loaded(scene: Scene, topic: str, *ends: int, rest: str = "") -> None:
    """Messages below the last end, of three rows each, in ranges with these ends."""
    begin, values = 0, list[bytes]()
    scene.kafka.produce(topic, numbered(ends[-1]))
    for end in ends:
        block_range = Range(TopicPartition(topic, 0), begin, end)
        settled = acknowledged(block_range, receipt(block_range, ROWS * (end - begin), rest))
        values += [value for _, value in encode_entries("dc1", 0, settled)]
        for row in range(ROWS):
            scene.load(topic, range(begin, end), row=row)
        begin = end
    scene.record(topic, 0)
    scene.append(f"sluice.{scene.name}.ledger", values)
    scene.settle(topic, ends[-1], start=ends[-1])


def many(topic: str) -> str:
    return f'[[table]]\nname = "orders"\ntopics = ["{topic}"]\nrows = "many"\n'


@pytest.fixture
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.verify.audit_source.STRETCH_OFFSETS", 10)


@pytest.mark.usefixtures("small_stretches")
def test_rows_that_are_missing_within_a_message(scene: Scene) -> None:
    """Of the message at 17 one row of three is gone, of that at 26 there is one more; of that at
    33 none is there. In chunks of 7 offsets, which end where a stretch does."""
    scene.create()
    topic = scene.kafka.topic()
    loaded(scene, topic, 10, 14, 20, 30, 40)
    configuration = scene.configuration(topic, many(topic))
    clean = audit(configuration, 7)
    assert not clean.is_broken and (clean.loaded, clean.uncounted) == (120, 0)
    settings = {"mutations_sync": "1"}
    gone = "_offset = 17 AND _row = 1 OR _offset = 33"
    orders = f"{scene.database}.orders"
    scene.server.execute(f"ALTER TABLE {orders} DELETE WHERE {gone}", settings=settings)
    scene.load(topic, [26], row=ROWS)
    for chunk in (7, 1_000_000):
        found = audit(configuration, chunk)
        assert (found.missing, found.doubled, found.uncounted) == (1 + ROWS, 1, 0)
        table = only(found)
        assert sorted(table.missing_at) == [(10, 20), (30, 40), (33, 34)]
        assert table.doubled_at == [(20, 30)]
    recent = audit(configuration, 7, recent=Recent(0, Pace(), {}))
    assert (recent.missing, recent.doubled) == (1 + ROWS, 1)


def test_what_no_receipt_tells_is_said(scene: Scene) -> None:
    """A probe had found some rows of the range, and what was loaded after it is not all; nor can
    rows be counted of entries that are not told apart."""
    scene.create()
    topic = scene.kafka.topic()
    loaded(scene, topic, 10, rest="rest")
    found = audit(scene.configuration(topic, many(topic)))
    assert (found.missing, found.doubled, found.uncounted) == (0, 0, 10)
    one = audit(scene.configuration(topic))
    assert one.uncounted == 0, "a message has one row there"
    both = many(topic) + many(topic).replace('"orders"', '"other"\ntarget = "orders"', 1)
    assert audit(scene.configuration(topic, both)).uncounted == 10


def history(*entries: LedgerEntry) -> History:
    whose = {"connector": "dc1", "topic": SOURCE.topic, "partition": 0}
    found = [{**whose, **entry.body} for entry in entries]
    return histories_of("dc1", found)[SOURCE]


def test_what_receipts_say_of_a_range() -> None:
    first, second = Range(SOURCE, 5, 10), Range(SOURCE, 10, 20)
    far = Range(SOURCE, STRETCH_OFFSETS, STRETCH_OFFSETS + 5)
    both = [
        *acknowledged(first, receipt(first, 7), receipt(first, 3, shard="s2")),
        *acknowledged(second, receipt(second, 40)),
    ]
    assert history(*both).told == {"orders": [Told(5, 20, 50)]}
    assert history(*both, *acknowledged(far, receipt(far, 9))).told == {
        "orders": [Told(5, 20, 50), Told(far.begin, far.end, 9)]
    }
    # The first receipt is not in the ledger any more.
    assert history(*both[1:]).told == {"orders": [Told(10, 20, 40)]}
    rest = acknowledged(second, receipt(second, 4, "rest"), receipt(second, 9, shard="s2"))
    assert history(*both[:3], *rest).told == {"orders": [Told(5, 10, 10)]}
    bundle = replace(receipt(first, 7), token="p/bundle/dc1/name/orders+d.orders/s1")
    assert history(*acknowledged(first, bundle)).told == {"orders": [Told(5, 10, 7)]}
    nothing = acknowledged(first)
    assert history(*nothing).told == {}, "a probe may have found all rows"
    body = {"type": "record", "begin": 20, "end": 20}
    last = LedgerEntry(SOURCE, body)
    rewound = LedgerEntry(SOURCE, body | {"begin": 7, "why": "rewind --to 7"})
    assert history(*both, last, rewound).told == {"orders": []}


def test_a_stretch_is_judged_beside_its_messages() -> None:
    """What is missing of a message without any row is not counted twice."""
    tally = TableAudit()
    ones = np.ones(4, np.bool_)
    found = np.array([3, 0, 2, 3], np.int32)
    held = Held(found, found, np.zeros(4, np.int32))
    tally.judge(Chunk(100, ones, ones), held, 1, 104, [Told(100, 103, 9)])
    assert (tally.loaded, tally.missing, tally.doubled, tally.uncounted) == (8, 4, 0, 1)
    assert tally.missing_at == [(101, 102), (100, 103)]
    tally = TableAudit()
    tally.judge(Chunk(100, ones, ones), held, 1, 104, [Told(100, 104, 7)])
    assert (tally.missing, tally.doubled, tally.doubled_at) == (1, 1, [(100, 104)])


def test_a_pipeline_may_be_called_like_a_word_of_a_query() -> None:
    loader = "KEY-ROW/dc1/topic/WHOSE/0"
    query = _asked(plain(), _MISPLACED, Loaders((loader,)), Sharding("offset"))
    assert query.endswith(f"AND _source IN ('{loader}')")
    assert "(toUInt64(`_offset`)) % {shards:UInt64}" in query
