"""Rows spread over two shards: each once, over both, on the one where it belongs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.core.errors import InDoubtError, SluiceError, TerminalError
from sluice.core.receipts import Failed, Loaded, NeedsReservation
from sluice.driver.probing import DoubledRowsError
from sluice.driver.specs import read_spec
from sluice.producer import SQLBatchRequest
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.running import ClickHouse, running_clickhouse
from tests.support.cutting import run_link
from tests.support.range_task import Task
from tests.support.world import COLUMNS, LINEAGE, Truth, World, wait_for

#: For what a driver takes some seconds for: it starts in several times that beside other tests.
SECONDS = 240.0
BY_USER = 'sharding = { by = "key", column = "user_id" }'


@pytest.fixture(scope="session")
def second_clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse-s2")) as clickhouse:
        yield clickhouse


@dataclass
class Shards:
    """A world whose tables are in two shards. In the file, the second one stands first."""

    world: World
    urls: tuple[str, str]

    def execute(self, sql: str, *places: int) -> None:
        for place in places or (0, 1):
            with Server(self.urls[place]) as server:
                server.execute(sql, timeout_seconds=60)

    def create(self, table: str, more: str = "") -> None:
        self.execute(
            f"CREATE TABLE {table} ({COLUMNS}, {LINEAGE}) ENGINE = MergeTree {more} ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )

    def configure(self, tables: dict[str, list[str]], **more: object) -> Path:
        first, second = more.pop("urls", self.urls)  # type: ignore[misc]
        shards = f'{{ s2 = ["{second}"], s1 = ["{first}"] }}'
        settings = {"table_settings": BY_USER, **more}
        return self.world.configure(tables, shards=shards, **settings)

    def rows(self, table: str) -> list[dict[int, list[tuple[int, int]]]]:
        return [self.world.rows(table, url) for url in self.urls]

    def count(self, table: str) -> int:
        """Over all shards that have the table."""
        found = 0
        for url in self.urls:
            with Server(url) as server, suppress(TerminalError):
                found += int(server.query(f"SELECT count() AS n FROM {table}")[0]["n"])
        return found


@pytest.fixture
def shards(world: World, second_clickhouse: ClickHouse) -> Shards:
    return Shards(world, (world.clickhouse.url, second_clickhouse.url))


def assert_spread(shards: Shards, table: str, truth: Truth) -> None:
    """Every good message is one row, in the shard of its user, and nothing else is there."""
    found = shards.rows(table)
    for place in (0, 1):
        expected = {
            partition: sorted((o, i) for o, i in rows if i % 99991 % 2 == place)
            for partition, rows in truth.good.items()
        }
        assert found[place] == {partition: rows for partition, rows in expected.items() if rows}


def audit_of(shards: Shards, configuration: Path) -> dict[str, object]:
    answer = shards.world.sluice("audit", str(configuration), "--json")
    report: dict[str, object] = json.loads(answer.stdout)
    assert answer.returncode == (1 if report["missing"] or report["doubled"] else 0), answer.stderr
    return report


@pytest.mark.long
def test_a_killed_driver_loads_each_row_once_into_its_shard(shards: Shards) -> None:
    world = shards.world
    world.create_topic("orders-shards")
    shards.create("sharded")
    truth = Truth()
    world.produce("orders-shards", 80_000, truth, bad_every=3000)
    configuration = shards.configure({"sharded": ["orders-shards"]}, max_messages=2_000)
    doctor = world.sluice("doctor", str(configuration))
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    status = json.loads(world.sluice("status", str(configuration), "--json").stdout)
    assert [partition["shards"] for partition in status] == [["s1", "s2"]] * 4
    driver = world.run(configuration)
    world.wait_for_rows("sharded", 5_000, driver)
    driver.kill()
    assert shards.count("sharded") < truth.rows, "the kill came too late to prove anything"
    world.drain(configuration)
    assert_spread(shards, "sharded", truth)
    verified = world.sluice("verify", str(configuration), "--source", "ledger", "--json")
    assert verified.returncode == 0, verified.stdout
    receipts = [entry for entry in world.ledger() if entry["type"] == "receipt"]
    assert {receipt["shard"] for receipt in receipts} == {"s1", "s2"}
    assert sum(int(str(receipt["rows"])) for receipt in receipts) == truth.rows
    report = audit_of(shards, configuration)
    assert report["loaded"] == truth.rows and report["missing"] == report["doubled"] == 0
    assert report["misplaced"] == 0
    # A row of the first shard in the second one too, and then only there.
    offset, number = next((o, i) for o, i in truth.good[0] if i % 99991 % 2 == 0)
    shards.execute(
        f"INSERT INTO sharded (id, user_id, _topic, _partition, _offset, _row) VALUES ({number}, "
        f"{number % 99991}, 'orders-shards', 0, {offset}, 0)",
        1,
    )
    report = audit_of(shards, configuration)
    assert (report["doubled"], report["missing"], report["misplaced"]) == (1, 0, 1)
    shards.execute(f"ALTER TABLE sharded DELETE WHERE id = {number} SETTINGS mutations_sync = 1", 0)
    audited = world.sluice("audit", str(configuration))
    assert audited.returncode == 0, audited.stdout
    words = audited.stdout
    assert "misplaced: 1 rows of dc1 orders-shards[0] in default.sharded stand in another" in words


def test_a_shard_that_is_away_holds_back_only_what_needs_it(shards: Shards, tmp_path: Path) -> None:
    """One topic for each shard, and one over both."""
    world = shards.world
    truths = {name: Truth() for name in ("first", "second", "both")}
    for name, truth in truths.items():
        world.create_topic(f"orders-{name}", partitions=1)
        shards.create(name)
        world.produce(f"orders-{name}", 3_000, truth, partitions=1)
    shards.execute("DROP TABLE first", 1)
    shards.execute("DROP TABLE second", 0)
    with running_clickhouse(tmp_path / "fragile") as fragile:
        there = Shards(world, (shards.urls[0], fragile.url))
        there.execute(f"CREATE TABLE second ({COLUMNS}, {LINEAGE}) {ENGINE}", 1)
        there.execute(f"CREATE TABLE both ({COLUMNS}, {LINEAGE}) {ENGINE}", 1)
        configuration = there.configure(
            {name: [f"orders-{name}"] for name in truths},
            settings_of={
                "first": 'shards = ["s1"]',
                "second": 'shards = ["s2"]',
                "both": 'sharding = { by = "offset", stripe = 100 }',
            },
            max_messages=1_000,
        )
        driver = world.run(configuration)
        wait_for(lambda: there.count("both") == there.count("second") == 3_000, SECONDS, "loading")
        fragile.stop()
        for name, truth in truths.items():
            world.produce(f"orders-{name}", 2_000, truth, partitions=1, first=10_000)
        world.wait_for_rows("first", 5_000, driver)
        waits = "table entry both in shard s2 waits"
        wait_for(lambda: waits in driver.text(), SECONDS, waits)
        fragile.start()
        wait_for(lambda: there.count("both") == there.count("second") == 5_000, SECONDS, "going on")
        driver.signal(signal.SIGTERM)
        assert driver.wait() == 0, driver.text()[-4000:]
        assert sorted(world.rows("first")[0]) == sorted(truths["first"].good[0])
        assert sorted(world.rows("second", fragile.url)[0]) == sorted(truths["second"].good[0])
        for place, url in enumerate(there.urls):
            expected = [(o, i) for o, i in truths["both"].good[0] if o // 100 % 2 == place]
            assert world.rows("both", url)[0] == sorted(expected)


ENGINE = "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"


def task(shards: Shards, table: str, truth: Truth, **more: object) -> Task:
    topic = f"orders-{table}"
    configuration = load(shards.configure({table: [topic]}, **more), {})
    return Task(configuration, topic, len(truth.good[0]), read_spec(configuration, "dc1"))


def produced(shards: Shards, table: str, count: int = 3_000) -> Truth:
    truth = Truth()
    shards.world.create_topic(f"orders-{table}", partitions=1)
    shards.world.produce(f"orders-{table}", count, truth, partitions=1)
    return truth


def test_a_block_in_doubt_is_repeated_with_that_of_the_other_shard_and_counts_once(
    shards: Shards,
) -> None:
    shards.create("doubt")
    truth = produced(shards, "doubt")
    with run_link(shards.urls[1]) as link:
        sent = task(shards, "doubt", truth, urls=(shards.urls[0], link.url))
        link.lose()
        lost = sent.load().outcome
        assert isinstance(lost, Failed) and isinstance(lost.error, InDoubtError), lost
        assert link.lost == 1 and not lost.is_unstored
        assert_spread(shards, "doubt", truth)  # stored by both; only one said so
        link.heal()
        loaded = sent.load().outcome
    assert isinstance(loaded, Loaded), loaded
    assert_spread(shards, "doubt", truth)
    receipts = {receipt.shard: receipt for receipt in loaded.receipts}
    assert {shard: receipt.rows for shard, receipt in receipts.items()} == {"s1": 1500, "s2": 1500}
    assert loaded.rows == loaded.messages == 3_000
    name = shards.world.name
    for shard, receipt in receipts.items():
        where = f"orders-doubt/0/doubt+default.doubt/{shard}/0-3000"
        assert receipt.token == f"{name}/0/dc1/{sent.topic_id}/{where}"
    assert receipts["s1"].checksum != receipts["s2"].checksum


def test_above_the_reservation_of_any_shard_nobody_inserts(shards: Shards) -> None:
    """One shard's block takes one entry, the other's two."""
    shards.create("granted", "PARTITION BY if(user_id % 2 = 0, 0, 1 + user_id % 4)")
    truth = produced(shards, "granted")
    sent = task(shards, "granted", truth)
    assert sent.load(reservation=1).outcome == NeedsReservation("granted", 2, inserted=False)
    assert shards.count("granted") == 0
    loaded = sent.load(reservation=2).outcome
    assert isinstance(loaded, Loaded)
    entries = {receipt.shard: receipt.entries for receipt in loaded.receipts}
    assert entries == {"s1": 1, "s2": 2}


def test_a_refusal_of_the_second_shard_is_not_taken_for_nothing_stored(shards: Shards) -> None:
    """Else its table entry could be parked, with the first shard's rows in the table too."""
    shards.create("refused")
    truth = produced(shards, "refused")
    sent = task(shards, "refused", truth)
    shards.execute("ALTER TABLE refused DROP COLUMN note", 1)
    refused = sent.load(is_first=True).outcome
    assert isinstance(refused, Failed) and "has no column note" in str(refused.error)
    assert (refused.entry, refused.inserted, refused.is_unstored) == (
        "refused",
        ("refused",),
        False,
    )
    assert shards.count("refused") == 1_500


