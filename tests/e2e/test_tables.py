"""Several tables, views, new partitions, transactions of producers, tombstones."""

from __future__ import annotations

import json
import signal
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.world import Truth, World, assert_exact, order, wait_for


def test_two_tables_of_one_topic_and_a_table_of_another(world: World) -> None:
    world.create_topic("orders-a", 2)
    world.create_topic("orders-b", 2)
    for table in ("first", "second", "third"):
        world.create_table(table)
    truth_a, truth_b = Truth(), Truth()
    world.produce("orders-a", 10_000, truth_a, partitions=2, bad_every=1000)
    world.produce("orders-b", 10_000, truth_b, partitions=2)
    configuration = world.configure(
        {"first": ["orders-a"], "second": ["orders-a"], "third": ["orders-b"]}, max_messages=1_000
    )
    world.drain(configuration)
    assert_exact(world, "first", truth_a)
    assert_exact(world, "second", truth_a)
    assert_exact(world, "third", truth_b)
    # A message that is bad for two tables is a dead letter of each.
    assert len(world.dead_letters()) == 2 * truth_a.bad_count


def test_a_view_with_a_window_counts_every_row_once(world: World) -> None:
    world.create_topic("orders-view", 2)
    world.create_table("viewed")
    world.execute(
        "CREATE TABLE viewed_sums (country String, orders UInt64) ENGINE = SummingMergeTree "
        "ORDER BY country SETTINGS non_replicated_deduplication_window = 10000"
    )
    world.execute(
        "CREATE MATERIALIZED VIEW viewed_view TO viewed_sums AS "
        "SELECT country, count() AS orders FROM viewed GROUP BY country"
    )
    truth = Truth()
    world.produce("orders-view", 60_000, truth, partitions=2)
    configuration = world.configure({"viewed": ["orders-view"]}, max_messages=2_000)
    for _ in range(2):
        before = world.count("viewed")
        driver = world.run(configuration)
        world.wait_for_rows("viewed", before + 1, driver)
        driver.kill()
    world.drain(configuration)
    assert_exact(world, "viewed", truth)
    sums = world.query("SELECT sum(orders) AS n FROM viewed_sums")
    assert int(str(sums[0]["n"])) == truth.rows


def test_a_partition_that_appears_later_starts_at_zero(world: World) -> None:
    world.create_topic("orders-more", 1)
    world.create_table("more")
    truth = Truth()
    world.produce("orders-more", 1_000, truth, partitions=1)
    configuration = world.configure({"more": ["orders-more"]}, connector='start = "latest"')
    world.drain(configuration)
    assert world.count("more") == 0
    admin = AdminClient({"bootstrap.servers": world.broker.brokers})
    admin.create_partitions([NewPartitions("orders-more", 2)])["orders-more"].result(30)
    late = Truth()
    world.produce("orders-more", 2_000, late, partitions=2, first=1_000)
    world.drain(configuration)
    assert_exact(world, "more", late)


def test_transactions_of_producers_leave_no_gap_and_no_aborted_row(world: World) -> None:
    world.create_topic("orders-tx", 1)
    world.create_table("tx")
    producer = world.producer(**{"transactional.id": world.name})
    producer.init_transactions(30)
    committed = 0
    for number in range(30):
        producer.begin_transaction()
        for index in range(100):
            producer.produce("orders-tx", order(1000 * number + index), partition=0)
        producer.flush()
        if number % 3 == 2 or number == 29:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            committed += 100
    configuration = world.configure({"tx": ["orders-tx"]}, max_messages=130)
    world.drain(configuration)
    rows = world.rows("tx")[0]
    assert len(rows) == committed
    assert not any((number // 1000) % 3 == 2 or number // 1000 == 29 for _, number in rows)


def test_an_open_transaction_holds_rows_back_until_it_commits(world: World) -> None:
    world.create_topic("orders-open", 1)
    world.create_table("open_rows")
    configuration = world.configure({"open_rows": ["orders-open"]})
    producer = world.producer(**{"transactional.id": f"open-{world.name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders-open", order(1), partition=0)
    producer.flush()
    plain = Truth()
    world.produce("orders-open", 10, plain, partitions=1, first=100)
    driver = world.run(configuration)
    world.drain_is_idle(driver)
    assert world.count("open_rows") == 0
    producer.commit_transaction(30)
    world.wait_for_rows("open_rows", 11, driver)
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 0


def test_tombstones_are_counted_and_skipped(world: World) -> None:
    world.create_topic("orders-tombs", 1)
    world.create_table("tombs")
    producer = world.producer()
    for number in range(100):
        value = None if number % 10 == 0 else order(number)
        producer.produce("orders-tombs", value, key=b"k", partition=0)
    producer.flush()
    configuration = world.configure({"tombs": ["orders-tombs"]})
    world.drain(configuration)
    assert world.count("tombs") == 90
    settled = [e for e in world.ledger() if e["type"] == "settled"]
    assert sum(int(str(e["skipped"])) for e in settled) == 10
    report = json.loads(world.sluice("audit", str(configuration), "--json").stdout)
    assert (report["produced"], report["loaded"], report["skipped"]) == (100, 90, 10)
    assert report["missing"] == report["doubled"] == report["foreign"] == 0


def test_metrics_and_the_service_manager_are_told_what_was_loaded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    heard: list[str] = []

    def hear() -> None:
        for message in iter(lambda: manager.recv(1 << 16), b"the end"):
            heard.extend(message.decode().split("\n"))

    hearing = threading.Thread(target=hear, daemon=True)
    hearing.start()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    world.create_topic("orders-metrics", 2)
    world.create_table("metered")
    truth = Truth()
    world.produce("orders-metrics", 3_000, truth, partitions=2, bad_every=500)
    configuration = world.configure({"metered": ["orders-metrics"]})
    with configuration.open("a") as file:
        file.write('[http]\nlisten = "127.0.0.1:0"\n')
    driver = world.run(configuration)
    world.wait_for_rows("metered", truth.rows, driver)
    logged = [json.loads(line) for line in driver.text().splitlines() if '"http"' in line]
    url = f"{logged[0]['url']}/metrics"

    def loaded() -> bool:
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        label = f'connector="{world.name}.dc1"'
        return (
            f"sluice_rows_total{{{label}}} {float(truth.rows)}" in text
            and f"sluice_dead_letters_total{{{label}}} {float(truth.bad_count)}" in text
            and f'sluice_in_doubt{{{label},partition="0",topic="orders-metrics"}} 0.0' in text
        )

    wait_for(loaded, 20, "the settle in the metrics")
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 0
    with manager, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.sendto(b"the end", str(tmp_path / "notify"))
        hearing.join(30.0)
    ready, stopping = heard.index("READY=1"), heard.index("STOPPING=1")
    assert "STATUS=dc1: has loaded everything" in heard[ready:]
    assert "WATCHDOG=1" in heard[ready:stopping]
