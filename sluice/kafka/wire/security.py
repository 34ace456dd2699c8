"""TLS and SASL from librdkafka's properties, as far as this reader knows them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.core.errors import ConfigurationError, TerminalError
from sluice.core.kafka_identity import login_refusals, wire_mechanism
from sluice.kafka.errors import KafkaRefusedError, KafkaUnavailableError
from sluice.kafka.tokens import TokenSource, token_source

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: A server that asks for more rounds than this keeps a worker busy for seconds.
_ROUNDS_MAX = 1_000_000
_WHY_MAX = 200

#: Sends a token, and returns the server's.
Exchange = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Security:
    """How to open a connection.

    :param tls: None for plain text.
    :param mechanism: of SASL, "" without it.
    :param tokens: where those of OAUTHBEARER come from.
    """

    tls: ssl.SSLContext | None
    mechanism: str
    user: str
    password: str
    tokens: TokenSource | None = None


def read_security(properties: Mapping[str, str]) -> Security:
    """What the properties ask for.

    :raises ConfigurationError: they ask for something that only librdkafka does.
    """
    for name, reason in login_refusals(properties):
        raise ConfigurationError(f'kafka."{name}": {reason}')
    protocol = properties.get("security.protocol", "plaintext").lower()
    mechanism = wire_mechanism(properties) if protocol.startswith("sasl_") else ""
    tokens = token_source(properties)
    return Security(
        tls=_tls(properties) if protocol.endswith("ssl") else None,
        mechanism=mechanism if tokens is None else "OAUTHBEARER",
        user=properties.get("sasl.username", ""),
        password=properties.get("sasl.password", ""),
        tokens=tokens,
    )


def without_login(properties: Mapping[str, str]) -> Security:
    """For what a broker answers to anybody: the versions that it speaks.

    :raises ConfigurationError: certificates that cannot be read.
    """
    protocol = properties.get("security.protocol", "plaintext").lower()
    return Security(_tls(properties) if protocol.endswith("ssl") else None, "", "", "")


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    authority = properties.get("ssl.ca.location", "")
    is_folder = os.path.isdir(authority)  # noqa: PTH112
    try:
        context = ssl.create_default_context(
            cafile=None if is_folder or not authority else authority,
            capath=authority if is_folder else None,
        )
        if "ssl.certificate.location" in properties:
            context.load_cert_chain(
                properties["ssl.certificate.location"],
                properties.get("ssl.key.location"),
                properties.get("ssl.key.password", ""),
            )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the certificates of the connector: {error}") from None
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def authenticate(security: Security, exchange: Exchange) -> None:
    """Prove who we are, by the mechanism that the server has agreed to.

    :raises KafkaRefusedError: the server cannot prove that it knows the password.
    :raises SluiceError: there is no token, or the server does not take it.
    """
    if security.tokens is not None:
        _show_token(security.tokens, exchange)
        return
    if security.mechanism == "PLAIN":
        exchange(b"\0" + security.user.encode() + b"\0" + security.password.encode())
        return
    _scram(security, exchange, base64.b64encode(os.urandom(24)).decode())


def _show_token(tokens: TokenSource, exchange: Exchange) -> None:
    """RFC 7628. A server that refuses says why, and wants to hear that this was read."""
    token = tokens.token()
    pairs = (("auth", f"Bearer {token.value}"), *tokens.identity.extensions)
    shown = "".join(f"{name}={value}\x01" for name, value in pairs)
    try:
        why = exchange(f"n,,\x01{shown}\x01".encode())
        if why:
            exchange(b"\x01")
            raise KafkaRefusedError(f"the server does not take the token: {why[:_WHY_MAX]!r}")
    except TerminalError as error:
        if tokens.refused(token):
            # The keys of who signed it may have changed since.
            raise KafkaUnavailableError(f"{error.message}; the next one is a new one") from None
        raise


def _scram(security: Security, exchange: Exchange, nonce: str) -> None:
    """RFC 5802, without channel binding."""
    name = _HASHES[security.mechanism]

    def keyed(key: bytes, text: str) -> bytes:
        return hmac.digest(key, text.encode(), name)

    user = security.user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={user},r={nonce}"
    challenge = exchange(f"n,,{first}".encode()).decode()
    try:
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        server_nonce = fields["r"]
    except (KeyError, ValueError):
        raise KafkaRefusedError(f"{security.mechanism}: the server sent no challenge") from None
    if not server_nonce.startswith(nonce) or not 0 < rounds <= _ROUNDS_MAX:
        raise KafkaRefusedError(f"{security.mechanism}: the server's challenge is wrong")
    last = f"c=biws,r={server_nonce}"
    signed = f"{first},{challenge},{last}"
    salted = hashlib.pbkdf2_hmac(name, security.password.encode(), salt, rounds)
    client_key = keyed(salted, "Client Key")
    signature = keyed(hashlib.new(name, client_key).digest(), signed)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = exchange(f"{last},p={base64.b64encode(proof).decode()}".encode())
    expected = b"v=" + base64.b64encode(keyed(keyed(salted, "Server Key"), signed))
    if not hmac.compare_digest(answer.split(b",")[0], expected):
        raise KafkaRefusedError(f"{security.mechanism}: the server does not know the password")
