"""Schemas from a real registry, and from servers that misbehave."""

from __future__ import annotations

import base64
import json
import pickle
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Column
from sluice.core.receipts import UnknownSchemas
from sluice.core.schema_ids import RegisteredSchema, number_of_guid
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from sluice.decode.messages.framing import BYTES
from sluice.decode.schema import registry as registries
from sluice.decode.schema.avro import AvroConfluent
from sluice.decode.schema.protobuf import ProtobufConfluent
from sluice.decode.schema.protobuf_schema import compile_files
from sluice.decode.schema.registry import UnknownSchemasError, provide, registry_of
from sluice.decode.typed.decoder import TypedDecoder
from sluice.kafka.errors import RegistryRefusedError
from sluice.kafka.registry import RegistryAccess, RegistryClient
from sluice.testbed.local.children import free_ports
from tests.decode.support import fill, rows, table
from tests.support.certificates import Authority
from tests.support.registry import Registry

RECORD = '{"type":"record","name":"shop.Order","fields":[{"name":"id","type":"long"}]}'


def test_a_schema_by_its_number(registry: Registry) -> None:
    number = registry.register("orders-value", RECORD)
    found = RegistryClient(RegistryAccess(registry.url)).schema(number)
    assert found is not None
    assert (found.kind, json.loads(found.text), found.references) == (
        "AVRO",
        json.loads(RECORD),
        (),
    )


def test_a_number_that_is_not_there(registry: Registry) -> None:
    assert RegistryClient(RegistryAccess(registry.url)).schema(2_000_000) is None


@pytest.mark.slow
def test_references_come_with_the_schema_deepest_first(registry: Registry) -> None:
    first = 'syntax = "proto3"; package a; message Money { int64 cents = 1; }'
    second = (
        'syntax = "proto3"; package a; import "a/money.proto"; message Line { Money price = 1; }'
    )
    third = 'syntax = "proto3"; package a; import "a/line.proto"; message Order { Line line = 1; }'
    registry.register("money", first, "PROTOBUF")
    reference = {"name": "a/money.proto", "subject": "money", "version": 1}
    registry.register("line", second, "PROTOBUF", [reference])
    reference = {"name": "a/line.proto", "subject": "line", "version": 1}
    number = registry.register("order", third, "PROTOBUF", [reference])
    found = RegistryClient(RegistryAccess(registry.url)).schema(number)
    assert found is not None and found.kind == "PROTOBUF"
    assert [name for name, _ in found.references] == ["a/money.proto", "a/line.proto"]
    assert "cents" in found.references[0][1] and "Money price" in found.references[1][1]


def test_messages_of_a_real_registry_are_decoded(registry: Registry) -> None:
    proto = (
        'syntax = "proto3"; package z; message Other { int32 x = 1; } message Z { int64 id = 1; }'
    )
    numbers = registry.register("avro-value", RECORD), registry.register("z", proto, "PROTOBUF")
    provide(registry.url, RegistryClient(RegistryAccess(registry.url)))
    facts = table(Column("id", "UInt8"), options=(("registry", registry.url),))
    avro = TypedDecoder(facts, AvroConfluent(facts))
    protobuf = TypedDecoder(facts, ProtobufConfluent(facts))
    heads = [struct.pack(">BI", 0, number) for number in numbers]
    bodies = [
        (avro, heads[0], b"\x0a", b"\x0a\x00"),
        (protobuf, heads[1] + b"\x02\x02", b"\x08\x05", b"\x08"),
    ]
    for decoder, head, good, bad in bodies:
        with MessageBuffer(BYTES) as buffer:
            decoded = decoder.decode(fill(buffer, [head + good, head + bad]), alone("orders", 3))
        assert rows(decoded) == [[5]]
        assert [one.index for one in decoded.bad] == [1]


