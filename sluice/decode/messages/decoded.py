"""What every decoder of a table entry can do, whatever its format, and what it makes of the
messages of a range: one block, and what made no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import Origins


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that makes no row.

    :param index: its position in the buffer.
    :param reason: a short stable code, see `sluice.decode.messages.fault`.
    :param error: what was wrong, for people; one line, at most 300 characters.
    :param column: the column at fault, "" if it is not one column's.
    """

    index: int
    offset: int
    reason: str
    error: str
    column: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """What is inserted at once: all rows of a table entry, or those of one shard.

    :param native: one Native block, read-only, its memory freed with the last view; empty for
        no rows (nothing is to be inserted then).
    :param columns: the block's columns in its order; lineage columns last.
    :param offsets: of the rows, as places where the buffer holds a bundle's messages (see
        `facts.Origins`); ascending as in the buffer unless the block is sorted. A message of
        several rows stands there for each of them.
    :param clickhouse_partitions: distinct values of the table's partition key in the block.
    :param checksum: of `native`; equal for equal bytes.
    :param messages: that made the rows.
    """

    native: memoryview
    rows: int
    columns: tuple[str, ...]
    offsets: NDArray[np.uint64]
    clickhouse_partitions: int
    checksum: str
    messages: int


@dataclass(frozen=True, slots=True)
class Decoded(Block):
    """The rows of a buffer.

    :param bad: the messages that made no row, by index.
    :param empty: offsets of messages of no rows, where a message may have any number of them;
        ascending.
    :param dropped_rows: rows that were bad in messages whose other rows are here.
    :param ignored: names of fields that no column takes, with `unknown_fields = "ignore"`, sorted.
        Of formats whose schemas name fields, all; of others, those of a few messages.
    """

    bad: tuple[BadMessage, ...] = ()
    empty: tuple[int, ...] = ()
    dropped_rows: int = 0
    ignored: tuple[str, ...] = ()


class TableDecoder(Protocol):
    """Decodes the messages of one table entry. Made once for each table text.

    What decides: the table text and the messages, nothing else. The same messages give the
    same bytes and the same bad messages, always, on any worker (R8).
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Of every block, in its order; lineage columns last."""
        ...

    def watch(self, buffer: MessageBuffer) -> None:
        """Let an empty buffer look at its messages when they come. It saves time; nothing else
        depends on it."""
        ...

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        """Turn messages into one block; bad ones are set aside, never an exception.

        :param origins: where they come from.
        :raises TerminalError: the engine fails although every message was proven, or a
            lineage column cannot hold a number.
        :raises TransientError: the machine did it, or something outside that is needed (a
            schema registry) does not answer.
        """
        ...
