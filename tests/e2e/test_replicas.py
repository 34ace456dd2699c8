"""One shard of two real replicas (18.16.1 with ZooKeeper): blocks go past those that fail.

Each replica is compared with what was inserted; a row that only one of them has is an error.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse import http, window
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.window import read_insert_counter
from sluice.core.budget import TargetShard
from sluice.core.errors import InDoubtError
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind as RecordKind
from sluice.core.records import Record
from sluice.core.replicas import REST_SECONDS_MAX
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.monitor import WindowMonitor
from sluice.driver.ports import Sought
from sluice.driver.probing import ClickHouseProber, Probe, ReplicaMissingError
from sluice.kafka.clients import KafkaAccess
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts
from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.cluster.server import ClickHouseServer, Settings
from sluice.testbed.local.running import ClickHouse
from sluice.worker import inserting
from sluice.worker.errors import BlockRefusedError, StructureChangedError
from sluice.worker.worker_cache import WorkerCache
from tests.kafka.groups import NOW
from tests.support.block_loader import ROWS, Loader, create
from tests.support.world import wait_for


@pytest.fixture(autouse=True)
def long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a replica that failed rests to the end of a test, however slow the machine is."""
    monkeypatch.setattr("sluice.core.replicas.REST_SECONDS_FIRST", REST_SECONDS_MAX)


@pytest.fixture
def loader(cluster: Cluster) -> Loader:
    table, path = create(cluster.servers)
    return Loader(cluster.servers, table, path, tuple(each.url for each in cluster.servers))


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    """Stands before the first replica."""
    with Proxy(Inserts, ("127.0.0.1", cluster.servers[0].settings.ports[0])) as standing:
        yield standing


def through(proxy: Proxy, loader: Loader) -> str:
    """The first replica's URL is the proxy's from now on."""
    url = f"http://127.0.0.1:{proxy.port}"
    loader.urls = (url, *loader.urls[1:])
    return url


def test_partitions_start_at_replicas_of_their_own(loader: Loader) -> None:
    receipts = [loader.insert(partition) for partition in (0, 1, 2, 3)]
    assert [receipt.replica for receipt in receipts] == [*loader.urls, *loader.urls]
    assert not any(receipt.failed_over for receipt in receipts)
    loader.assert_stored_once()


def test_blocks_go_to_the_preferred_replica_and_past_one_that_is_behind(loader: Loader) -> None:
    """Both are tried, whatever is said of them: the last one takes what no other does."""
    first, second = loader.urls
    loader.preferred = frozenset({second})
    assert [loader.insert(partition).replica for partition in (0, 1)] == [second, second]
    loader.behind = frozenset({second})
    assert [loader.insert(partition).replica for partition in (0, 1)] == [first, first]
    loader.behind = frozenset(loader.urls)
    assert loader.insert().replica == second
    loader.urls = (second,)
    assert loader.insert().replica == second
    loader.assert_stored_once()


@pytest.mark.parametrize("durability", ["single", "quorum"])
def test_a_block_whose_answer_was_lost_is_known_to_the_next_replica(
    loader: Loader, proxy: Proxy, durability: str
) -> None:
    loader.durability = durability
    url = through(proxy, loader)
    loader.insert()
    proxy.strike(LinkFault(Kind.DROP_REPLY))
    before = loader.insert_counter()
    assert not loader.cache.may_land
    receipt = loader.insert()
    assert loader.cache.may_land
    assert proxy.counters.dropped_replies == 1
    assert receipt.replica == loader.urls[1]
    assert receipt.failed_over == (f"{url} CONNECTION_LOST",) and receipt.in_doubt
    assert loader.insert_counter() == before + 1  # one of the two was recognised
    loader.assert_stored_once()
    assert loader.insert().failed_over == ()  # the first replica rests


def test_a_block_in_doubt_is_not_offered_on_when_the_window_moved(
    loader: Loader, proxy: Proxy
) -> None:
    """The driver has to look, as before any repeat."""
    through(proxy, loader)
    loader.insert()
    proxy.strike(LinkFault(Kind.DROP_REPLY))
    loader.insert_counters_behind = 10_000  # so many entries since the look before the first insert
    with pytest.raises(InDoubtError, match="may not remember it"):
        loader.insert()
    loader.assert_stored_once()


