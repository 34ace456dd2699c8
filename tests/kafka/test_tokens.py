"""Logins by tokens (SASL OAUTHBEARER) at a real broker, which looks them up at a real identity
service: their signatures, for whom they are, and how long they are good. It speaks TLS, and wants
to see a certificate of each client, too."""

from __future__ import annotations

import base64
import re
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from sluice.core.errors import ConfigurationError, SluiceError
from sluice.kafka import tokens
from sluice.kafka.clients import KafkaAccess, make_admin, make_producer
from sluice.kafka.errors import KafkaRefusedError, KafkaTerminalError, KafkaUnavailableError
from sluice.kafka.readers import make_reader
from sluice.kafka.tokens import TokenSource, token_source
from sluice.kafka.topics import cluster_metadata
from sluice.kafka.transactions import initialise
from sluice.kafka.wire.cluster import bootstrap_addresses
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.security import read_security
from sluice.ops.doctor_kafka import look_at_kafka
from sluice.testbed.local.running import running_program
from tests.config.support import changed, load_text
from tests.support.certificates import Authority
from tests.support.identity import (
    AUDIENCE,
    CLIENT,
    OTHER_AUDIENCE,
    SECRET,
    IdentityService,
    TokenBroker,
)
from tests.support.logins import VALUES, all_of, fill, read

TOPIC = "tokens"
MSK = {"sasl.mechanism": "AWS_MSK_IAM", "sasl.oauthbearer.config": "region=eu-west-1"}


@pytest.fixture(scope="module")
def brokers(token_broker: TokenBroker) -> str:
    """The listener that wants tokens; there is a topic with messages."""
    fill(token_broker.brokers, TOPIC)
    return token_broker.logins


def source_of(properties: Mapping[str, str]) -> TokenSource:
    source = token_source(properties)
    assert source is not None
    return source


@pytest.mark.slow
def test_every_client_logs_in_and_goes_on_when_its_token_is_over(
    brokers: str, token_broker: TokenBroker, identity: IdentityService
) -> None:
    access = KafkaAccess("dc1", brokers, token_broker.login(), "native")
    source_of(access.properties)._token = None  # of another test
    given = identity.given
    first = source_of(access.properties).token()
    admin, reader = make_admin(access), make_reader(access)
    producer = make_producer(access, "tokens", 10_000, "topic")
    assert initialise(producer) is None
    assert TOPIC in cluster_metadata(admin).topics

    def read_again() -> list[bytes]:
        found: list[bytes] = []
        reader.read_ranges(all_of(TOPIC), 1 << 30, lambda values, _: found.extend(values))
        return found

    assert read_again() == VALUES
    assert read(replace(access, reader="librdkafka"), TOPIC) == VALUES
    assert identity.given == given + 1  # all of them show one token
    # Brokers end a session with its token, but for who shows a new one in time.
    time.sleep(max(0.0, first.expires_at + 1 - time.time()))
    assert read_again() == VALUES
    assert TOPIC in cluster_metadata(admin).topics
    producer.begin_transaction()
    producer.produce(TOPIC, b"more")
    producer.commit_transaction(10)
    assert source_of(access.properties).token().got_at > first.got_at
    reader.close()


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (
            {"secret": "planted-wrong-secret"},
            KafkaTerminalError,
            f"client {CLIENT}: it answers 403",
        ),
        ({"scope": "unknown"}, KafkaTerminalError, "it answers 400 (scope_invalid)"),
        ({"url": "http://127.0.0.1:1/token"}, KafkaUnavailableError, "does not answer"),
        ({"url": "http://[::/token"}, KafkaUnavailableError, "does not answer"),
    ],
)
def test_without_a_token_the_doctor_says_why(
    tmp_path: Path,
    brokers: str,
    token_broker: TokenBroker,
    caplog: pytest.LogCaptureFixture,
    wrong: dict[str, str],
    kind: type[SluiceError],
    words: str,
) -> None:
    properties = token_broker.login(**wrong)
    with pytest.raises(kind) as caught:
        make_admin(KafkaAccess("dc1", brokers, properties))
    assert words in str(caught.value)
    text = changed("[batch]", f"[connector.kafka]\n{toml(properties)}\n[batch]")
    text = changed("localhost:9092", brokers, text)
    configuration = load_text(tmp_path, text)
    look = look_at_kafka(configuration, configuration.connector("dc1"))
    (finding,) = look.findings
    assert finding.level == "error" and words in str(finding)
    assert words in caplog.text
    assert wrong.get("secret", SECRET) not in f"{caplog.text}{finding}{caught.value!r}"


