"""A way to the brokers that is too slow for what a member of a fleet has to settle at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.core.errors import SluiceError
from sluice.core.receipts import DeadLetter
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.dead_letters import read_dead_letters
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import kafka_requests
from sluice.testbed.chaos.stage import ProxiedBroker
from sluice.testbed.local.running import ClickHouse, running_program
from tests.support.fleet import start_member
from tests.support.world import World, wait_for

MESSAGES = 90


def dead_letters_of(world: World) -> list[DeadLetter]:
    access = KafkaAccess("dc1", world.broker.brokers)
    try:
        return list(read_dead_letters(access, f"sluice.{world.name}.dead-letters"))
    except SluiceError:  # there is no topic yet
        return []


@pytest.mark.long
def test_who_is_fenced_by_its_own_time_out_settles_after_it_started_anew(
    tmp_path: Path, embedded_server: ClickHouse
) -> None:
    """Of 8 MB it could write less than 4 in its 15 s. It loaded them again, for ever."""
    with (
        Proxy(kafka_requests(frozenset())) as way,
        running_program(ProxiedBroker(tmp_path / "kafka", way)) as broker,
    ):
        world = World(tmp_path, broker, embedded_server, "slow")
        world.create_topic("orders", 1)
        world.create_table("orders")
        producer = world.producer()
        for _ in range(MESSAGES):
            producer.produce("orders", os.urandom(50_000).hex().encode(), partition=0)
        assert producer.flush(60) == 0
        path = world.configure({"orders": ["orders"]}, lease='"10m"')
        text = path.read_text().replace(broker.brokers, f"127.0.0.1:{way.port}")
        path.write_text(f"{text}[dead_letters]\nmax_ratio = 1.0\n")
        way.strike(LinkFault(Kind.THROTTLE, bytes_per_second=250_000))
        try:
            driver = start_member(world, path, "a")
            wait_for(lambda: len(dead_letters_of(world)) >= MESSAGES, 400, "all dead letters")
            driver.signal(15)
            assert driver.wait() == 0
        finally:
            world.close()
            world.clean()
        assert driver.text().count("of dead letters was not committed in") == 1
        assert driver.text().count("was fenced; it goes on without what it had") == 1
        found = dead_letters_of(world)
        assert [each.offset for each in found] == list(range(MESSAGES))
        whole = [each for each in found if not each.truncated]
        assert 10 <= len(whole) <= MESSAGES // 2
