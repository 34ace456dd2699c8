"""The HTTP server behind TLS: real handshakes, with and without certificates of clients."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.config.clickhouse import CertificatesConfiguration
from sluice.config.secret import Secret
from sluice.core.errors import ConfigurationError
from tests.ops.http.scene import Served
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def serving(folder: Path, tls: CertificatesConfiguration) -> Iterator[Served]:
    served = Served(folder, (), tls=tls)
    try:
        yield served
    finally:
        served.server.stop()


def status_of(port: int, trusted: Path, shown: tuple[Path, Path] | None = None) -> int:
    """What a client is answered that trusts this authority, and shows this certificate."""
    context = ssl.create_default_context(cafile=trusted)
    if shown is not None:
        context.load_cert_chain(*shown)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request("GET", "/status")
        return connection.getresponse().status
    finally:
        connection.close()


def test_with_a_certificate_it_answers_by_https_alone(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.sign("driver", "a word")
    word = Secret("a word")
    tls = CertificatesConfiguration("", str(certificate), str(key), word)
    with serving(tmp_path, tls) as served:
        assert status_of(served.port, authority.certificate) == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            served.ask("/status")  # by http
        with pytest.raises(ssl.SSLCertVerificationError):
            status_of(served.port, Authority(tmp_path, "other").certificate)


def test_with_an_authority_of_clients_nobody_else_is_answered(
    tmp_path: Path, authority: Authority
) -> None:
    (certificate, key), client = authority.sign("server"), authority.sign("client")
    tls = CertificatesConfiguration(str(authority.certificate), str(certificate), str(key))
    other = Authority(tmp_path / "other", "other")
    with serving(tmp_path, tls) as served:
        assert status_of(served.port, authority.certificate, client) == 200
        for shown in (None, other.sign("intruder")):
            with pytest.raises(OSError):
                status_of(served.port, authority.certificate, shown)
        assert status_of(served.port, authority.certificate, client) == 200


def test_certificates_that_cannot_be_used_are_told(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.sign("locked", "a word")
    for tls in (
        CertificatesConfiguration("", str(tmp_path / "nowhere.pem")),
        CertificatesConfiguration("", str(certificate), str(key)),
        CertificatesConfiguration("", str(certificate), str(key), Secret("another")),
        CertificatesConfiguration(str(key), str(certificate), str(key), Secret("a word")),
    ):
        with pytest.raises(ConfigurationError, match=r"http.tls: the certificates") as refused:
            Served(tmp_path, (), tls=tls)
        assert "a word" not in str(refused.value) + refused.value.hint
