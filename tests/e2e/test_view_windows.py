"""The tables of materialized views have deduplication windows of their own, which others may fill
faster than that of the table behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts
from tests.support.driver import Driver
from tests.support.world import Truth, World, assert_exact, order, wait_for

PATIENCE = 300.0
ROWS = 100
DAYS = 20


def create_view(world: World, source: str, target: str) -> None:
    world.execute(
        f"CREATE MATERIALIZED VIEW {source}_{target} TO {target} AS SELECT id, ts FROM {source}"
    )


def create_target(world: World, table: str, window: int, partition_by: str = "") -> None:
    world.execute(
        f"CREATE TABLE {table} (id UInt64, ts DateTime) ENGINE = MergeTree {partition_by} "
        f"ORDER BY id SETTINGS non_replicated_deduplication_window = {window}"
    )


def of_days(number: int) -> bytes:
    """A block of these has rows of twenty days."""
    return b'{"id":%d,"ts":"2025-01-%02d 00:00:00"}' % (number, 1 + number % DAYS)


def of_few_days(number: int) -> bytes:
    """A block of these has rows of eight days: as many entries as are reserved at first."""
    return b'{"id":%d,"ts":"2025-01-%02d 00:00:00"}' % (number, 1 + number % 8)


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    """Before the world's server."""
    server = urlsplit(world.clickhouse.url)
    assert server.hostname is not None and server.port is not None
    with Proxy(Inserts, (server.hostname, server.port)) as proxy:
        yield proxy


def url_of(proxy: Proxy) -> str:
    return f"http://127.0.0.1:{proxy.port}"


@dataclass(frozen=True)
class Loading:
    """A topic of one partition, the table that it is loaded into, and how its messages are made."""

    table: str
    topic: str
    make: Callable[[int], bytes] = order
    truth: Truth = field(default_factory=Truth)


def leave_in_doubt(
    world: World,
    proxy: Proxy,
    configuration: Path,
    loadings: list[Loading],
    driver: Driver | None = None,
) -> None:
    """A driver whose blocks are stored, and that never hears of it, is killed.

    :param driver: one that runs; a new one if left out.
    """
    records = len(world._records())
    if driver is None:
        driver = world.run(configuration)
        wait_for(
            lambda: len(world._records()) >= records + len(loadings), PATIENCE, "the take-over"
        )
    dropped = proxy.counters.dropped_replies
    proxy.strike(LinkFault(Kind.DROP_REPLY))
    for each in loadings:
        first = each.truth.rows
        world.produce(each.topic, ROWS, each.truth, partitions=1, make=each.make, first=first)
    for each in loadings:
        world.wait_for_rows(each.table, each.truth.rows, driver, PATIENCE)
    lost = dropped + len(loadings)
    wait_for(lambda: proxy.counters.dropped_replies >= lost, PATIENCE, "answers that are lost")
    driver.kill()
    proxy.heal()


def ids_of(world: World, table: str) -> tuple[object, object]:
    """How many rows of ours there are, and of how many messages."""
    row = world.query(f"SELECT count() AS n, uniqExact(id) AS u FROM {table} WHERE id < 1000000")[0]
    return row["n"], row["u"]


