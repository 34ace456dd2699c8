"""Several drivers share the partitions of a pipeline, and every row is loaded once (R24, R25)."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from sluice.core.fleet.busy import MEASURED_MS, MEASURED_TIMES
from sluice.core.fleet.placement import spread
from sluice.core.fleet.view import Member
from sluice.core.ranges import TopicPartition
from sluice.testbed.local.processes import descendants
from tests.support.driver import Driver
from tests.support.fleet import members, owners, produced, shared_by, start_member
from tests.support.world import Truth, World, assert_exact, wait_for

PARTITIONS = 16
PATIENCE = 180.0
RANGE, BACKLOG_PARTITIONS, BACKLOG = 1_000, 32, 320_000
#: What a view behind the table takes for each block: waiting is what limits a driver, and no core.
INSERT_SECONDS = 2.0
MEASURED_SECONDS = 20.0


@pytest.mark.long
def test_partitions_change_hands_and_rows_are_exact(world: World) -> None:
    truth = Truth()
    world.create_topic("orders-shared", PARTITIONS)
    world.create_table("shared")
    base = world.configure({"shared": ["orders-shared"]}, lease='"20s"')
    with produced(world, "orders-shared", truth, PARTITIONS):
        first = start_member(world, base, "a")
        shared_by(world, base, "a", partitions=PARTITIONS)
        second = start_member(world, base, "b")
        shared_by(world, base, "a", "b", partitions=PARTITIONS)
        second.kill()
        shared_by(world, base, "a", partitions=PARTITIONS)
        second = start_member(world, base, "b")
        shared_by(world, base, "a", "b", partitions=PARTITIONS)
        second.signal(signal.SIGSTOP)
        shared_by(world, base, "a", partitions=PARTITIONS)
        second.signal(signal.SIGCONT)
        shared_by(world, base, "a", "b", partitions=PARTITIONS)
        assert "goes on without what it had" in second.text()
        first.signal(signal.SIGTERM)
        shared_by(world, base, "b", partitions=PARTITIONS)
        assert first.wait() == 0, first.text()[-4000:]
    wait_for(lambda: world.count("shared") >= truth.rows, 120, f"all {truth.rows} rows")
    assert_exact(world, "shared", truth)


def connector_of(driver: Driver, url: list[str]) -> dict[str, Any]:
    """What a driver says of its connector, and whether it is ready; nothing before it listens."""
    if not url:
        logged = [json.loads(line) for line in driver.text().splitlines() if '"http"' in line]
        url += [each["url"] for each in logged]
    if not url:
        return {"is_ready": False}
    try:
        with urllib.request.urlopen(f"{url[0]}/ready", timeout=10) as answer:
            is_ready = answer.status == 200
    except urllib.error.HTTPError as error:
        is_ready = False
        error.close()
    with urllib.request.urlopen(f"{url[0]}/status", timeout=10) as answer:
        (told,) = json.load(answer)["connectors"]
    return {"is_ready": is_ready, **told}


@pytest.mark.long
def test_a_member_without_partitions_is_ready_and_takes_over(world: World) -> None:
    truth = Truth()
    world.create_topic("orders-standby", 1)
    world.create_table("stood_by")
    base = world.configure({"stood_by": ["orders-standby"]}, lease='"20s"')
    base.write_text(base.read_text() + '[http]\nlisten = "127.0.0.1:0"\n')
    drivers = {name: start_member(world, base, name) for name in "ab"}
    shares: dict[str, int] = {}

    def one_has_it() -> bool:
        shares.update({name: each.partitions for name, each in members(world, base).items()})
        return sorted(shares.get(name, 0) for name in "ab") == [0, 1]

    wait_for(one_has_it, PATIENCE, "an owner")
    owner, standby = sorted(drivers, key=lambda name: -shares.get(name, 0))
    url: list[str] = []
    told: dict[str, Any] = {}
    reason = "has no partitions: other members have them"

    def says(is_standby: bool) -> bool:
        told.update(connector_of(drivers[standby], url))
        return bool(told["is_ready"]) and (told["reason"] == reason) == is_standby

    wait_for(lambda: says(is_standby=True), PATIENCE, "a ready standby")
    assert (told["verdict"], told["is_moving"]) == ("idle", True)
    drivers[owner].kill()
    world.produce("orders-standby", 500, truth, partitions=1)
    world.wait_for_rows("stood_by", 500, drivers[standby], PATIENCE)
    wait_for(lambda: says(is_standby=False), PATIENCE, "its word that it has them")
    assert_exact(world, "stood_by", truth)


@pytest.mark.long
def test_a_topic_that_is_deleted_holds_no_take_over_up(world: World) -> None:
    """Each look of each member asked for all topics, and ended there: nobody inherited."""
    truth = Truth()
    for topic in ("orders-kept", "orders-gone"):
        world.create_topic(topic, 4)
    world.create_table("kept")
    base = world.configure({"kept": ["orders-kept", "orders-gone"]}, lease='"20s"')
    first, second = (start_member(world, base, name) for name in "ab")
    shared_by(world, base, "a", "b", partitions=8)
    world.delete_topic("orders-gone")
    told = "topic orders-gone is not loaded: topic orders-gone does not exist"
    wait_for(lambda: told in first.text(), PATIENCE, "a look without it")
    second.kill()
    world.produce("orders-kept", 500, truth)
    world.wait_for_rows("kept", 500, first, PATIENCE)
    assert_exact(world, "kept", truth)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_busy_partitions_do_not_stay_with_one_member(world: World) -> None:
    """Two of eight bring forty times as much as the others; by number one member has both."""
    topic, truth, names = "orders-busy", Truth(), ("a", "b")
    sources = [TopicPartition(topic, number) for number in range(8)]
    homes = spread([Member(name, name, "") for name in names], sources, {})
    one, other = [source for source in sources if homes[source] == "a"][:2]
    world.create_topic(topic, len(sources))
    world.create_table("busy")
    base = world.configure({"busy": [topic]}, lease='"20s"', max_delay='"1s"')
    often = dict.fromkeys((one.partition, other.partition), 40)
    with produced(world, topic, truth, len(sources), 0.2, often):
        for name in names:
            start_member(world, base, name)
        shared_by(world, base, *names, partitions=len(sources), share=4)

        def are_apart() -> bool:
            found = owners(world, base)
            return found[one] != found[other]

        seconds = 2 * MEASURED_TIMES * MEASURED_MS / 1000
        wait_for(are_apart, seconds, f"{one} and {other} with two members")
        shared_by(world, base, *names, partitions=len(sources), share=4)
    wait_for(lambda: world.count("busy") >= truth.rows, 120, f"all {truth.rows} rows")
    assert_exact(world, "busy", truth)


def loaded_per_second(world: World, table: str, drivers: list[Driver]) -> tuple[float, float]:
    """Rows a second that these drivers load into a table now, and how many cores they, the broker
    and the server use for it."""
    before, began = (world.count(table), used_seconds()), time.monotonic()
    time.sleep(MEASURED_SECONDS)
    after, seconds = (world.count(table), used_seconds()), time.monotonic() - began
    for driver in drivers:
        assert driver.process.poll() is None, driver.text()[-4000:]
    return (after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds


def used_seconds() -> float:
    """Processor time of all that this test has started."""
    return sum(each.cpu_seconds for each in descendants(os.getpid()))


@pytest.mark.long
def test_two_load_more_than_one_where_waiting_is_the_limit(world: World) -> None:
    truth, topic, many = Truth(), "orders-backlog", BACKLOG_PARTITIONS
    world.create_topic(topic, many)
    world.create_table("backlog")
    world.execute(
        "CREATE TABLE backlog_seen (id UInt64, slept UInt8) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    world.execute(
        "CREATE MATERIALIZED VIEW backlog_view TO backlog_seen AS "
        f"SELECT id, sleep({INSERT_SECONDS}) AS slept FROM backlog"
    )
    world.produce(topic, BACKLOG, truth, partitions=many)
    base = world.configure({"backlog": [topic]}, max_messages=RANGE)
    drivers = [start_member(world, base, "a")]
    world.wait_for_rows("backlog", 20 * RANGE, drivers[0])
    one, cores_of_one = loaded_per_second(world, "backlog", drivers)
    drivers.append(start_member(world, base, "b"))
    shared_by(world, base, "a", "b", partitions=many, share=many // 4)
    two, cores_of_two = loaded_per_second(world, "backlog", drivers)
    left = truth.rows - world.count("backlog")
    print(
        f"one loads {one:,.0f} rows/s with {cores_of_one:.2f} cores, two {two:,.0f} with "
        f"{cores_of_two:.2f}: {two / one:.2f} times as many rows"
    )
    assert left > 0, "the backlog ended before the measurement did"
    for driver in drivers:
        driver.signal(signal.SIGTERM)
    assert [driver.wait() for driver in drivers] == [0, 0], drivers[0].text()[-4000:]
    world.execute("DROP TABLE backlog_view SYNC")
    world.drain(world.configure({"backlog": [topic]}))
    assert_exact(world, "backlog", truth)
    assert two >= 1.7 * one
