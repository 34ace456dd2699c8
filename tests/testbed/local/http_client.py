"""A plain HTTP client for the embedded server: no library may smooth over its mistakes."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Client:
    """One connection, kept alive."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def send(
        self,
        method: str,
        path: str,
        body: object = b"",
        headers: dict[str, str] | None = None,
        *,
        chunked: bool = False,
    ) -> Response:
        self.connection.request(method, path, body, headers or {}, encode_chunked=chunked)
        response = self.connection.getresponse()
        return Response(response.status, dict(response.headers), response.read())

    def query(self, query: str, body: bytes = b"", **keys: str) -> Response:
        """A POST with the statement in the URL."""
        return self.send("POST", "/?" + urlencode({"query": query, **keys}), body)

    def rows(self, query: str, **keys: str) -> str:
        """The answer of a query that must succeed, without the last line's end."""
        response = self.query(query, **keys)
        assert response.status == 200, response.text
        return response.text.rstrip("\n")
