"""The embedded engine: one process for each data folder, one connection for each request.

Measured on chdb 4.4: connections to one folder run side by side, while one connection runs
one query at a time; a connection costs 0.2 ms and carries its own settings and database. So a
request gets a fresh connection, and nothing leaks from one request into the next. Requests
with a session id share the connection of their session, as they share the session on a server.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.clickhouse.sql import identifier, literal
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.testbed.local.embedded import errors
from sluice.testbed.local.lifetime import lock_folder

#: A server's defaults where the engine as a library has others.
SERVER_SETTINGS = {"implicit_select": "0", "allow_introspection_functions": "0"}

#: One request body is one block: not re-cut while parsing, not split when squashed, and in the
#: order of the body. A client's own value for any of these wins.
INSERT_SETTINGS = {
    "max_insert_block_size": "100000000",
    "max_insert_block_size_bytes": "0",
    "min_insert_block_size_rows": "100000000",
    "min_insert_block_size_bytes": "0",
    "max_insert_threads": "1",
    "input_format_parallel_parsing": "0",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What the engine says about itself."""

    version: str
    time_zone: str
    display_name: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished query. `body` is a view into memory that the engine owns; keep `owner`."""

    body: memoryview
    owner: Any
    rows_read: int
    bytes_read: int
    rows_written: int
    bytes_written: int
    elapsed_seconds: float

    def close(self) -> None:
        """Give the view back before its owner goes."""
        self.body.release()


@dataclass(slots=True)
class _Session:
    """A connection and what was set on it for the request at hand.

    :param borrowed: settings of the last request -> (value that the session had, value now).
    """

    connection: Any
    timeout_seconds: float = 60.0
    idle_since_seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    borrowed: dict[str, tuple[str, str]] = field(default_factory=dict)


#: A configuration file of the engine, for one with roles: then a request has the rights of the role
#: that is called like its user, unless that is `default`. Without it every user may do all.
CONFIGURATION_VARIABLE = "SLUICE_CLICKHOUSE_CONFIGURATION"


class Engine:
    """Opens a data folder and runs queries on it, many at a time.

    :raises ConfigurationError: the folder cannot be used.
    :raises TerminalError: another process has it.
    """

    def __init__(self, data: Path) -> None:
        file = os.environ.get(CONFIGURATION_VARIABLE, "")
        self._where = f"{data}?config-file={file}" if file else str(data)
        self._has_roles = bool(file)
        if any(sign in str(data) for sign in "?&"):
            raise ConfigurationError(
                f"--data {data}: the path may not contain ? or &", "Choose another folder."
            )
        self._lock_fd = lock_folder(data)
        import chdb  # 534 MB of engine: only the process that serves loads it

        self._connect = chdb._chdb.connect
        self._sessions: dict[str, _Session] = {}
        self._sessions_lock = threading.Lock()
        try:
            # Held open to the end: the engine stops with its last connection.
            self._root = self._connect(self._where)
        except RuntimeError as error:
            raise TerminalError(
                f"the embedded engine cannot open {data}: {error}",
                "If another process uses this folder, stop it; else read the engine's log above.",
            ) from error
        rows = self._root.query("SELECT version(), timezone(), displayName()", "TSVRaw").bytes()
        self.identity = Identity(*rows.decode().rstrip("\n").split("\t"))

    def close(self) -> None:
        """Close every connection; the engine writes what it holds and stops."""
        with self._sessions_lock:
            for session in self._sessions.values():
                session.connection.close()
            self._sessions.clear()
        self._root.close()
        os.close(self._lock_fd)

    @contextmanager
    def connection(
        self,
        session_id: str,
        settings: Mapping[str, str],
        database: str,
        timeout_seconds: float,
        user: str = "",
    ) -> Iterator[Any]:
        """A connection with these settings and this database, for one request.

        :param session_id: "" for a connection of its own.
        :param user: "" for one who may do all.
        :raises QueryError: unknown setting or database; the session is busy.
        """
        if session_id:
            with self._session(session_id, timeout_seconds) as session:
                _lend(session, settings)
                if database:
                    _run(session.connection, f"USE {identifier(database)}")
                yield session.connection
            return
        connection = self._connect(self._where)
        try:
            if self._has_roles and user not in ("", "default"):
                _run(connection, f"SET ROLE {identifier(user)}")
            _set(connection, {**SERVER_SETTINGS, **settings})
            if database:
                _run(connection, f"USE {identifier(database)}")
            yield connection
        finally:
            connection.close()

    def has_session(self, session_id: str) -> bool:
        """True if the session exists (`session_check`)."""
        with self._sessions_lock:
            return session_id in self._sessions

    @contextmanager
    def _session(self, session_id: str, timeout_seconds: float) -> Iterator[_Session]:
        now_seconds = time.monotonic()
        with self._sessions_lock:
            self._drop_idle_sessions(now_seconds)
            session = self._sessions.get(session_id)
            if session is None:
                session = _Session(self._connect(self._where))
                _set(session.connection, SERVER_SETTINGS)
                self._sessions[session_id] = session
            if not session.lock.acquire(blocking=False):
                raise errors.refused(
                    errors.SESSION_IS_LOCKED,
                    "SESSION_IS_LOCKED",
                    f"Session {session_id} is locked by a concurrent client",
                )
        session.timeout_seconds = timeout_seconds
        try:
            yield session
        finally:
            session.idle_since_seconds = time.monotonic()
            session.lock.release()

    def _drop_idle_sessions(self, now_seconds: float) -> None:
        for name, session in list(self._sessions.items()):
            if now_seconds - session.idle_since_seconds < session.timeout_seconds:
                continue
            if session.lock.acquire(blocking=False):
                del self._sessions[name]
                session.connection.close()


def run(connection: Any, statement: str, default_format: str, parameters: dict[str, str]) -> Reply:
    """Run one statement to its end.

    :raises QueryError: with the engine's code and words.
    """
    try:
        result = connection.query(
            statement.encode("utf-8", "surrogateescape"), default_format, params=parameters
        )
    except Exception as error:  # mostly RuntimeError; whatever it is, the client is told
        raise errors.from_engine(error) from None
    view = result.get_memview() if result.size() else None
    return Reply(
        body=memoryview(view.view()) if view is not None else memoryview(b""),
        owner=(result, view),
        rows_read=result.storage_rows_read(),
        bytes_read=result.storage_bytes_read(),
        rows_written=result.rows_written(),
        bytes_written=result.bytes_written(),
        elapsed_seconds=result.elapsed(),
    )


def _run(connection: Any, statement: str) -> None:
    try:
        connection.query(statement, "Null")
    except RuntimeError as error:
        raise errors.from_engine(error) from None


def _set(connection: Any, settings: Mapping[str, str]) -> None:
    if settings:
        pairs = (f"{identifier(name)} = {literal(value)}" for name, value in settings.items())
        _run(connection, f"SET {', '.join(pairs)}")


def _lend(session: _Session, settings: Mapping[str, str]) -> None:
    """Settings in the URL hold for their request only: give back the last request's first."""
    wanted = dict(settings)
    back = {name: old for name, (old, now) in session.borrowed.items() if wanted.get(name) != now}
    _set(session.connection, back)
    for name in back:
        del session.borrowed[name]
    new = {name: value for name, value in wanted.items() if name not in session.borrowed}
    if not new:
        return
    names = ", ".join(literal(name) for name in new)
    query = f"SELECT name, value FROM system.settings WHERE name IN ({names}) FORMAT JSONCompact"
    old_values = _values(session.connection, query)
    _set(session.connection, new)
    for name, value in new.items():
        if name in old_values:
            session.borrowed[name] = (old_values[name], value)


def _values(connection: Any, query: str) -> dict[str, str]:
    return dict(json.loads(connection.query(query).bytes())["data"])
