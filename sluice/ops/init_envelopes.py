"""Rows that stand inside of an envelope, of Debezium or of Kafka Connect; pure.

What `envelope` of a table entry takes out of a message, a sample's messages are without here, so
that columns are made of the row's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sluice.decode.engine.session import declared
from sluice.decode.engine.types import TypeNode, parse_type
from sluice.ops.init_formats import SHARE, Recognised

#: What Debezium says of an event, as columns ask for it; tells deletions.
OPERATION = "__op"

_EVENT = frozenset(("before", "after", "op"))
_CONNECT = frozenset(("schema", "payload"))


def opened(found: Recognised) -> Recognised:
    """The same without the envelope that most of the objects are, if they are any; what is in none
    is unreadable."""
    if found.rows != "one" or not found.records:
        return found
    payloads = [_payload(record) for record in found.records]
    events = [each for each in payloads if each is not None and each.keys() >= _EVENT]
    rows = [row for event in events if (row := _row(event)) is not None]
    if rows and len(events) >= SHARE * len(payloads):
        unreadable = found.unreadable + len(payloads) - len(events)
        return replace(found, envelope="debezium", records=rows, unreadable=unreadable)
    wrapped = sum(record.keys() == _CONNECT for record in found.records)
    if wrapped >= SHARE * len(payloads):
        inside = [payload for payload in payloads if payload is not None]
        unreadable = found.unreadable + len(payloads) - len(inside)
        return replace(found, envelope="connect", records=inside, unreadable=unreadable)
    return found


def opened_types(types: Mapping[str, str]) -> dict[str, str] | None:
    """Types of an event's row, by what its schema says of the fields of an event; None: it is no
    event. A field that a deletion does not tell may be null."""
    if not types.keys() >= _EVENT:
        return None
    row = parse_type(types["after"]).bare()
    if row.name != "Tuple" or not all(name for name, _ in row.elements()):
        return None
    return {name: nullable(kind) for name, kind in row.elements()} | {OPERATION: "String"}


def _payload(record: dict[str, Any]) -> dict[str, Any] | None:
    """What is in Connect's envelope, or the object where there is none; None: nothing."""
    if record.keys() != _CONNECT:
        return record
    payload = record["payload"]
    return payload if isinstance(payload, dict) else None


def _row(event: dict[str, Any]) -> dict[str, Any] | None:
    """As the decoder takes it: of a deletion what was there before, without what is null."""
    row = event["after"]
    if row is None and isinstance(event["before"], dict):
        row = {name: value for name, value in event["before"].items() if value is not None}
    return {**row, OPERATION: event["op"]} if isinstance(row, dict) else None


def nullable(kind: TypeNode) -> str:
    """The type with null, if there can be one; of a record its elements."""
    if kind.name == "Tuple":
        return f"Tuple({declared((name, nullable(part)) for name, part in kind.elements())})"
    takes_none = kind.name in ("Nullable", "LowCardinality", "Array", "Map", "Variant")
    return kind.text if takes_none else f"Nullable({kind.text})"
