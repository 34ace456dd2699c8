"""Tables of free properties, those of librdkafka and those of Spark; and which of them would break
the protocol, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import PlainValidator, ValidationInfo

from sluice.config.findings import RefusedError
from sluice.config.interpolation import BROKEN, ResolvedText
from sluice.config.secret import MASK, Secret, is_secret_name
from sluice.config.section import Conflict, refuse_all
from sluice.config.values import a_source, a_table, shown


def _a_property(value: object) -> str:
    """A property of Kafka or Spark, as the text that those take. Never quoted: may be secret."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise RefusedError(f"must be a string, a number or true or false, not {shown(value)}")


def _flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names, whether the user quoted them or not: {a: {b: 1}} is a.b = 1."""
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and not _is_source(prefix + key, value):
            pairs += _flatten(value, f"{prefix}{key}.")
        else:
            pairs.append((prefix + key, value))
    return pairs


def _is_source(name: str, value: dict[str, Any]) -> bool:
    """Whether a table says where a secret is read from. Names of Spark may end so, too."""
    if name.startswith("spark"):
        return isinstance(value.get("command"), list)
    return bool(value) and value.keys() <= {"file", "command"}


def properties_but(refuse: Callable[[str, str], str | None]) -> PlainValidator:
    """Free properties. What is named like a secret or comes from a variable is masked.

    :param refuse: why a property must not be set, by its name and value; None if it may.
    """

    def read(written: object, info: ValidationInfo) -> dict[str, str | Secret]:
        properties: dict[str, str | Secret] = {}
        refused: list[Conflict] = []
        for name, value in _flatten(a_table(written)):
            if value is BROKEN:
                continue
            source = None
            try:
                if isinstance(value, dict):
                    source = a_source(value, name, info)
                text = MASK if source else _a_property(value)
            except RefusedError as refusal:
                refused.append(((name,), str(refusal)))
                continue
            reason = "is named twice" if name in properties else refuse(name, text)
            if reason is not None:
                refused.append(((name,), reason))
            is_hidden = isinstance(value, ResolvedText) and value.is_from_environment
            is_hidden = is_hidden or source is not None or is_secret_name(name)
            properties[name] = Secret(source or text) if is_hidden else text
        refuse_all(refused)
        return properties

    return PlainValidator(read)


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
