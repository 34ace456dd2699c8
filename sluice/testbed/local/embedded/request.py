"""From an HTTP request to a reply of the engine: which statement, which data, which settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from urllib.parse import parse_qsl

from sluice.testbed.local.embedded import errors, sql
from sluice.testbed.local.embedded.body import Allowance, Body
from sluice.testbed.local.embedded.engine import INSERT_SETTINGS, Engine, Reply, run

#: URL keys of the HTTP interface itself; every other key is a setting.
# fmt: off
_OWN_KEYS = frozenset((
    "query", "database", "user", "password", "quota_key", "query_id", "session_id",
    "session_timeout", "session_check", "close_session", "stacktrace", "default_format",
    "compress", "decompress", "wait_end_of_query", "buffer_size", "role",
    "client_protocol_version",
))
# fmt: on
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_STATEMENT_BYTES_MAX = 1 << 18  # an INSERT's statement, when its data follows in the body
_FORMAT_DEFAULT = "TabSeparated"

#: Content-Encoding -> the engine's name for it.
ENCODINGS = {
    "": "",
    "identity": "",
    "gzip": "gzip",
    "deflate": "deflate",
    "br": "br",
    "lz4": "lz4",
    "zstd": "zstd",
    "xz": "xz",
    "bz2": "bz2",
    "snappy": "snappy",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for, after the HTTP parts are taken off."""

    query: str
    query_id: str
    database: str
    session_id: str
    session_check: bool
    session_timeout_seconds: float
    default_format: str
    settings: Mapping[str, str]
    parameters: dict[str, str]
    read_only: bool
    user: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply with the name of its format."""

    reply: Reply
    format: str


def parse_request(url_query: str, headers: Message, read_only: bool, query_id: str) -> Request:
    """Read the URL's keys and ClickHouse's headers.

    :param query_id: the id to use where the client gives none.
    :raises QueryError: a key that this server cannot serve, or no valid name of a setting.
    """
    keys = dict(parse_qsl(url_query, keep_blank_values=True, errors="surrogateescape"))
    for name in ("compress", "decompress"):
        if keys.get(name, "0") not in ("0", ""):
            raise errors.refused(
                errors.NOT_IMPLEMENTED,
                "NOT_IMPLEMENTED",
                f"{name}=1 is not supported here; use Content-Encoding and Accept-Encoding",
            )
    settings = {}
    parameters = {}
    for name, value in keys.items():
        if name.startswith("param_"):
            parameters[name.removeprefix("param_")] = value
        elif name not in _OWN_KEYS:
            if not _SETTING_NAME.match(name):
                raise errors.refused(115, "UNKNOWN_SETTING", f"Unknown setting '{name}'")
            settings[name] = value
    try:
        session_timeout_seconds = float(keys.get("session_timeout") or 60)
    except ValueError:
        raise errors.refused(
            374, "INVALID_SESSION_TIMEOUT", f"Invalid session timeout: {keys['session_timeout']!r}"
        ) from None
    return Request(
        query=keys.get("query", ""),
        query_id=keys.get("query_id") or headers.get("X-ClickHouse-Query-Id") or query_id,
        database=keys.get("database") or headers.get("X-ClickHouse-Database") or "",
        session_id=keys.get("session_id", ""),
        session_check=keys.get("session_check") == "1",
        session_timeout_seconds=session_timeout_seconds,
        default_format=keys.get("default_format")
        or headers.get("X-ClickHouse-Format")
        or _FORMAT_DEFAULT,
        settings=settings,
        parameters=parameters,
        read_only=read_only,
        user=keys.get("user") or headers.get("X-ClickHouse-User") or "",
    )


def execute(engine: Engine, allowance: Allowance, request: Request, body: Body) -> Answer:
    """Run a request: an INSERT with its data, or any other statement.

    :raises QueryError: the engine or the protocol refuses.
    """
    with _plain(engine, allowance, request, body) as content:
        text = request.query
        insert = sql.parse_insert(text) if text else None
        head_bytes = 0
        if insert is None or not content.size:
            text, head_bytes = _statement(request.query, content)
            insert = sql.parse_insert(text)
        if request.read_only and (insert is not None or not sql.only_reads(text)):
            raise errors.refused(
                errors.READONLY,
                "READONLY",
                "Cannot execute query in readonly mode. For queries over HTTP, method GET implies"
                " readonly. You should use method POST for modifying queries",
            )
        if insert is not None:
            return _insert(engine, allowance, request, insert, content, text, head_bytes)
        if head_bytes < content.size:
            text, _ = _statement(request.query, content, content.size)
        return _query(engine, request, text)


def _query(engine: Engine, request: Request, text: str) -> Answer:
    if sql.has_several_statements(text):
        raise errors.refused(
            errors.SYNTAX_ERROR, "SYNTAX_ERROR", "Multi-statements are not allowed"
        )
    if not sql.first_word(text):
        raise errors.refused(errors.SYNTAX_ERROR, "SYNTAX_ERROR", "Empty query")
    with _connection(engine, request, {}) as connection:
        statement = sql.show_query_ids(text)
        reply = run(connection, statement, request.default_format, request.parameters)
    return Answer(reply, sql.output_format(text) or request.default_format)


def _insert(
    engine: Engine,
    allowance: Allowance,
    request: Request,
    insert: sql.Insert,
    content: Body,
    text: str,
    head_bytes: int,
) -> Answer:
    """Hand the data to the engine as a file; what stands in the text goes before the body."""
    inline = text[insert.data_begin :].encode("utf-8", "surrogateescape")
    if not head_bytes and not inline.strip():
        data = content  # the usual case: statement in the URL, data in the body, no copy
    elif not head_bytes:
        data = Body(allowance)
        data.write(inline + b"\n" + content.head(content.size))
    else:
        begin_bytes = head_bytes - len(inline)
        if begin_bytes < 0:  # some data stands in the URL, and more in the body
            data = Body(allowance)
            data.write(inline + content.head(content.size)[head_bytes:])
        else:
            data = content.without_head(begin_bytes)
    try:
        with _connection(engine, request, INSERT_SETTINGS) as connection:
            statement = insert.reading(data.path, data.encoding)
            reply = run(connection, statement, request.default_format, request.parameters)
    finally:
        if data is not content:
            data.close()
    return Answer(reply, request.default_format)


@contextmanager
def _connection(engine: Engine, request: Request, defaults: Mapping[str, str]) -> Iterator[object]:
    if request.session_check and not engine.has_session(request.session_id):
        raise errors.refused(
            errors.SESSION_NOT_FOUND, "SESSION_NOT_FOUND", f"Session {request.session_id} not found"
        )
    settings = {**defaults, **request.settings, sql.QUERY_ID_SETTING: request.query_id}
    with engine.connection(
        request.session_id,
        settings,
        request.database,
        request.session_timeout_seconds,
        request.user,
    ) as connection:
        yield connection


@contextmanager
def _plain(engine: Engine, allowance: Allowance, request: Request, body: Body) -> Iterator[Body]:
    """The body as it is, or unpacked where the statement is inside of it.

    Packed data whose statement stands in the URL stays packed: the engine unpacks while it reads.
    """
    if not body.encoding or not body.size:
        yield body
        return
    insert = sql.parse_insert(request.query) if request.query else None
    if insert is not None and not request.query[insert.data_begin :].strip():
        yield body
        return
    unpacked = Body(allowance)
    try:
        with engine.connection("", {}, "", 0) as connection:
            statement = (
                f"SELECT * FROM file('{body.path}', RawBLOB, 'content String', '{body.encoding}')"
            )
            reply = run(connection, statement, "RawBLOB", {})
            unpacked.write(reply.body)
            reply.close()
        yield unpacked
    finally:
        unpacked.close()


def _statement(
    query: str, content: Body, size_bytes_max: int = _STATEMENT_BYTES_MAX
) -> tuple[str, int]:
    """The text that the client sent: URL first, then (the beginning of) the body.

    :returns: the text, and how many bytes of the body are in it.
    """
    head = content.head(min(content.size, size_bytes_max))
    text = head.decode("utf-8", "surrogateescape")
    return (f"{query}\n{text}" if query and text else query or text), len(head)
