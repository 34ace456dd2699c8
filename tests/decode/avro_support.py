"""Avro messages, schemas and decoders for tests."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro

from sluice.core.load_spec import Column
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from sluice.decode.messages.framing import BYTES
from sluice.decode.schema.avro import AvroConfluent
from sluice.decode.schema.registry import provide
from sluice.decode.typed.decoder import TypedDecoder
from tests.decode.support import fill, table

URL = "http://avro.test"


class Schemas:
    """A registry in memory."""

    def __init__(self) -> None:
        self.texts: dict[int, RegisteredSchema] = {}

    def schema(self, number: int) -> RegisteredSchema | None:
        return self.texts.get(number)

    def add(self, schema: Any, *references: Any) -> int:
        texts = tuple((f"r{place}", json.dumps(one)) for place, one in enumerate(references))
        number = 1000 + len(self.texts)
        self.texts[number] = RegisteredSchema("AVRO", json.dumps(schema), texts)
        return number


SCHEMAS = Schemas()
provide(URL, SCHEMAS)


def record(*fields: tuple[str, Any], name: str = "shop.Order") -> dict[str, Any]:
    parts = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": parts}


def body(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(number: int, content: bytes) -> bytes:
    return struct.pack(">BI", 0, number) + content


def confluent(*columns: Column, **changes: Any) -> TypedDecoder:
    text = table(*columns, format="AvroConfluent", options=(("registry", URL),), **changes)
    return TypedDecoder(text, AvroConfluent(text))


def decode(decoder: TypedDecoder, values: list[bytes]) -> Decoded:
    with MessageBuffer(BYTES) as buffer:
        return decoder.decode(fill(buffer, values), alone("orders", 3))
