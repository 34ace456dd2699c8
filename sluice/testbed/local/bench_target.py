"""Where the benchmark's rows go: the embedded engine, or a server that is there already."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sluice.clickhouse.capabilities import read_capabilities
from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.load_spec import Delivery
from sluice.testbed.local.orders import Shape, create_table_statement
from sluice.testbed.local.processes import listener
from sluice.testbed.local.running import running_clickhouse

DATABASE = "sluice_bench"
TABLE = "orders"
PASSWORD_VARIABLE = "SLUICE_BENCH_PASSWORD"

_KEEPER_PATH = "/clickhouse/tables/sluice_bench"
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """Fresh, empty tables `sluice_bench.orders`, `orders_2` and so on.

    :param pid: the server's process, None if it is not on this machine.
    :param version: e.g. "26.9.1".
    """

    url: str
    user: str
    password_variable: str
    version: str
    pid: int | None
    tables: tuple[str, ...] = (TABLE,)

    def rows(self) -> int:
        """Rows in all tables together."""
        with self.client() as client:
            counts = [
                client.query(f"SELECT count() AS n FROM {DATABASE}.{table}")[0]["n"]
                for table in self.tables
            ]
        return sum(map(int, counts))

    def client(self) -> Server:
        """A connection of its own."""
        return Server(self.url, self.user, os.environ.get(self.password_variable, ""))


def table_names(count: int) -> tuple[str, ...]:
    """The benchmark's tables."""
    return (TABLE, *(f"{TABLE}_{number}" for number in range(2, count + 1)))


@contextmanager
def prepared_target(
    server: str,
    folder: Path,
    delivery: Delivery,
    tables: int = 1,
    shape: Shape | None = None,
    replicated: bool = False,
    source: str = "UInt64",
) -> Iterator[Target]:
    """The database `sluice_bench` with empty tables, dropped at the end.

    :param server: "embedded" or a URL, which may carry user and password.
    :param delivery: that the tables are for.
    :param tables: how many tables of this shape.
    :param replicated: they are ReplicatedMergeTree.
    :param source: see `create_table_statement`.
    :raises ConfigurationError: the database exists, or the server needs a decision.
    """
    if server == "embedded":
        with (
            running_clickhouse(folder / "clickhouse") as embedded,
            _with_tables(
                Target(embedded.url, "default", "", "", embedded.pid, table_names(tables)),
                delivery,
                shape,
                replicated,
                source,
            ) as target,
        ):
            yield target
        return
    parts = urlsplit(server)
    variable = ""
    if parts.password:
        variable = PASSWORD_VARIABLE
        os.environ[variable] = unquote(parts.password)
    user = unquote(parts.username or "default")
    pid = listener(parts.port or 8123) if parts.hostname in _HERE else None
    bare = Target(Server(server).url, user, variable, "", pid, table_names(tables))
    with _with_tables(bare, delivery, shape, replicated, source) as target:
        yield target


@contextmanager
def _with_tables(
    target: Target, delivery: Delivery, shape: Shape | None, replicated: bool, source: str
) -> Iterator[Target]:
    """The target with its version and its tables."""
    run = uuid.uuid4().hex  # newer servers forget a dropped table's path minutes later
    with target.client() as client:
        capabilities = read_capabilities(client)
        if delivery == "block" and not (capabilities.tokens or replicated):
            raise ConfigurationError(
                f"ClickHouse {capabilities.version_text} at {target.url} cannot deduplicate "
                "inserts into a plain MergeTree table, only into a Replicated one, which needs "
                "ZooKeeper",
                "Add --replicated if it has ZooKeeper, or --delivery replacing.",
            )
        if client.query(f"SELECT name FROM system.databases WHERE name = '{DATABASE}'"):
            raise ConfigurationError(
                f"the database {DATABASE} at {target.url} exists already",
                f"DROP DATABASE {DATABASE}, if an earlier benchmark left it behind.",
            )
        client.execute(f"CREATE DATABASE {DATABASE}")
    try:
        with target.client() as client:
            for table in target.tables:
                client.execute(
                    create_table_statement(
                        f"{DATABASE}.{table}",
                        delivery=delivery,
                        shape=shape,
                        replica=f"{_KEEPER_PATH}/{run}/{table}" if replicated else "",
                        source=source,
                    )
                )
        yield replace(target, version=capabilities.version_text)
    finally:
        with suppress(SluiceError), target.client() as client:
            client.execute(f"DROP DATABASE {DATABASE}")
