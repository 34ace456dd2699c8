"""Every store of claims, with the same questions: `Conformance` asks them, and asserts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.claims.local import LocalStore
from sluice.claims.port import ClaimStore
from sluice.claims.redis import RedisStore
from sluice.claims.stores import StoreAccess, open_store
from tests.claims.conformance import Conformance, Opens
from tests.claims.memory import Kept, MemoryStore
from tests.support.redis_server import RedisServer, run_cluster, run_redis


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with run_redis() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with run_cluster() as servers:
        yield servers


def _all_opened(url: str) -> Iterator[Opens]:
    stores: list[ClaimStore] = []

    def opens() -> ClaimStore:
        stores.append(open_store(StoreAccess(url)))
        return stores[-1]

    yield opens
    for store in stores:
        store.close()


class TestMemory(Conformance):
    @pytest.fixture
    def opens(self) -> Opens:
        kept = Kept()
        return lambda: MemoryStore(kept)


class TestLocal(Conformance):
    @pytest.fixture
    def opens(self, tmp_path: Path) -> Iterator[Opens]:
        yield from _all_opened(f"local:{tmp_path / 'claims'}")


class TestRedis(Conformance):
    key_bytes = 14

    @pytest.fixture
    def opens(self, redis_server: RedisServer) -> Iterator[Opens]:
        redis_server.ask("FLUSHALL")
        yield from _all_opened(redis_server.url)


class TestCluster(Conformance):
    key_bytes = 14

    @pytest.fixture
    def opens(self, cluster: list[RedisServer]) -> Iterator[Opens]:
        for server in cluster:
            server.ask("FLUSHALL")
        places = ",".join(f"127.0.0.1:{server.port}" for server in cluster)
        yield from _all_opened(f"redis-cluster://{places}")


def test_an_address_names_its_store(
    tmp_path: Path, redis_server: RedisServer, cluster: list[RedisServer]
) -> None:
    """Else the questions above would be asked of one store three times."""
    places = ",".join(f"127.0.0.1:{server.port}" for server in cluster)
    for url, kind in (
        (f"local:{tmp_path / 'claims'}", LocalStore),
        (redis_server.url, RedisStore),
        (f"redis-cluster://{places}", RedisStore),
    ):
        store = open_store(StoreAccess(url))
        assert type(store) is kind
        store.close()
