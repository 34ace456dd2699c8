"""Order events: what the demonstration and the benchmark load, in JSON and in other formats.

Nine fields, about 193 bytes of JSON; a `Shape` asks for more. The values come from seeded random
numbers, so that a run can be repeated and nothing compresses better than real events would. Other
formats are for the benchmark: the engine writes what it will read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from tempfile import NamedTemporaryFile

import numpy as np

from sluice.core.load_spec import Delivery
from sluice.decode.engine.native import read_varint
from sluice.decode.engine.session import identifier, literal, run, settings_clause
from sluice.decode.messages.memory import memory_file
from sluice.producer import SQLBatchRequest

#: Where orders go. All types exist since ClickHouse 18.16.
COLUMNS = (
    "order_id UInt64",
    "user_id UInt32",
    "ordered_at DateTime",
    "amount Float64",
    "country String",
    "status String",
    "sku String",
    "quantity UInt16",
    "note String",
)
#: Of types that every server has.
LINEAGE = (
    "_topic String",
    "_partition UInt32",
    "_offset UInt64",
    "_row UInt32",
    "_source UInt64",
)

#: Types of the columns beyond these, in turn.
_FURTHER_TYPES = ("UInt32", "Float64", "String", "Int64", "DateTime")

#: Enough for every repeat that may come, however late (R10).
WINDOW_BLOCKS = 10_000

_COUNTRIES = ("DE", "US", "FR", "GB", "PL", "NL", "ES", "IT", "JP", "BR")
_STATUSES = ("placed", "paid", "packed", "shipped", "delivered", "returned")
_WORDS = (
    *("please", "leave", "parcel", "at", "the", "front", "door", "gift", "wrap", "ring", "twice"),
    *("call", "before", "delivery", "fragile", "handle", "with", "care", "urgent", "reorder"),
    *("sample", "invoice", "attached", "second", "address", "office", "hours", "only", "do"),
    *("not", "bend", "keep", "dry", "customer", "pickup", "express", "morning", "neighbour"),
)
_NOTES = 16_384
_NOTE_BYTES_MIN = 31
_CHUNK = 10_000
_CHUNK_BYTES = 16 * 1024 * 1024
_SAMPLE_EVENTS = 10_000
#: Texts of the further columns that are made once, then drawn from.
_FURTHER = 2_048
#: How much longer the text is that padding is cut from than the padding.
_PADDING_BYTES = 1024 * 1024
_FIRST_MOMENT = np.datetime64("2026-03-01T00:00:00")


@dataclass(frozen=True, slots=True)
class Shape:
    """How wide and how long the events are.

    :param columns: fields of an event, at least the nine of COLUMNS.
    :param message_bytes: of an average event; None for what the columns take by themselves.
        A longer event has a longer `note`.
    """

    columns: int = len(COLUMNS)
    message_bytes: int | None = None

    @property
    def definitions(self) -> tuple[str, ...]:
        """The table's columns, those of the lineage left out."""
        return COLUMNS + tuple(
            f"{_further_name(number)} {_FURTHER_TYPES[number % len(_FURTHER_TYPES)]}"
            for number in range(self.columns - len(COLUMNS))
        )

    @property
    def padding_bytes(self) -> int:
        """What each event's note is longer by; negative if the columns alone take more."""
        if self.message_bytes is None:
            return 0
        return self.message_bytes - natural_bytes(self.columns)

    @property
    def event_bytes(self) -> int:
        """Bytes of an average event."""
        return self.message_bytes or natural_bytes(self.columns)


@cache
def natural_bytes(columns: int) -> int:
    """Bytes of an average event with so many columns and no padding."""
    events = [e for chunk in Orders(1, Shape(columns)).take(_SAMPLE_EVENTS) for e in chunk]
    return round(sum(map(len, events)) / len(events))


@dataclass(frozen=True, slots=True)
class TableKind:
    """A table for orders.

    :param delivery: that it is for: only "block" needs a deduplication window, and only
        "replacing" a table that keeps one of equal rows.
    :param shape: of the events; today's nine columns if left out.
    :param source: the type of `_source`; a text tells who loaded a row, a number only whether.
    :param window: how many blocks it remembers, where it does.
    """

    delivery: Delivery = "block"
    shape: Shape = field(default_factory=Shape)
    source: str = "UInt64"
    window: int = WINDOW_BLOCKS

    def statement(self, target: str, replica: str = "") -> str:
        """CREATE TABLE.

        :param replica: path in ZooKeeper of a ReplicatedMergeTree of one replica; "" for a plain
            one.
        """
        settings = ""
        if self.delivery == "block" and not replica:
            settings = f" SETTINGS non_replicated_deduplication_window = {self.window}"
        columns = (*self.shape.definitions, *LINEAGE[:-1], f"_source {self.source}")
        kind, key = "MergeTree", ["user_id", "ordered_at"]
        if self.delivery == "replacing":
            kind = f"Replacing{kind}"
            key += [column.partition(" ")[0] for column in LINEAGE]
        engine = f"Replicated{kind}('{replica}', 'bench')" if replica else kind
        return (
            f"CREATE TABLE {target} ({', '.join(columns)}) "
            f"ENGINE = {engine} ORDER BY ({', '.join(key)}){settings}"
        )


