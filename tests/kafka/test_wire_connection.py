"""The native reader against brokers that move, fall silent, refuse, or are none."""

from __future__ import annotations

import base64
import ctypes
import socket
import struct
from collections.abc import Callable

import pytest

import sluice.kafka.reader as contract
from sluice.core.errors import ConfigurationError
from sluice.core.ranges import Range
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import (
    KafkaRefusedError,
    KafkaTerminalError,
    KafkaUnavailableError,
    RangeVanishedError,
    StalledError,
    UnreadRangeError,
)
from sluice.kafka.reader import Wanted
from sluice.kafka.wire import connection as connection_module
from sluice.kafka.wire import messages, native, security
from sluice.kafka.wire.cluster import bootstrap_addresses
from sluice.kafka.wire.messages import Leader
from sluice.kafka.wire.reader import WireReader
from sluice.machine import compiled
from tests.kafka.batches import Entry, batch
from tests.kafka.scripted_broker import AUTHORITY, ScriptedBroker, scripted_broker
from tests.kafka.wire_log import SOURCE, MemoryLog, asked_of

WHOLE = [Wanted(Range(SOURCE, 0, 30))]
VALUES = [b"%d" % number for number in range(30)]


def made(**options: object) -> ScriptedBroker:
    log = MemoryLog([batch([Entry(n, value)]) for n, value in enumerate(VALUES)], end=30)
    return ScriptedBroker(log, **options)  # type: ignore[arg-type]


def read(broker: ScriptedBroker, **properties: str) -> list[bytes]:
    """All messages; property names with underscores for dots."""
    renamed = {name.replace("_", "."): value for name, value in properties.items()}
    reader = WireReader(KafkaAccess("dc1", f"localhost:{broker.port}", renamed))
    values: list[bytes] = []
    try:
        reader.read_ranges(WHOLE, 1 << 40, lambda found, _: values.extend(found))
    except UnreadRangeError as unread:
        raise unread.reason from None
    finally:
        reader.close()
    return values


def once(broker: ScriptedBroker, kind: int, first: Callable[[bytes], bytes | None]) -> None:
    """Another answer to the first request of a kind."""
    usual = broker.answers[kind]

    def answer(body: bytes) -> bytes | None:
        broker.answers[kind] = usual
        return first(body)

    broker.answers[kind] = answer


def refusal(error: int) -> Callable[[bytes], bytes]:
    """The answer to a fetch that is refused."""

    def answer(_body: bytes) -> bytes:
        head = struct.pack(">ihii", 0, 0, 0, 1) + messages.text(SOURCE.topic)
        rest = struct.pack(">iihqqqiii", 1, SOURCE.partition, error, -1, -1, -1, 0, -1, 0)
        return head + rest

    return answer


@pytest.mark.parametrize("error", [3, 5, 6, 9, 56, 74, 75, 78, 1])
def test_who_leads_is_asked_again(error: int) -> None:
    with scripted_broker(made()) as broker:
        once(broker, messages.FETCH, refusal(error))
        assert read(broker) == VALUES
        assert broker.asked.count(messages.METADATA) == 2


def test_a_partition_without_a_leader_is_waited_for() -> None:
    with scripted_broker(made()) as broker:
        once(broker, messages.METADATA, lambda body: broker.metadata(body, leader=-1))
        assert read(broker) == VALUES


def test_an_epoch_is_told_to_the_leader() -> None:
    with scripted_broker(made()) as broker:
        bodies: list[bytes] = []
        once(broker, messages.FETCH, lambda body: bodies.append(body) or broker.fetch(body))
        read(broker)
        assert [epoch for _, epoch, _, _ in asked_of(bodies[0])] == [4]


def test_a_connection_that_ends_is_opened_again() -> None:
    with scripted_broker(made()) as broker:
        once(broker, messages.FETCH, lambda _: None)
        assert read(broker) == VALUES


def test_a_lost_connection_is_not_asked_again_who_leads_another_partition() -> None:
    with scripted_broker(made()) as broker:
        reader = WireReader(KafkaAccess("dc1", f"localhost:{broker.port}"))
        values: list[bytes] = []

        def read_all() -> None:
            values.clear()
            reader.read_ranges(WHOLE, 1 << 40, lambda found, _: values.extend(found))

        read_all()
        reader._cluster._leaders.clear()  # as for a partition that is read for the first time
        for connection in reader._cluster._connections.values():
            connection._socket.shutdown(socket.SHUT_RDWR)
        read_all()
        assert values == VALUES
        reader.close()