def without_second_shard(sent: Task) -> Task:
    """The same, while the second shard is away."""
    (nowhere,) = free_ports(1)
    clickhouse = sent.configuration.clickhouse
    shards = tuple(
        replace(shard, replicas=(f"http://127.0.0.1:{nowhere}",)) if shard.name == "s2" else shard
        for shard in clickhouse.shards
    )
    away = replace(sent.configuration, clickhouse=replace(clickhouse, shards=shards))
    return replace(sent, configuration=away)


def test_a_probe_finds_the_union_and_only_the_rest_is_loaded(shards: Shards) -> None:
    """The second shard lacks its block, and one offset of the first is there as well."""
    shards.create("union")
    truth = produced(shards, "union")
    sent = task(shards, "union", truth)
    failed = without_second_shard(sent).load()
    assert isinstance(failed.outcome, Failed), failed
    assert shards.count("union") == 1_500
    found = sent.probe()
    assert found.error is None
    odd = tuple((offset, offset + 1) for offset in range(1, 3_000, 2))
    assert found.rest == {"union": odd}
    loaded = sent.load(rest=found.rest).outcome
    assert isinstance(loaded, Loaded)
    assert [receipt.shard for receipt in loaded.receipts] == ["s2"]
    assert_spread(shards, "union", truth)
    assert sent.probe().rest == {"union": ()}
    with Server(shards.urls[0]) as server:
        (loaded_by,) = server.query("SELECT DISTINCT _source FROM union")
    shards.execute(
        "INSERT INTO union (id, _topic, _partition, _offset, _row, _source) "
        "VALUES (4, 'orders-union', 0, 4, 0, '{}')".format(loaded_by["_source"]),
        1,
    )
    error: SluiceError | None = sent.probe().error
    assert isinstance(error, DoubledRowsError)
    assert "offsets [4, 5) of orders-union[0] have rows in the shards s1 and s2" in str(error)


