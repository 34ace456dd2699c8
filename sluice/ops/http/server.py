"""Runs the HTTP server in a thread of its own, beside the loops of a driver."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sluice.config import Configuration, HttpConfiguration
from sluice.config.clickhouse import CertificatesConfiguration
from sluice.core.errors import ConfigurationError
from sluice.driver.connector import ConnectorRun
from sluice.ops.http.app import HEADER_BYTES_MAX, make_app
from sluice.ops.http.tokens import Tokens
from sluice.ops.proof import Proof

CONNECTIONS_MAX = 100
#: A connection on which no request is being answered is closed after so long, at most twice that.
SILENT_SECONDS = 10.0
#: A driver that ends has answered so long after: who drains it hears that it is done. A decision is
#: heard by the driver before the request that wrote it has closed its own client.
ANSWER_SECONDS = 5

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class _Connection(H11Protocol):
    """A connection whose client may not take its time over a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_waited_for = False
        self._look_again()

    def _look(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._is_waited_for and not is_answering:
            self.transport.abort()
        if not self.transport.is_closing():
            self._is_waited_for = not is_answering
            self._look_again()

    def _look_again(self) -> None:
        self.loop.call_later(SILENT_SECONDS, self._look)


class HttpServer:
    """Listens from the moment it is made; `stop` ends it.

    :raises ConfigurationError: the address cannot be listened on, or the tokens or certificates
        cannot be read.
    """

    def __init__(
        self,
        where: HttpConfiguration,
        configuration: Configuration,
        runs: Sequence[ConnectorRun],
        proof: Proof | None = None,
    ) -> None:
        tokens, hosts = Tokens(where.tokens_file), hosts_of(where)
        app = make_app(configuration, runs, tokens, hosts, proof, probed_by(where))
        context = _context(where.tls) if where.tls.certificate else None
        listening = _listen(where)
        self.port = int(listening.getsockname()[1])
        self._server = uvicorn.Server(_settings(app, context))
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join(timeout=ANSWER_SECONDS + 1.0)


def hosts_of(where: HttpConfiguration) -> tuple[str, ...]:
    """By which names it may be asked."""
    return where.hosts or _own_names(where)


def probed_by(where: HttpConfiguration) -> tuple[str, ...]:
    """By which names it may be asked for health and metrics: who asks for these on a network goes
    by addresses, which `hosts` cannot know."""
    return (*where.hosts, *_own_names(where))


def _own_names(where: HttpConfiguration) -> tuple[str, ...]:
    """By which names it may be asked if none is configured. On a loopback address only by its own:
    a page elsewhere, whose name leads to this machine, is to read nothing."""
    try:
        is_loopback = ipaddress.ip_address(where.host).is_loopback
    except ValueError:
        is_loopback = where.host == "localhost"
    return _LOOPBACK if is_loopback else ("*",)


def _listen(where: HttpConfiguration) -> socket.socket:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    try:
        return socket.create_server((where.host, where.port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"http.listen: {where.host}:{where.port} cannot be listened on: {error}",
            "Choose another address in [http] listen, or leave the section out.",
        ) from None


def _context(tls: CertificatesConfiguration) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca or None)
        # Without a word openssl would ask at the terminal for one.
        context.load_cert_chain(tls.certificate, tls.key or None, tls.key_password.reveal)
    except OSError as error:
        raise ConfigurationError(
            f"http.tls: the certificates cannot be used: {error}",
            "Name files in PEM that Sluice's user can read: certificate with its chain, key, "
            "key_password if the key has one, and ca if clients have to show certificates.",
        ) from None
    if tls.ca:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _settings(app: Any, context: ssl.SSLContext | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=ANSWER_SECONDS,
        ssl_context_factory=None if context is None else lambda *_: context,
    )