def test_an_answer_that_nobody_waits_for_is_not_taken_for_another() -> None:
    with scripted_broker(made()) as broker:
        reader = WireReader(KafkaAccess("dc1", f"localhost:{broker.port}"))
        connection = reader._cluster.connection(reader._cluster.leader(SOURCE))
        connection.send(messages.FETCH, messages.fetch_body([(SOURCE, 4, 20, 100)], 100, 0))
        values: list[bytes] = []
        reader.read_ranges(WHOLE, 1 << 40, lambda found, _: values.extend(found))
        assert values == VALUES
        reader.close()


def test_a_silent_broker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(connection_module, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(contract, "STALL_SECONDS", 0.5)
    over = threading.Event()
    with scripted_broker(made()) as broker:
        broker.answers[messages.FETCH] = lambda _: b"" if over.wait(30) else None
        with pytest.raises(StalledError, match="sent nothing"):
            read(broker)
        over.set()


def test_what_is_no_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "STALL_SECONDS", 0.3)
    with scripted_broker(made()) as broker:
        broker.serve = lambda connection: connection.sendall(b"HTTP/1.1 400 Bad")  # type: ignore
        with pytest.raises(KafkaUnavailableError) as caught:
            read(broker)
        assert "no answer of Kafka" in str(caught.value)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "STALL_SECONDS", 0.3)
    with scripted_broker(made()) as broker:
        pass
    with pytest.raises(KafkaUnavailableError, match="no broker can be reached"):
        read(broker)


@pytest.mark.parametrize("size", range(0, 150, 7))
def test_a_short_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(contract, "STALL_SECONDS", -1.0)
    with scripted_broker(made()) as broker:
        for kind in (messages.METADATA, messages.FETCH):
            usual = broker.answers[kind]
            whole = usual(messages.fetch_body([(SOURCE, -1, 0, 100)], 100, 0)) or b""
            if size < len(whole) - 100:
                broker.answers[kind] = lambda body, usual=usual: (usual(body) or b"")[:size]
                with pytest.raises((KafkaUnavailableError, StalledError)):
                    read(broker)
                broker.answers[kind] = usual


def test_an_old_broker_is_told() -> None:
    broker = made()
    broker.versions[messages.FETCH] = (0, 10)
    with scripted_broker(broker), pytest.raises(ConfigurationError) as caught:
        read(broker)
    assert "version 11 of Fetch" in str(caught.value)
    assert 'reader = "librdkafka"' in caught.value.hint


def test_an_offset_out_of_range_is_explained() -> None:
    broker = made()
    broker.log.end = -1  # the watermarks say so too
    broker.answers[messages.FETCH] = refusal(1)
    with scripted_broker(broker), pytest.raises(RangeVanishedError, match=r"holds \[0, -1\)"):
        read(broker)


def test_a_refusal_is_terminal() -> None:
    broker = made()
    broker.answers[messages.FETCH] = refusal(29)
    with scripted_broker(broker), pytest.raises(KafkaTerminalError, match="TOPIC_AUTHORIZATION"):
        read(broker)


def test_tls_proves_the_broker() -> None:
    tls = {"security_protocol": "SSL", "ssl_ca_location": str(AUTHORITY)}
    with scripted_broker(made(), tls=True) as broker:
        assert read(broker, **tls) == VALUES
        with pytest.raises(KafkaTerminalError, match="certificate"):
            read(broker, security_protocol="ssl")  # signed by nobody whom this machine knows
        assert read(broker, security_protocol="ssl", enable_ssl_certificate_verification="false")


def connect(reader: WireReader) -> Leader:
    leader = reader._cluster.leader(SOURCE)
    reader._cluster.connection(leader)
    return leader


def test_tls_proves_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(AUTHORITY)}
    with scripted_broker(made(), tls=True) as broker:
        access = KafkaAccess("dc1", f"127.0.0.1:{broker.port}", tls)
        with pytest.raises(KafkaTerminalError, match="certificate"):
            connect(WireReader(access))
        tls["ssl.endpoint.identification.algorithm"] = "none"
        reader = WireReader(KafkaAccess("dc1", access.brokers, tls))
        assert connect(reader).epoch == 4
        reader.close()


def sasl(error: int, *tokens: bytes) -> Callable[[bytes], bytes]:
    """Answers of SaslAuthenticate, one after the other; the requests' tokens go to `seen`."""
    left = list(tokens)
    return lambda _body: (
        struct.pack(">hh", error, -1) + struct.pack(">i", len(left[0])) + (left.pop(0))
    )


