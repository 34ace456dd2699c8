"""Two real replicas whose servers can be made to refuse blocks, and what a block becomes then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import describe_table
from sluice.core.errors import InDoubtError, SluiceError, TransientError
from sluice.testbed.chaos.proxy import Proxy
from sluice.testbed.chaos.requests import Inserts
from sluice.testbed.local.cluster.cluster import Cluster
from sluice.testbed.local.cluster.server import USERS, ClickHouseServer
from sluice.worker.errors import BlockRefusedError
from tests.support.block_loader import Loader, create
from tests.support.world import wait_for

SMALL = (
    "<small><password></password><networks><ip>::/0</ip></networks>"
    "<profile>small</profile><quota>default</quota></small>"
)


class ReplicaPair:
    """Two replicas; the first one reaches ZooKeeper through a proxy."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder, 1, 2)
        self.first, self.second = self.cluster.servers
        self.way = Proxy(Inserts, ("127.0.0.1", self.cluster.zookeeper.port))
        self.first.settings.zookeeper_port = self.way.port
        self.cluster.start()
        self.zookeeper = KazooClient(f"127.0.0.1:{self.cluster.zookeeper.port}")
        self.zookeeper.start(timeout=30)
        self.profile("")

    def close(self) -> None:
        self.zookeeper.stop()
        self.zookeeper.close()
        self.way.close()
        self.cluster.kill()

    def loader(
        self, durability: str = "single", settings: str = "", user: str = "default"
    ) -> Loader:
        """Into a table of its own, at the first replica; one block is there."""
        table, path = create(self.cluster.servers, settings=settings)
        made = Loader(self.cluster.servers, table, path, (self.first.url,), durability)
        made.user = user
        made.insert()
        made.quorum_timeout_seconds = 1.0
        made.cache.profiles.clear()
        return made

    def execute(self, sql: str) -> None:
        """At the first replica."""
        with Server(self.first.url) as server:
            server.execute(sql)

    def profile(self, settings: str) -> None:
        """What the user `small` is subject to from now on."""
        text = USERS.read_text().replace("</users>", f"{SMALL}</users>")
        text = text.replace("<profiles>", f"<profiles><small>{settings}</small>")
        (self.first.folder / "users.xml").write_text(text)
        self.execute("SYSTEM RELOAD CONFIG")

    def view(self, loader: Loader, condition: str) -> str:
        """Behind a loader's table; rows of it need this."""
        name = f"v{loader.table}"
        self.execute(
            f"CREATE TABLE {name} (id UInt64) ENGINE = "
            f"ReplicatedMergeTree('{loader.path}/v', '{{replica}}') ORDER BY id"
        )
        self.execute(
            f"CREATE MATERIALIZED VIEW m{name} TO {name} AS SELECT id FROM {loader.table} "
            f"WHERE {condition}"
        )
        return f"m{name}"

    @contextmanager
    def without_fetches(self) -> Iterator[None]:
        """The second replica gets no parts: no block reaches a quorum of two."""
        with Server(self.second.url) as server:
            server.execute("SYSTEM STOP FETCHES")
            try:
                yield
            finally:
                server.execute("SYSTEM START FETCHES")

    def is_readonly(self, loader: Loader) -> bool:
        """Whether the first replica takes nothing into this table, by its own word."""
        with Server(self.first.url) as server:
            tables = f"SELECT is_readonly FROM system.replicas WHERE table = '{loader.table}'"
            return bool(server.query(tables)[0]["is_readonly"])

    def active(self, each: ClickHouseServer, loader: Loader) -> int:
        with Server(each.url) as server:
            return describe_table(server, "default", loader.table).replicas_active


def refused(loader: Loader, kind: type[SluiceError] = InDoubtError) -> ServerError:
    """The next block is not taken; it is the next one again, as the driver sends it."""
    with pytest.raises(SluiceError) as raised:
        loader.insert()
    loader.blocks -= 1
    loader.is_first = False
    error = raised.value
    if isinstance(error, BlockRefusedError):
        error = error.error
    assert isinstance(error, ServerError), repr(error)
    assert isinstance(error, kind), repr(error)
    return error


def taken(loader: Loader) -> None:
    """The block that was refused is taken now, and is there once, on each replica."""
    loader.quorum_timeout_seconds = 25.0
    loader.cache.profiles.clear()
    loader.insert()
    loader.assert_stored_once()


def taken_in_the_end(loader: Loader) -> None:
    """The same, while a server finds its session again: repeated, as the driver does."""
    loader.quorum_timeout_seconds = 25.0

    def is_taken() -> bool:
        try:
            loader.insert()
        except (InDoubtError, TransientError):
            loader.blocks -= 1
            return False
        return True

    wait_for(is_taken, 90, "the end of the fault")
    loader.assert_stored_once()
