"""Taking over from another loader: its consumer group says where to begin."""

from __future__ import annotations

import confluent_kafka as ck
import pytest

from tests.support.world import Truth, World, assert_exact, wait_for


@pytest.mark.long
def test_it_begins_where_another_loader_stopped(world: World) -> None:
    world.create_topic("taken-over", 2)
    world.create_table("taken_over")
    truth = Truth()
    world.produce("taken-over", 2_000, truth, partitions=2)
    group = f"old-{world.name}"
    old = ck.Consumer(
        {
            "bootstrap.servers": world.broker.brokers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    old.subscribe(["taken-over"])
    wait_for(lambda: bool(old.consume(1, 0.2)), 30, "the other loader's first message")
    old.commit(offsets=[ck.TopicPartition("taken-over", 0, 300)], asynchronous=False)

    start = f'start = "group:{group}"'
    configuration = world.configure({"taken_over": ["taken-over"]}, connector=start)
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 2, driver.text()[-4000:]
    assert "1 members that may still load" in driver.text()
    old.close()
    assert world.ledger() == []  # nothing was decided yet

    start = f'start = "group:{group},earliest"'
    configuration = world.configure({"taken_over": ["taken-over"]}, connector=start)
    assert (
        f"taken-over[0] begins at 300, where the group {group} stands"
        in world.drain(configuration).text()
    )
    truth.good[0] = [(offset, number) for offset, number in truth.good[0] if offset >= 300]
    assert_exact(world, "taken_over", truth)
