"""Topics and table entries that leave the configuration, or join it, between two drivers."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from sluice.core.ranges import TopicPartition
from sluice.core.records import Record, decode
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.offsets import look
from sluice.testbed.local.running import ClickHouse
from tests.support.driver import Driver
from tests.support.world import Truth, World, assert_exact, wait_for

#: For what a driver takes some seconds for, beside other tests.
SECONDS = 240.0


def recorded(world: World, topic: str, partition: int = 0) -> Record | None:
    source = TopicPartition(topic, partition)
    access = KafkaAccess("dc1", world.broker.brokers)
    found = look(access, f"sluice.{world.name}.dc1", [source], 5.0).found[source]
    return None if found is None else decode(found.offset, found.metadata)


def in_doubt(world: World, topic: str) -> bool:
    record = recorded(world, topic)
    return record is not None and record.in_doubt


def is_settled(world: World, topic: str, offset: int, partition: int = 0) -> bool:
    record = recorded(world, topic, partition)
    return record is not None and not record.in_doubt and record.begin == offset


def leave_in_doubt(
    world: World, configuration: Path, produce: dict[str, Truth], first: int = 1_000
) -> Driver:
    """A driver that is killed after it recorded a range of each topic and before any answer."""
    driver = world.run(configuration)
    for topic in produce:
        wait_for(lambda t=topic: is_settled(world, t, 1_000), SECONDS, f"{topic} settled")  # type: ignore[misc]
    assert isinstance(world.clickhouse, ClickHouse)
    os.kill(world.clickhouse.pid, signal.SIGSTOP)
    try:
        for topic, truth in produce.items():
            world.produce(topic, 500, truth, partitions=1, first=first)
        wait_for(lambda: all(in_doubt(world, topic) for topic in produce), SECONDS, "the intents")
        time.sleep(0.5)
        driver.kill()
    finally:
        os.kill(world.clickhouse.pid, signal.SIGCONT)
    return driver


@pytest.mark.slow
def test_a_retired_topic_and_a_retired_entry_are_settled_first(world: World) -> None:
    for topic in ("kept", "retired", "added"):
        world.create_topic(topic, 1)
    for table in ("kept_a", "kept_b", "gone", "fresh"):
        world.create_table(table)
    kept, gone, fresh = Truth(), Truth(), Truth()
    world.produce("kept", 1_000, kept, partitions=1)
    world.produce("retired", 1_000, gone, partitions=1)
    world.produce("added", 700, fresh, partitions=1)
    before = {"kept_a": ["kept"], "kept_b": ["kept"], "gone": ["retired"]}
    leave_in_doubt(world, world.configure(before), {"kept": kept, "retired": gone})

    # Of what comes now, the entry and the topic that were taken out get nothing.
    kept_b, later = Truth(good={0: list(kept.good[0])}), Truth()
    world.produce("kept", 300, kept, partitions=1, first=5_000)
    world.produce("retired", 300, later, partitions=1, first=5_000)
    after = world.configure({"kept_a": ["kept"], "fresh": ["added"]})
    driver = world.drain(after)
    assert_exact(world, "kept_a", kept)
    assert_exact(world, "kept_b", kept_b)
    assert_exact(world, "gone", gone)
    assert_exact(world, "fresh", fresh)
    assert "retired[0] is not configured any more, and its last range is in doubt" in driver.text()
    assert "retired[0] is not configured any more; it is settled at 1500" in driver.text()
    assert not in_doubt(world, "retired")

    # When it comes back it goes on.
    world.drain(world.configure(before))
    gone.good[0] += later.good[0]
    assert_exact(world, "gone", gone)
    verified = world.sluice("verify", str(world.configure(before)))
    assert verified.returncode == 0, verified.stdout


@pytest.mark.slow
def test_claims_of_a_retired_entry_are_made_again_when_their_store_is_lost(world: World) -> None:
    """Half of its range in doubt are events whose rows are there."""
    for name in ("kept", "gone"):
        world.create_topic(name, 1)
        world.create_table(name)
    kept, gone, doubtful = Truth(), Truth(), Truth()
    world.produce("kept", 1_000, kept, partitions=1)
    world.produce("gone", 1_000, gone, partitions=1)
    batch = {"table_settings": 'deduplicate = { key = ["id"], window = "1d" }', "lease": '"10s"'}
    before = world.configure({"kept": ["kept"], "gone": ["gone"]}, **batch)
    leave_in_doubt(world, before, {"kept": Truth(), "gone": doubtful}, first=750)
    shutil.rmtree(before.parent / "sluice-claims")

    world.produce("kept", 500, kept, partitions=1, first=2_000)
    world.drain(world.configure({"kept": ["kept"]}, **batch), SECONDS)
    gone.good[0] += [pair for pair in doubtful.good[0] if pair[1] >= 1_000]
    assert_exact(world, "gone", gone)
    assert not in_doubt(world, "gone")
    ids = [number for _, number in world.rows("kept")[0]]
    assert sorted(ids) == [*range(1_250), *range(2_000, 2_500)]
