"""What Kafka says about a message besides its value, as columns that expressions may name;
and where the messages of a buffer come from: one partition, or those of a bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.core.bundles import OFFSET_BITS
from sluice.core.load_spec import KAFKA_COLUMNS, TableSpec
from sluice.core.ranges import TopicPartition
from sluice.decode.engine.native import column_head, numbers, repeated_numbers, repeated_texts
from sluice.producer.wire import varint


@dataclass(frozen=True, slots=True)
class Origin:
    """One partition.

    :param loaded_by: who loads its rows, see `core.tokens.row_source`.
    """

    source: TopicPartition
    loaded_by: str = ""


@dataclass(frozen=True, slots=True)
class Origins:
    """The partitions of a buffer's messages, in the order of the bundle's members. What a buffer
    calls a message's offset is its place (`core.bundles.place_of`); of one partition that is the
    offset itself, whatever it is."""

    members: tuple[Origin, ...]

    def __str__(self) -> str:
        first, *others = self.members
        return f"{first.source} and {len(others)} more" if others else str(first.source)

    def numbers(self, places: NDArray[np.uint64]) -> NDArray[np.int64] | None:
        """Which member each place is of; None: all are of the only one."""
        if len(self.members) == 1:
            return None
        return (places >> np.uint64(OFFSET_BITS)).astype(np.int64)

    def offsets(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The offset of each place in its partition."""
        if len(self.members) == 1:
            return places
        return places & np.uint64((1 << OFFSET_BITS) - 1)

    def column(self, name: str, type_text: str, places: NDArray[np.uint64]) -> bytes:
        """`_topic`, `_partition` or `_offset` of rows at these places, as Native writes it.

        :raises TerminalError: a number does not fit the server's type.
        """
        rows, of_rows = len(places), self.numbers(places)
        if name == "_offset":
            return numbers(name, type_text, self.offsets(places), rows)
        if name == "_topic":
            topics = [member.source.topic for member in self.members]
            return repeated_texts(name, type_text, topics, of_rows, rows)
        partitions = [member.source.partition for member in self.members]
        return repeated_numbers(name, type_text, partitions, of_rows, rows)


#: Of what is decoded on the way, whose rows carry no lineage.
NOWHERE = Origins((Origin(TopicPartition("", 0)),))


def alone(topic: str, partition: int, loaded_by: str = "") -> Origins:
    """Of one partition."""
    return Origins((Origin(TopicPartition(topic, partition), loaded_by),))


#: The option of messages that name their schema in a header.
SCHEMA_IN_HEADER = ("schema_id", "header")
#: Of a message without a value.
TOMBSTONE = "_tombstone"
#: The value as it stands in Kafka.
RAW_MESSAGE = "_raw_message"

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(slots=True)
class MessageFacts:
    """Of the messages of a buffer, in its order.

    :param timestamps_ms: None: the message has none.
    :param tombstones: which of them have no value; empty: nobody asked.
    """

    origins: Origins
    keys: list[bytes | None]
    timestamps_ms: list[int | None]
    headers: list[Headers]
    tombstones: list[bool] = field(default_factory=list)

    def some(self, indices: Iterable[int]) -> MessageFacts:
        """Of these messages only."""
        chosen = list(indices)
        return MessageFacts(
            self.origins,
            [self.keys[i] for i in chosen],
            [self.timestamps_ms[i] for i in chosen],
            [self.headers[i] for i in chosen],
            [self.tombstones[i] for i in chosen if self.tombstones],
        )


def facts_named(table: TableSpec) -> tuple[str, ...]:
    """Those of KAFKA_COLUMNS that the entry may need; a name inside a text counts too."""
    texts = [*(one.source for one in table.mapping if one.by in ("sql", "kafka")), *table.check]
    named = {name for name in KAFKA_COLUMNS for text in texts if name in text}
    options = table.options if table.key is None else (*table.options, *table.key.options)
    if any(one.by == "header" for one in table.mapping) or SCHEMA_IN_HEADER in options:
        named.add("_headers")
    if any(one.by == "key" for one in table.mapping):
        named.add("_key")
    if table.tombstones == "delete":
        named.add(TOMBSTONE)
    return tuple(name for name in KAFKA_COLUMNS if name in named)


def looks_beside(table: TableSpec) -> bool:
    """Whether the entry needs more of its messages than their values and where they stand."""
    return any(name != RAW_MESSAGE for name in facts_named(table))


def raw_column(values: Iterable[bytes]) -> bytes:
    """RAW_MESSAGE of rows as Native writes it.

    :param values: for each row, the value of its message.
    """
    return column_head(RAW_MESSAGE, KAFKA_COLUMNS[RAW_MESSAGE]) + b"".join(map(_text, values))


def fact_column(
    name: str, facts: MessageFacts, rows: NDArray[np.int64], places: NDArray[np.uint64]
) -> bytes:
    """One of KAFKA_COLUMNS but for RAW_MESSAGE as Native writes it.

    :param rows: for each row, the index of its message in `facts`.
    :param places: of the rows.
    """
    type_text = KAFKA_COLUMNS[name]
    if name in ("_topic", "_partition", "_offset"):
        return facts.origins.column(name, type_text, places)
    messages = rows.tolist()
    head = column_head(name, type_text)
    if name == "_key":
        return head + _nullable_texts([facts.keys[i] for i in messages])
    if name == TOMBSTONE:
        return head + bytes(facts.tombstones[i] for i in messages)
    if name == "_timestamp":
        values = [facts.timestamps_ms[i] for i in messages]
        nulls = bytes(value is None for value in values)
        return head + nulls + np.array([value or 0 for value in values], "<i8").tobytes()
    # The first header of a name counts; a map would keep them all.
    pairs = [list(dict(reversed(facts.headers[i])).items()) for i in messages]
    ends = np.cumsum([len(some) for some in pairs], dtype="<u8").tobytes()
    names = b"".join(_text(n.encode()) for some in pairs for n, _ in some)
    return head + ends + names + _nullable_texts([value for some in pairs for _, value in some])


def _text(value: bytes) -> bytes:
    return varint(len(value)) + value


def _nullable_texts(values: list[bytes | None]) -> bytes:
    nulls = bytes(value is None for value in values)
    return nulls + b"".join(_text(value or b"") for value in values)
