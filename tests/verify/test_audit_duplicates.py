"""What the audit says of messages that were left out as duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sluice.claims.owners import read_offsets, written_offsets
from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.core.dead_letters import TABLE_HEADER
from sluice.core.ranges import TopicPartition
from sluice.core.rests import INTERVALS_MAX, read
from sluice.driver.specs import kafka_access
from sluice.kafka.ledger import entries
from sluice.verify.audit import audit
from sluice.verify.audit_source import Duplicates, History, offsets_of
from sluice.verify.message_keys import MessageKeys
from sluice.worker.routing import Router
from tests.cli.support import run
from tests.ops.claims_scene import WINDOW_SECONDS, Claiming
from tests.support.kafka import Kafka


@pytest.fixture
def claiming(kafka: Kafka, tmp_path: Path, server: Server, database: str) -> Iterator[Claiming]:
    made = Claiming(kafka, tmp_path, server, database)
    yield made
    made.close()


def produce(claiming: Claiming, *ids: int) -> None:
    claiming.kafka.produce(claiming.topic, [b'{"id": %d, "note": "x"}' % key for key in ids])


def test_duplicates_are_neither_missing_nor_doubled(claiming: Claiming) -> None:
    produce(claiming, 10, 11, 10, 12, 11, 13)
    claiming.insert({0: 10, 1: 11, 3: 12})
    claiming.settled(0, 6, 2, 4)
    report = audit(claiming.configuration, chunk_offsets=2)
    assert (report.produced, report.loaded, report.duplicates) == (6, 3, 2)
    assert (report.missing, report.doubled, report.foreign) == (1, 0, 0)
    (partition,) = report.partitions
    assert partition.tables[0].missing_at == [(5, 6)]
    assert partition.tables[0].duplicates == 2


def test_a_duplicate_that_has_a_row_all_the_same_is_doubled(claiming: Claiming) -> None:
    produce(claiming, 10, 10)
    claiming.insert({0: 10, 1: 10})
    claiming.settled(0, 2, 1)
    report = audit(claiming.configuration)
    assert (report.missing, report.doubled, report.duplicates) == (0, 1, 1)


def test_each_duplicate_is_proved_by_a_row_with_its_key(
    claiming: Claiming, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(claiming, 10, 11, 10, 12, 99, 11, 98)
    claiming.insert({0: 10, 1: 11, 3: 12})
    claiming.settled(0, 7, 2, 4, 5, 6)
    assert audit(claiming.configuration).unproven == ()
    report = audit(claiming.configuration, proves_duplicates=True)
    assert [each.offset for each in report.unproven] == [4, 6]
    (why,) = {each.why for each in report.unproven}
    assert why == f"no row of {claiming.database}.orders has its key"
    assert report.missing == 0
    ended = run(capsys, "audit", str(claiming.path), "--duplicates")
    assert ended.status == 1
    assert f"offset 4 of {claiming.topic}[0] was left out" in ended.out
    claiming.insert({104: 99, 106: 98})
    assert audit(claiming.configuration, proves_duplicates=True).unproven == ()


def test_a_duplicate_may_have_its_row_in_another_table_of_the_scope(claiming: Claiming) -> None:
    name, scope = f"{claiming.topic}-2", f'"{WINDOW_SECONDS}s", scope = "both"'
    text = claiming.path.read_text().replace(f'"{WINDOW_SECONDS}s"', scope)
    text = text.replace(
        f'topics = ["{claiming.topic}"]', f'topics = ["{claiming.topic}", "{name}"]', 1
    )
    other = f'[[table]]\nname = "bids"\ntopics = ["{name}"]\n'
    other += f'deduplicate = {{ key = ["id"], window = {scope} }}\n'
    claiming.path.write_text(text.replace("[[table]]", f"{other}[[table]]", 1))
    claiming.kafka.topic(1, name)
    claiming.server.execute(f"CREATE TABLE {claiming.database}.bids AS {claiming.database}.orders")
    claiming.configuration = load(claiming.path, {})
    produce(claiming, 10, 11)
    claiming.settled(0, 2, 0, 1)
    claiming.server.execute(
        f"INSERT INTO {claiming.database}.bids SELECT 10, 'n', '{name}', 0, 0, 0, ''"
    )
    (found,) = audit(claiming.configuration, proves_duplicates=True).unproven
    both = f"{claiming.database}.bids, {claiming.database}.orders"
    assert (found.offset, found.why) == (1, f"no row of {both} has its key")


def test_a_message_that_has_no_key_any_more_is_named(claiming: Claiming) -> None:
    produce(claiming, 10)
    claiming.kafka.produce(claiming.topic, [b"no JSON"])
    claiming.insert({0: 10})
    claiming.settled(0, 2, 1)
    (found,) = audit(claiming.configuration, proves_duplicates=True).unproven
    assert (found.offset, found.why) == (1, "it makes no row with a key any more")


def test_without_a_load_spec_nobody_can_tell(claiming: Claiming) -> None:
    """Somebody has removed the beginning of the ledger."""
    produce(claiming, 10, 10)
    claiming.insert({0: 10})
    claiming.settled(0, 2, 1)
    access = kafka_access(claiming.configuration, "dc1")
    told = entries(access, claiming.ledger)
    at = next(offset for offset, entry in told if entry["type"] == "settled")
    claiming.kafka.delete_records(claiming.ledger, at)
    report = audit(claiming.configuration, proves_duplicates=True)
    (found,) = report.unproven
    assert (found.offset, found.target) == (1, f"{claiming.database}.orders")
    assert found.why == "the ledger has no load spec that says by which key"
    assert (report.missing, report.unrecorded) == (0, 2)


def test_what_is_loaded_again_is_no_duplicate_any_more() -> None:
    history = History(0, 0)
    history.duplicates["orders"] = [Duplicates("a", np.array([3, 7, 9], np.uint64))]
    history.position = 20
    history.take({"begin": 8, "why": "rewind to 8"})
    assert offsets_of(history.duplicates["orders"]).tolist() == [3, 7]
    history.take({"begin": 30, "why": "adopt"})
    assert offsets_of(history.duplicates["orders"]).tolist() == [3, 7]


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, INTERVALS_MAX // 2, 3 * INTERVALS_MAX])
def test_offsets_are_read_as_they_were_written(step: int, count: int) -> None:
    offsets = np.arange(17, 17 + step * count, step, dtype=np.uint64)
    value = written_offsets(offsets)
    assert read_offsets(value).tolist() == offsets.tolist()
    assert sum(end - begin for begin, end in read(value)) == count


def test_a_message_that_came_back_for_another_entry_has_no_key(claiming: Claiming) -> None:
    claiming.server.execute(f"CREATE TABLE {claiming.database}.bids AS {claiming.database}.orders")
    bids = f'[[table]]\nname = "bids"\ntopics = ["{claiming.topic}"]\n'
    text = claiming.path.read_text().replace("[[table]]", f"{bids}[[table]]", 1)
    claiming.path.write_text(text)
    claiming.configuration = load(claiming.path, {})
    (table,) = (each for each in claiming.spec.tables if each.entry == "orders")

    def feed(router: Router) -> None:
        assert router.looks
        router.look([(None, (), 0), (None, ((TABLE_HEADER, b"bids"),), 0)])
        router.deliver([b'{"id": 1, "note": "x"}'] * 2, range(2))

    keys = MessageKeys(claiming.spec, table)
    keyed = keys.of(TopicPartition(claiming.topic, 0), claiming.topic_id, feed)
    assert keyed.offsets.tolist() == [0]
