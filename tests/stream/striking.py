"""A proxy before a server that sees each statement, and calls before and after it is done."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_CHANGING = ("CREATE", "INSERT", "RENAME", "ALTER", "DROP", "TRUNCATE", "EXCHANGE")
_OF_THE_HOP = ("host", "content-length", "connection", "expect", "transfer-encoding")


@dataclass
class Watch:
    """:param statements: those that changed something, as they came.
    :param before, after: called with each of them.
    """

    url: str
    statements: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda statement: None
    after: Callable[[str], None] = lambda statement: None
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def run_watch(server_url: str) -> Iterator[Watch]:
    """Run it on loopback until the block ends."""
    server = urlsplit(server_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            named = parse_qs(urlsplit(self.path).query).get("query")
            statement = named[0] if named else body.decode(errors="replace")
            is_change = statement.startswith(_CHANGING)
            if is_change:
                with watch.lock:
                    watch.statements.append(statement)
                watch.before(statement)
            onward = http.client.HTTPConnection(server.hostname or "", server.port, timeout=60)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _OF_THE_HOP}
            onward.request(self.command, self.path, body or None, headers)
            answer = onward.getresponse()
            content = answer.read()
            onward.close()
            if is_change:
                watch.after(statement)
            try:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _OF_THE_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except OSError:  # the client is dead
                self.close_connection = True

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    class Proxy(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    with Proxy(("127.0.0.1", 0), Handler) as proxy:
        watch = Watch(f"http://127.0.0.1:{proxy.server_address[1]}")
        threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield watch
        finally:
            proxy.shutdown()
