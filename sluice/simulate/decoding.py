"""Messages, and a decoder that judges them: good, bad, bad for one table, or by its version.

A message says what it is: kind, its own number, and the value that partition keys look at.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sluice.core.ranges import TopicPartition
from sluice.core.text import TableText
from sluice.decode.messages.fault import UNKNOWN_FIELD
from sluice.simulate.clickhouse import Block, Row, clickhouse_partition
from sluice.simulate.kafka import Stored
from sluice.simulate.new_fields import strange_field

#: Values lie in [0, VALUES).
VALUES = 6


@dataclass(frozen=True, slots=True)
class Judged:
    """What a decoder makes of a message for one table: its value, or None if it is bad."""

    number: int
    value: int | None


def judge(value: bytes, decoder: int, is_partitioned: bool) -> Judged:
    """What the decoder of this version makes of a message.

    Kinds: g good; b bad; c bad for partitioned tables; x bad for odd decoders; v good,
    with a value that depends on the decoder.
    """
    head, _, _ = value.partition(b";")
    kind, number, content = head[:1], *head[1:].split(b",")
    found = int(content)
    bad = kind == b"b" or (kind == b"c" and is_partitioned) or (kind == b"x" and decoder % 2 == 1)
    if kind == b"v":
        found = (found + decoder) % VALUES
    return Judged(int(number), None if bad else found)


def make_message(
    rng: random.Random, number: int, now_ms: int, oversize: int
) -> tuple[Stored, str | None]:
    """A message, and the kind of fault that it stands for.

    :param oversize: more bytes than the dead-letter topic takes.
    """
    point, content = rng.random(), rng.randrange(VALUES)
    kind, fault, padding = b"g", None, rng.randrange(20)
    if point < 0.02:
        kind, fault = b"b", "bad message"
    elif point < 0.03:
        kind, fault = b"c", "message bad for one table only"
    elif point < 0.05:
        kind, fault = b"x", "message that decoders judge differently"
    elif point < 0.08:
        kind, fault = b"v", "message that decoders judge differently"
    elif point < 0.09:
        return Stored(None, b"key", (), number, now_ms), "tombstone"
    elif point < 0.10:
        fault, padding = "heavy message", rng.randrange(200, 900)
    elif point < 0.103:
        kind, fault, padding = b"b", "oversize dead letter", oversize
    value = b"%s%d,%d;%s" % (kind, number, content, b"." * padding)
    return Stored(value, None, (("h", b"1"),), number, now_ms), fault


class ListBuffer:
    """Stands for the real `MessageBuffer`."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.offsets: list[int] = []
        #: Nothing here asks for what Kafka itself says of a message.
        self.facts: None = None

    def add(self, values: list[bytes], offsets: Sequence[int]) -> None:
        """Take the messages of one poll."""
        self.values += values
        self.offsets += offsets

    @property
    def messages(self) -> int:
        """How many messages are held."""
        return len(self.values)

    def iterate(self, indices: Iterable[int]) -> Iterator[bytes]:
        """The messages at these places."""
        return (self.values[index] for index in indices)


@dataclass(frozen=True, slots=True)
class Bad:
    """Stands for the real `BadMessage`."""

    index: int
    offset: int
    reason: str = "value"
    error: str = "simulated"
    column: str = "value"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Stands for the real `Decoded`."""

    native: Block
    rows: int
    columns: tuple[str, ...]
    bad: tuple[Bad, ...]
    clickhouse_partitions: int
    checksum: str
    messages: int
    empty: tuple[int, ...] = ()
    dropped_rows: int = 0


def divisor_of(table: TableText) -> int:
    """Of the table's partition key; 0: it is not partitioned."""
    key = table.partition_key
    return int(key.rstrip(")").rpartition(" ")[2]) if key else 0


class VersionedDecoder:
    """Stands for the real `Decoder`.

    :param version: of the engine that is installed where it runs.
    """

    def __init__(self, table: TableText, version: int) -> None:
        self._version = version
        self._table = table
        self._columns = tuple(column.name for column in table.columns)
        self._is_partitioned = table.entry == "parted"
        self._divisor = divisor_of(table)

    def watch(self, buffer: ListBuffer) -> None:
        """Nothing is looked at when messages come."""

    def decode(
        self, buffer: ListBuffer, topic: str, partition: int, source: str = ""
    ) -> DecodedRows:
        """Judge every message of a buffer."""
        rows: list[Row] = []
        bad: list[Bad] = []
        messages = zip(buffer.values, buffer.offsets, strict=True)
        for index, (value, offset) in enumerate(messages):
            judged = judge(value, self._version, self._is_partitioned)
            strange = strange_field(self._table, judged.number)
            if strange is not None:
                bad.append(Bad(index, offset, UNKNOWN_FIELD, "no column", strange))
            elif judged.value is None:
                bad.append(Bad(index, offset))
            else:
                rows.append((offset, judged.number, judged.value))
        block = Block(len(rows))
        block.source = TopicPartition(topic, partition)
        block.rows = tuple(rows)
        block.columns, block.loader = self._columns, source
        parts = len({clickhouse_partition(row, self._divisor) for row in rows})
        return DecodedRows(block, len(rows), self._columns, tuple(bad), parts, "", len(rows))
