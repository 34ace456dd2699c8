"""A TCP server that answers /ping and does one scripted thing to every POST.

For what a real server cannot be made to do at will: replies that are lost, connections
that close at a certain moment, exceptions behind HTTP 200.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PONG = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: Keep-Alive\r\n\r\nOk.\n"
PONG_AND_CLOSE = PONG.replace(b"Keep-Alive", b"close")


def reply(body: str, status: int = 200, headers: str = "") -> bytes:
    """A whole HTTP reply."""
    data = body.encode()
    head = f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


@dataclass
class Scripted:
    """What the script does, and what it saw.

    :param on_post: gets the connection after the whole request was read.
    :param read_body: False leaves the body of a POST in the connection.
    :param keep_body: False reads it piece by piece and forgets it.
    :param posts: bodies of all POSTs that arrived whole.
    :param connections: how many were accepted.
    :param closed: whether it has closed one after a ping.
    """

    url: str
    on_post: Callable[[socket.socket], None]
    pong: bytes = PONG
    close_after_ping: bool = False
    read_body: bool = True
    keep_body: bool = True
    posts: list[bytes] = field(default_factory=list)
    connections: int = 0
    pings: int = 0
    closed: threading.Event = field(default_factory=threading.Event)


@contextmanager
def run_scripted(
    on_post: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None
) -> Iterator[Scripted]:
    """Run it on loopback until the block ends; over TLS with a context."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scheme = "https" if tls else "http"
        script = Scripted(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", on_post)
        opened: list[socket.socket] = []
        thread = threading.Thread(target=_accept, args=(listener, script, opened, tls), daemon=True)
        thread.start()
        try:
            yield script
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in opened:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            thread.join(5)


def _accept(
    listener: socket.socket,
    script: Scripted,
    opened: list[socket.socket],
    tls: ssl.SSLContext | None,
) -> None:
    while True:
        try:
            connection, _ = listener.accept()
            if tls:
                connection = tls.wrap_socket(connection, server_side=True)
        except OSError:
            return
        opened.append(connection)
        script.connections += 1
        threading.Thread(target=_serve, args=(connection, script), daemon=True).start()


def _serve(connection: socket.socket, script: Scripted) -> None:
    with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as stream:
        while line := stream.readline():
            length = 0
            while (header := stream.readline().strip()) != b"":
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if line.startswith(b"GET"):
                script.pings += 1
                connection.sendall(script.pong)
                if script.close_after_ping or script.pong == PONG_AND_CLOSE:
                    connection.shutdown(socket.SHUT_RDWR)
                    script.closed.set()
                    return
                continue
            if script.read_body and script.keep_body:
                script.posts.append(stream.read(length))
            while script.read_body and not script.keep_body and length > 0:
                length -= len(stream.read(min(length, 65536)))
            script.on_post(connection)
