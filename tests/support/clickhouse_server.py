"""A real ClickHouse server (Debian's 18.16.1) on free ports, with users for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.testbed.local.cluster.server import (
    ClickHouseServer,
    Settings,
    answers_ping,
    clickhouse_available,
)

__all__ = ["ClickHouseServer", "answers_ping", "clickhouse_available", "run_clickhouse"]

#: Users besides `default` (no password): one with a password, one that may only read.
_USERS = """<sluice><password>right-password</password>
            <networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
        </sluice>
        <reader><password></password>
            <networks><ip>::/0</ip></networks><profile>readonly</profile><quota>default</quota>
        </reader>"""


@contextmanager
def run_clickhouse(
    replica: str = "r1", zookeeper_port: int | None = None, keep_alive_seconds: int = 10
) -> Iterator[ClickHouseServer]:
    """Run a server until the block ends, in a folder of its own."""
    settings = Settings(
        replica=replica,
        zookeeper_port=zookeeper_port,
        keep_alive_seconds=keep_alive_seconds,
        users=_USERS,
    )
    with tempfile.TemporaryDirectory(prefix="sluice-clickhouse-") as folder:
        server = ClickHouseServer(Path(folder), settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
