"""Ranges of several partitions as one block: what a worker makes of a bundle, on the real broker
and the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sluice.config import load
from sluice.core.bundles import Member, bundle_name
from sluice.core.errors import TerminalError
from sluice.core.ledger import Background
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import BundleTooHeavy, Failed, Loaded, TaskReport
from sluice.core.records import Kind, Record
from sluice.driver.specs import access_of, kafka_access, read_spec
from sluice.worker import loading
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.tasks import load_task
from sluice.worker.worker_cache import WorkerCache
from tests.e2e.test_shards import BY_USER, Shards, assert_spread, second_clickhouse, shards
from tests.support.range_task import time_ms, topic_id_of
from tests.support.world import Truth, World, assert_exact

__all__ = ["second_clickhouse", "shards"]  # fixtures

PARTITIONS, MESSAGES = 5, 3_000
READERS = ["librdkafka", "native"]


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The readers of another test are of another configuration."""
    monkeypatch.setattr(loading, "_cache", WorkerCache())


@dataclass
class Bundled:
    """All partitions of a topic as one bundle, sent by hand."""

    path: Path
    topic: str
    bytes_max: int = 1 << 26

    def __post_init__(self) -> None:
        self.configuration = load(self.path, {})
        self.spec: LoadSpec = read_spec(self.configuration, "dc1")

    def members(self, ends: Sequence[int]) -> list[Assignment]:
        ranges = [Range(TopicPartition(self.topic, p), 0, end) for p, end in enumerate(ends)]
        topic_id = topic_id_of(self.configuration, self.topic)
        name = bundle_name(Member(each, topic_id, 0) for each in ranges)
        digest, deadline_ms = self.spec.digest(), time_ms() + 60_000
        return [
            Assignment(
                each,
                Record(
                    Kind.INTEND,
                    1,
                    1,
                    0,
                    each.end,
                    "a",
                    0,
                    topic_id,
                    digest,
                    1,
                    deadline_ms,
                    bundle=name,
                ),
                Background(bytes_max=self.bytes_max),
                time_ms(),
                is_first=True,
            )
            for each in ranges
        ]

    def load(self, members: Sequence[Assignment]) -> tuple[TaskReport, ...]:
        environment = TaskEnvironment(
            pipeline=self.configuration.pipeline,
            kafka=kafka_access(self.configuration, "dc1"),
            clickhouse=access_of(self.configuration),
            specs={self.spec.digest(): self.spec.canonical()},
        )
        return load_task(environment, members, 0)


def produced(world: World, topic: str) -> tuple[Truth, list[int]]:
    """Messages of which some are bad, and the ends of the partitions."""
    world.create_topic(topic, PARTITIONS)
    truth = Truth()
    world.produce(topic, MESSAGES, truth, partitions=PARTITIONS, bad_every=200)
    assert truth.bad_count > PARTITIONS
    of = [
        [*(o for o, _ in truth.good.get(p, [])), *truth.bad.get(p, [])] for p in range(PARTITIONS)
    ]
    return truth, [max(offsets) + 1 for offsets in of]


def of_loaded(reports: Sequence[TaskReport]) -> list[Loaded]:
    outcomes = [report.outcome for report in reports]
    assert all(isinstance(outcome, Loaded) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, Loaded)]


