"""Messages as Kafka Connect's converter of JSON writes them, with their schema.

A kind is a short form of a schema: `"int64"`, `"string?"` (optional), a logical type
(`"Timestamp"`, `"Date"`, `"Time"`, `"Decimal2"`), `["string"]` (an array of), a tuple of the kinds
of a key and a value (a map), or a dictionary of fields (a struct; `"?"` makes it optional).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from tests.decode.support import fill, rows, table

_DATA = "org.apache.kafka.connect.data."
_LOGICAL = {"Timestamp": "int64", "Date": "int32", "Time": "int32"}


def schema_of(kind: Any) -> dict[str, Any]:
    """A schema as the converter writes it."""
    if isinstance(kind, list):
        return {"type": "array", "items": schema_of(kind[0]), "optional": False}
    if isinstance(kind, tuple):
        of_key, of_value = map(schema_of, kind)
        return {"type": "map", "keys": of_key, "values": of_value, "optional": False}
    if isinstance(kind, dict):
        fields = [{**schema_of(one), "field": name} for name, one in kind.items() if name != "?"]
        return {"type": "struct", "fields": fields, "optional": "?" in kind}
    name, is_optional = kind.removesuffix("?"), kind.endswith("?")
    if name.startswith("Decimal"):
        parameters = {"scale": name.removeprefix("Decimal")}
        logical = {"name": f"{_DATA}Decimal", "version": 1, "parameters": parameters}
        return {"type": "bytes", "optional": is_optional, **logical}
    if name in _LOGICAL:
        logical = {"name": _DATA + name, "version": 1}
        return {"type": _LOGICAL[name], "optional": is_optional, **logical}
    return {"type": name, "optional": is_optional}


def payload_of(kind: Any, value: Any) -> Any:
    """A value as it stands in the payload: moments as numbers, bytes in base64, maps whose keys
    are no texts as pairs, fields that a struct does not have as null."""
    if value is None:
        return None
    if isinstance(kind, list):
        return [payload_of(kind[0], one) for one in value]
    if isinstance(kind, tuple):
        pairs = [[payload_of(kind[0], key), payload_of(kind[1], one)] for key, one in value.items()]
        return dict(pairs) if kind[0] == "string" else pairs
    if isinstance(kind, dict):
        return {name: payload_of(of, value.get(name)) for name, of in kind.items() if name != "?"}
    if kind.startswith("Decimal"):
        unscaled = int(value.replace(".", ""))
        raw = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
        return base64.b64encode(raw).decode()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def connect_message(kind: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
    """With schemas.enable=true."""
    whole = {"schema": schema_of(kind), "payload": payload_of(kind, value)}
    return json.dumps(whole, ensure_ascii=False).encode()


def connect_table(types: Mapping[str, str], **changes: Any) -> TableSpec:
    columns = tuple(Column(name, kind) for name, kind in types.items())
    return table(*columns, **({"envelope": "connect"} | changes))


def made(text: TableSpec, values: list[bytes]) -> list[Any]:
    """For each message its row, or the reason why it has none and its column."""
    with MessageBuffer(framing_of(text)) as buffer:
        decoded = make_decoder(text).decode(fill(buffer, values), alone("orders", 3))
    for one in decoded.bad:
        # In words: what is wrong, and nothing that only a programmer understands.
        assert len(one.error) > 10 and "Exception" not in one.error, one
    faults = {one.index: f"{one.reason} {one.column}".strip() for one in decoded.bad}
    found = iter(rows(decoded))
    return [faults[i] if i in faults else next(found) for i in range(len(values))]


def shown(value: Any, type_text: str) -> Any:
    """A value of a column as `rows` shows it."""
    return _shown(value, parse_type(type_text))


def _shown(value: Any, node: TypeNode) -> Any:
    node = node.bare()
    if value is None:
        return None
    match node.name:
        case "Array":
            return [_shown(one, node.inner()) for one in value]
        case "Map":
            return {str(key): _shown(one, node.inner(1)) for key, one in value.items()}
        case "Tuple":
            return {name: _shown(value.get(name), part) for name, part in node.elements()}
        case "Int64" | "UInt64" | "Decimal":
            return str(value)
    return value
