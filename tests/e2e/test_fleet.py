"""Several drivers share the partitions of a pipeline, and every row is loaded once (R24, R25)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.core.ranges import TopicPartition
from tests.support.driver import Driver
from tests.support.fleet import GroupWatch
from tests.support.world import Truth, World, assert_exact, order, wait_for

PARTITIONS, PARTITIONS_OF_MANY = 16, 64
MEMBERS_MAX = 4
LEASE_SECONDS = 20


def start(world: World, base: Path, member: str) -> Driver:
    path, log = (world.folder / f"{member}.{len(world.drivers)}.{end}" for end in ("toml", "log"))
    path.write_text(
        base.read_text() + f'[fleet]\nmember = "{member}"\nmembers_max = {MEMBERS_MAX}\n'
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice", "run", str(path)],
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    driver = Driver(process, log)
    world.drivers.append(driver)
    return driver


def shared_by(
    world: World, base: Path, *members: str, partitions: int = PARTITIONS, share: int = 1
) -> None:
    """Wait until these members, and nobody else, have all partitions.

    :param share: each of them has so many at least.
    """

    def is_so() -> bool:
        answer = world.sluice("fleet", str(base), "--json")
        assert answer.returncode == 0, answer.stderr
        shares = Counter[str]()
        for each in json.loads(answer.stdout):
            shares[each["member"] or ""] += each["partitions"]
        has = {name: count for name, count in shares.items() if count}
        is_enough = min(has.values(), default=0) >= share
        return has.keys() == set(members) and is_enough and shares.total() == partitions

    wait_for(is_so, 180, f"shares of {members}")


@contextmanager
def produced(
    world: World, topic: str, truth: Truth, partitions: int = PARTITIONS, every: float = 0.2
) -> Iterator[None]:
    """A message for each partition, every so many seconds."""
    ended, producer = threading.Event(), world.producer()

    def produce() -> None:
        number = 0
        while not ended.wait(every):
            for partition in range(partitions):
                number += 1
                producer.produce(
                    topic,
                    order(number),
                    partition=partition,
                    on_delivery=lambda error, message, number=number: truth.good.setdefault(
                        message.partition(), []
                    ).append((message.offset(), number)),
                )
            producer.poll(0)
        assert producer.flush(60) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.long
def test_partitions_change_hands_and_rows_are_exact(world: World) -> None:
    truth = Truth()
    world.create_topic("orders-shared", PARTITIONS)
    world.create_table("shared")
    base = world.configure({"shared": ["orders-shared"]}, lease='"20s"')
    with produced(world, "orders-shared", truth):
        first = start(world, base, "a")
        shared_by(world, base, "a")
        second = start(world, base, "b")
        shared_by(world, base, "a", "b")
        second.kill()
        shared_by(world, base, "a")
        second = start(world, base, "b")
        shared_by(world, base, "a", "b")
        second.signal(signal.SIGSTOP)
        shared_by(world, base, "a")
        second.signal(signal.SIGCONT)
        shared_by(world, base, "a", "b")
        assert "goes on without what it had" in second.text()
        first.signal(signal.SIGTERM)
        shared_by(world, base, "b")
        assert first.wait() == 0, first.text()[-4000:]
    wait_for(lambda: world.count("shared") >= truth.rows, 120, f"all {truth.rows} rows")
    assert_exact(world, "shared", truth)


class Fleet:
    """Members of one pipeline with many partitions, and what became of them.

    :param watch: told of each event, since when, and whose partitions it is about.
    """

    def __init__(self, world: World, base: Path, watch: GroupWatch) -> None:
        self._world, self._base, self._watch = world, base, watch
        self.drivers: dict[str, Driver] = {}
        #: By event, the longest time in which nothing of a partition was settled.
        self.pauses: dict[str, float] = {}

    def start(self, name: str) -> Driver:
        driver = self.drivers[name] = start(self._world, self._base, name)
        return driver

    def shared(self) -> None:
        """Wait until those that run have all partitions, and each of them some."""
        shared_by(*(self._world, self._base, *self.drivers), partitions=PARTITIONS_OF_MANY, share=3)

    @contextmanager
    def measured(self, event: str, name: str = "") -> Iterator[None]:
        """Measure what pauses until those that run share all again.

        :param name: only what this member has is looked at; else what changes its owner.
        """
        began, before = time.monotonic(), dict(self._watch.owner_ids())
        its = self._watch.owned_by(name) if name else set()
        load = os.getloadavg()[0]
        yield
        self.shared()
        time.sleep(3)  # what came last settles
        after = self._watch.owner_ids()
        its = its or {source for source, owner in before.items() if after[source] != owner}
        self.pauses[event] = self._watch.longest_pause(its, began)
        print(
            f"{event}: {len(its)} partitions pause for {self.pauses[event]:.1f} s at most "
            f"(load {load:.1f} and {os.getloadavg()[0]:.1f})"
        )


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_members_are_killed_stopped_added_and_removed_and_rows_are_exact(world: World) -> None:
    """A partition that moves, and one whose owner is killed, goes on soon. The bounds are for a
    busy machine; what it takes is printed."""
    truth, topic, many = Truth(), "orders-fleet", PARTITIONS_OF_MANY
    world.create_topic(topic, many)
    world.create_table("fleet")
    base = world.configure({"fleet": [topic]}, lease=f'"{LEASE_SECONDS}s"', max_delay='"500ms"')
    sources = [TopicPartition(topic, number) for number in range(many)]
    watch = GroupWatch(world.broker.brokers, f"sluice.{world.name}.dc1", sources)
    fleet = Fleet(world, base, watch)
    try:
        with produced(world, topic, truth, many, every=0.5):
            fleet.start("a")
            fleet.shared()
            for name in ("b", "c"):
                with fleet.measured(f"{name} joins"):
                    fleet.start(name)
            with fleet.measured("b is killed", "b"):
                fleet.drivers.pop("b").kill()
            with fleet.measured("b comes back"):
                fleet.start("b")
            with fleet.measured("c is stopped", "c"):
                sleeps, asleep_at = fleet.drivers.pop("c"), time.monotonic()
                sleeps.signal(signal.SIGSTOP)
            time.sleep(max(0.0, asleep_at + LEASE_SECONDS + 10 - time.monotonic()))
            with fleet.measured("c wakes up"):
                sleeps.signal(signal.SIGCONT)
                fleet.drivers["c"] = sleeps
            assert "goes on without what it had" in sleeps.text()
            with fleet.measured("d is added"):
                fleet.start("d")
            with fleet.measured("a is removed", "a"):
                leaves = fleet.drivers.pop("a")
                leaves.signal(signal.SIGTERM)
            assert leaves.wait() == 0, leaves.text()[-4000:]
            assert all(each.process.poll() is None for each in fleet.drivers.values())
        wait_for(lambda: world.count("fleet") >= truth.rows, 120, f"all {truth.rows} rows")
    finally:
        watch.close()
    assert_exact(world, "fleet", truth)
    print(f"{truth.rows} rows, each once")
    unowned = {"b is killed", "c is stopped"}
    assert max(fleet.pauses[event] for event in unowned) < 60, fleet.pauses
    assert max(p for event, p in fleet.pauses.items() if event not in unowned) < 30, fleet.pauses
