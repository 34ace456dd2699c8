"""Topics that an expression takes: those of the start, one that appears, one that goes."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from tests.e2e.test_retired import SECONDS, is_settled
from tests.support.world import Truth, World, assert_dead_letters, assert_exact, wait_for


def of(table: str, topic: str) -> str:
    """The rows of one topic, for `World.rows`."""
    return f"{table} WHERE _topic = '{topic}'"


@pytest.mark.slow
def test_topics_come_and_go_while_a_driver_runs(world: World) -> None:
    prefix = f"{world.name}-orders"
    first, second, third, other = (f"{prefix}.{name}" for name in ("eu", "us", "asia", "late"))
    truths = {topic: Truth() for topic in (first, second, third, other)}
    for topic in (first, second):
        world.create_topic(topic, 2)
        world.produce(topic, 3_000, truths[topic], partitions=2, bad_every=200)
    world.create_topic(f"{world.name}-users", 1)
    world.produce(f"{world.name}-users", 10, Truth(), partitions=1)
    table = f"orders_{world.name.replace('-', '_')}"
    world.create_table(table)
    configuration = world.configure({table: ["x"]})
    pattern = f"topic_pattern = '{prefix}\\..*'"
    text = configuration.read_text()
    assert text.count('topics = ["x"]') == 2
    configuration.write_text(text.replace('topics = ["x"]', pattern))

    driver = world.run(configuration)
    world.wait_for_rows(table, truths[first].rows + truths[second].rows, driver)
    world.create_topic(third, 2)
    world.produce(third, 3_000, truths[third], partitions=2, bad_every=200)
    driver.signal(signal.SIGHUP)
    world.wait_for_rows(of(table, third), truths[third].rows, driver)
    for number in (0, 1):
        settled = partial(is_settled, world, second, 1_500, number)
        wait_for(settled, SECONDS, f"{second}[{number}] settled")
    world.delete_topic(second)
    driver.signal(signal.SIGHUP)
    gone = f"{second}[1]: its topic is gone; it is settled at 1500 and let go"
    wait_for(lambda: gone in driver.text(), SECONDS, "the farewell")
    world.produce(first, 500, truths[first], partitions=2, first=3_000)
    world.wait_for_rows(of(table, first), truths[first].rows, driver)
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 0, driver.text()[-4000:]

    # A topic that came while nobody ran; then nothing is left.
    world.create_topic(other, 1)
    world.produce(other, 700, truths[other], partitions=1)
    world.drain(configuration)
    for topic, truth in truths.items():
        assert_exact(world, of(table, topic), truth)
    assert world.count(table) == sum(truth.rows for truth in truths.values())
    dead_letters = Truth()
    for truth in truths.values():
        for partition, offsets in truth.bad.items():
            dead_letters.bad.setdefault(partition, []).extend(offsets)
    assert_dead_letters(world, dead_letters)
    assert f"new topics are loaded from now on: {third}" in driver.text()

    doctor = world.sluice("doctor", str(configuration))
    assert f"takes {third}, {first}, {other}" in doctor.stdout, doctor.stdout
    audit = world.sluice("audit", str(configuration))
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert audit.stdout.splitlines()[1].split() == ["produced", "7,200"], audit.stdout
    for witness in ("offsets", "ledger"):
        verified = world.sluice("verify", str(configuration), "--source", witness)
        assert verified.returncode == 0, verified.stdout
    status = world.sluice("status", str(configuration))
    assert f"{other}" in status.stdout and "users" not in status.stdout, status.stdout
    ledger = world.sluice("ledger", str(configuration), "--topic", third, "--table", table)
    assert ledger.returncode == 0 and third in ledger.stdout, ledger.stderr
    replayed = world.sluice(
        "dead-letters", "replay", str(configuration), "--topic", third, "--limit", "1", "--yes"
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
