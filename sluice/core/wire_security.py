"""What `reader = "native"` knows of TLS and SASL, in librdkafka's properties. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.core.kafka_identity import identity_properties

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


def wire_refusals(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and reason of what `reader = "native"` cannot do."""
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
