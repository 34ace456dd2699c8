"""Two drivers, foreign hands, vanished offsets: nobody guesses, nothing doubles."""

from __future__ import annotations

import signal

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from tests.support.world import Truth, World, assert_exact, wait_for

#: For what a driver takes some seconds for, beside other tests.
SECONDS = 240.0


def test_a_paused_driver_wakes_up_after_its_successor_took_over(world: World) -> None:
    """The successor is told to stop in the middle: it settles what is loaded, and the next one has
    nothing to repeat."""
    world.create_topic("orders-zombie")
    world.create_table("zombie")
    truth = Truth()
    world.produce("orders-zombie", 100_000, truth)
    configuration = world.configure({"zombie": ["orders-zombie"]}, max_messages=3_000)
    first = world.run(configuration)
    world.wait_for_rows("zombie", 12_000, first)
    first.signal(signal.SIGSTOP)
    left = world.count("zombie")
    second = world.run(configuration)
    # The workers of the stopped driver still load what they were given: rows alone do not say that
    # the successor is there.
    wait_for(
        lambda: "is loaded again, identically" in second.text(),
        SECONDS,
        "the successor's first repeated block",
    )
    # However much it has loaded by now, more comes until it has ended: the signal comes between.
    with world.messages_coming("orders-zombie", truth):
        world.wait_for_rows("zombie", left + 24_000, second)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0, second.text()[-4000:]
    first.signal(signal.SIGCONT)
    assert first.wait() == 4, first.text()[-4000:]
    third = world.drain(configuration)
    assert "in doubt" not in third.text(), "something that was loaded is not settled"
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
    """While a driver runs, and while none does; the same of messages that expired before they were
    loaded, and of a topic that was made anew. A person says how a partition goes on."""
    world.create_topic("orders-foreign")
    world.create_topic("orders-expired", 2)
    world.create_topic("orders-again", 1)
    for table in ("foreigners", "expired", "again"):
        world.create_table(table)
    truth, expired, again = Truth(), Truth(), Truth()
    tables = {
        "foreigners": ["orders-foreign"],
        "expired": ["orders-expired"],
        "again": ["orders-again"],
    }
    configuration = world.configure(tables)
    world.produce("orders-foreign", 8_000, truth)
    world.produce("orders-expired", 2_000, expired, partitions=2)
    world.produce("orders-again", 1_000, again, partitions=1)
    driver = world.run(configuration)
    for table, rows in (("foreigners", 8_000), ("expired", 2_000), ("again", 1_000)):
        world.wait_for_rows(table, rows, driver)
    wait_for(lambda: is_idle(world), SECONDS, "the settles")
    _commit(world, "orders-foreign", 1, 5)
    world.produce("orders-foreign", 8_000, truth, first=8_000)
    world.wait_for_rows("foreigners", 14_000, driver)
    stop = f"orders-foreign[1] of connector {world.name}.dc1 stops at"
    wait_for(lambda: stop in driver.text(), SECONDS, stop)
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 1
    assert [len(world.rows("foreigners")[p]) for p in range(4)] == [4_000, 2_000, 4_000, 4_000]

    _commit(world, "orders-foreign", 2, 3)
    world.produce("orders-foreign", 4_000, truth, first=16_000)
    world.produce("orders-expired", 2_000, expired, partitions=2, first=2_000)
    admin = AdminClient({"bootstrap.servers": world.broker.brokers})
    where = ck.TopicPartition("orders-expired", 0, 1_500)
    admin.delete_records([where])[where].result(30)
    world.delete_topic("orders-again")
    world.create_topic("orders-again", 1)
    world.produce("orders-again", 500, Truth(), partitions=1)
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    for stopped in ("orders-foreign[1]", "orders-foreign[2]", "orders-again[0]", "sluice adopt"):
        assert stopped in driver.text()
    assert "expired before they were loaded" in driver.text()
    found = world.rows("foreigners")
    assert [len(found[p]) for p in range(4)] == [5_000, 2_000, 4_000, 5_000]
    assert {p: len(rows) for p, rows in world.rows("expired").items()} == {0: 1_000, 1: 2_000}
    assert world.count("again") == 1_000

    for partition in (1, 2):
        place = ["--connector", "dc1", "--topic", "orders-foreign", "--partition", str(partition)]
        position = str(max(offset for offset, _ in found[partition]) + 1)
        answer = world.sluice("adopt", str(configuration), *place, "--offset", position, "--yes")
        assert answer.returncode == 0, answer.stderr
    assert world.run(configuration, "--until-caught-up").wait() == 1  # for the two others
    assert_exact(world, "foreigners", truth)


def is_idle(world: World) -> bool:
    """Nothing that was recorded is in doubt."""
    last = {(each["topic"], each["partition"]): each["kind"] for each in world._records()}
    return set(last.values()) == {"settle"}


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
