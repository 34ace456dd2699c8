"""Properties of Kafka and Spark that would break the protocol, or that the reader of the
connector does not know, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_GROUP = "Sluice names the group sluice.<pipeline>.<connector>"
_OWNER = "Sluice names the owner of each connector's partitions; fencing depends on it"
_POSITION = "Sluice keeps its position in its own transactions"
_MEMBERSHIP = "Sluice assigns partitions itself and has no members in the group"
_DURABLE = "Sluice writes in transactions, which fix this"
_BROKERS = 'use the key "brokers"'

#: librdkafka properties that only Sluice sets.
REFUSED_KAFKA_PROPERTIES = {
    "bootstrap.servers": _BROKERS,
    "metadata.broker.list": _BROKERS,
    "group.id": _GROUP,
    "group.instance.id": _MEMBERSHIP,
    "group.protocol": _MEMBERSHIP,
    "transactional.id": _OWNER,
    "transaction.timeout.ms": "Sluice fits it to its own time limits",
    "isolation.level": "Sluice reads committed messages only",
    "auto.offset.reset": 'Sluice never skips offsets that vanished; see the key "start"',
    "enable.auto.commit": _POSITION,
    "auto.commit.enable": _POSITION,
    "auto.commit.interval.ms": _POSITION,
    "enable.auto.offset.store": _POSITION,
    "enable.partition.eof": "Sluice knows the end of a range by position",
    "enable.idempotence": _DURABLE,
    "acks": _DURABLE,
    "request.required.acks": _DURABLE,
    "max.in.flight": _DURABLE,
    "max.in.flight.requests.per.connection": _DURABLE,
    "retries": _DURABLE,
    "message.send.max.retries": _DURABLE,
    "allow.auto.create.topics": "a mistyped topic must not come into being",
}


def refuse_kafka_property(name: str) -> str | None:
    """Why this property of librdkafka is refused, None if it is allowed."""
    reason = REFUSED_KAFKA_PROPERTIES.get(name.strip())
    return f"is not yours to set: {reason}" if reason else None


def refuse_spark_property(name: str, value: str) -> str | None:
    """Why this property of Spark is refused, None if it is allowed."""
    if not name.startswith("spark."):
        return 'is not a property of Spark; their names begin with "spark."'
    if name == "spark.master":
        return 'use the key "master" of [spark]'
    if name == "spark.speculation" and value.strip().lower() != "false":
        return "must stay off: a second copy of a task would insert the same range at once"
    return None


#: What the wire reader knows of TLS and SASL. Other properties tune librdkafka; they concern
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


def wire_mechanism(properties: Mapping[str, str]) -> str:
    """SASL's mechanism; librdkafka's own default is GSSAPI."""
    given = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
    return given.upper()


def wire_refusals(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and reason of what `reader = "wire"` cannot do."""
    for name, value in properties.items():
        known = _WIRE_VALUES.get(name)
        if known is not None and value.lower() not in known:
            yield name, f'the reader "wire" knows {", ".join(known)}, not this; {_OTHER_READER}'
        elif name not in WIRE_SECURITY_PROPERTIES and _is_security(name):
            yield name, f'is not known to the reader "wire"; {_OTHER_READER}'
    is_sasl = properties.get("security.protocol", "").lower().startswith("sasl")
    if is_sasl and not {"sasl.mechanism", "sasl.mechanisms"} & set(properties):
        yield "sasl.mechanism", f'is missing: the reader "wire" has no GSSAPI; {_OTHER_READER}'


def _is_security(name: str) -> bool:
    return any(word in _SECURITY_WORDS for word in name.split("."))
