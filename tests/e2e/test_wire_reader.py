"""The whole with `reader = "native"`: outages, dead letters, large messages."""

from __future__ import annotations

import time

import pytest

from sluice.config import load
from sluice.core.dead_letters import TABLE_HEADER
from sluice.core.receipts import Loaded
from sluice.driver.specs import read_spec
from sluice.producer import SQLBatchRequest
from sluice.worker import loading
from tests.support.range_task import Task
from tests.support.world import LINEAGE, Truth, World, assert_dead_letters, assert_exact, order

WIRE = 'reader = "native"\n'


@pytest.mark.long
def test_a_broker_that_goes_and_comes_back(fragile_world: World) -> None:
    world = fragile_world
    world.create_topic("orders")
    world.create_table("orders")
    truth = Truth()
    world.produce("orders", 200_000, truth, bad_every=5000)
    configuration = world.configure({"orders": ["orders"]}, max_messages=5_000, connector=WIRE)
    driver = world.run(configuration, "--until-caught-up")
    world.wait_for_rows("orders", 1, driver)
    world.broker.stop()
    time.sleep(5)
    assert driver.process.poll() is None, driver.text()[-4000:]
    world.broker.start()
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "orders", truth)
    assert_dead_letters(world, truth)


@pytest.mark.long
def test_messages_that_grow(world: World) -> None:
    """Small messages, then messages of 50 KB that shrink to little: too heavy, and shortened."""
    world.create_topic("orders-wire", 2)
    world.create_table("wire")
    truth = Truth()
    world.produce("orders-wire", 40_000, truth, partitions=2, bad_every=3000)
    note = "".join(chr(97 + (7 * i) % 26) for i in range(50_000))
    world.produce("orders-wire", 5_000, truth, 2, make=lambda n: order(n, note), first=40_000)
    configuration = world.configure(
        {"wire": ["orders-wire"]}, max_messages=250_000, max_bytes='"64MiB"', connector=WIRE
    )
    driver = world.run(configuration)
    world.wait_for_rows("wire", truth.rows, driver)
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, "wire", truth)
    assert [entry for entry in world.ledger() if entry.get("kind") == "shorten"]


@pytest.mark.parametrize("comes_back", [False, True], ids=["", "a dead letter comes back"])
@pytest.mark.parametrize(
    "route",
    ["", 'route = { envelope = "" }'],
    ids=["several entries", "by envelope"],
)
def test_headers_are_read_only_where_a_message_is_for_one_entry(
    world: World, route: str, comes_back: bool
) -> None:
    """What is for the entry two only is named in a header, whatever its envelope names."""
    topic = f"shared-{len(route)}-{comes_back}"
    world.create_topic(topic, 1)
    producer, wanted = world.producer(), dict[str, list[int]](one=[], two=[])
    for number in range(300):
        name = ("one", "two", "none")[number % 3]
        value = SQLBatchRequest(name, f"INSERT INTO {name} (id) VALUES (?)", [(number,)]).encode()
        is_for_two = comes_back and number % 100 == 0
        told = [("trace", b"x"), (TABLE_HEADER, b"two")] if is_for_two else [("trace", b"x")]
        producer.produce(topic, value, headers=told)
        for table in wanted:
            takes = name == table if route else True
            if (table == "two") if is_for_two else takes:
                wanted[table].append(number)
    producer.flush()
    for table in wanted:
        world.execute(f"CREATE TABLE {table} (id UInt64, {LINEAGE}) ENGINE = MergeTree ORDER BY id")
    settings = f'format = "SQLBatchRequest"\nrows = "many"\n{route}'
    connector = f'{WIRE}unrouted = "skip"'
    path = world.configure(
        {table: [topic] for table in wanted}, connector=connector, table_settings=settings
    )
    configuration = load(path, {})
    loading._cache.readers.clear()
    sent = Task(configuration, topic, 300, read_spec(configuration, "dc1"))
    assert isinstance(sent.load().outcome, Loaded)
    for table, numbers in wanted.items():
        assert world.rows(table)[0] == [(number, number) for number in numbers]
    assert {looks for _, looks in loading._cache.readers} == {False, comes_back}
