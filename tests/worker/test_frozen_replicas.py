"""R23. What a worker does while a replica is frozen, and when it comes back; on real servers."""

from __future__ import annotations

import pytest

from sluice.clickhouse.http import Server
from sluice.worker.errors import BlockRefusedError, ReplicasFrozenError
from sluice.worker.inserting import require_takers
from tests.support.block_loader import Loader, create
from tests.support.clickhouse_server import ClickHouseServer


@pytest.fixture
def loader(clickhouse_18: ClickHouseServer, clickhouse_18_second: ClickHouseServer) -> Loader:
    servers = [clickhouse_18, clickhouse_18_second]
    table, path = create(servers)  # type: ignore[arg-type]
    return Loader(servers, table, path, tuple(each.url for each in servers))  # type: ignore[arg-type]


def test_a_frozen_replica_gets_nothing_and_then_its_turn_again(loader: Loader) -> None:
    first, second = loader.urls
    assert loader.insert().replica == first
    loader.frozen = frozenset({first})
    assert {loader.insert(partition).replica for partition in (0, 1)} == {second}
    loader.frozen, loader.looks = frozenset(), 1
    receipt = loader.insert()
    assert (receipt.replica, receipt.failed_over) == (first, ())
    loader.assert_stored_once()


def test_a_table_that_a_person_made_anew_meanwhile_gets_nothing(loader: Loader) -> None:
    """Under another path: a worker that has loaded into the one before has noticed nothing."""
    first, _ = loader.urls
    loader.insert()
    loader.frozen = frozenset({first})
    with Server(first) as server:
        server.execute(f"DROP TABLE {loader.table}")
    create(loader.servers[:1], f"{loader.path}_other", table=loader.table)
    loader.insert()
    loader.frozen, loader.looks = frozenset(), 1
    with pytest.raises(BlockRefusedError, match=f"{loader.path}_other"):
        loader.insert()
    with Server(first) as server:
        assert server.query(f"SELECT count() AS n FROM {loader.table}") == [{"n": 0}]


def test_where_nobody_may_take_blocks_none_is_made(loader: Loader) -> None:
    require_takers(loader.access, [loader.spec])
    loader.frozen = frozenset(loader.urls)
    with pytest.raises(ReplicasFrozenError, match="all replicas of s1 are frozen"):
        require_takers(loader.access, [loader.spec])