def test_descriptors_that_serializers_register_are_read(registry: Registry) -> None:
    """Confluent's serializer for Python registers descriptors in base64, those of imports, too."""
    files = {
        "shop/money.proto": 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }',
        "shop/order.proto": 'syntax = "proto3"; package shop; import "shop/money.proto"; '
        'import "google/protobuf/timestamp.proto"; message Other { int32 x = 1; } '
        "message Order { int64 id = 1; Money price = 2; google.protobuf.Timestamp at = 3; }",
    }
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(compile_files(files, "shop/order.proto")).file:
        pool.AddSerializedFile(file.SerializeToString())
    order = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(id=7)
    order.price.cents = 1250
    order.at.FromSeconds(1_767_225_600)
    settings = {"use.deprecated.format": False}
    serializer = ProtobufSerializer(
        type(order), SchemaRegistryClient({"url": registry.url}), settings
    )
    value = serializer(order, SerializationContext("orders-b64", MessageField.VALUE))
    provide(registry.url, RegistryClient(RegistryAccess(registry.url)))
    facts = table(
        Column("id", "UInt8"),
        Column("price", "Tuple(cents Int64)"),
        Column("at", "DateTime('UTC')"),
        options=(("registry", registry.url),),
    )
    decoder = TypedDecoder(facts, ProtobufConfluent(facts))
    with MessageBuffer(BYTES) as buffer:
        decoded = decoder.decode(fill(buffer, [value]), alone("orders", 3))
    assert not decoded.bad
    assert rows(decoded) == [[7, {"cents": "1250"}, "2026-01-01 00:00:00"]]


def test_a_registry_that_is_away_stops_the_decoding() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    provide(url, RegistryClient(RegistryAccess(url)))
    facts = table(Column("id", "UInt8"), options=(("registry", url),))
    decoder = TypedDecoder(facts, AvroConfluent(facts))
    with MessageBuffer(BYTES) as buffer, pytest.raises(TransientError, match="does not answer"):
        decoder.decode(fill(buffer, [b"\0\0\0\0\x07\x0a"]), alone("orders", 3))


class Scripted:
    """A server that answers every request alike, and remembers what it was asked."""

    def __init__(self, status: int, body: bytes, wanted: str, tls: ssl.SSLContext | None) -> None:
        self.asked: list[str] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.asked.append(self.path)
                refused = wanted and self.headers.get("Authorization") != wanted
                content = b'{"error_code":401,"message":"who are you"}' if refused else body
                self.send_response(401 if refused else status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}/apis/ccompat/v7"


