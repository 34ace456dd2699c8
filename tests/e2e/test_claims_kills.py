"""Failures that have doubled or lost events elsewhere, where the ids of events are kept in a store
beside the table: a worker dies between the insert and what it remembers, or the store knows an
event whose row is not there. With a real Redis; every row is compared by its event."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.exits import Exits
from tests.support.redis_server import RedisServer, run_redis
from tests.support.world import Truth, World, wait_for

EVENTS = 12_000
KILLS = 2
DEDUPLICATE = 'deduplicate = { key = ["id"], window = "1d", duplicates = "topic" }'


#: Partition, offset, and the number of the event.
Place = tuple[int, int, int]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with run_redis("appendonly yes") as server:
        yield server


def configured(
    world: World, redis: RedisServer, table: str, topic: str, settings: str = DEDUPLICATE
) -> Path:
    path = world.configure(
        {table: [topic]}, max_messages=1_000, lease='"10s"', table_settings=settings
    )
    with path.open("a") as opened:
        opened.write(f'\n[deduplication]\nstore = "{redis.url}"\n')
    return path


def produce(world: World, topic: str, first: int) -> Truth:
    """Each event, and half of them again in other partitions, near the first ones."""
    truth = Truth()
    for begin in range(first, first + EVENTS, 3_000):
        world.produce(topic, 3_000, truth, first=begin)
        world.produce(topic, 1_500, truth, partitions=3, first=begin + 500)
    return truth


def assert_each_event_once(world: World, configuration: Path, table: str, *truths: Truth) -> None:
    sent = {
        (partition, offset, number)
        for truth in truths
        for partition, pairs in truth.good.items()
        for offset, number in pairs
    }
    found = Counter(
        (partition, offset, number)
        for partition, pairs in world.rows(table).items()
        for offset, number in pairs
    )
    assert set(found) <= sent, sorted(set(found) - sent)[:5]
    rows = Counter(number for _, _, number in found.elements())
    doubled = [number for number, count in rows.items() if count > 1]
    lost = {number for _, _, number in sent} - rows.keys()
    assert (len(doubled), len(lost)) == (0, 0), (doubled[:5], sorted(lost)[:5])
    assert_each_duplicate_once(world, configuration, sent, set(found))


def assert_each_duplicate_once(
    world: World, configuration: Path, sent: set[Place], rows: set[Place]
) -> None:
    """Each message that made no row has one copy, which names the one that did."""
    done = world.sluice("dead-letters", "list", str(configuration), "--duplicates", "--json")
    assert done.returncode == 0, done.stderr
    copies = json.loads(done.stdout)
    places = Counter((copy["partition"], copy["offset"]) for copy in copies)
    assert places == Counter((partition, offset) for partition, offset, _ in sent - rows)
    row_of = {number: (partition, offset) for partition, offset, number in rows}
    for copy in copies:
        (number,) = json.loads(copy["duplicate_key"])
        _, partition, offset = copy["duplicate_of"].split("/")
        assert row_of[int(number)] == (int(partition), int(offset))


@pytest.mark.slow
def test_a_worker_dies(
    world: World, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it has claimed, and not inserted; and when it has inserted, and not reported: in the
    first case OpenMeter's sink lost an event, in the second one it doubled it."""
    table, topic = f"killed_{world.name}", f"killed-{world.name}"
    world.create_topic(topic)
    world.create_table(table)
    functions = ("claim", "insert_block")
    exits = Exits(tmp_path, monkeypatch, "sluice.worker.loading", functions, KILLS)
    configuration = configured(world, redis, table, topic)
    truth = produce(world, topic, 0)
    driver = world.drain(configuration, 240)
    assert exits.count == KILLS * len(functions), driver.text()[-4000:]
    assert "Spark lost" in driver.text()
    assert_each_event_once(world, configuration, table, truth)


@pytest.mark.long
@pytest.mark.parametrize(
    "key",
    [
        pytest.param('key = ["id"]', id="as it was"),
        pytest.param('scope = "another", key = ["id"]', id="in another scope"),
        pytest.param('key = ["toString(id)"]', id="by another key"),
    ],
)
def test_claims_of_a_driver_that_is_gone(
    world: World, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """The store knows events that the table lacks: workers die after they claimed, and so does the
    driver. The same events come again before its successor starts, which knows them otherwise."""
    table, topic = f"gone_{world.name}", f"gone-{world.name}"
    world.create_topic(topic)
    world.create_table(table)
    configuration = configured(world, redis, table, topic)
    first = produce(world, topic, 0)
    with monkeypatch.context() as planted:
        exits = Exits(tmp_path, planted, "sluice.worker.loading", ("claim",), 1_000)
        driver = world.run(configuration)
        wait_for(lambda: exits.count >= 2, 90, "the end of workers")
        driver.kill()
    assert redis.ask("DBSIZE") != 0 and world.count(table) == 0
    again = produce(world, topic, 0)
    settings = DEDUPLICATE.replace('key = ["id"]', key)
    configuration = configured(world, redis, table, topic, settings)
    world.drain(configuration, 240)
    assert_each_event_once(world, configuration, table, first, again)
    assert world.count(table) == EVENTS
