"""https to a real server that wants a certificate of its clients."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.clickhouse import http
from sluice.clickhouse.http import Server
from sluice.clickhouse.tls import Tls
from sluice.core.errors import ConfigurationError, TransientError
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.cluster.server import ClickHouseServer, Settings
from tests.support.certificates import Authority, https_port


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def url(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (port,) = free_ports(1)
    more = https_port(port, *authority.sign("server"), authority.certificate)
    server = ClickHouseServer(tmp_path_factory.mktemp("server"), Settings(more=more))
    server.start()
    yield f"https://127.0.0.1:{port}"
    server.kill()


def test_a_client_is_let_in_by_its_certificate(url: str, authority: Authority) -> None:
    certificate, key = map(str, authority.sign("client"))
    with Server(url, tls=Tls(str(authority.certificate), certificate, key)) as server:
        assert server.query("SELECT 1 AS one") == [{"one": 1}]
        server.execute("SELECT 1")
        assert server.connects == 1


def test_a_key_may_be_encrypted(url: str, authority: Authority) -> None:
    certificate, key = map(str, authority.sign("locked", "pass word"))
    tls = Tls(str(authority.certificate), certificate, key, "pass word")
    with Server(url, tls=tls) as server:
        assert server.query("SELECT 1 AS one") == [{"one": 1}]
    assert "pass word" not in repr(tls)
    for wrong in ("", "other"):
        with pytest.raises(ConfigurationError, match="no certificate and its key"):
            Tls(str(authority.certificate), certificate, key, wrong).context()


def test_no_certificate_is_refused_with_words(url: str, authority: Authority) -> None:
    with (
        Server(url, tls=Tls(str(authority.certificate))) as server,
        pytest.raises(TransientError) as raised,
    ):
        server.ping()
    assert "`certificate` is shown" in raised.value.hint


def test_a_server_of_another_authority_is_not_spoken_to(
    url: str, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = map(str, authority.sign("client"))
    for strange in (str(Authority(tmp_path, "other").certificate), ""):
        with (
            Server(url, tls=Tls(strange, certificate, key)) as server,
            pytest.raises(TransientError) as raised,
        ):
            server.ping()
        assert "CERTIFICATE_VERIFY_FAILED" in raised.value.message
        assert "`ca` must have signed" in raised.value.hint


def test_a_renewed_certificate_is_used_and_a_broken_one_is_not(
    url: str, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.sign("renewed")
    stranger = Authority(tmp_path, "stranger").sign("renewed")
    good = [path.read_bytes() for path in (certificate, key)]

    def place(contents: list[bytes], age_seconds: int) -> None:
        for path, content in zip((certificate, key), contents, strict=True):
            path.write_bytes(content)
            os.utime(path, (age_seconds, age_seconds))

    place([path.read_bytes() for path in stranger], 1)
    tls = Tls(str(authority.certificate), str(certificate), str(key))
    with Server(url, tls=tls) as server:
        with pytest.raises(TransientError):
            server.query("SELECT 1")
        place(good, 2)
        assert server.query("SELECT 1 AS one") == [{"one": 1}]
    place([good[0][:100], good[1]], 3)  # while somebody writes it
    with Server(url, tls=tls) as server:
        assert server.query("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.parametrize("what", ["authority", "certificate", "key"])
def test_a_file_that_cannot_be_used_is_named(
    what: str, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = map(str, authority.sign("client"))
    good = {"authority": str(authority.certificate), "certificate": certificate, "key": key}
    (tmp_path / "empty.pem").write_text("")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(ConfigurationError, match=name) as raised:
            Tls(**{**good, what: str(tmp_path / name)}).context()
        assert "each machine" in raised.value.hint


def test_http_and_https_that_are_mixed_up_are_told(
    url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(url.rpartition(":")[2])
    monkeypatch.setattr(http, "_TLS_PORTS", {port})
    with Server(f"http://127.0.0.1:{port}") as server, pytest.raises(TransientError) as raised:
        server.ping()
    assert "is it https?" in raised.value.hint

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)  # all of it: else the answer may be lost with the connection
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        plain = f"https://127.0.0.1:{listener.getsockname()[1]}"
        tls = Tls(str(authority.certificate))
        with Server(plain, tls=tls) as server, pytest.raises(TransientError) as raised:
            server.ping()
        thread.join()
    assert "speaks no TLS: write http://127.0.0.1" in raised.value.hint
