"""Whether it is the server itself that answers at an address, or something before it.

R9 holds only if nothing stands between that keeps requests back, or that sends the requests of
one connection to different servers: the check of the lease would say nothing of the insert.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import urlsplit

from sluice.clickhouse.connection import FAILURES, Address, drop, open_connection
from sluice.clickhouse.http import CONNECT_TIMEOUT_SECONDS, Server
from sluice.clickhouse.tls import Tls
from sluice.producer.wire import varint

#: How long a request that the server can answer is given.
PATIENCE_SECONDS = 3.0
#: More than a server reads of a body before it looks at the statement: 256 KiB, in pieces that
#: 18.16 waits for until they have 1 MiB.
_PART_BYTES = 1536 * 1024
_POLL_SECONDS = 0.1
_LOOKS_MIN = 10

Timing = Literal["early", "late", "unknown"]
#: Headers of a reply that a ClickHouse server does not send.
_OF_PROXIES = ("Via", "X-Cache", "X-Served-By")
#: Part of the header Server of programs that forward HTTP.
_PROGRAMS = ("nginx", "openresty", "haproxy", "envoy", "apache", "traefik", "caddy", "varnish")


def identity_of(server: Server) -> str:
    """What tells one server from another, also on one machine."""
    rows = server.query(
        "SELECT hostName() AS host_name, * FROM system.databases "
        "WHERE name IN ('default', 'system') ORDER BY name"
    )
    names = ("data_path", "metadata_path", "uuid")
    parts = [str(row[name]) for row in rows for name in names if name in row]
    return " ".join([str(rows[0]["host_name"]) if rows else "", *parts])


def proxy_named(url: str, tls: Tls) -> str:
    """The header by which a proxy makes itself known, "" if there is none.

    :raises OSError: and any of FAILURES: it does not answer.
    """
    connection = _connect(url, tls)
    try:
        connection.request("GET", f"{_address(url).path}/ping")
        response = connection.getresponse()
        response.read()
        for name in _OF_PROXIES:
            value = response.getheader(name)
            if value:
                return f"{name}: {value}"
        program = response.getheader("Server", "")
        known = any(name in program.lower() for name in _PROGRAMS)
        return f"Server: {program}" if known else ""
    finally:
        connection.close()


def answers_before_the_body(url: str, tls: Tls, credentials: Mapping[str, str | bytes]) -> Timing:
    """Send half of a request that the server refuses by its head alone.

    It must be the last of its connection: else a server reads the whole body before it refuses.

    :param credentials: headers.
    :returns: "early": it answered; "late": it did only when the other half had come; "unknown".
    """
    half = b" " * 1000
    try:
        connection = _connect(url, tls)
    except FAILURES:
        return "unknown"
    try:
        headers = {**credentials, "Content-Encoding": "sluice-doctor", "Connection": "close"}
        _send_head(connection, f"{_address(url).path}/?query=SELECT+1", headers, 2 * len(half))
        connection.send(half)
        if _answers(connection, PATIENCE_SECONDS):
            return "early"
        connection.send(half)
        return "late" if _answers(connection, PATIENCE_SECONDS) else "unknown"
    except FAILURES:
        return "unknown"
    finally:
        drop(connection)
        connection.close()


def begins_before_the_end(
    url: str,
    tls: Tls,
    path: str,
    credentials: Mapping[str, str | bytes],
    is_running: Callable[[], bool],
) -> bool:
    """Send the beginning of an insert, and look whether the server has begun with it.

    Nothing is stored: what is sent is the beginning of one block, of which the rest never comes.

    :param path: path and query string of an INSERT … FORMAT Native.
    :param is_running: whether the server runs it.
    :raises OSError: and any of FAILURES: it does not answer.
    """
    # One column of so many numbers that the block has four times what is sent of it.
    rows = 4 * _PART_BYTES // 8
    column = b"\x01" + varint(rows) + b"\x01x" + b"\x06UInt64"
    connection = _connect(url, tls)
    try:
        _send_head(connection, _address(url).path + path, credentials, len(column) + rows * 8)
        connection.send(column + bytes(_PART_BYTES))
        until, looks = time.monotonic() + PATIENCE_SECONDS, 0
        # A server that is busy answers slowly, and begins slowly, too.
        while time.monotonic() < until or looks < _LOOKS_MIN:
            if is_running() or _answers(connection, _POLL_SECONDS):
                return True
            looks += 1
        return False
    finally:
        drop(connection)
        connection.close()


def _address(url: str) -> Address:
    return Address.of(urlsplit(url))


def _connect(url: str, tls: Tls) -> http.client.HTTPConnection:
    address = _address(url)
    context = tls.context() if address.secure else None
    return open_connection(address, CONNECT_TIMEOUT_SECONDS, context)


def _send_head(
    connection: http.client.HTTPConnection,
    path: str,
    headers: Mapping[str, str | bytes],
    body_bytes: int,
) -> None:
    connection.sock.settimeout(PATIENCE_SECONDS)
    connection.putrequest("POST", path, skip_accept_encoding=True)
    for name, value in {**headers, "Content-Length": str(body_bytes)}.items():
        connection.putheader(name, value)
    connection.endheaders()


def _answers(connection: http.client.HTTPConnection, seconds: float) -> bool:
    """Whether a first byte of an answer comes within so long."""
    connection.sock.settimeout(seconds)
    try:
        return bool(connection.sock.recv(1))
    except TimeoutError:
        return False