@contextmanager
def scripted(
    status: int, body: bytes, wanted: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[Scripted]:
    """
    :param wanted: the header Authorization without which requests are refused; "" for any.
    """
    script = Scripted(status, body, wanted, tls)
    thread = threading.Thread(target=script.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield script
    finally:
        script.server.shutdown()
        script.server.server_close()
        thread.join()


ANSWER = json.dumps({"schema": RECORD}).encode()


def test_credentials_are_sent() -> None:
    basic = f"Basic {base64.b64encode(b'ann:p:ss').decode()}"
    with scripted(200, ANSWER, basic) as script:
        found = RegistryClient(RegistryAccess(script.url, "ann", "p:ss")).schema(1)
        assert found is not None and found.text == RECORD
        with pytest.raises(TerminalError, match="401") as refused:
            RegistryClient(RegistryAccess(script.url, "ann", "wrong")).schema(1)
        assert "[registry]" in refused.value.hint
        assert "wrong" not in refused.value.message


def test_a_guid_is_asked_for_as_one() -> None:
    guid = UUID("0f2b5a3c-0000-4000-8000-000000000007")
    with scripted(200, ANSWER) as script:
        found = RegistryClient(RegistryAccess(script.url)).schema(number_of_guid(guid.bytes))
        assert found is not None and found.text == RECORD
        assert [path.partition("?")[0] for path in script.asked] == [
            f"/apis/ccompat/v7/schemas/guids/{guid}"
        ]


def test_a_token_is_sent() -> None:
    with scripted(200, ANSWER, "Bearer t0ken") as script:
        found = RegistryClient(RegistryAccess(script.url, token="t0ken")).schema(1)
        assert found is not None and found.text == RECORD
        with pytest.raises(TerminalError, match="401") as refused:
            RegistryClient(RegistryAccess(script.url, token="wr0ng")).schema(1)
        assert "token" in refused.value.hint and "wr0ng" not in refused.value.message


def test_certificates_are_checked_and_shown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(*authority.sign("server"))
    there.load_verify_locations(authority.certificate)
    there.verify_mode = ssl.CERT_REQUIRED
    trusted = {"ca": str(authority.certificate)}
    certificate, key = map(str, authority.sign("client", "pass word"))
    shown = {"certificate": certificate, "key": key, "key_password": "pass word"}
    with scripted(200, ANSWER, tls=there) as script:
        found = RegistryClient(RegistryAccess(script.url, **trusted, **shown)).schema(1)
        assert found is not None and found.text == RECORD
        for less in (trusted, shown):
            with pytest.raises(TransientError, match="does not answer"):
                RegistryClient(RegistryAccess(script.url, **less)).schema(1)
    with pytest.raises(TerminalError, match="cannot be used") as refused:
        RegistryClient(RegistryAccess(script.url, **trusted, certificate="/nowhere.pem"))
    assert "`tls` in [registry]" in refused.value.hint


def test_the_next_url_is_asked_where_one_does_not_answer() -> None:
    away = f"http://127.0.0.1:{free_ports(1)[0]}"
    with scripted(200, ANSWER) as script:
        found = RegistryClient(RegistryAccess(f"{away},{script.url}")).schema(1)
        assert found is not None and found.text == RECORD
        assert script.asked[0].startswith("/apis/ccompat/v7/schemas/ids/1")


def test_secrets_are_not_shown() -> None:
    shown = repr(RegistryAccess("http://x", "ann", "p:ss", "t0ken", key_password="l0ck"))
    assert not [secret for secret in ("p:ss", "t0ken", "l0ck") if secret in shown]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_registry_in_trouble_is_asked_again_later(status: int) -> None:
    with (
        scripted(status, b'{"error_code":50001,"message":"no"}') as script,
        pytest.raises(TransientError, match=str(status)),
    ):
        RegistryClient(RegistryAccess(script.url)).schema(1)


def test_a_registry_that_is_away_is_asked_again_later() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(TransientError, match="does not answer"):
        RegistryClient(RegistryAccess(url)).schema(1)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"7", b'{"schema":5,"references":7}'])
def test_what_is_no_registry_is_said(body: bytes) -> None:
    with scripted(200, body) as script, pytest.raises(RegistryRefusedError, match="registry"):
        RegistryClient(RegistryAccess(script.url)).schema(1)


@pytest.mark.parametrize("status", [302, 400, 401, 403, 407])
def test_what_refuses_is_told_from_what_is_away(status: int) -> None:
    with scripted(status, b'{"error_code":1,"message":"no"}') as script:
        client = RegistryClient(RegistryAccess(script.url))
        with pytest.raises(RegistryRefusedError, match=f"answers {status} for schema 1: no"):
            client.schema(1)


def test_a_reference_that_is_gone_makes_a_schema_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As one that is gone itself: the registry is asked again, and then its messages are bad."""

    class Client:
        def get_schema(self, number: int) -> object:
            from confluent_kafka.schema_registry import Schema, SchemaReference

            return Schema(RECORD, "AVRO", [SchemaReference("x", "gone", 3)])

        def get_version(self, subject: str, version: int, deleted: bool) -> object:
            from confluent_kafka.schema_registry import SchemaRegistryError

            raise SchemaRegistryError(404, 40402, "no version")

    client = RegistryClient(RegistryAccess("http://127.0.0.1:1"))
    client._client = Client()
    assert client.schema(1) is None
    assert "schema 1 of http://127.0.0.1:1 refers to gone version 3, which is not" in caplog.text


class Counting:
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.known: dict[int, RegisteredSchema] = {}

    def schema(self, number: int) -> RegisteredSchema | None:
        self.asked.append(number)
        return self.known.get(number)


def test_what_is_found_is_kept_and_what_is_not_is_asked_for_again() -> None:
    source = Counting()
    source.known[7] = RegisteredSchema("AVRO", RECORD)
    provide("http://kept", source)
    assert registry_of("http://kept").schema(7) == source.known[7]
    other = Counting()
    provide("http://kept", other)
    assert registry_of("http://kept").schema(7) == source.known[7]
    assert (source.asked, other.asked) == ([7], [])
    assert registry_of("http://kept").schema(8) is None
    other.known[8] = RegisteredSchema("AVRO", RECORD)
    assert registry_of("http://kept").schema(8) == other.known[8]


def test_a_registry_that_nobody_provided() -> None:
    with pytest.raises(TerminalError, match="http://nobody"):
        registries.registry_of("http://nobody")


class Garbage:
    """Knows a few schemas of the many that messages name."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def schema(self, number: int) -> RegisteredSchema | None:
        self.asked.append(number)
        return RegisteredSchema("AVRO", RECORD) if number in (7, 8, 9) else None


