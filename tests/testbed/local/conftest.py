"""One embedded server for the whole folder; each test has a database of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from sluice.testbed.local.running import ClickHouse, running_clickhouse
from tests.testbed.local.http_client import Client


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with running_clickhouse(tmp_path_factory.mktemp("embedded") / "data") as running:
        yield running


@pytest.fixture
def client(server: ClickHouse) -> Client:
    assert server.port is not None
    return Client(server.port)


@pytest.fixture
def database(client: Client) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    client.rows(f"CREATE DATABASE {name}")
    yield name
    client.rows(f"DROP DATABASE {name} SYNC")