def test_a_replica_that_was_killed_gets_its_turn_again(
    loader: Loader, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cluster.servers
    assert loader.insert().replica == first.url
    clock = [1000.0]
    monkeypatch.setattr("sluice.worker.failover.time.monotonic", lambda: clock[0])
    first.kill()
    try:
        receipt = loader.insert()
        assert receipt.replica == second.url and not receipt.in_doubt
        assert receipt.failed_over[0].startswith(f"{first.url} ")
        assert loader.insert().failed_over == ()
    finally:
        first.start()
    assert loader.insert().replica == second.url
    clock[0] += REST_SECONDS_MAX
    wait_for(lambda: _is_writable(first, loader.table), 90, "the first replica's session")
    receipt = loader.insert()
    assert (receipt.replica, receipt.failed_over) == (first.url, ())
    loader.assert_stored_once()


def _is_writable(each: ClickHouseServer, table: str) -> bool:
    with Server(each.url) as server:
        return not describe_table(server, "default", table).is_readonly


def test_a_frozen_replica_is_found_out_before_the_block_is_sent(
    loader: Loader, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cluster.servers
    loader.insert()
    monkeypatch.setattr(http, "PING_TIMEOUT_SECONDS", 2.0)
    first.pause()
    try:
        receipt = loader.insert()
    finally:
        first.resume()
    assert receipt.failed_over == (f"{first.url} PING_FAILED",)
    assert receipt.replica == second.url and not receipt.in_doubt
    wait_for(lambda: _is_writable(first, loader.table), 90, "the first replica's session")
    loader.assert_stored_once()


@pytest.mark.slow
def test_a_replica_without_zookeeper_is_passed_by(cluster: Cluster, tmp_path: Path) -> None:
    """A third one, whose way to ZooKeeper can be cut."""
    with Proxy(Inserts, ("127.0.0.1", cluster.zookeeper.port)) as way:
        third = ClickHouseServer(tmp_path, Settings(replica="r3", zookeeper_port=way.port))
        third.start()
        try:
            servers = [third, *cluster.servers]
            table, path = create(servers)
            loader = Loader(servers, table, path, tuple(each.url for each in servers))
            assert loader.insert().replica == third.url
            way.strike(LinkFault(Kind.CUT))
            wait_for(lambda: not _is_writable(third, table), 90, "the loss of the session")
            failed_over = [loader.insert().failed_over for _ in range(2)]
            assert failed_over == [(f"{third.url} TABLE_IS_READ_ONLY",), ()]
            loader.cache = WorkerCache()  # one that has not met it yet
            assert loader.insert().failed_over == (f"{third.url} ReplicaAwayError",)
            way.heal()
            wait_for(lambda: _is_writable(third, table), 90, "the session")
            loader.cache = WorkerCache()
            assert loader.insert().replica == third.url
            loader.assert_stored_once()
            with Server(third.url) as server:
                server.execute(f"DROP TABLE {table}")
        finally:
            third.kill()


def test_a_replica_of_another_table_gets_nothing(cluster: Cluster) -> None:
    """The same name on both servers, and two windows."""
    first, second = cluster.servers
    table, path = create([first])
    with Server(second.url) as server:
        server.execute(
            f"CREATE TABLE {table} (id UInt64, _topic String, _partition UInt32, _offset UInt64, "
            f"_row UInt32) ENGINE = ReplicatedMergeTree('{path}/other', '{{replica}}') ORDER BY id"
        )
    loader = Loader([first], table, path, (first.url, second.url))
    loader.insert(0)
    with pytest.raises(BlockRefusedError) as raised:
        loader.insert(1)
    assert raised.value.is_unstored
    assert f"is the table at {path}/other in ZooKeeper" in raised.value.error.message
    loader.assert_stored_once(blocks=1)
    with Server(second.url) as server:
        assert server.query(f"SELECT count() AS n FROM {table}") == [{"n": 0}]


def test_a_block_in_doubt_is_never_said_to_be_unstored(cluster: Cluster, proxy: Proxy) -> None:
    """Neither where the next replica refuses the table, nor where it was altered meanwhile: the
    range would be loaded under another load spec, or parked, beside what the first has stored."""
    first, second = cluster.servers
    table, path = create([first])
    with Server(second.url) as server:
        server.execute(f"CREATE TABLE {table} (id UInt64) ENGINE = Memory")
    loader = Loader([first], table, path, (first.url, second.url))
    through(proxy, loader)
    loader.insert()
    proxy.strike(LinkFault(Kind.DROP_REPLY))
    with pytest.raises(BlockRefusedError) as raised:
        loader.insert()
    assert not raised.value.is_unstored
    loader.assert_stored_once()


def test_an_alter_between_two_replicas_leaves_the_block_in_doubt(
    loader: Loader, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second hashes one column more, and would store the block once more."""
    through(proxy, loader)
    loader.insert()
    proxy.strike(LinkFault(Kind.DROP_REPLY))
    look = inserting._look

    def alter_then_look(*parts: Any) -> None:
        if parts[-1].doubt is not None:
            with Server(loader.urls[1]) as server:
                server.execute(f"ALTER TABLE {loader.table} ADD COLUMN added UInt8")
        look(*parts)

    monkeypatch.setattr(inserting, "_look", alter_then_look)
    with pytest.raises(StructureChangedError):
        loader.insert()
    assert proxy.counters.dropped_replies == 1
    loader.assert_stored_once()


def test_half_of_four_replicas_are_enough_for_a_quorum_of_two() -> None:
    """With three down, blocks wait; nothing of what was acknowledged is lost."""
    with running_cluster(1, 4) as cluster:
        table, path = create(cluster.servers)
        urls = tuple(each.url for each in cluster.servers)
        loader = Loader(cluster.servers, table, path, urls, durability="quorum")
        assert [loader.insert(p).replica for p in range(4)] == list(urls)
        for each in cluster.servers[:2]:
            each.kill()
        receipts = [loader.insert(p) for p in range(4)]
        assert {receipt.replica for receipt in receipts} == set(urls[2:])
        assert [len(receipt.failed_over) for receipt in receipts] == [2, 0, 0, 0]
        cluster.servers[2].kill()
        last = cluster.servers[3]
        wait_for(lambda: _active(last, table) == 1, 90, "the end of the others' sessions")
        with pytest.raises(InDoubtError) as raised:
            loader.insert()
        assert "TOO_FEW_LIVE_REPLICAS" in raised.value.message
        for each in cluster.servers[:3]:
            each.start()
        wait_for(lambda: _active(last, table) == 4, 90, "the others' sessions")
        loader.blocks -= 1  # the same block again, as the driver sends it
        loader.is_first = False
        loader.insert()
        loader.assert_stored_once()


def _active(each: ClickHouseServer, table: str) -> int:
    with Server(each.url) as server:
        return describe_table(server, "default", table).replicas_active


def test_token_mode_offers_the_same_token(
    embedded_server: ClickHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded engine has no Replicated tables: here two ways to one table stand for two
    replicas, which have one window as well."""
    table = f"t{uuid.uuid4().hex[:8]}"
    with Server(embedded_server.url) as server:
        server.execute(
            f"CREATE TABLE {table} (id UInt64, _topic String, _partition UInt32, _offset UInt64, "
            "_row UInt32) ENGINE = MergeTree ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 100"
        )
    monkeypatch.setattr(
        inserting,
        "describe_table",
        lambda *where: replace(describe_table(*where), replicated=True, zookeeper_path="/t"),
    )
    monkeypatch.setattr(
        window,
        "read_insert_counter",
        lambda server, facts: read_insert_counter(server, replace(facts, replicated=False)),
    )
    servers: list[ClickHouseServer] = [embedded_server]  # type: ignore[list-item]
    with Proxy(Inserts, ("127.0.0.1", embedded_server.port)) as way:
        loader = Loader(servers, table, "", (embedded_server.url, embedded_server.url))
        through(way, loader)
        spec = replace(loader.spec, zookeeper_paths=(("s1", "/t"),))
        monkeypatch.setattr(Loader, "spec", spec)
        loader.insert()
        way.strike(LinkFault(Kind.DROP_REPLY))
        receipt = loader.insert()
        assert way.counters.dropped_replies == 1
    assert receipt.replica == embedded_server.url and receipt.in_doubt
    loader.assert_stored_once()


def test_the_window_is_read_from_any_replica_and_a_probe_names_the_one_it_lacks(
    loader: Loader, cluster: Cluster
) -> None:
    first, _ = cluster.servers
    target_shard = TargetShard(loader.table, "s1")
    access = ClickHouseAccess({"s1": loader.urls}, "default", "", "single")
    spec = LoadSpec("p", "dc1", "chdb", 1 << 30, (loader.spec,))
    now = [NOW]
    monitor = WindowMonitor(access, LoadSpecs(spec), lambda: now[0])
    servers = monitor._servers()
    monitor._read(servers)
    loader.insert(0)
    loader.insert(1)
    insert_counters = []
    for minute in range(2):  # each replica in its turn
        now[0] = NOW + minute * 60_001
        monitor._read(servers)
        insert_counters.append(monitor.current()[target_shard].state.insert_counter)
    assert insert_counters == [loader.insert_counter()] * 2 == [2, 2]
    first.kill()
    try:
        for minute in range(2, 4):
            now[0] = NOW + minute * 60_001
            monitor._read(servers)
            assert monitor.failure() is None
            assert monitor.current()[target_shard].read_started_ms == now[0]
            assert monitor.current()[target_shard].state.insert_counter == 2
        prober = ClickHouseProber(access, "p", KafkaAccess("dc1", "127.0.0.1:1"))
        record = Record(RecordKind.INTEND, 1, 1, 0, ROWS, "a", 0, "topic", "text", 1, 0)
        with pytest.raises(ReplicaMissingError) as raised:
            probe = Probe([Sought(Range(TopicPartition("a", 0), 0, ROWS), record)])
            prober._look(probe, loader.spec, NOW)
        prober.close()
        assert "all 2 replicas of shard s1, and 1 of them" in raised.value.message
        assert first.url in raised.value.message
    finally:
        first.start()
