"""The choice of the reader, and what the reader "native" refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.support import changed, findings_of, load_text

SASL = '"security.protocol" = "SASL_SSL", '
CLIENT = (
    f'{SASL}"sasl.mechanism" = "OAUTHBEARER", "sasl.oauthbearer.method" = "oidc", '
    '"sasl.oauthbearer.client.id" = "ann", "sasl.oauthbearer.client.secret" = "x", '
    '"sasl.oauthbearer.token.endpoint.url" = "https://identity/token"'
)
MSK = f'{SASL}"sasl.mechanism" = "AWS_MSK_IAM"'


def with_reader(kafka: str, reader: str = "native") -> str:
    return changed("[batch]", f'reader = "{reader}"\nkafka = {{ {kafka} }}\n[batch]')


@pytest.mark.parametrize(
    ("kafka", "reader"),
    [
        ("", "native"),
        ('"security.protocol" = "SSL", "ssl.ca.location" = "/x"', "native"),
        ('"security.protocol" = "SASL_SSL", "sasl.mechanism" = "OAUTHBEARER"', "librdkafka"),
        (CLIENT, "native"),
        (f'{CLIENT}, "https.ca.location" = "/x"', "native"),
        (f'{MSK}, "sasl.oauthbearer.config" = "region=eu-west-1"', "native"),
        # How librdkafka gets tokens by itself.
        (f'{CLIENT}, "sasl.oauthbearer.grant.type" = "jwt-bearer"', "librdkafka"),
        ('"security.protocol" = "SASL_PLAINTEXT"', "librdkafka"),
        ('"ssl.keystore.location" = "x"', "librdkafka"),
        ('"security.protocol" = "SSL", "ssl.ca.location" = "probe"', "librdkafka"),
        ('"client.rack" = "a"', "librdkafka"),
        ('"client.rack" = ""', "native"),
    ],
)
def test_the_default_is_native_where_it_can_do_what_is_asked_for(
    tmp_path: Path, kafka: str, reader: str
) -> None:
    written = changed("[batch]", f"kafka = {{ {kafka} }}\n[batch]")
    (connector,) = load_text(tmp_path, written).connectors
    assert (connector.reader, connector.known_reader()) == ("auto", reader)
    (connector,) = load_text(tmp_path, with_reader(kafka, "librdkafka")).connectors
    assert connector.known_reader() == "librdkafka"


def test_wire_with_what_it_knows(tmp_path: Path) -> None:
    kafka = (
        '"security.protocol" = "SASL_SSL", "sasl.mechanisms" = "SCRAM-SHA-512",'
        ' "sasl.username" = "ann", "sasl.password" = "secret",'
        ' "ssl.endpoint.identification.algorithm" = "https", "socket.keepalive.enable" = true,'
        ' "client.rack" = "a"'
    )
    assert load_text(tmp_path, with_reader(kafka)).connectors[0].known_reader() == "native"


@pytest.mark.parametrize(
    ("kafka", "name", "words"),
    [
        ('"sasl.mechanism" = "GSSAPI"', "sasl.mechanism", "knows plain, scram"),
        ('"security.protocol" = "kerberos"', "security.protocol", "knows plaintext"),
        ('"security.protocol" = "sasl_ssl"', "sasl.mechanism", "has no GSSAPI"),
        ('"ssl.keystore.location" = "x"', "ssl.keystore.location", "is not known"),
        ('"enable.sasl.oauthbearer.unsecure.jwt" = true', "oauthbearer", "is not known"),
    ],
)
def test_what_only_librdkafka_does(tmp_path: Path, kafka: str, name: str, words: str) -> None:
    (finding,) = findings_of(tmp_path, with_reader(kafka))
    assert finding.startswith("sluice.toml: connector[dc1].kafka.")
    assert name in finding and words in finding
    assert 'set reader = "librdkafka"' in finding
    load_text(tmp_path, with_reader(kafka, "librdkafka"))


def test_an_unknown_reader(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, with_reader("", "java"))
    assert finding.startswith("sluice.toml: connector[dc1].reader: ")
    assert '"librdkafka"' in finding and '"native"' in finding


@pytest.mark.parametrize(
    ("kafka", "name", "words"),
    [
        (CLIENT.replace("SASL_SSL", "SSL"), "security.protocol", 'must be "SASL_SSL"'),
        (CLIENT.replace("https://", ""), "token.endpoint.url", "must begin with https://"),
        (CLIENT.replace("client.secret", "scope"), "client.secret", "is missing"),
        (CLIENT.replace("client.id", "scope"), "client.id", "is missing"),
        (f'{CLIENT}, "sasl.oauthbearer.extensions" = "a"', "extensions", "name=value"),
        (MSK, "sasl.oauthbearer.config", "the AWS region"),
        (f'{MSK}, "sasl.oauthbearer.config" = "eu-west-1"', "sasl.oauthbearer.config", "region="),
    ],
)
def test_what_is_missing_to_get_tokens(tmp_path: Path, kafka: str, name: str, words: str) -> None:
    (finding,) = findings_of(tmp_path, with_reader(kafka, "auto"))
    assert finding.startswith("sluice.toml: connector[dc1].kafka.")
    assert name in finding and words in finding
