"""Certificates of https: whom Sluice trusts, and who it says that it is."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from sluice.core.errors import ConfigurationError

#: By files: when they had changed, and what they gave. To read what a machine trusts takes
#: milliseconds, and connections are opened often.
_kept: dict[Tls, tuple[tuple[int, ...], ssl.SSLContext]] = {}


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM, on every machine that asks a server.

    :param authority: certificates to trust; "": those that the machine trusts.
    :param certificate: of the client, with its chain; "": none.
    :param key: of that certificate; "": in the same file.
    :param key_password: "": the key is not encrypted.
    """

    authority: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """What connections are opened with. A file that was replaced is read again, so that
        short-lived certificates can be renewed while Sluice runs; while the new files are of no
        use, such as half-written ones, what was read before goes on.

        :raises ConfigurationError: a file is missing, or is not what it should be.
        """
        kept = _kept.get(self)
        try:
            changed_at_ns = tuple(_changed_at(name) for name in self._files())
            if kept is None or kept[0] != changed_at_ns:
                kept = _kept[self] = changed_at_ns, _read(self)
        except ConfigurationError:
            if kept is None:
                raise
        return kept[1]

    def _files(self) -> tuple[str, ...]:
        return tuple(name for name in (self.authority, self.certificate, self.key) if name)


def _changed_at(name: str) -> int:
    try:
        return Path(name).stat().st_mtime_ns
    except OSError as error:
        raise _unusable(name, error.strerror or str(error)) from None


def _read(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.authority or None)
    except (OSError, ValueError) as error:
        raise _unusable(tls.authority, f"no certificates in PEM: {error}") from None
    if tls.certificate:
        try:
            # A password that is not asked for is not looked at; without one, OpenSSL would ask
            # the terminal.
            context.load_cert_chain(tls.certificate, tls.key or None, tls.key_password)
        except (OSError, ValueError) as error:
            names = f"{tls.certificate} with {tls.key}" if tls.key else tls.certificate
            raise _unusable(names, f"no certificate and its key: {error}") from None
    return context


def _unusable(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}: {why}",
        "Correct `ca`, `certificate`, `key` or `key_password` in [clickhouse]; the files must be "
        "on each machine where the driver or a Spark worker runs.",
    )
