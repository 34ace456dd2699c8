"""Asks a driver that runs, over its own HTTP server, on the machine that it runs on.

`python -m sluice.ops.http.asking CONFIG` asks whether it lives: the health check of a container.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.config import Configuration, HttpConfiguration, load_http
from sluice.core.errors import SluiceError, TransientError

_SECONDS = 10.0


class DriverSilentError(TransientError):
    """The driver says nothing over HTTP."""

    hint = "Is `sluice run` running, on this machine, with [http] in its configuration?"


@dataclass(frozen=True, slots=True)
class ProofStatus:
    """What the verifier or the audit beside a driver said last; see `ops.proof.ProofNow`."""

    what: str
    verdict: str
    reason: str
    age_seconds: float
    ended_ms: int | None
    every_seconds: float

    def line(self) -> str:
        """In words."""
        ended = f"ended {self.age_seconds:.0f} s ago" if self.ended_ms else "has not ended yet"
        return f"continuous {self.what}: {self.verdict}, {ended}: {self.reason}"


def read_proof(configuration: Configuration) -> list[ProofStatus]:
    """What the driver's continuous proof says; nothing where none is configured.

    :raises DriverSilentError: the driver does not answer.
    """
    if configuration.verify is None and configuration.audit is None:
        return []
    if configuration.http is None:
        raise DriverSilentError("continuous proof is told over HTTP, and [http] is missing")
    told = ask(configuration.http, "/status")["proof"]
    names = ProofStatus.__dataclass_fields__
    return [ProofStatus(**{name: each[name] for name in names}) for each in told]


def read_refused(configuration: Configuration) -> list[str]:
    """Which topics a driver refuses to load, and why, in words; nothing where it tells nothing.

    :raises DriverSilentError: the driver does not answer.
    """
    if configuration.http is None:
        return []
    told = ask(configuration.http, "/status")["connectors"]
    return [f"connector {each['name']}: {line}" for each in told for line in each["refused"]]


def ask(where: HttpConfiguration, path: str) -> Any:
    """What the driver answers, as JSON.

    :raises DriverSilentError: it does not, or who answers there is no driver.
    """
    try:
        connection = _connection(where)
        try:
            connection.request("GET", path, headers=_headers(where))
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        return json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        url = where.url(where.port)
        raise DriverSilentError(f"the driver does not answer at {url}: {error}") from None


def _connection(where: HttpConfiguration) -> http.client.HTTPConnection:
    host = where.host
    try:
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
    except ValueError:
        pass  # a name
    if not where.tls.certificate:
        return http.client.HTTPConnection(host, where.port, timeout=_SECONDS)
    # Whoever has this certificate is the driver, whatever name it was made for.
    context = ssl.create_default_context(cafile=where.tls.certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if where.tls.ca:
        key, password = where.tls.key or None, where.tls.key_password.reveal
        context.load_cert_chain(where.tls.certificate, key, password)
    return http.client.HTTPSConnection(host, where.port, timeout=_SECONDS, context=context)


def _headers(where: HttpConfiguration) -> dict[str, str]:
    """It may be asked by some names only."""
    named = next((name for name in where.hosts if "*" not in name), "")
    return {"Host": named} if named else {}


def main(path: str) -> int:
    """Whether the driver of a configuration lives; as an exit status."""
    try:
        where = load_http(Path(path), os.environ)
        if where is None:
            raise DriverSilentError("health is told over HTTP, and [http] is missing")
        ask(where, "/live")
    except SluiceError as error:
        print(f"{error}. Try: {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