def avro(url: str, **changes: Any) -> TypedDecoder:
    facts = table(Column("id", "UInt8"), options=(("registry", url),), **changes)
    return TypedDecoder(facts, AvroConfluent(facts))


def message(number: int) -> bytes:
    return struct.pack(">BI", 0, number) + b"\x0a"


def test_an_unknown_schema_refuses_all_messages_and_says_what_is_known() -> None:
    provide("http://garbage", Garbage())
    values = [message(n) for n in (8, 5, 5, 4, 7, 5)] + [b"no header"]
    with MessageBuffer(BYTES) as buffer, pytest.raises(UnknownSchemasError) as refused:
        avro("http://garbage").decode(fill(buffer, values), alone("orders", 3))
    assert refused.value.found == UnknownSchemas((5, 4), (7, 8), 4, 7)
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.found, str(again)) == (refused.value.found, "the registry does not know schema 5")


def test_the_text_says_which_schemas_there_are_whatever_the_registry_says() -> None:
    """9 is known and not listed, 4 is neither; of what is listed, 3 is not known any more."""
    garbage = Garbage()
    provide("http://listed", garbage)
    listed = avro("http://listed", schemas=(3, 7, 8))
    with MessageBuffer(BYTES) as buffer:
        decoded = listed.decode(
            fill(buffer, [message(n) for n in (7, 9, 4, 8)]), alone("orders", 3)
        )
    assert [(one.index, one.reason) for one in decoded.bad] == [
        (1, "unknown-schema"),
        (2, "unknown-schema"),
    ]
    assert rows(decoded) == [[5], [5]] and garbage.asked == [7, 8]
    with MessageBuffer(BYTES) as buffer, pytest.raises(UnknownSchemasError, match="schema 3"):
        listed.decode(fill(buffer, [message(n) for n in (7, 3, 4)]), alone("orders", 3))


def test_not_every_number_that_garbage_names_is_asked_for() -> None:
    garbage = Garbage()
    provide("http://much", garbage)
    values = [message(1000 + n) for n in range(2 * registries.ASKED_MAX)] + [message(8)] * 2
    with MessageBuffer(BYTES) as buffer, pytest.raises(UnknownSchemasError) as refused:
        avro("http://much").decode(fill(buffer, values), alone("orders", 3))
    found = refused.value.found
    assert len(found.numbers) == registries.ASKED_MAX and found.known == (8,)
    assert (found.messages, found.of) == (2 * registries.ASKED_MAX, 2 * registries.ASKED_MAX + 2)
    assert len(garbage.asked) == registries.ASKED_MAX + 1


@pytest.mark.parametrize(
    "body", [b"<html>not here</html>", b'{"error_code":404,"message":"HTTP 404 Not Found"}', b"{}"]
)
def test_a_404_that_is_not_in_a_registrys_words_says_nothing_about_a_schema(body: bytes) -> None:
    with scripted(404, body) as script, pytest.raises(TransientError, match="404"):
        RegistryClient(RegistryAccess(script.url)).schema(1)
