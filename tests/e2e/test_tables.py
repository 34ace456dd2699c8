"""Several tables, new partitions, transactions of producers, tombstones: by one driver."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from sluice.testbed.local.running import Broker, ClickHouse
from tests.support.driver import Driver
from tests.support.kafka import wait_for_leaders
from tests.support.world import Truth, World, assert_exact, order, wait_for

TABLES = {
    "first": ["orders-a"],
    "second": ["orders-a"],
    "third": ["orders-b"],
    "more": ["orders-more"],
    "tx": ["orders-tx"],
    "open_rows": ["orders-open"],
    "tombs": ["orders-tombs"],
}
PARTITIONS = {"orders-a": 2, "orders-b": 2}


@dataclass
class Loading:
    """A driver that loads what comes, and the world in which it does."""

    world: World
    driver: Driver
    configuration: Path

    def wait_for_rows(self, table: str, rows: int) -> None:
        self.world.wait_for_rows(table, rows, self.driver)


@pytest.fixture(scope="module")
def loading(
    tmp_path_factory: pytest.TempPathFactory, shared_broker: Broker, embedded_server: ClickHouse
) -> Iterator[Loading]:
    """It begins with the latest messages. Of one topic there are some before it starts."""
    folder = tmp_path_factory.mktemp("tables")
    world = World(folder, shared_broker, embedded_server, name=f"t{uuid.uuid4().hex[:8]}")
    topics = {topic: PARTITIONS.get(topic, 1) for (topic,) in TABLES.values()}
    for topic, partitions in topics.items():
        world.create_topic(topic, partitions)
    for table in TABLES:
        world.create_table(table)
    world.produce("orders-more", 1_000, Truth(), partitions=1)
    configuration = world.configure(TABLES, max_messages=130, connector='start = "latest"')
    made = Loading(world, world.run(configuration), configuration)

    def has_begun() -> bool:
        begun = {(entry["topic"], entry["partition"]) for entry in world._records()}
        return len(begun) == sum(topics.values())

    try:
        wait_for(has_begun, 240, "the take-over of each partition")
        yield made
        made.driver.signal(signal.SIGTERM)
        assert made.driver.wait() == 0, made.driver.text()[-4000:]
    finally:
        world.close()
        world.clean()


@pytest.mark.slow
def test_two_tables_of_one_topic_and_a_table_of_another(loading: Loading) -> None:
    world = loading.world
    truth_a, truth_b = Truth(), Truth()
    world.produce("orders-a", 2_000, truth_a, partitions=2, bad_every=200)
    world.produce("orders-b", 2_000, truth_b, partitions=2)
    for table, truth in (("first", truth_a), ("second", truth_a), ("third", truth_b)):
        loading.wait_for_rows(table, truth.rows)
        assert_exact(world, table, truth)
    # A message that is bad for two tables is a dead letter of each.
    bad = 2 * truth_a.bad_count
    wait_for(lambda: len(world.dead_letters()) >= bad > 0, 60, "the dead letters")
    assert len(world.dead_letters()) == bad


@pytest.mark.slow
def test_a_partition_that_appears_later_starts_at_zero(loading: Loading) -> None:
    world = loading.world
    assert world.count("more") == 0
    admin = AdminClient({"bootstrap.servers": world.broker.brokers})
    admin.create_partitions([NewPartitions("orders-more", 2)])["orders-more"].result(30)
    wait_for_leaders(admin, "orders-more", 2)
    late = Truth()
    world.produce("orders-more", 2_000, late, partitions=2, first=1_000)
    loading.driver.signal(signal.SIGHUP)
    loading.wait_for_rows("more", late.rows)
    assert_exact(world, "more", late)


@pytest.mark.slow
def test_transactions_of_producers_leave_no_gap_and_no_aborted_row(loading: Loading) -> None:
    world = loading.world
    producer = world.producer(**{"transactional.id": world.name})
    producer.init_transactions(30)
    committed = []
    for number in range(30):
        messages = [1000 * number + index for index in range(100)]
        producer.begin_transaction()
        for each in messages:
            producer.produce("orders-tx", order(each), partition=0)
        producer.flush()
        if number % 3 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            committed += messages
    # Behind the last one, which is aborted: when it is there, all before it has been looked at.
    world.produce("orders-tx", 1, Truth(), partitions=1, first=10**6)
    wait_for(lambda: 10**6 in ids(world, "tx"), 120, "the last message")
    assert sorted(ids(world, "tx")) == [*committed, 10**6]


def ids(world: World, table: str) -> list[int]:
    return [number for _, number in world.rows(table).get(0, [])]


def test_an_open_transaction_holds_rows_back_until_it_commits(loading: Loading) -> None:
    world = loading.world
    producer = world.producer(**{"transactional.id": f"open-{world.name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders-open", order(1), partition=0)
    producer.flush()
    world.produce("orders-open", 10, Truth(), partitions=1, first=100)
    # What comes later in another topic is loaded meanwhile.
    elsewhere = world.count("third") + 10
    world.produce("orders-b", 10, Truth(), partitions=2, first=10**6)
    loading.wait_for_rows("third", elsewhere)
    assert world.count("open_rows") == 0
    producer.commit_transaction(30)
    loading.wait_for_rows("open_rows", 11)
    assert sorted(ids(world, "open_rows")) == [1, *range(100, 110)]


def test_tombstones_are_counted_and_skipped(loading: Loading) -> None:
    world = loading.world
    producer = world.producer()
    for number in range(100):
        value = None if number % 10 == 0 else order(number)
        producer.produce("orders-tombs", value, key=b"k", partition=0)
    producer.flush()
    loading.wait_for_rows("tombs", 90)

    def skipped() -> int:
        settled = [e for e in world.ledger() if e["type"] == "settled"]
        return sum(int(str(e["skipped"])) for e in settled if e["topic"] == "orders-tombs")

    wait_for(lambda: skipped() >= 10, 60, "the last settle")
    assert (skipped(), world.count("tombs")) == (10, 90)
    report = json.loads(world.sluice("audit", str(loading.configuration), "--json").stdout)
    assert (report["skipped"], report["unaudited"]) == (10, [])
    assert report["missing"] == report["doubled"] == report["foreign"] == 0
