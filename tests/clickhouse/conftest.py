"""Databases of the tests in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clickhouse_server import ClickHouseServer
from tests.support.fixtures import fresh_database


@pytest.fixture
def embedded_database(embedded_url: str) -> Iterator[str]:
    """A fresh database on the embedded engine."""
    yield from fresh_database(embedded_url)


@pytest.fixture
def replicated(
    clickhouse_18: ClickHouseServer, clickhouse_18_second: ClickHouseServer
) -> Iterator[str]:
    """A fresh database of the same name on both 18.16 replicas."""
    yield from fresh_database(clickhouse_18.url, clickhouse_18_second.url)
