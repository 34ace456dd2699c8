"""One insert as a value: what will be sent, decided purely; `Server.insert` sends it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from sluice.clickhouse.sql import identifier, qualified

QUERY_ID_PREFIX = "sluice-"

#: A longer request line goes into the body instead; 18.16 refuses one above 16,384.
REQUEST_LINE_CHARACTERS_MAX = 8000


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """A block that is ready to be sent.

    :param target: database.table, for messages.
    :param path: path and query string of the POST.
    :param query: the INSERT statement.
    :param headers: HTTP headers besides length and credentials.
    :param body: the parts of the body in order; the last is the Native block itself.
    """

    target: str
    path: str
    query: str
    query_id: str
    headers: tuple[tuple[str, str], ...]
    body: tuple[bytes | memoryview, ...]

    @property
    def body_bytes(self) -> int:
        return sum(len(part) for part in self.body)


def query_id_prefix(token: str) -> str:
    """What all attempts to insert the block with this token share (R11)."""
    return QUERY_ID_PREFIX + hashlib.sha256(token.encode()).hexdigest()[:24]


def query_id_of(token: str, attempt: str) -> str:
    """The query id of one attempt.

    :param attempt: unique for each attempt, e.g. a random hexadecimal number: a server
        refuses a query id that is still running.
    """
    return f"{query_id_prefix(token)}-{attempt}"


def plan_statement(target: str, sql: str, query_id: str, settings: Mapping[str, str]) -> InsertPlan:
    """Plan a statement that answers nothing: it is sent as a block is, within a lease (R9).

    :param target: database.table, for messages.
    """
    keys = {"query_id": query_id, "wait_end_of_query": "1", **settings}
    return InsertPlan(target, "/?" + urlencode(keys), sql, query_id, (), (sql.encode(),))


def plan_insert(
    database: str,
    table: str,
    columns: Sequence[str],
    native: bytes | memoryview,
    token: str | None,
    query_id: str,
    settings: Mapping[str, str],
    data_format: str = "Native",
) -> InsertPlan:
    """Plan the insert of one Native block.

    :param columns: the block's columns in their order; always named (R8).
    :param native: the block; it is not copied. A memoryview must be of bytes.
    :param token: None for a server that does not know `insert_deduplication_token`.
    :param settings: what `insert_settings` gave; identical for every attempt of a block,
        but for what decides about no row of it.
    :param data_format: of the block, in ClickHouse's words.
    """
    names = ", ".join(identifier(column) for column in columns)
    query = f"INSERT INTO {qualified(database, table)} ({names}) FORMAT {data_format}"
    keys = {"query_id": query_id, "wait_end_of_query": "1", **settings}
    if token is not None:
        keys["insert_deduplication_token"] = token
    path = "/?" + urlencode({"query": query, **keys})
    body: tuple[bytes | memoryview, ...] = (native,)
    if len(path) > REQUEST_LINE_CHARACTERS_MAX:
        path = "/?" + urlencode(keys)
        body = (query.encode() + b"\n", native)
    headers = (("Content-Type", "application/octet-stream"),)
    return InsertPlan(f"{database}.{table}", path, query, query_id, headers, body)
