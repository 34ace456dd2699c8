"""A member of a fleet dies while a shard is away, and what it had in doubt there is inherited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.ranges import TopicPartition
from sluice.core.records import Record, decode
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.offsets import look
from sluice.testbed.local.running import ClickHouse, running_clickhouse
from tests.e2e.test_fleet import connector_of
from tests.e2e.test_shards import ENGINE, Shards
from tests.support.cutting import run_link
from tests.support.driver import Driver
from tests.support.fleet import start_member
from tests.support.world import COLUMNS, LINEAGE, Truth, World, wait_for

PARTITIONS = 2
PATIENCE = 240.0


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[ClickHouse]:
    """The second shard."""
    with running_clickhouse(tmp_path / "fragile") as clickhouse:
        yield clickhouse


def records(world: World, topic: str) -> list[Record]:
    sources = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    access = KafkaAccess("dc1", world.broker.brokers)
    found = look(access, f"sluice.{world.name}.dc1", sources, 5.0).found.values()
    return [decode(each.offset, each.metadata) for each in found if each is not None]


def is_settled(world: World, topic: str, messages: int) -> bool:
    settled = [each.begin for each in records(world, topic) if not each.in_doubt]
    return len(settled) == PARTITIONS and sum(settled) == messages


def wait_until_ready(driver: Driver) -> None:
    url: list[str] = []

    def is_ready() -> bool:
        assert driver.process.poll() is None, driver.text()[-4000:]
        return bool(connector_of(driver, url)["is_ready"])

    wait_for(is_ready, PATIENCE, "a ready member")


@pytest.mark.long
@pytest.mark.parametrize("alter", ["ADD COLUMN more String", "MODIFY COLUMN quantity UInt32"])
def test_an_heir_takes_over_what_is_in_doubt_in_a_shard_that_is_away(
    world: World, fragile: ClickHouse, alter: str
) -> None:
    """The dead one had ranges in doubt under the load spec of before an ALTER: after the one it can
    be executed, after the other it cannot, and only the shard can tell. What needs the other shard
    alone goes on; the rest when the shard is back."""
    places = {"first": (0,), "second": (1,), "both": (0, 1)}
    truths = {name: Truth() for name in places}
    shards = Shards(world, (world.clickhouse.url, fragile.url))
    for name, where in places.items():
        world.create_topic(f"orders-{name}", PARTITIONS)
        shards.execute(f"CREATE TABLE {name} ({COLUMNS}, {LINEAGE}) {ENGINE}", *where)

    def produce(first: int, *names: str) -> None:
        for name in names:
            world.produce(f"orders-{name}", 200, truths[name], PARTITIONS, first=first)

    with run_link(fragile.url) as link:
        base = shards.configure(
            {name: [f"orders-{name}"] for name in places},
            urls=(world.clickhouse.url, link.url),
            settings_of={
                "first": 'shards = ["s1"]',
                "second": 'shards = ["s2"]',
                "both": 'sharding = { by = "offset", stripe = 10 }',
            },
            lease='"15s"',
        )
        base.write_text(base.read_text() + '[http]\nlisten = "127.0.0.1:0"\n')
        dies = start_member(world, base, "a")
        produce(0, *places)
        for name in places:
            topic = f"orders-{name}"
            wait_for(lambda t=topic: is_settled(world, t, 200), PATIENCE, topic)  # type: ignore[misc]
        link.lose()
        produce(1_000, "second", "both")
        wait_for(lambda: link.lost >= 2, PATIENCE, "blocks that nobody knows of")
        for name in ("second", "both"):
            shards.execute(f"ALTER TABLE {name} {alter}", *places[name])
        # Not through the link, by which nobody hears of what is stored.
        base.write_text(base.read_text().replace(link.url, fragile.url))
        heir = start_member(world, base, "b")
        wait_until_ready(heir)
        left = {record.spec for record in records(world, "orders-both") if record.in_doubt}
        assert left, "nothing of the dead one is in doubt"
        fragile.stop()
        dies.kill()
        produce(2_000, *places)
        wait_for(lambda: is_settled(world, "orders-first", 400), PATIENCE, "first to go on")
        assert not is_settled(world, "orders-both", 600)
        fragile.start()
        for name in ("second", "both"):
            topic = f"orders-{name}"
            wait_for(lambda t=topic: is_settled(world, t, 600), PATIENCE, topic)  # type: ignore[misc]
    assert left.isdisjoint(record.spec for record in records(world, "orders-both"))
    for name, truth in truths.items():
        found = [world.rows(name, shards.urls[place]) for place in places[name]]
        for partition, expected in truth.good.items():
            rows = [row for each in found for row in each.get(partition, [])]
            assert sorted(rows) == sorted(expected), f"{name}[{partition}]"
