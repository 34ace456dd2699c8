"""One broker and one embedded ClickHouse for all end-to-end tests that do not break them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.running import Broker, ClickHouse, running_broker, running_clickhouse
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.kafka import Kafka
from tests.support.world import World


@pytest.fixture(scope="session")
def shared_broker(kafka: Kafka) -> Broker:
    return kafka.broker


@pytest.fixture
def world(tmp_path: Path, shared_broker: Broker, embedded_server: ClickHouse) -> Iterator[World]:
    """In the shared broker and server, which it leaves as it found them."""
    world = _world(tmp_path, shared_broker, embedded_server)
    yield world
    world.close()
    world.clean()


@pytest.fixture
def fragile_world(tmp_path: Path) -> Iterator[World]:
    """A broker and a server that the test may stop."""
    with (
        running_broker(tmp_path / "kafka") as broker,
        running_clickhouse(tmp_path / "clickhouse") as clickhouse,
    ):
        world = _world(tmp_path, broker, clickhouse)
        yield world
        world.close()
        broker.kill()  # its data goes with it: that it ends in order takes a second


@pytest.fixture
def old_world(
    tmp_path: Path, shared_broker: Broker, clickhouse_18: ClickHouseServer
) -> Iterator[World]:
    """In the oldest server that Sluice serves."""
    world = World(tmp_path, shared_broker, clickhouse_18, name=f"h{uuid.uuid4().hex[:8]}")
    try:
        yield world
    finally:
        world.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One shard of two replicas."""
    with running_cluster(1, 2) as running:
        yield running


def _world(folder: Path, broker: Broker, clickhouse: ClickHouse) -> World:
    return World(folder, broker, clickhouse, name=f"t{uuid.uuid4().hex[:8]}")
