"""Two drivers share the partitions of a pipeline, and every row is loaded once (R24, R25). No user
may run two yet: the switch is turned in their processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.driver import Driver
from tests.support.world import Truth, World, assert_exact, order, wait_for

PARTITIONS = 16
_RUN = (
    "import sys, sluice.driver.fleet as fleet; fleet.SEVERAL_MEMBERS = True; "
    "from sluice.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def start(world: World, base: Path, member: str) -> Driver:
    path, log = (world.folder / f"{member}.{len(world.drivers)}.{end}" for end in ("toml", "log"))
    path.write_text(base.read_text() + f'[fleet]\nmember = "{member}"\nmembers_max = 2\n')
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, "run", str(path)],
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    driver = Driver(process, log)
    world.drivers.append(driver)
    return driver


def shared_by(world: World, base: Path, *members: str) -> None:
    """Wait until these members, and nobody else, have all partitions."""

    def is_so() -> bool:
        answer = world.sluice("fleet", str(base), "--json")
        assert answer.returncode == 0, answer.stderr
        shares = Counter[str]()
        for each in json.loads(answer.stdout):
            shares[each["member"] or ""] += each["partitions"]
        return {name for name, has in shares.items() if has} == set(members) and (
            shares.total() == PARTITIONS
        )

    wait_for(is_so, 180, f"shares of {members}")


@contextmanager
def produced(world: World, topic: str, truth: Truth) -> Iterator[None]:
    """A message for each partition five times a second."""
    ended, producer = threading.Event(), world.producer()

    def produce() -> None:
        number = 0
        while not ended.wait(0.2):
            for partition in range(PARTITIONS):
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
