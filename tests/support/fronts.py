"""Things that stand before servers: a balancer of connections, and HTTP proxies. Real ones."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import socket
import threading
import uuid
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PIECE_BYTES = 1 << 16
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length", "host")


@contextlib.contextmanager
def balancing_connections(ports: Sequence[int]) -> Iterator[str]:
    """Sends each new TCP connection to the next of these ports; gives the URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    turns = itertools.cycle(ports)
    taken: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", next(turns)))
            taken.extend((client, server))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
        for each in taken:
            each.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            target.sendall(piece)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class _Forwarding(BaseHTTPRequestHandler):
    """One connection of a client; it keeps connections of its own to the servers open."""

    protocol_version = "HTTP/1.1"
    turns: Iterator[int]
    buffers: bool
    via: str
    own_ids: bool

    def setup(self) -> None:
        super().setup()
        self.kept: dict[int, http.client.HTTPConnection] = {}

    def finish(self) -> None:
        for connection in self.kept.values():
            connection.close()
        with contextlib.suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        port = next(self.turns)
        if port not in self.kept:
            self.kept[port] = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        server = self.kept[port]
        try:
            self.deliver(server)
            self.answer(server.getresponse())
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            self.kept.pop(port).close()

    def do_POST(self) -> None:
        self.do_GET()

    def deliver(self, server: http.client.HTTPConnection) -> None:
        left = int(self.headers.get("Content-Length") or 0)
        held = self.rfile.read(left) if self.buffers else b""
        if self.buffers and len(held) < left:
            raise ConnectionError("the client left")
        path = self.path
        if self.own_ids:
            path = re.sub(r"([?&]query_id=)[^&]*", rf"\g<1>{uuid.uuid4().hex}", path)
        server.putrequest(self.command, path, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                server.putheader(name, value)
        server.putheader("Content-Length", str(left))
        server.endheaders()
        server.send(held)
        left -= len(held)
        while left:
            piece = self.rfile.read1(min(left, _PIECE_BYTES))  # type: ignore[attr-defined]
            if not piece:
                raise ConnectionError("the client left")
            server.send(piece)
            left -= len(piece)

    def answer(self, reply: http.client.HTTPResponse) -> None:
        body = reply.read()
        self.send_response_only(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if self.via:
            self.send_header("Via", self.via)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        pass


@contextlib.contextmanager
def proxying(
    ports: Sequence[int], *, buffers: bool, via: str = "", own_ids: bool = False
) -> Iterator[str]:
    """Sends each HTTP request to the next of these ports, on connections of its own that it keeps
    open; gives the URL.

    :param buffers: it has a whole request before it sends the first byte of it on.
    :param via: how it makes itself known in replies; "": it does not.
    :param own_ids: it gives queries ids of its own, as chproxy does.
    """
    kind = type(
        "Forwarding",
        (_Forwarding,),
        {"turns": itertools.cycle(ports), "buffers": buffers, "via": via, "own_ids": own_ids},
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
