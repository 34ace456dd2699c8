"""A real ClickHouse server (Debian's 18.16.1) on free ports, with users for tests."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sluice.testbed.local.cluster.server import (
    ClickHouseServer,
    Settings,
    answers_ping,
    clickhouse_available,
)
from tests.support.children import running

__all__ = ["ClickHouseServer", "answers_ping", "clickhouse_available", "run_clickhouse"]

#: Users besides `default` (no password): one with a password, one that may only read.
_USERS = """<sluice><password>right-password</password>
            <networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
        </sluice>
        <reader><password></password>
            <networks><ip>::/0</ip></networks><profile>readonly</profile><quota>default</quota>
        </reader>"""


def run_clickhouse(
    replica: str = "r1", zookeeper_port: int | None = None, keep_alive_seconds: int = 10
) -> AbstractContextManager[ClickHouseServer]:
    """A server until the block ends."""
    settings = Settings(
        replica=replica,
        zookeeper_port=zookeeper_port,
        keep_alive_seconds=keep_alive_seconds,
        users=_USERS,
    )
    return running(lambda folder: ClickHouseServer(folder, settings))