@pytest.mark.long
def test_what_left_the_window_of_a_table_behind_a_view_is_for_a_person(
    world: World, proxy: Proxy
) -> None:
    """One of them is filled by another source, one by blocks that take more entries there, since
    it is partitioned, than in their table, whose window has room. The next driver sends nothing
    again, names the tables, and goes on after a person's word."""
    create_target(world, "sums", window=100)
    for source in ("one", "other"):
        world.create_table(source)
        create_view(world, source, "sums")
    create_target(world, "days", window=200, partition_by="PARTITION BY toDate(ts)")
    world.create_table("whole")
    create_view(world, "whole", "days")
    loadings = [Loading("one", "orders-one"), Loading("whole", "orders-whole", of_few_days)]
    for each in loadings:
        world.create_topic(each.topic, 1)
    topics = {each.table: [each.topic] for each in loadings}
    configuration = world.configure(topics, lease='"20s"', url=url_of(proxy))
    leave_in_doubt(world, proxy, configuration, loadings)
    for number in range(120):
        world.execute(f"INSERT INTO other (id) VALUES ({10**12 + number})")
    for number in range(30):
        rows = (
            f"({10**12 + number * DAYS + d}, '2025-02-{1 + d:02} 00:00:00')" for d in range(DAYS)
        )
        world.execute(f"INSERT INTO whole (id, ts) VALUES {', '.join(rows)}")

    second = world.run(configuration, "--until-caught-up")
    assert second.wait() == 1, second.text()[-4000:]
    assert "sluice resolve" in second.text()
    for target in ("sums", "days"):
        assert f"blocks came to default.{target} in shard s1" in second.text()
        assert ids_of(world, target) == (ROWS, ROWS)
    for each in loadings:
        which = ("--connector", "dc1", "--topic", each.topic, "--partition", "0", "--take-over")
        done = world.sluice("resolve", str(configuration), *which, "--as", "loaded", "--yes")
        assert done.returncode == 0, done.stderr
    world.drain(configuration)
    for target in ("sums", "days"):
        assert ids_of(world, target) == (ROWS, ROWS)


@pytest.mark.long
def test_blocks_get_a_reservation_for_what_they_take_behind_views(world: World) -> None:
    """Nobody knows before that a block takes twenty entries there; the server says so."""
    create_target(world, "late", window=200, partition_by="PARTITION BY toDate(ts)")
    create_target(world, "later", window=1000, partition_by="PARTITION BY toDate(ts)")
    world.create_table("early")
    create_view(world, "early", "late")
    world.execute("CREATE MATERIALIZED VIEW late_later TO later AS SELECT id, ts FROM late")
    world.create_topic("orders-early", 2)
    truth = Truth()
    world.produce("orders-early", 5_000, truth, partitions=2, make=of_days)
    configuration = world.configure({"early": ["orders-early"]}, max_messages=500)
    world.drain(configuration)
    assert_exact(world, "early", truth)
    assert ids_of(world, "late") == ids_of(world, "later") == (5_000, 5_000)
    records = [entry for entry in world.ledger() if entry["type"] == "record"]
    assert all(
        set(entry["insert_counters"])
        == {"early/s1", "early/s1>default.late", "early/s1>default.later"}  # type: ignore[call-overload]
        for entry in records
        if entry["kind"] == "intend"
    )


@pytest.mark.long
def test_a_block_that_can_never_have_room_behind_a_view_stops_with_the_statement(
    world: World,
) -> None:
    create_target(world, "tight", window=30, partition_by="PARTITION BY toDate(ts)")
    world.create_table("loose")
    create_view(world, "loose", "tight")
    world.create_topic("orders-loose", 1)
    truth = Truth()
    world.produce("orders-loose", ROWS, truth, partitions=1, make=of_days)
    configuration = world.configure({"loose": ["orders-loose"]}, lease='"5s"')
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert "the deduplication window of default.tight in shard s1 holds 30" in driver.text()
    statement = "ALTER TABLE default.tight MODIFY SETTING non_replicated_deduplication_window"
    assert statement in driver.text()
    world.execute(f"{statement} = 1000")
    world.drain(configuration)
    assert_exact(world, "loose", truth)
    assert ids_of(world, "tight") == (ROWS, ROWS)


@pytest.mark.long
def test_a_view_that_comes_and_goes_while_ranges_are_loaded(world: World, proxy: Proxy) -> None:
    """A range that was in doubt when it came is known again by all that its table ever took."""
    create_target(world, "young", window=1000)
    world.create_table("old")
    world.create_topic("orders-old", 1)
    old = Loading("old", "orders-old")
    configuration = world.configure({"old": ["orders-old"]}, lease='"20s"', url=url_of(proxy))
    leave_in_doubt(world, proxy, configuration, [old])
    create_view(world, "old", "young")
    driver = world.run(configuration)
    world.wait_for_rows("young", ROWS, driver, PATIENCE)  # the repeat fed it
    leave_in_doubt(world, proxy, configuration, [old], driver)
    world.execute("DROP TABLE old_young")
    world.drain(configuration)
    assert_exact(world, "old", old.truth)
    assert ids_of(world, "young") == (2 * ROWS, 2 * ROWS)