def test_plain_sends_user_and_password() -> None:
    broker, seen = made(), []
    accept = sasl(0, b"")
    broker.answers[messages.SASL_AUTHENTICATE] = lambda body: seen.append(body) or accept(body)
    properties = {"sasl_mechanism": "PLAIN", "sasl_username": "ann", "sasl_password": "secret"}
    with scripted_broker(broker):
        reader = WireReader(
            KafkaAccess(
                "dc1",
                f"localhost:{broker.port}",
                {"security.protocol": "sasl_plaintext"}
                | {name.replace("_", "."): value for name, value in properties.items()},
            )
        )
        reader._cluster._any_connection()
        reader.close()
    assert seen == [struct.pack(">i", 11) + b"\0ann\0secret"]


def test_refused_credentials_are_terminal_for_who_starts() -> None:
    broker = made()
    broker.answers[messages.SASL_AUTHENTICATE] = sasl(58, *[b""] * 9)
    properties = {"security_protocol": "sasl_plaintext", "sasl_mechanism": "PLAIN"}
    with scripted_broker(broker), pytest.raises(KafkaRefusedError) as caught:
        read(broker, **properties)
    assert "PLAIN" in str(caught.value) and "secret" not in str(caught.value)


#: RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("signature", [SIGNATURE, base64.b64encode(bytes(32)).decode()])
def test_scram_is_that_of_the_standard(signature: str) -> None:
    sent: list[bytes] = []
    answers = [CHALLENGE.encode(), b"v=" + signature.encode()]

    def exchange(token: bytes) -> bytes:
        sent.append(token)
        return answers[len(sent) - 1]

    facts = security.Security(None, "SCRAM-SHA-256", "user", "pencil")
    if signature == SIGNATURE:
        security._scram(facts, exchange, NONCE)
    else:
        with pytest.raises(KafkaTerminalError, match="does not know the password"):
            security._scram(facts, exchange, NONCE)
    assert sent[0] == f"n,,n=user,r={NONCE}".encode()
    assert sent[1].endswith(b",p=" + PROOF.encode())


@pytest.mark.parametrize("challenge", ["", "r=x", "r=other,s=AA==,i=4096", f"r={NONCE},s=AA==,i=0"])
def test_a_wrong_challenge_is_told(challenge: str) -> None:
    facts = security.Security(None, "SCRAM-SHA-512", "user", "pencil")
    with pytest.raises(KafkaTerminalError, match="SCRAM-SHA-512"):
        security._scram(facts, lambda _: challenge.encode(), NONCE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.protocol", "kerberos"),
        ("sasl.mechanism", "GSSAPI"),
        ("sasl.mechanisms", "OAUTHBEARER"),
        ("sasl.oauthbearer.config", "x"),
        ("ssl.keystore.location", "x"),
        ("enable.sasl.oauthbearer.unsecure.jwt", "true"),
        ("ssl.endpoint.identification.algorithm", "both"),
    ],
)
def test_what_only_librdkafka_does_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        WireReader(KafkaAccess("dc1", "localhost:9092", {name: value}))
    assert name in str(caught.value) and 'reader = "librdkafka"' in str(caught.value)


def test_certificates_that_are_not_there() -> None:
    properties = {"security.protocol": "ssl", "ssl.ca.location": "/nowhere.pem"}
    with pytest.raises(ConfigurationError, match="certificates"):
        WireReader(KafkaAccess("dc1", "localhost:9092", properties))


def test_addresses() -> None:
    given = "one:1, two ,SSL://three:3,[::1]:4,"
    assert bootstrap_addresses(given) == [
        ("one", 1),
        ("two", 9092),
        ("three", 3),
        ("::1", 4),
    ]


@pytest.mark.parametrize(
    ("module", "name", "value", "why"),
    [
        (compiled, "EXTENSION_SUFFIXES", (), "it was not built"),
        (native, "Parser", ctypes.c_int64, "another version"),
    ],
)
def test_a_compiled_part_that_is_missing_or_does_not_fit_is_told(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: object, why: str
) -> None:
    monkeypatch.setattr(module, name, value)
    native.library.cache_clear()
    try:
        with pytest.raises(ConfigurationError) as caught:
            WireReader(KafkaAccess("dc1", "localhost:9092"))
    finally:
        native.library.cache_clear()
    assert "compiled part" in str(caught.value) and why in str(caught.value)
    assert "librdkafka" in caught.value.hint
