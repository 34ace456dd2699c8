"""A topic that is deleted, created and filled again between two looks of a driver at its end."""

from __future__ import annotations

import signal

import pytest

from sluice.config import load
from sluice.core.receipts import Failed, Loaded
from sluice.driver.specs import read_spec
from sluice.kafka.errors import RecreatedTopicError
from tests.e2e.test_owners import SECONDS, is_idle
from tests.support.range_task import Task
from tests.support.world import Truth, World, assert_exact, wait_for


@pytest.mark.parametrize("reader", ["librdkafka", "native"])
def test_whoever_reads_it_refuses_it(world: World, reader: str) -> None:
    """The range was recorded before, and is read after, as by a repeat. The offsets are there, in
    the same leader epoch."""
    topic = f"anew-{reader}"
    world.create_topic(topic, 1)
    world.create_table("anew")
    before, now = Truth(), Truth()
    world.produce(topic, 1_000, before, partitions=1)
    path = world.configure({"anew": [topic]}, connector=f'reader = "{reader}"')
    configuration = load(path, {})
    spec = read_spec(configuration, "dc1")
    assert isinstance(Task(configuration, topic, 500, spec).load().outcome, Loaded)
    recorded = Task(configuration, topic, 1_000, spec)
    assert recorded.topic_id
    world.delete_topic(topic)
    world.create_topic(topic, 1)
    world.produce(topic, 3_000, now, partitions=1, first=100_000, bad_every=300)
    outcome = recorded.load().outcome
    assert isinstance(outcome, Failed) and isinstance(outcome.error, RecreatedTopicError), outcome
    assert outcome.inserted_nothing
    before.good[0] = before.good[0][:500]
    assert_exact(world, "anew", before)
    assert isinstance(Task(configuration, topic, 1_000, spec).load().outcome, Loaded)
    before.good[0] += [row for row in now.good[0] if row[0] < 1_000]
    assert_exact(world, "anew", before)


@pytest.mark.slow
def test_a_driver_loads_nothing_of_it_before_a_person_says_so(world: World) -> None:
    """Neither where a partition was empty, nor where the new one has more messages than the old one
    had. Kafka forgets what a group committed of a topic that is deleted: a driver finds that before
    it records (R5). As it says, the new topic is loaded from its beginning, once."""
    topic = "anew-driver"
    world.create_topic(topic, 2)
    world.create_table("anew")
    before, now = Truth(), Truth()
    world.produce(topic, 1_000, before, partitions=1)
    configuration = world.configure({"anew": [topic]})
    driver = world.run(configuration)
    world.wait_for_rows("anew", 1_000, driver)
    wait_for(lambda: is_idle(world), SECONDS, "the settles")
    driver.signal(signal.SIGSTOP)
    world.delete_topic(topic)
    world.create_topic(topic, 2)
    world.produce(topic, 6_000, now, partitions=2, first=100_000, bad_every=300)
    driver.signal(signal.SIGCONT)
    stops = [f"{topic}[{partition}] of connector {world.name}.dc1 stops" for partition in range(2)]
    wait_for(lambda: all(stop in driver.text() for stop in stops), SECONDS, "the stops")
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 1, driver.text()[-4000:]
    assert_exact(world, "anew", before)

    where = ["--connector", "dc1", "--topic", topic, "--partition", "0", "1"]
    adopted = world.sluice("adopt", str(configuration), *where, "--offset", "0", "--yes")
    assert adopted.returncode == 0, adopted.stdout + adopted.stderr
    world.drain(configuration)
    for partition, rows in before.good.items():
        now.good[partition] += rows
    assert_exact(world, "anew", now)
