"""What Kafka says about a message besides its value, as columns that expressions may name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.core.load_spec import KAFKA_COLUMNS, TableSpec
from sluice.decode.engine.native import column_head, varint
from sluice.decode.messages.origins import Origins

#: The option of messages that name their schema in a header.
SCHEMA_IN_HEADER = ("schema_id", "header")
#: Of a message without a value.
TOMBSTONE = "_tombstone"

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


def fact_column(
    name: str, facts: MessageFacts, rows: NDArray[np.int64], places: NDArray[np.uint64]
) -> bytes:
    """One of KAFKA_COLUMNS as Native writes it.

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