def toml(properties: Mapping[str, str]) -> str:
    return "\n".join(f'"{name}" = "{value}"' for name, value in properties.items())


def test_the_doctor_asks_for_rights_with_a_token(
    tmp_path: Path, brokers: str, token_broker: TokenBroker
) -> None:
    text = changed("[batch]", f"[connector.kafka]\n{toml(token_broker.login())}\n[batch]")
    configuration = load_text(tmp_path, changed("localhost:9092", brokers, text))
    assert configuration.connector("dc1").known_reader() == "native"
    findings = look_at_kafka(configuration, configuration.connector("dc1")).findings
    assert {each.check for each in findings if each.level == "ok"} >= {"kafka", "rights", "group"}
    assert "tokens" not in {each.check for each in findings}


@pytest.mark.slow
def test_the_doctor_names_a_broker_that_believes_any_token(
    tmp_path: Path, identity: IdentityService
) -> None:
    """It does: of this Kafka, with nothing said. Should a newer one look, the words have to go."""
    with running_program(TokenBroker(tmp_path / "kafka", identity, validator="")) as broker:
        access = KafkaAccess("dc1", broker.logins, broker.login(), "native")
        source = source_of(access.properties)
        token = source.token()
        head, claims, signature = token.value.split(".")
        source._token = replace(token, value=f"{head}.{claims}.{signature[::-1]}")
        try:
            assert cluster_metadata(make_admin(access)).brokers, "nobody logs in"
        finally:
            source._token = None
        text = changed("[batch]", f"[connector.kafka]\n{toml(broker.login())}\n[batch]")
        configuration = load_text(tmp_path, changed("localhost:9092", broker.logins, text))
        findings = look_at_kafka(configuration, configuration.connector("dc1")).findings
    (finding,) = (each for each in findings if each.check == "tokens")
    assert finding.level == "warning" and "BrokerJwtValidator" in finding.fix


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_a_token_for_somebody_else_is_refused_and_told(
    brokers: str, token_broker: TokenBroker, caplog: pytest.LogCaptureFixture, reader: str
) -> None:
    access = KafkaAccess("dc1", brokers, token_broker.login(scope=OTHER_AUDIENCE), reader)
    if reader == "native":
        with pytest.raises(KafkaTerminalError, match="invalid_token"):
            read(access, TOPIC)
        return
    with pytest.raises(KafkaRefusedError, match="invalid_token") as caught:
        cluster_metadata(make_admin(access), timeout_seconds=3.0)
    assert "credentials" in caught.value.hint
    assert "Kafka refuses the login: " in caplog.text


def test_a_token_that_is_refused_is_replaced(
    brokers: str, token_broker: TokenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = KafkaAccess("dc1", brokers, token_broker.login(), "native")
    source = source_of(access.properties)
    token = source.token()
    head, claims, signature = token.value.split(".")
    other = f"{head}.{claims}.{signature[::-1]}"  # as if signed by a key that is no longer used
    source._token = replace(token, value=other, got_at=token.got_at - tokens.REST_SECONDS)
    assert read(access, TOPIC) == VALUES
    # One that is young, however long it takes until it is refused.
    monkeypatch.setattr(tokens, "REST_SECONDS", 600.0)
    now = time.time()
    source._token = replace(source.token(), value=other, got_at=now, expires_at=now + 3600)
    with pytest.raises(KafkaTerminalError, match="invalid_token"):
        read(access, TOPIC)
    source._token = None


def test_what_is_left_of_a_token_bridges_an_outage(
    identity: IdentityService,
    token_broker: TokenBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    properties = token_broker.login(scope=f"{AUDIENCE} {OTHER_AUDIENCE}")
    source = source_of(properties)
    token = source.token()
    monkeypatch.setattr(tokens, "_USED_SHARE", 0.0)
    monkeypatch.setattr(tokens, "REST_SECONDS", 600.0)
    identity.stop()
    try:
        assert source.token() is token
        assert "does not answer" in caplog.text
        caplog.clear()
        assert source.token() is token and not caplog.text  # it is not asked again at once
        source._token = None
        with pytest.raises(KafkaUnavailableError, match="does not answer"):
            source.token()
    finally:
        identity.start()
    monkeypatch.setattr(tokens, "REST_SECONDS", 0.0)
    assert source.token().got_at > token.got_at


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (503, b"<html>", KafkaUnavailableError, "answers 503"),
        (429, b"{}", KafkaUnavailableError, "answers 429"),
        (302, b"", KafkaTerminalError, "it answers 302"),
        (200, b"<html>", KafkaTerminalError, "without access_token and expires_in"),
        (200, b'{"access_token": "x"}', KafkaTerminalError, "without access_token and expires_in"),
        (
            401,
            b'{"error": "invalid_client", "error_description": "not s+cret"}',
            KafkaTerminalError,
            "401 (invalid_client: not ***)",
        ),
    ],
)
def test_answers_that_bring_no_token(
    status: int, body: bytes, kind: type[SluiceError], words: str
) -> None:
    with answering(status, body) as (url, seen):
        client = tokens.OidcClient(url, "a:b", "s+cret", "one two")
        with pytest.raises(kind, match=re.escape(words)):
            tokens.fetch(client)
    login_text = base64.b64encode(b"a%3Ab:s%2Bcret").decode()
    assert seen == [(f"Basic {login_text}", b"grant_type=client_credentials&scope=one+two")]