def assert_counts(found: Sequence[Loaded], truth: Truth) -> None:
    """What is said of each member is what its partition holds."""
    for partition, loaded in enumerate(found):
        good, bad = truth.good[partition], truth.bad.get(partition, [])
        assert loaded.rows == len(good)
        assert loaded.messages == len(good) + len(bad)
        assert [letter.offset for letter in loaded.dead_letters] == bad
        assert {letter.partition for letter in loaded.dead_letters} <= {partition}
        assert loaded.passed == {} and loaded.skipped == 0


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_bundle_is_one_block_and_each_member_has_its_counts(world: World, reader: str) -> None:
    truth, ends = produced(world, "bundled")
    world.create_table("bundled")
    path = world.configure({"bundled": ["bundled"]}, connector=f'reader = "{reader}"\n')
    bundled = Bundled(path, "bundled")
    members = bundled.members(ends)
    found = of_loaded(bundled.load(members))
    assert_exact(world, "bundled", truth)
    assert_counts(found, truth)
    receipts = [receipt for loaded in found for receipt in loaded.receipts]
    assert len({receipt.token for receipt in receipts}) == 1
    assert len({receipt.checksum for receipt in receipts}) == 1
    parts = "SELECT count() AS n FROM system.parts WHERE table = 'bundled' AND active"
    assert world.query(parts) == [{"n": 1}]
    # Whoever repeats it makes the same block, which the server knows.
    again = of_loaded(bundled.load([replace(member, is_first=False) for member in members]))
    assert [[r.checksum for r in one.receipts] for one in again] == [
        [r.checksum for r in one.receipts] for one in found
    ]
    assert_exact(world, "bundled", truth)


def test_rows_of_a_bundle_stand_by_partition_and_offset(world: World) -> None:
    truth, ends = produced(world, "ordered")
    world.execute(
        "CREATE TABLE ordered (id UInt64, _topic String, _partition UInt16, _offset UInt64, "
        "_row UInt8, _source UInt64) ENGINE = MergeTree ORDER BY tuple() "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    path = world.configure({"ordered": ["ordered"]})
    bundled = Bundled(path, "ordered")
    of_loaded(bundled.load(bundled.members(ends)))
    rows = world.query("SELECT _topic, _partition, _offset, id FROM ordered")
    stood = [(int(str(r["_partition"])), int(str(r["_offset"])), int(str(r["id"]))) for r in rows]
    assert stood == sorted(stood)
    assert set(stood) >= {(p, o, i) for p, rows in truth.good.items() for o, i in rows}
    assert {row["_topic"] for row in rows} == {"ordered"}


@pytest.mark.parametrize("reader", READERS)
def test_over_two_shards(shards: Shards, reader: str) -> None:
    world = shards.world
    truth, ends = produced(world, "bundled-shards")
    table = f"bundled_{reader}"
    shards.create(table)
    path = shards.configure(
        {table: ["bundled-shards"]},
        connector=f'reader = "{reader}"\n',
        table_settings=BY_USER,
    )
    bundled = Bundled(path, "bundled-shards")
    found = of_loaded(bundled.load(bundled.members(ends)))
    assert_spread(shards, table, truth)
    assert_counts(found, truth)
    for partition, loaded in enumerate(found):
        of_shards = {receipt.shard: receipt.rows for receipt in loaded.receipts}
        ids = [i for _, i in truth.good[partition]]
        by_user = {f"s{n + 1}": sum(i % 99991 % 2 == n for i in ids) for n in (0, 1)}
        assert of_shards == {shard: rows for shard, rows in by_user.items() if rows}


def test_what_is_not_the_whole_bundle_is_not_loaded(world: World) -> None:
    _, ends = produced(world, "incomplete")
    world.create_table("incomplete")
    bundled = Bundled(world.configure({"incomplete": ["incomplete"]}), "incomplete")
    members = bundled.members(ends)
    longer = replace(members[0], record=replace(members[0].record, generation=1))
    for some in (members[1:], members[::-1], [longer, *members[1:]]):
        for report in bundled.load(some):
            assert isinstance(report.outcome, Failed)
            assert isinstance(report.outcome.error, TerminalError)
            assert "not the whole bundle" in str(report.outcome.error)
    assert world.count("incomplete") == 0


@pytest.mark.parametrize("reader", READERS)
def test_a_bundle_that_is_too_heavy_inserts_nothing(world: World, reader: str) -> None:
    """Each of its ranges is far below the limit."""
    _, ends = produced(world, "heavy")
    world.create_table("heavy")
    path = world.configure({"heavy": ["heavy"]}, connector=f'reader = "{reader}"\n')
    bundled = Bundled(path, "heavy", bytes_max=200_000)
    reports = bundled.load(bundled.members(ends))
    assert {type(report.outcome) for report in reports} == {BundleTooHeavy}
    assert world.count("heavy") == 0