@pytest.mark.parametrize(
    ("table", "route"),
    [
        ("by_envelope", '{ envelope = "" }'),
        ("by_header", '{ header = "" }'),
        ("by_key", '{ key_prefix = "by_key" }'),
    ],
)
def test_a_probe_finds_what_is_missing_of_the_messages_that_a_route_takes(
    shards: Shards, table: str, route: str
) -> None:
    """The second shard lacks its block, and two of three messages are of another table."""
    shards.execute(f"CREATE TABLE {table} (id UInt64, {LINEAGE}) {ENGINE}")
    topic, producer = f"orders-{table}", shards.world.producer()
    shards.world.create_topic(topic, partitions=1)
    for number in range(300):
        name = table if number % 3 == 0 else "another"
        value = SQLBatchRequest(name, f"INSERT INTO {name} (id) VALUES (?)", [(number,)]).encode()
        producer.produce(topic, value, name, headers=[("table", name)])
    producer.flush()
    more = 'format = "SQLBatchRequest"\nrows = "many"\nsharding = { by = "offset", stripe = 1 }'
    path = shards.configure(
        {table: [topic]}, connector='unrouted = "skip"', table_settings=f"{more}\nroute = {route}"
    )
    configuration = load(path, {})
    sent = Task(configuration, topic, 300, read_spec(configuration, "dc1"))
    assert isinstance(without_second_shard(sent).load().outcome, Failed)
    mine = range(0, 300, 3)
    even, odd = ([number for number in mine if number % 2 == place] for place in (0, 1))
    assert shards.rows(table) == [{0: [(number, number) for number in even]}, {}]
    found = sent.probe()
    assert found.error is None
    assert found.rest == {table: tuple((number, number + 1) for number in odd)}
    assert isinstance(sent.load(rest=found.rest).outcome, Loaded)
    assert shards.rows(table)[1] == {0: [(number, number) for number in odd]}
    assert sent.probe().rest == {table: ()}
