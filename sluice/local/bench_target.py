"""Where the benchmark's rows go: the embedded engine, or a server that is there already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sluice.clickhouse.capabilities import read_capabilities
from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.local.orders import create_table_statement
from sluice.local.processes import listener
from sluice.local.running import running_clickhouse

DATABASE = "sluice_bench"
TABLE = "orders"
PASSWORD_VARIABLE = "SLUICE_BENCH_PASSWORD"

_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """A fresh, empty table `sluice_bench.orders`.

    :param pid: the server's process, None if it is not on this machine.
    :param version: e.g. "26.9.1".
    """

    url: str
    user: str
    password_variable: str
    version: str
    pid: int | None

    def rows(self) -> int:
        """Rows in the table."""
        with self.client() as client:
            return int(client.query(f"SELECT count() AS n FROM {DATABASE}.{TABLE}")[0]["n"])

    def client(self) -> Server:
        """A connection of its own."""
        return Server(self.url, self.user, os.environ.get(self.password_variable, ""))


@contextmanager
def prepared_target(server: str, folder: Path, unsafe_no_dedup: bool) -> Iterator[Target]:
    """The database `sluice_bench` with an empty table, dropped at the end.

    :param server: "embedded" or a URL, which may carry user and password.
    :raises ConfigurationError: the database exists, or the server needs a decision.
    """
    if server == "embedded":
        with (
            running_clickhouse(folder / "clickhouse") as embedded,
            _with_table(embedded.url, "default", "", embedded.pid, unsafe_no_dedup) as target,
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
    with _with_table(Server(server).url, user, variable, pid, unsafe_no_dedup) as target:
        yield target


@contextmanager
def _with_table(
    url: str, user: str, password_variable: str, pid: int | None, unsafe_no_dedup: bool
) -> Iterator[Target]:
    with Server(url, user, os.environ.get(password_variable, "")) as client:
        capabilities = read_capabilities(client)
        if not capabilities.tokens and not unsafe_no_dedup:
            raise ConfigurationError(
                f"ClickHouse {capabilities.version_text} at {url} cannot deduplicate inserts into "
                "a plain MergeTree table, only into a Replicated one, which needs ZooKeeper",
                "Add --unsafe-no-dedup to measure with a table that nobody should load for real.",
            )
        if client.query(f"SELECT name FROM system.databases WHERE name = '{DATABASE}'"):
            raise ConfigurationError(
                f"the database {DATABASE} at {url} exists already",
                f"DROP DATABASE {DATABASE}, if an earlier benchmark left it behind.",
            )
        client.execute(f"CREATE DATABASE {DATABASE}")
    target = Target(url, user, password_variable, capabilities.version_text, pid)
    try:
        with target.client() as client:
            client.execute(
                create_table_statement(f"{DATABASE}.{TABLE}", window=not unsafe_no_dedup)
            )
        yield target
    finally:
        with suppress(SluiceError), target.client() as client:
            client.execute(f"DROP DATABASE {DATABASE}")
