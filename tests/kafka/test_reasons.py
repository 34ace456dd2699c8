"""Why no broker was reached, in words, and what to do: librdkafka tells it beside its answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from sluice.core.errors import SluiceError, TransientError
from sluice.driver.connector import ConnectorRun
from sluice.kafka.clients import KafkaAccess, _errors, admin_error, make_admin
from sluice.kafka.errors import KafkaRefusedError, KafkaUnavailableError
from sluice.kafka.topics import cluster_metadata, describe_topic, partition_count
from sluice.ops.doctor_findings import refusal
from sluice.ops.doctor_kafka import look_at_kafka
from tests.config.support import changed, load_text
from tests.support.world import wait_for

NOBODY, UNKNOWN = "127.0.0.1:1", "no-such-host.invalid:9092"


@contextmanager
def listener(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """What accepts connections and is no broker; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def failure(look: Callable[[AdminClient], object], access: KafkaAccess) -> SluiceError:
    with pytest.raises(SluiceError) as failed:
        look(make_admin(access))
    return failed.value


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.kafka.topics.ADMIN_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr("sluice.kafka.topics._TIMEOUT_SECONDS", 1.0)


@pytest.mark.parametrize(
    ("brokers", "why", "hint"),
    [(NOBODY, "Connection refused", "Nothing listens"), (UNKNOWN, "Failed to resolve", "host")],
)
def test_whoever_asks_hears_why(brokers: str, why: str, hint: str) -> None:
    access = KafkaAccess("dc1", brokers)
    for ask in (
        lambda admin: cluster_metadata(admin, brokers, 1.0),
        lambda admin: describe_topic(admin, "orders"),
        lambda _: partition_count(access, "orders"),
    ):
        error = failure(ask, access)
        assert isinstance(error, KafkaUnavailableError)
        assert why in error.message and brokers in error.message and hint in error.hint
        assert "after" not in error.message  # nothing that differs each time


@pytest.mark.parametrize(
    ("answer", "protocol", "why"),
    [
        (lambda connection: connection.recv(1000), "PLAINTEXT", "end each connection"),
        (lambda connection: connection.recv(1000), "SSL", "ssl://"),
        (lambda connection: connection.sendall(b"HTTP/1.1 400"), "PLAINTEXT", "Invalid response"),
    ],
)
def test_what_listens_otherwise_is_told(
    answer: Callable[[socket.socket], object], protocol: str, why: str
) -> None:
    with listener(answer) as brokers:
        access = KafkaAccess("dc1", brokers, {"security.protocol": protocol})
        error = failure(lambda admin: cluster_metadata(admin, brokers, 3.0), access)
    assert isinstance(error, KafkaUnavailableError)
    assert why in error.message and '"security.protocol"' in error.hint


def told(admin: AdminClient, code: int, text: str) -> None:
    """As if librdkafka had told this of one of its connections."""
    _errors[admin](ck.KafkaError(code, text))


def test_an_address_that_only_the_cluster_knows_is_told() -> None:
    """With a broker's number, and not as what stands in the configuration."""
    with listener(lambda connection: connection.recv(1000)) as brokers:
        admin = make_admin(KafkaAccess("dc1", brokers))
        told(admin, ck.KafkaError._RESOLVE, "kafka:9092/1: Failed to resolve 'kafka:9092': unknown")
        late = ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, "Failed while waiting"))
        error = admin_error(admin, "reading settings", late)
        assert (
            error.message
            == "reading settings: kafka:9092/1: Failed to resolve 'kafka:9092': unknown"
        )
        assert "advertised.listeners" in error.hint
        # What was answered says itself what is wrong.
        wrong = ck.KafkaException(ck.KafkaError(ck.KafkaError.INVALID_REQUEST, "no"))
        assert "INVALID_REQUEST" in admin_error(admin, "reading settings", wrong).message


def test_a_login_that_broke_off_is_no_refusal() -> None:
    late = ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT, "Failed to get metadata"))
    with listener(lambda connection: connection.recv(1000)) as brokers:
        admin = make_admin(KafkaAccess("dc1", brokers))
        broken = "SaslAuthenticateRequest failed: Local: Broker transport failure"
        told(admin, ck.KafkaError._AUTHENTICATION, broken)
        assert isinstance(admin_error(admin, "asking", late), TransientError)
        told(admin, ck.KafkaError._SSL, "certificate verify failed: self-signed certificate")
        error = admin_error(admin, "asking", late)
    assert isinstance(error, KafkaRefusedError) and "ssl.ca.location" in error.hint


def test_what_was_told_long_ago_is_no_reason_of_today() -> None:
    admin = make_admin(KafkaAccess("dc1", NOBODY))
    told(admin, ck.KafkaError._SSL, "b2:9093/2: SSL handshake failed: certificate verify failed")
    with pytest.raises(KafkaUnavailableError, match="Connection refused"):
        describe_topic(admin, "orders")


@pytest.mark.parametrize(
    "why",
    [
        "Failed to acquire SASL OAUTHBEARER token: Failed to retrieve OIDC token: HTTP 503",
        "GSSAPI Error: Cannot contact any KDC for realm 'EXAMPLE.ORG'",
    ],
)
def test_who_gives_no_token_or_ticket_now_is_waited_for(why: str) -> None:
    late = ck.KafkaException(ck.KafkaError(ck.KafkaError._TRANSPORT, "Failed to get metadata"))
    with listener(lambda connection: connection.recv(1000)) as brokers:
        admin = make_admin(KafkaAccess("dc1", brokers))
        told(admin, ck.KafkaError._AUTHENTICATION, why)
        error = admin_error(admin, "asking", late)
    assert isinstance(error, KafkaUnavailableError) and why in error.message


def test_doctor_says_why(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, changed("localhost:9092", UNKNOWN))
    (finding,) = look_at_kafka(configuration, configuration.connector("dc1")).findings
    assert finding.check == "kafka" and "Failed to resolve" in finding.what
    assert isinstance(refusal([finding]), TransientError)


def test_who_starts_and_waits_says_why_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = load_text(tmp_path, changed("localhost:9092", NOBODY))
    stopping = threading.Event()
    run = ConnectorRun(
        *(configuration, configuration.connector("dc1"), Future(), stopping),
        lambda configuration, connector: None,
    )
    thread = threading.Thread(target=run.run, args=(True, 1.0))
    thread.start()
    try:
        wait_for(lambda: "(next in" in caplog.text, 60, "the words")
    finally:
        stopping.set()
        thread.join()
    said = next(line for line in caplog.messages if "(next in" in line)
    assert "Connection refused. Try: Nothing listens there" in said
