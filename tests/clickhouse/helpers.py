"""Blocks for tests, made by the server under test: `SELECT … FORMAT Native`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.connection import Request
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import plan_insert, query_id_of


class ProfiledServer(Server):
    """A user whose profile has these settings."""

    profile: Mapping[str, str] = {}

    def _statement(self, text: str, settings: Mapping[str, str] | None) -> Request:
        return super()._statement(text, {**self.profile, **(settings or {})})


def native(server: Server, select: str) -> bytes:
    """The result of a SELECT as Native."""
    request = UrlRequest(server.url, f"{select} FORMAT Native".encode(), method="POST")
    with urlopen(request, timeout=30) as response:
        body: bytes = response.read()
        return body


def insert(
    server: Server,
    target: str,
    columns: list[str],
    select: str,
    token: str,
    settings: dict[str, str] | None = None,
) -> InsertReply:
    """Insert the result of a SELECT as one block under a token (where the server knows it)."""
    capabilities = read_capabilities(server)
    database, _, table = target.partition(".")
    plan = plan_insert(
        database,
        table,
        columns,
        native(server, select),
        token if capabilities.tokens else None,
        query_id_of(token, uuid.uuid4().hex[:8]),
        {**insert_settings(capabilities), **(settings or {})},
    )
    return server.insert(plan, lambda: 60.0)


def count(server: Server, target: str) -> int:
    """Rows in a table."""
    return int(server.query(f"SELECT count() AS n FROM {target}")[0]["n"])
