"""Orders in other formats than JSON, for the benchmark: the engine writes what it will read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import NamedTemporaryFile

from sluice.decode.engine.session import identifier, literal, run, settings_clause
from sluice.decode.messages.marked import memory_file
from sluice.producer import SQLBatchRequest
from sluice.testbed.local.orders import Orders, Shape

MESSAGE = "Order"
_POOL_EVENTS = 200_000

#: Protocol Buffers' names of the types of an order's columns.
_PROTOBUF_TYPES = {
    "UInt64": "uint64",
    "UInt32": "uint32",
    "UInt16": "uint32",
    "Int64": "int64",
    "DateTime": "uint32",
    "Float64": "double",
    "String": "string",
}

Encode = Callable[[list[bytes]], list[bytes]]


@dataclass(frozen=True, slots=True)
class OrderFormat:
    """How orders are written, and what a table entry says to read them.

    :param encode: events as JSON, and as messages; None: they are messages.
    :param options: of the format, as they stand in [table.options].
    """

    name: str
    encode: Encode | None = None
    options: tuple[tuple[str, str], ...] = ()


def order_format(name: str, shape: Shape) -> OrderFormat:
    """The format of this name, one of `bench_settings.ORDER_FORMATS`."""
    if name == "JSONEachRow":
        return OrderFormat(name)
    if name == "SQLBatchRequest":
        return OrderFormat(name, _enveloped)
    if name == "Protobuf":
        schema = protobuf_schema(shape)
        return OrderFormat(
            name,
            _by_engine(name, shape, schema),
            (("message", MESSAGE), ("schema", schema)),
        )
    return OrderFormat(name, _by_engine(name, shape))


class EncodedOrders(Orders):
    """Orders in a format. Making messages costs ten times what JSON does, so that many of them come
    again and again."""

    def __init__(self, seed: int, shape: Shape, encode: Encode) -> None:
        super().__init__(seed, shape)
        self._encode = encode
        self._pool: list[list[bytes]] = []
        self._taken = 0

    def _events(self, count: int) -> list[bytes]:
        while len(self._pool) * count < _POOL_EVENTS and len(self._pool) <= self._taken:
            self._pool.append(self._encode(super()._events(count)))
        chunk = self._pool[self._taken % len(self._pool)]
        self._taken += 1
        if len(chunk) < count:
            return self._encode(super()._events(count))
        return chunk[:count]


def protobuf_schema(shape: Shape) -> str:
    """A .proto file of orders."""
    lines = ['syntax = "proto3";', f"message {MESSAGE} {{"]
    for number, definition in enumerate(shape.definitions, 1):
        name, kind = definition.split()
        lines.append(f"  {_PROTOBUF_TYPES[kind]} {name} = {number};")
    return "\n".join([*lines, "}"]) + "\n"


def _by_engine(output: str, shape: Shape, schema: str = "") -> Encode:
    columns = ", ".join(identifier(definition.split()[0]) for definition in shape.definitions)
    structure = ", ".join(shape.definitions)

    def encode(events: list[bytes]) -> list[bytes]:
        more: dict[str, object] = {"max_block_size": len(events) + 1}
        # A schema given as text would be written into the current folder, and stay there.
        with memory_file(b"\n".join(events)) as path, NamedTemporaryFile(suffix=".proto") as file:
            if schema:
                file.write(schema.encode())
                file.flush()
                more["format_schema_source"] = "'file'"
                more["format_schema"] = literal(file.name)
                more["format_schema_message_name"] = literal(MESSAGE)
            source = f"file({literal(path)}, JSONEachRow, {literal(structure)})"
            query = f"SELECT formatRow({literal(output)}, {columns}) FROM {source}"
            rows = run(f"{query} {settings_clause(**more)}", "RowBinary")
        messages = _texts(rows.bytes())
        if output in _LINES:
            return [message.removesuffix(b"\n") for message in messages]
        if output == "Protobuf":  # a length stands before each
            return [_texts(message)[0] for message in messages]
        return messages

    return encode


_LINES = ("CSV", "TSV", "JSONCompactEachRow")


def _texts(raw: bytes) -> list[bytes]:
    """Strings as RowBinary writes them, one after the other."""
    found, position = [], 0
    while position < len(raw):
        size = shift = 0
        while True:
            byte = raw[position]
            size |= (byte & 0x7F) << shift
            position += 1
            shift += 7
            if byte < 0x80:
                break
        found.append(raw[position : position + size])
        position += size
    return found


def _enveloped(events: list[bytes]) -> list[bytes]:
    messages = []
    for event in events:
        order = json.loads(event)
        marks = ", ".join("?" * len(order))
        sql = f"INSERT INTO orders ({', '.join(order)}) VALUES ({marks})"
        messages.append(SQLBatchRequest("orders", sql, [tuple(order.values())]).encode())
    return messages
