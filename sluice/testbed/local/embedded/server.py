"""ClickHouse's HTTP interface on a loopback port, served from the embedded engine."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sluice.core.errors import ConfigurationError
from sluice.testbed.local.embedded import errors, request
from sluice.testbed.local.embedded.body import Allowance, Body
from sluice.testbed.local.embedded.engine import Engine
from sluice.testbed.local.lifetime import StopRequest

#: A connection that says nothing for this long is closed, inside a body too (ClickHouse 26.9).
SILENCE_SECONDS_MAX = 30
REQUESTS_MAX = 64
BODIES_BYTES_MAX = 4 << 30
_PIECE_BYTES = 1 << 20
_GZIP_LEVEL = 3  # ClickHouse's http_zlib_compression_level
_GZIP_WINDOW = zlib.MAX_WBITS | 16


class Server(ThreadingHTTPServer):
    """Accepts connections; counts requests, so that it can refuse too many and end them all."""

    daemon_threads = True
    block_on_close = False  # idle connections must not hold up the end
    request_queue_size = 128

    def __init__(self, port: int, engine: Engine) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.engine = engine
        self.allowance = Allowance(BODIES_BYTES_MAX)
        self._changed = threading.Condition()
        self._running = 0
        self._stopping = False

    @property
    def url(self) -> str:
        """Where clients reach this server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def is_stopping(self) -> bool:
        """No further request is begun."""
        return self._stopping

    @contextmanager
    def running(self, if_refused: Callable[[], None]) -> Iterator[None]:
        """Held while a request runs.

        :param if_refused: called before a refusal is raised, without the lock.
        :raises QueryError: too many run, or the server is going.
        """
        with self._changed:
            refused = self._stopping or self._running >= REQUESTS_MAX
            self._running += not refused
        if refused:
            if_refused()
            why = "The server stops" if self._stopping else f"Maximum: {REQUESTS_MAX}"
            raise errors.refused(
                errors.TOO_MANY_SIMULTANEOUS_QUERIES,
                "TOO_MANY_SIMULTANEOUS_QUERIES",
                f"Too many simultaneous queries. {why}",
            )
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def finish(self) -> None:
        """Begin no request, and wait for those that run."""
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: self._running == 0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no event; anything else is a bug, and is printed."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    timeout = SILENCE_SECONDS_MAX
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: Server

    def do_GET(self) -> None:
        """A query that reads, or one of the fixed pages."""
        page = urlsplit(self.path)
        if page.path == "/ping" or (page.path == "/" and "query" not in page.query):
            self._send(HTTPStatus.OK, b"Ok.\n", {"Content-Type": "text/html; charset=UTF-8"})
        elif page.path == "/replicas_status":
            self._send(HTTPStatus.OK, b"Ok.\n", {"Content-Type": "text/plain; charset=UTF-8"})
        else:
            self._answer(read_only=True)

    def do_HEAD(self) -> None:
        """The headers of a GET."""
        self.do_GET()

    def do_POST(self) -> None:
        """A query, or an INSERT with its data."""
        self._answer(read_only=False)

    def do_PUT(self) -> None:
        """The same as POST."""
        self.do_POST()

    def do_OPTIONS(self) -> None:
        """Browsers ask before they send a query."""
        self._send(
            HTTPStatus.NO_CONTENT,
            b"",
            {"Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, OPTIONS"},
        )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base's name)
        """Requests are not logged; errors go to the client that caused them."""

    def _answer(self, *, read_only: bool) -> None:
        query_id = str(uuid.uuid4())
        keep = not self.close_connection
        # Until its body is read, a connection is of no use for another request.
        self.close_connection = True
        try:
            page = urlsplit(self.path)
            if page.path != "/":
                self._send(HTTPStatus.NOT_FOUND, b"There is no handle %s\n" % page.path.encode())
                return
            with self.server.running(self._discard_body):
                encoding = self.headers.get("Content-Encoding", "").strip().lower()
                asked = request.parse_request(page.query, self.headers, read_only, query_id)
                query_id = asked.query_id
                body = Body(self.server.allowance, self._engine_encoding(encoding))
                try:
                    self._receive(body)
                    self.close_connection = not keep
                    answer = request.execute(self.server.engine, self.server.allowance, asked, body)
                finally:
                    body.close()
                try:
                    self._send_answer(answer, asked)
                finally:
                    answer.reply.close()
        except errors.QueryError as error:
            self._send_error(error, query_id)

    def _engine_encoding(self, encoding: str) -> str:
        if encoding not in request.ENCODINGS:
            raise errors.refused(
                errors.NOT_IMPLEMENTED,
                "NOT_IMPLEMENTED",
                f"Unknown compression method {encoding}",
            )
        return request.ENCODINGS[encoding]

    def _receive(self, body: Body) -> None:
        if "multipart/" in self.headers.get("Content-Type", ""):
            raise errors.refused(
                errors.NOT_IMPLEMENTED,
                "NOT_IMPLEMENTED",
                "External tables (multipart bodies) are not supported by the embedded server",
            )
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            body.receive_chunked(self.rfile)
        else:
            body.receive(self.rfile, self._content_bytes())

    def _content_bytes(self) -> int:
        length = self.headers.get("Content-Length") or "0"
        if not length.isascii() or not length.isdigit():
            raise errors.refused(381, "HTTP_LENGTH_REQUIRED", f"Bad Content-Length {length}")
        return int(length)

    def _discard_body(self) -> None:
        """Read on before an early answer: a client that still sends would lose the answer."""
        left_bytes = int(self.headers.get("Content-Length") or 0)
        while left_bytes > 0 and (piece := self.rfile.read1(min(left_bytes, 1 << 16))):
            left_bytes -= len(piece)

    def _send_answer(self, answer: request.Answer, asked: request.Request) -> None:
        reply = answer.reply
        headers = self._query_headers(asked.query_id)
        headers["X-ClickHouse-Format"] = answer.format
        headers["X-ClickHouse-Summary"] = json.dumps(
            {
                "read_rows": str(reply.rows_read),
                "read_bytes": str(reply.bytes_read),
                "written_rows": str(reply.rows_written),
                "written_bytes": str(reply.bytes_written),
                "total_rows_to_read": "0",
                "result_rows": str(reply.rows_written),
                "result_bytes": str(len(reply.body) or reply.bytes_written),
                "elapsed_ns": str(int(reply.elapsed_seconds * 1e9)),
            },
            separators=(",", ":"),
        )
        headers["Content-Type"] = _content_type(answer.format)
        content: bytes | memoryview = reply.body
        wants = asked.settings.get("enable_http_compression", "0") not in ("0", "false")
        if wants and "gzip" in self.headers.get("Accept-Encoding", ""):
            packer = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW)
            content = packer.compress(reply.body) + packer.flush()
            headers["Content-Encoding"] = "gzip"
        self._send(HTTPStatus.OK, content, headers)

    def _send_error(self, error: errors.QueryError, query_id: str) -> None:
        headers = self._query_headers(query_id)
        headers["X-ClickHouse-Exception-Code"] = str(error.code)
        headers["Content-Type"] = "text/plain; charset=UTF-8"
        version = self.server.engine.identity.version
        text = f"{error.text} (version {version} (official build))\n"
        self._send(error.status, text.encode("utf-8", "replace"), headers)

    def _query_headers(self, query_id: str) -> dict[str, str]:
        identity = self.server.engine.identity
        return {
            "X-ClickHouse-Server-Display-Name": identity.display_name,
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Timezone": identity.time_zone,
        }

    def _send(
        self,
        status: HTTPStatus,
        content: bytes | memoryview,
        headers: dict[str, str] | None = None,
    ) -> None:
        if self.server.is_stopping:
            self.close_connection = True
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, "".join(sign for sign in value if sign.isprintable()))
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        else:
            self.send_header("Connection", "Keep-Alive")
            self.send_header("Keep-Alive", f"timeout={SILENCE_SECONDS_MAX}")
        self.end_headers()
        if self.command != "HEAD":
            view = memoryview(content)
            for at in range(0, len(view), _PIECE_BYTES):
                self.wfile.write(view[at : at + _PIECE_BYTES])
        self.wfile.flush()


