"""Loaders that take the insert lock of a table of real 18.16.1 replicas, which take one quorum
insert at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.clickhouse.reactions import ServerError
from sluice.core.errors import InDoubtError, TransientError
from sluice.locks.port import LockWaitError
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.cluster.cluster import Cluster
from sluice.testbed.local.running import Broker
from sluice.worker import insert_lock
from sluice.worker.worker_cache import WorkerCache
from tests.e2e.measure_insert_locks import load
from tests.locks.memory import Ensemble, MemoryLocks
from tests.support.block_loader import Loader, create


@pytest.fixture
def make(cluster: Cluster) -> Iterator[Callable[[], Loader]]:
    """Workers that load one table, each its own blocks."""
    table, path = create(cluster.servers)
    made: list[Loader] = []

    def make() -> Loader:
        urls = tuple(each.url for each in cluster.servers)
        loader = Loader(cluster.servers, table, path, urls, durability="quorum")
        loader.zookeeper = f"127.0.0.1:{cluster.zookeeper.port}"
        loader.blocks = 1000 * len(made)
        made.append(loader)
        return loader

    yield make
    for each in made:
        for locks in each.cache.locks.values():
            locks.close()


def stored_once(loader: Loader, blocks: int) -> None:
    loader.assert_stored_once(blocks)


@pytest.mark.long
def test_workers_of_spark_take_insert_locks(
    tmp_path: Path, shared_broker: Broker, cluster: Cluster
) -> None:
    """None of them is refused, and each replica has every row once."""
    loaded = load(
        tmp_path,
        shared_broker,
        cluster,
        insert_locks=True,
        partitions=3,
        rows=6_000,
        max_messages=1_000,
    )
    assert loaded.refusals == 0
    queueings = [each["queueing"] for each in loaded.receipts]
    assert len(queueings) >= 6
    assert all(each["held"] and not each["lost"] for each in queueings)
    assert any(each["wait_ms"] > 0 for each in queueings)


@pytest.mark.slow
def test_without_insert_locks_one_of_two_is_refused(
    make: Callable[[], Loader], cluster: Cluster
) -> None:
    """What the lock is for: the same two workers with and without it."""
    first, second = make(), make()
    for loader in (first, second):
        loader.insert()

    def both() -> list[int]:
        """The codes of refusals; what was refused is loaded afterwards."""
        ready = threading.Barrier(2)

        def insert(loader: Loader) -> int:
            ready.wait(30)
            try:
                loader.insert()
            except ServerError as error:
                return error.code
            return 0

        with ThreadPoolExecutor(2) as pool:
            codes = list(pool.map(insert, (first, second)))
        for loader, code in zip((first, second), codes, strict=True):
            if code:
                loader.blocks -= 1
                loader.insert()
        return codes

    blocks = 2
    for _ in range(3):
        assert both() == [0, 0]
        blocks += 2
    for loader in (first, second):
        loader.zookeeper = ""
    refused: list[int] = []
    while not refused:  # how soon the two meet is up to the machine
        refused = [code for code in both() if code]
        blocks += 2
        assert blocks < 100
    assert set(refused) == {286}
    stored_once(first, blocks)


def test_a_worker_that_does_not_get_the_insert_lock_has_sent_nothing(
    make: Callable[[], Loader],
) -> None:
    loader, ensemble = make(), Ensemble()
    loader.insert_timeout_seconds = 1.0
    holder = MemoryLocks(ensemble)
    loader.cache.locks[loader.zookeeper] = MemoryLocks(ensemble)
    held = holder.acquire(loader.path, 1.0)
    before = loader.insert_counter()
    with pytest.raises(LockWaitError) as raised:
        loader.insert()
    assert isinstance(raised.value, TransientError)
    assert loader.insert_counter() == before
    held.release(is_over=True)
    loader.blocks -= 1
    loader.insert_timeout_seconds = 30.0  # two replicas have to store it
    receipt = loader.insert()
    assert receipt.queueing is not None and receipt.queueing.held
    assert loader.insert_counter() == before + 1 and not ensemble.queues[loader.path]
    stored_once(loader, 1)


@pytest.mark.slow
def test_a_worker_whose_answer_is_lost_keeps_the_next_waiting_and_no_longer_than_announced(
    make: Callable[[], Loader], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insert_lock, "LATE_SECONDS", 1.0)
    loader, ensemble = make(), Ensemble()
    loader.cache.locks[loader.zookeeper] = MemoryLocks(ensemble)
    with Proxy(Inserts, ("127.0.0.1", cluster.servers[0].settings.ports[0])) as way:
        loader.urls = (f"http://127.0.0.1:{way.port}",)
        loader.insert()
        assert loader.path not in ensemble.markers
        loader.insert_timeout_seconds = 2.0
        way.strike(LinkFault(Kind.DROP_REPLY))
        with pytest.raises(InDoubtError):
            loader.insert()
        way.heal()
        announced = ensemble.markers[loader.path]
        assert 1.0 < announced <= 3.0 and not ensemble.queues[loader.path]
        loader.insert_timeout_seconds = 30.0
        loader.blocks -= 1
        loader.is_first = False
        receipt = loader.insert()
    assert receipt.queueing is not None and receipt.queueing.wait_ms >= int(announced * 1000)
    assert loader.path not in ensemble.markers
    stored_once(loader, 2)


@pytest.mark.slow
def test_a_zookeeper_of_the_lock_that_is_away_stops_nobody(make: Callable[[], Loader]) -> None:
    loader = make()
    loader.zookeeper = f"127.0.0.1:{free_ports(1)[0]}"
    for _ in range(2):
        receipt = loader.insert()
        assert receipt.queueing is not None and not receipt.queueing.held
    loader.durability, loader.cache = "single", WorkerCache()
    loader.recorded_quorum = 1
    assert loader.insert().queueing is None
    stored_once(loader, 3)
