"""Tables of free properties: those of librdkafka, and those of Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import PlainValidator

from sluice.config.findings import RefusedError
from sluice.config.interpolation import BROKEN, ResolvedText
from sluice.config.secret import Secret, is_secret_name
from sluice.config.section import Conflict, refuse_all
from sluice.config.values import a_table, shown


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
        if isinstance(value, dict):
            pairs += _flatten(value, f"{prefix}{key}.")
        else:
            pairs.append((prefix + key, value))
    return pairs


def properties_but(refuse: Callable[[str, str], str | None]) -> PlainValidator:
    """Free properties. What is named like a secret or comes from a variable is masked.

    :param refuse: why a property must not be set, by its name and value; None if it may.
    """

    def read(written: object) -> dict[str, str | Secret]:
        properties: dict[str, str | Secret] = {}
        refused: list[Conflict] = []
        for name, value in _flatten(a_table(written)):
            if value is BROKEN:
                continue
            try:
                text = _a_property(value)
            except RefusedError as refusal:
                refused.append(((name,), str(refusal)))
                continue
            reason = "is named twice" if name in properties else refuse(name, text)
            if reason is not None:
                refused.append(((name,), reason))
            is_hidden = isinstance(value, ResolvedText) and value.is_from_environment
            properties[name] = Secret(text) if is_hidden or is_secret_name(name) else text
        refuse_all(refused)
        return properties

    return PlainValidator(read)