def run_clickhouse(data: Path, port: int | None) -> int:
    """Serve a data folder until SIGTERM or SIGINT, then end running requests and the engine.

    Prints one line once the port answers: {"url": "http://127.0.0.1:PORT"}.

    :param port: None for any free one.
    :returns: 0, the exit status.
    :raises ConfigurationError: folder or port cannot be used.
    :raises TerminalError: another process has the folder.
    """
    engine = Engine(data.absolute())
    try:
        server = Server(port or 0, engine)
    except (OSError, OverflowError) as error:
        engine.close()
        raise ConfigurationError(
            f"--port {port}: {error}", "Choose another port, or none for a free one."
        ) from error
    stop = StopRequest()
    accepting = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    accepting.start()
    _wait_for_answer(server)
    print(json.dumps({"url": server.url}), flush=True)
    stop.wait()
    server.shutdown()
    server.server_close()
    server.finish()
    engine.close()
    return 0


def _wait_for_answer(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), 10) as client:
        client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        while client.recv(4096):
            time.sleep(0)


def _content_type(format_name: str) -> str:
    if format_name.startswith(("CSV", "TabSeparated", "TSV")):
        kind = "csv" if format_name.startswith("CSV") else "tab-separated-values"
        return f"text/{kind}; charset=UTF-8"
    if format_name in ("JSON", "JSONCompact", "JSONStrings", "JSONColumns"):
        return "application/json; charset=UTF-8"
    if format_name.startswith("JSON"):
        return "application/x-ndjson; charset=UTF-8"
    if format_name in ("Pretty", "Vertical", "Values", "Markdown"):
        return "text/plain; charset=UTF-8"
    return "application/octet-stream"
