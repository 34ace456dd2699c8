"""The wire below `Server`: addresses, one open connection, one request and its reply.

Raises Python's own errors (FAILURES); `Server` knows what they mean for its request.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult

FAILURES = (OSError, http.client.HTTPException)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens.

    :param url: scheme, host, port and path; without user and password, fit for messages.
    :param path: what stands before each request's path, "" for none.
    """

    url: str
    host: str
    port: int
    secure: bool
    path: str

    @classmethod
    def of(cls, parts: SplitResult) -> Address:
        """:raises ValueError: not an HTTP address."""
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an HTTP address")
        secure = parts.scheme == "https"
        port = parts.port or (8443 if secure else 8123)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        path = parts.path.rstrip("/")
        return cls(f"{parts.scheme}://{host}:{port}{path}", parts.hostname, port, secure, path)


@dataclass(frozen=True, slots=True)
class Request:
    """A POST.

    :param path: path and query string.
    :param body: sent part by part, uncopied.
    """

    path: str
    body: tuple[bytes | memoryview, ...]
    headers: Mapping[str, str | bytes]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply.

    :param header_code: X-ClickHouse-Exception-Code.
    :param summary: X-ClickHouse-Summary, a JSON object of counters.
    :param query_id: X-ClickHouse-Query-Id, under which the server ran it.
    """

    status: int
    header_code: str | None
    summary: str | None
    body: bytes
    query_id: str | None = None

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


def open_connection(
    address: Address, timeout_seconds: float, ssl_context: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    """Connect.

    :raises OSError: nothing was sent.
    """
    connection: http.client.HTTPConnection
    if address.secure:
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=timeout_seconds, context=ssl_context
        )
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_seconds)
    connection.auto_open = 0  # never a silent reconnect, least of all after a lease check
    connection.connect()
    return connection


def has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection is at its end: readable without a request means EOF."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def give_up_after(connection: http.client.HTTPConnection, seconds: float) -> None:
    """Let the machine, too, stop sending after so long: it outlives a process that was killed."""
    if connection.sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = max(1, int(seconds * 1000))
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def drop(connection: http.client.HTTPConnection) -> None:
    """Let the close that follows throw away what was not delivered yet (RST)."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            at_once = struct.pack("ii", 1, 0)
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)


def begin(
    connection: http.client.HTTPConnection, request: Request, timeout_seconds: float
) -> http.client.HTTPResponse:
    """Send a request on an open connection and read the head of the reply.

    :raises TimeoutError: and any of FAILURES; the server may have the request.
    """
    deadline = time.monotonic() + timeout_seconds
    _send(connection, request, deadline)
    connection.sock.settimeout(_left(deadline))
    return connection.getresponse()


def exchange(
    connection: http.client.HTTPConnection, request: Request, timeout_seconds: float
) -> Reply:
    """Send a request on an open connection and read the whole reply.

    :param timeout_seconds: for all of it.
    :raises TimeoutError: and any of FAILURES; the server may have the request.
    """
    deadline = time.monotonic() + timeout_seconds
    response = begin(connection, request, timeout_seconds)
    chunks: list[bytes] = []
    while chunk := response.read(1 << 20):
        chunks.append(chunk)
        if connection.sock is not None:  # None once the reply closes the connection
            connection.sock.settimeout(_left(deadline))
    if response.length != 0 and not response.chunked:
        # http.client takes the end of the connection for the end of the body.
        raise http.client.IncompleteRead(b"", response.length)
    return Reply(
        response.status,
        response.getheader("X-ClickHouse-Exception-Code"),
        response.getheader("X-ClickHouse-Summary"),
        b"".join(chunks),
        response.getheader("X-ClickHouse-Query-Id"),
    )


def _send(connection: http.client.HTTPConnection, request: Request, deadline: float) -> None:
    """Send the request; a body that the server no longer reads is not an error yet.

    A server that refuses early answers and closes before it has read the body: its
    answer, which is still to be read, says more than the broken pipe.
    """
    connection.putrequest("POST", request.path, skip_accept_encoding=True)
    for name, value in request.headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(sum(len(part) for part in request.body)))
    connection.sock.settimeout(_left(deadline))
    try:
        connection.endheaders()
        for part in request.body:
            connection.sock.settimeout(_left(deadline))
            connection.sock.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        return


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("time limit")
    return left


def reason_of(error: BaseException) -> str:
    """Kind and text of a Python error, for messages."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