@contextmanager
def answering(
    status: int, body: bytes, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server that always answers so: its URL, and the logins and forms that came."""
    seen: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.headers["Authorization"], form))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://127.0.0.1:{server.server_port}/token", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("reader", ["native", "librdkafka"])
def test_without_a_certificate_nobody_is_spoken_to(
    brokers: str, token_broker: TokenBroker, reader: str
) -> None:
    properties = token_broker.login()
    for name in ("ssl.certificate.location", "ssl.key.location", "ssl.key.password"):
        del properties[name]
    access = KafkaAccess("dc1", brokers, properties, reader)
    if reader == "native":
        with pytest.raises(OSError, match="bad certificate"):
            Connection(bootstrap_addresses(brokers)[0], read_security(properties), "test")
    else:
        with pytest.raises(KafkaUnavailableError):
            cluster_metadata(make_admin(access), timeout_seconds=3.0)


def test_certificates_of_the_identity_service(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.sign("identity"))
    with answering(200, b'{"access_token": "x", "expires_in": 60}', tls) as (url, seen):
        client = tokens.OidcClient(url, CLIENT, SECRET, authority=str(authority.certificate))
        assert tokens.fetch(client).value == "x"
        with pytest.raises(KafkaUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            tokens.fetch(replace(client, authority=""))
    assert len(seen) == 1  # who cannot prove its name hears no secret
    with pytest.raises(ConfigurationError, match=re.escape('kafka."https.ca.location"')):
        tokens.fetch(replace(client, authority="/nowhere.pem"))


@pytest.mark.slow
def test_amazon_signs_what_a_broker_is_shown(
    brokers: str, token_broker: TokenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Amazon's brokers can judge such a token: this one says that it was shown none of its
    own kind."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-aws-secret")
    tls = {name: value for name, value in token_broker.login().items() if "sasl" not in name}
    properties = tls | MSK
    value = source_of(properties).token().value
    url = urlsplit(base64.urlsafe_b64decode(value + "==").decode())
    asked = parse_qs(url.query)
    assert (url.netloc, asked["Action"]) == (
        "kafka.eu-west-1.amazonaws.com",
        ["kafka-cluster:Connect"],
    )
    assert asked["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/") and "planted" not in url.geturl()
    with pytest.raises(KafkaTerminalError, match="invalid_token"):
        read(KafkaAccess("dc1", brokers, properties, "native"), TOPIC)
    before = malformed(token_broker)
    with pytest.raises(KafkaRefusedError, match="invalid_token"):
        cluster_metadata(make_admin(KafkaAccess("dc1", brokers, properties)), timeout_seconds=3.0)
    assert malformed(token_broker) > before


def malformed(broker: TokenBroker) -> int:
    return (broker.folder / "broker.log").read_text().count("Malformed JWT provided")


def test_without_credentials_of_amazon_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(KafkaUnavailableError, match="eu-west-1: there are no credentials"):
        tokens.fetch(tokens.AwsPrincipal("eu-west-1"))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigurationError) as caught:
        tokens.fetch(tokens.AwsPrincipal("eu-west-1"))
    assert "pip install '.[msk]'" in caught.value.hint


def test_kerberos_needs_another_librdkafka() -> None:
    properties = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(ConfigurationError, match="without Kerberos") as caught:
        make_admin(KafkaAccess("dc1", "localhost:9092", properties))
    assert "Kerberos" in caught.value.hint
