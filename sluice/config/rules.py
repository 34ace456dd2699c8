"""Properties of Kafka and Spark that would break the protocol, with the reason."""

from __future__ import annotations

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
