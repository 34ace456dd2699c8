"""Fixtures of real servers, started once a session and only when a test asks for them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from sluice.clickhouse.http import Server
from sluice.testbed.local.cluster.zookeeper import ZooKeeper, zookeeper_available
from sluice.testbed.local.running import ClickHouse, running_clickhouse
from tests.support.children import running
from tests.support.clickhouse_server import ClickHouseServer, clickhouse_available, run_clickhouse
from tests.support.registry import Registry, run_registry


@pytest.fixture(scope="session")
def zookeeper_port() -> Iterator[int]:
    if not zookeeper_available():
        pytest.fail("needs Debian's zookeeper: apt-get install zookeeper")
    with running(ZooKeeper) as zookeeper:
        yield zookeeper.port


@pytest.fixture(scope="session")
def clickhouse_18(zookeeper_port: int) -> Iterator[ClickHouseServer]:
    """ClickHouse 18.16.1, replica r1, with ZooKeeper."""
    yield from _replica("r1", zookeeper_port)


@pytest.fixture(scope="session")
def clickhouse_18_second(zookeeper_port: int) -> Iterator[ClickHouseServer]:
    """Another ClickHouse 18.16.1, replica r2, with the same ZooKeeper."""
    yield from _replica("r2", zookeeper_port)


def _replica(name: str, zookeeper_port: int) -> Iterator[ClickHouseServer]:
    if not clickhouse_available():
        pytest.fail("needs Debian's ClickHouse 18.16: apt-get install clickhouse-server")
    with run_clickhouse(name, zookeeper_port) as server:
        yield server


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    """The embedded engine in a process of its own."""
    with running_clickhouse(tmp_path_factory.mktemp("clickhouse")) as server:
        yield server


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """A real schema registry."""
    with run_registry() as found:
        yield found


@pytest.fixture
def embedded_url(embedded_server: ClickHouse) -> str:
    return embedded_server.url


@pytest.fixture(params=["18.16", "embedded"])
def clickhouse_url(request: pytest.FixtureRequest) -> str:
    """Each real backend in turn: the oldest server that Sluice serves, and the newest."""
    name = "clickhouse_18" if request.param == "18.16" else "embedded_server"
    url: str = request.getfixturevalue(name).url
    return url


@pytest.fixture
def server(clickhouse_url: str) -> Iterator[Server]:
    """A client of each real backend."""
    with Server(clickhouse_url) as client:
        yield client


@pytest.fixture
def embedded(embedded_url: str) -> Iterator[Server]:
    """A client of the embedded engine."""
    with Server(embedded_url) as client:
        yield client


@pytest.fixture
def old(clickhouse_18: ClickHouseServer) -> Iterator[Server]:
    """A client of ClickHouse 18.16.1, replica r1."""
    with Server(clickhouse_18.url) as client:
        yield client


@pytest.fixture
def second(clickhouse_18_second: ClickHouseServer) -> Iterator[Server]:
    """A client of ClickHouse 18.16.1, replica r2."""
    with Server(clickhouse_18_second.url) as client:
        yield client


@pytest.fixture
def database(clickhouse_url: str) -> Iterator[str]:
    """A fresh database on each real backend, dropped afterwards."""
    yield from fresh_database(clickhouse_url)


def fresh_database(*urls: str) -> Iterator[str]:
    """The same new database name on all these servers; dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    for url in urls:
        with Server(url) as client:
            client.execute(f"CREATE DATABASE {name}")
    yield name
    for url in urls:
        with Server(url) as client:
            client.execute(f"DROP DATABASE {name}")
