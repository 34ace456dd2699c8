"""A follower of a schema registry: what it knows changes while it runs.

It answers as Confluent's does, and is asked with the real client.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Follower:
    """What it knows, and how often it was asked for what it does not.

    :param schemas: by number, kind and text.
    """

    url: str = ""
    schemas: dict[int, tuple[str, str]] = field(default_factory=dict)
    asked_in_vain: list[int] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, dict[str, object]]:
        """Status and body of an answer."""
        asked = re.match(r"/schemas/ids/(\d+)", path)
        if asked is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        found = self.schemas.get(int(asked[1]))
        if found is None:
            self.asked_in_vain.append(int(asked[1]))
            return 404, {"error_code": 40403, "message": f"Schema {asked[1]} not found"}
        kind, text = found
        return 200, {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})


@contextmanager
def run_follower() -> Iterator[Follower]:
    """Run it on loopback until the block ends."""
    follower = Follower()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            status, body = follower.answer(self.path)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        follower.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield follower
        finally:
            server.shutdown()