class Orders:
    """A stream of valid order events; `order_id` counts from 0."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.shape = shape or Shape()
        self._random = np.random.default_rng(seed)
        self._notes = [self._note() for _ in range(_NOTES)]
        self._next_id = 0
        further = self.shape.columns - len(COLUMNS)
        self._further = [self._fields(further) for _ in range(_FURTHER)] if further > 0 else []
        self._padding_bytes = max(0, self.shape.padding_bytes)
        self._padding = self._text(self._padding_bytes + _PADDING_BYTES)

    def take(self, count: int) -> Iterator[list[bytes]]:
        """The next `count` events, in chunks of at most 10,000 and about 16 MiB."""
        chunk_max = _CHUNK
        if self._padding_bytes:
            chunk_max = max(1, min(_CHUNK, _CHUNK_BYTES // self._padding_bytes))
        while count > 0:
            chunk = min(count, chunk_max)
            yield self._events(chunk)
            count -= chunk

    def _events(self, count: int) -> list[bytes]:
        numbers = self._random
        first = self._next_id
        self._next_id += count
        users = numbers.integers(1, 2_000_000, count).tolist()
        cents = numbers.lognormal(8.3, 0.9, count).astype(np.int64).tolist()
        moments = _FIRST_MOMENT + (first + np.arange(count)) // 50
        countries = numbers.integers(0, len(_COUNTRIES), count).tolist()
        statuses = numbers.integers(0, len(_STATUSES), count).tolist()
        articles = numbers.integers(0, 100_000, count).tolist()
        quantities = numbers.geometric(0.4, count).tolist()
        tails = self._tails(numbers.integers(0, _NOTES, count).tolist())
        return [
            (
                f'{{"order_id":{order_id},"user_id":{user},"ordered_at":"{at[:10]} {at[11:]}",'
                f'"amount":{cent / 100},"country":"{_COUNTRIES[country]}",'
                f'"status":"{_STATUSES[status]}","sku":"SKU-{article:06d}",'
                f'"quantity":{quantity},{tail}'
            ).encode()
            for order_id, user, at, cent, country, status, article, quantity, tail in zip(
                range(first, first + count),
                users,
                np.datetime_as_string(moments).tolist(),
                cents,
                countries,
                statuses,
                articles,
                quantities,
                tails,
                strict=True,
            )
        ]

    def _tails(self, notes: list[int]) -> list[str]:
        """The rest of each event: further columns, the note, padding."""
        heads, pads = [""] * len(notes), [""] * len(notes)
        if self._further:
            drawn = self._random.integers(0, _FURTHER, len(notes)).tolist()
            heads = [self._further[index] for index in drawn]
        if size := self._padding_bytes:
            begins = self._random.integers(0, _PADDING_BYTES, len(notes)).tolist()
            pads = [self._padding[begin : begin + size] for begin in begins]
        return [
            f'{head}"note":"{self._notes[note]}{pad}"}}'
            for head, note, pad in zip(heads, notes, pads, strict=True)
        ]

    def _fields(self, count: int) -> str:
        """Values of the further columns, each of its type."""
        dice = self._random
        fields = []
        for number in range(count):
            value: object
            match _FURTHER_TYPES[number % len(_FURTHER_TYPES)]:
                case "UInt32":
                    value = int(dice.integers(0, 1 << 32))
                case "Float64":
                    value = int(dice.integers(0, 10_000_000)) / 1000
                case "String":
                    word, other = dice.integers(0, len(_WORDS), 2).tolist()
                    value = f'"{_WORDS[word]} {_WORDS[other]}"'
                case "Int64":
                    value = int(dice.integers(-(1 << 40), 1 << 40))
                case _:
                    moment = _FIRST_MOMENT + int(dice.integers(0, 10_000_000))
                    value = f'"{str(moment).replace("T", " ")}"'
            fields.append(f'"{_further_name(number)}":{value},')
        return "".join(fields)

    def _text(self, size: int) -> str:
        """Words in no order; none without padding, so that nothing else is drawn."""
        if not self._padding_bytes:
            return ""
        words = self._random.integers(0, len(_WORDS), size // 3 + 1).tolist()
        return " ".join(_WORDS[word] for word in words)[:size]

    def _note(self) -> str:
        words: list[str] = []
        size = 0
        while size < _NOTE_BYTES_MIN:
            words.append(_WORDS[int(self._random.integers(len(_WORDS)))])
            size += len(words[-1]) + 1
        return " ".join(words)


def _further_name(number: int) -> str:
    return f"field_{len(COLUMNS) + number + 1}"


@dataclass(frozen=True, slots=True)
class Defect:
    """A way to break an event.

    :param name: for people.
    :param apply: makes a message that can never become a row out of a good one; None, a
        tombstone, is no error and is skipped.
    """

    name: str
    apply: Callable[[bytes], bytes | None]


TOMBSTONE = Defect("tombstone", lambda event: None)

#: Every kind becomes a dead letter; none may cost its neighbours, or shift a row.
DEFECTS = (
    Defect("half an object", lambda event: event[: len(event) // 2]),
    Defect("text for a number", lambda event: _replaced(event, b'"user_id":', b'"somebody"')),
    Defect("a number out of range", lambda event: _replaced(event, b'"quantity":', b"70000")),
    Defect("a time out of range", lambda event: event.replace(b'_at":"20', b'_at":"22')),
    Defect("null", lambda event: _replaced(event, b'"amount":', b"null")),
    Defect("two objects", lambda event: event + event),
    Defect("an array", lambda event: b"[" + event + b"]"),
    Defect("no JSON", lambda event: b"order " + event[12:20]),
    Defect("nothing", lambda event: b""),
)


def _replaced(event: bytes, key: bytes, value: bytes) -> bytes:
    """The event with another value behind a key that is not the last one."""
    head, _, tail = event.partition(key)
    return head + key + value + tail[tail.index(b",") :]


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
        size, position = read_varint(raw, position)
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
