"""Two drivers, foreign hands, vanished offsets: nobody guesses, nothing doubles."""

from __future__ import annotations

import signal
import time

import confluent_kafka as ck
import pytest

from tests.support.world import Truth, World, assert_exact, wait_for


def test_a_paused_driver_wakes_up_after_its_successor_took_over(world: World) -> None:
    world.create_topic("orders-zombie")
    world.create_table("zombie")
    truth = Truth()
    world.produce("orders-zombie", 200_000, truth)
    configuration = world.configure({"zombie": ["orders-zombie"]}, max_messages=5_000)
    first = world.run(configuration)
    world.wait_for_rows("zombie", 20_000, first)
    first.signal(signal.SIGSTOP)
    second = world.drain(configuration)
    assert "is loaded again, identically" in second.text()
    first.signal(signal.SIGCONT)
    assert first.wait(60) == 4, first.text()[-4000:]
    assert_exact(world, "zombie", truth)


@pytest.mark.long
def test_two_drivers_started_at_once(world: World) -> None:
    world.create_topic("orders-twins")
    world.create_table("twins")
    truth = Truth()
    world.produce("orders-twins", 60_000, truth)
    configuration = world.configure({"twins": ["orders-twins"]}, max_messages=3_000)
    twins = [world.run(configuration, "--until-caught-up") for _ in range(2)]
    statuses = sorted(twin.wait() for twin in twins)
    assert statuses in ([0, 4], [0, 0]), [twin.text()[-2000:] for twin in twins]
    assert_exact(world, "twins", truth)


def test_a_foreign_commit_stops_that_partition_only(world: World) -> None:
    world.create_topic("orders-foreign")
    world.create_table("foreigners")
    truth = Truth()
    world.produce("orders-foreign", 40_000, truth)
    configuration = world.configure({"foreigners": ["orders-foreign"]})
    world.drain(configuration)
    _commit(world, "orders-foreign", 2, 3)
    world.produce("orders-foreign", 40_000, truth, first=40_000)
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    text = driver.text()
    assert "orders-foreign[2]" in text and "sluice adopt" in text
    found = world.rows("foreigners")
    assert [len(found[p]) for p in range(4)] == [20_000, 20_000, 10_000, 20_000]
    position = str(max(offset for offset, _ in found[2]) + 1)
    adopt = ["--connector", "dc1", "--topic", "orders-foreign", "--partition", "2"]
    answer = world.sluice("adopt", str(configuration), *adopt, "--offset", position, "--yes")
    assert answer.returncode == 0, answer.stderr
    world.drain(configuration)
    assert_exact(world, "foreigners", truth)


def test_a_foreign_commit_while_it_runs(world: World) -> None:
    world.create_topic("orders-running")
    world.create_table("running")
    truth = Truth()
    world.produce("orders-running", 8_000, truth)
    configuration = world.configure({"running": ["orders-running"]})
    driver = world.run(configuration)
    world.wait_for_rows("running", 8_000, driver)
    time.sleep(1)
    _commit(world, "orders-running", 1, 5)
    world.produce("orders-running", 8_000, truth, first=8_000)
    world.wait_for_rows("running", 14_000, driver)
    wait_for(lambda: "orders-running[1]" in driver.text(), 20, "the stop")
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 1
    assert len(world.rows("running")[1]) == 2_000


def test_expired_messages_stop_their_partition(world: World) -> None:
    world.create_topic("orders-expired", 2)
    world.create_table("expired")
    truth = Truth()
    world.produce("orders-expired", 2_000, truth, partitions=2)
    configuration = world.configure({"expired": ["orders-expired"]})
    world.drain(configuration)
    world.produce("orders-expired", 2_000, truth, partitions=2, first=2_000)
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": world.broker.brokers})
    where = ck.TopicPartition("orders-expired", 0, 1_500)
    admin.delete_records([where])[where].result(30)
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert "expired before they were loaded" in driver.text()
    assert {p: len(rows) for p, rows in world.rows("expired").items()} == {0: 1_000, 1: 2_000}


def test_a_recreated_topic_stops(world: World) -> None:
    world.create_topic("orders-again", 1)
    world.create_table("again")
    truth = Truth()
    world.produce("orders-again", 1_000, truth, partitions=1)
    configuration = world.configure({"again": ["orders-again"]})
    world.drain(configuration)
    world.delete_topic("orders-again")
    time.sleep(1)
    world.create_topic("orders-again", 1)
    world.produce("orders-again", 500, Truth(), partitions=1)
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert "orders-again[0]" in driver.text() and "sluice adopt" in driver.text()
    assert world.count("again") == 1_000


def test_sigterm_settles_and_ends_with_0(world: World) -> None:
    world.create_topic("orders-term")
    world.create_table("term")
    truth = Truth()
    world.produce("orders-term", 200_000, truth)
    configuration = world.configure({"term": ["orders-term"]}, max_messages=5_000)
    driver = world.run(configuration)
    world.wait_for_rows("term", 10_000, driver)
    driver.signal(signal.SIGTERM)
    assert driver.wait(60) == 0, driver.text()[-4000:]
    loaded = world.count("term")
    assert loaded < 200_000
    second = world.drain(configuration)
    assert "in doubt" not in second.text()
    assert_exact(world, "term", truth)


def _commit(world: World, topic: str, partition: int, offset: int) -> None:
    """What a stray consumer in our group would do."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": world.broker.brokers,
            "group.id": f"sluice.{world.name}.dc1",
            "enable.auto.commit": False,
        }
    )
    consumer.commit(offsets=[ck.TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()
