"""Who Sluice is to a Kafka cluster: tokens (SASL OAUTHBEARER), and what `reader = "native"` knows
of TLS and SASL; by librdkafka's properties. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

#: Amazon's name for its tokens; to brokers they are OAUTHBEARER.
MSK_MECHANISM = "AWS_MSK_IAM"
_PREFIX = "sasl.oauthbearer."
_METHOD, _CONFIG = f"{_PREFIX}method", f"{_PREFIX}config"
_CLIENT_ID, _SECRET = f"{_PREFIX}client.id", f"{_PREFIX}client.secret"
_ENDPOINT, _SCOPE = f"{_PREFIX}token.endpoint.url", f"{_PREFIX}scope"
_EXTENSIONS, _AUTHORITY = f"{_PREFIX}extensions", "https.ca.location"
_MECHANISMS = frozenset({"sasl.mechanism", "sasl.mechanisms"})
#: What says who a client of an identity service is. With others beside them, tokens are
#: librdkafka's own matter.
_OIDC = frozenset(
    {*_MECHANISMS, _METHOD, _CLIENT_ID, _SECRET, _ENDPOINT, _SCOPE, _EXTENSIONS, _AUTHORITY}
)
_MSK = frozenset({*_MECHANISMS, _CONFIG})


@dataclass(frozen=True, slots=True)
class OidcClient:
    """A client of an identity service, which gives it tokens for its id and secret.

    :param authority: a file of certificates to trust; "": those that this machine trusts.
    :param extensions: are shown to brokers beside the token.
    """

    endpoint: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""
    authority: str = ""
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AwsPrincipal:
    """Whoever the AWS credentials of this process say. Amazon MSK takes what they sign."""

    region: str
    extensions: tuple[tuple[str, str], ...] = ()


Identity: TypeAlias = OidcClient | AwsPrincipal


def wire_mechanism(properties: Mapping[str, str]) -> str:
    """SASL's mechanism; librdkafka's own default is GSSAPI."""
    given = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    return given.upper()


def identity_properties(properties: Mapping[str, str]) -> frozenset[str]:
    """Names of the properties that say who Sluice is; none where it gets no tokens itself."""
    mechanism = wire_mechanism(properties)
    if mechanism == MSK_MECHANISM:
        known = _MSK
    elif mechanism == "OAUTHBEARER" and properties.get(_METHOD, "").lower() == "oidc":
        known = _OIDC
        if any(name not in known and "oauthbearer" in name for name in properties):
            return frozenset()
    else:
        return frozenset()
    return known & properties.keys()


def identity_refusals(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and reason of what is missing or wrong where Sluice gets tokens itself."""
    if not identity_properties(properties):
        return
    if not properties.get("security.protocol", "").lower().startswith("sasl_"):
        yield "security.protocol", 'must be "SASL_SSL", or "SASL_PLAINTEXT", to show a token'
    if wire_mechanism(properties) == MSK_MECHANISM:
        if not _region(properties):
            yield _CONFIG, 'must be "region=" and the AWS region of the cluster'
        return
    for name in (_CLIENT_ID, _SECRET, _ENDPOINT):
        if not properties.get(name):
            yield name, "is missing: it is needed to ask for tokens"
    endpoint = properties.get(_ENDPOINT, "")
    if endpoint and not endpoint.startswith(("https://", "http://")):
        yield _ENDPOINT, "must begin with https://, or with http://"
    if any("=" not in pair for pair in _pairs(properties)):
        yield _EXTENSIONS, 'must be like "name=value,other=value"'


def identity_of(properties: Mapping[str, str]) -> Identity | None:
    """Who Sluice is; None where it gets no tokens itself. Ask for refusals first."""
    if not identity_properties(properties):
        return None
    if wire_mechanism(properties) == MSK_MECHANISM:
        return AwsPrincipal(_region(properties))
    pairs = (pair.partition("=") for pair in _pairs(properties))
    return OidcClient(
        properties[_ENDPOINT],
        properties[_CLIENT_ID],
        properties[_SECRET],
        properties.get(_SCOPE, ""),
        properties.get(_AUTHORITY, ""),
        tuple((name.strip(), value.strip()) for name, _, value in pairs),
    )


def _region(properties: Mapping[str, str]) -> str:
    name, _, region = properties.get(_CONFIG, "").strip().partition("=")
    return region.strip() if name.strip() == "region" else ""


def _pairs(properties: Mapping[str, str]) -> list[str]:
    return list(filter(None, properties.get(_EXTENSIONS, "").split(",")))


#: What the native reader knows of TLS and SASL. Other properties tune librdkafka; they concern
#: the clients that it has to the end, and are no matter of this reader.
WIRE_SECURITY_PROPERTIES = frozenset(
    {
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
    }
)
_SECURITY_WORDS = ("ssl", "sasl", "security")
_WIRE_VALUES = {
    "security.protocol": ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
    "ssl.endpoint.identification.algorithm": ("https", "none"),
    "enable.ssl.certificate.verification": ("true", "false"),
    "sasl.mechanism": ("plain", "scram-sha-256", "scram-sha-512"),
    "sasl.mechanisms": ("plain", "scram-sha-256", "scram-sha-512"),
}
_OTHER_READER = 'set reader = "librdkafka" for that'


def login_refusals(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and reason of what `reader = "native"` does not know of TLS and SASL."""
    ours = identity_properties(properties)
    for name, value in properties.items():
        if name in ours:
            continue
        known = _WIRE_VALUES.get(name)
        if known is not None and value.lower() not in known:
            yield name, f'the reader "native" knows {", ".join(known)}, not this; {_OTHER_READER}'
        elif name not in WIRE_SECURITY_PROPERTIES and _is_security(name):
            yield name, f'is not known to the reader "native"; {_OTHER_READER}'
    if properties.get("ssl.ca.location") == "probe":
        yield "ssl.ca.location", f'"probe" is not known to the reader "native"; {_OTHER_READER}'
    is_sasl = properties.get("security.protocol", "").lower().startswith("sasl")
    if is_sasl and not {"sasl.mechanism", "sasl.mechanisms"} & set(properties):
        yield "sasl.mechanism", f'is missing: the reader "native" has no GSSAPI; {_OTHER_READER}'


def _is_security(name: str) -> bool:
    return any(word in _SECURITY_WORDS for word in name.split("."))
