"""A proxy before a ClickHouse server that loses the replies of inserts: they are stored, and
nobody hears of it."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit


@dataclass
class Losing:
    """What it does, and what it did.

    :param loses: replies of inserts are lost from now on.
    :param lost: how many were.
    """

    url: str
    loses: bool = False
    lost: int = 0


@contextmanager
def run_losing(server_url: str) -> Iterator[Losing]:
    """Run it on loopback until the block ends."""
    server = urlsplit(server_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert server.hostname is not None
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            onward = http.client.HTTPConnection(server.hostname, server.port, timeout=60)
            skipped = ("host", "content-length", "connection", "expect")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
            onward.request(self.command, self.path, body or None, headers)
            answer = onward.getresponse()
            content = answer.read()
            onward.close()
            if losing.loses and self.command == "POST" and "INSERT" in self.path:
                losing.lost += 1
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        losing = Losing(f"http://127.0.0.1:{proxy.server_address[1]}")
        Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield losing
        finally:
            proxy.shutdown()
