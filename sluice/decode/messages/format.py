"""The port between formats that say what type a value has and the decoder of such relations.

A format knows bytes: how messages are laid out so that the engine reads them, which columns
of which types come out, and which row is which message. `TypedDecoder` knows values: strict
conversion, defaults, faults, the block. Neither knows the other's side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import Fault

Indices = NDArray[np.int64]

#: What `Group.place` gives for a row that is not proven to be a message.
NO_MESSAGE = 2**32 - 1

#: Place of a row in a source that gives exactly one row for each message, in their order,
#: whatever the messages say (lengths that we wrote, for example).
PLACE_IS_ROW_NUMBER = "toUInt32(rowNumberInAllBlocks())"

#: Place of a row in a source that holds one message.
PLACE_IS_FIRST = "toUInt32(0)"

NO_FAULTS: Mapping[int, Fault] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Natural:
    """A column as the format gives it.

    :param name: the table's column that it fills; a name the table does not have is an
        unknown field.
    :param type: the ClickHouse type that the value has in the source.
    :param value: SQL over the source's columns; "" for the column of this name.
    :param fault: SQL over the source's columns, UInt8: a kind of fault that the value does not
        show, 0 for none; "" if it shows all. See `pair.py` for the kinds.
    """

    name: str
    type: str
    value: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that one FROM item gives, all with the same columns.

    The source must give the same rows in the same order however often it is read, until the
    next group is asked for. Reading it fails with an EngineError if the structure of any
    message is at fault; it must never give a row made of the bytes of two messages a place.

    :param source: what stands behind FROM: a table function or a subquery in brackets.
    :param messages: indices in the buffer, ascending. Place k is messages[k].
    :param place: SQL over the source's columns: UInt32, the place of the row's message;
        NO_MESSAGE if the row is not proven to be exactly one message (see marks.py). Rows of
        one message follow each other.
    :param single: a message makes exactly one row, or its structure is at fault.
    :param settings: of queries that read the source, SQL literals by name.
    :param unreadable: messages that were found to be bad on the way to this group; they are in
        no group's `messages`. A group may have no messages and only these.
    :param numbers: of each row within its message, where rows were left out; None: each message's
        rows count from 0.
    :param dropped: rows that were left out of `messages`.
    :param ignored: names of fields that are in none of the columns, as far as they were seen.
    """

    source: str
    columns: tuple[Natural, ...]
    messages: Indices
    place: str
    single: bool
    settings: Mapping[str, object] = field(default_factory=dict)
    unreadable: Mapping[int, Fault] = field(default_factory=lambda: NO_FAULTS)
    numbers: NDArray[np.uint32] | None = None
    dropped: int = 0
    ignored: tuple[str, ...] = ()

    @classmethod
    def without_messages(cls, unreadable: Mapping[int, Fault]) -> Group:
        """Of messages that are bad."""
        nothing = np.zeros(0, np.int64)
        return cls("", (), nothing, PLACE_IS_FIRST, single=False, unreadable=unreadable)

    @property
    def rows_max(self) -> int | None:
        """More rows than these the source does not have; None: that is not known."""
        return len(self.messages) if self.single else None


class TypedFormat(ABC):
    """A format, made once for each table text. Used from any thread."""

    @abstractmethod
    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """Lay these messages out for the engine.

        What one message becomes (its columns, its values, whether it is unreadable) must
        not depend on the other indices: each is asked for alone as well, to find the bad
        ones. Groups may interleave; the decoder puts rows into the messages' order. Memory of a
        group lives until the next one is asked for or the iterator is closed.

        With no indices: the group of no messages if the columns are known beforehand (the
        decoder lets the engine compile its queries on it), else nothing.

        :param indices: ascending.
        """

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """Those among these messages whose structure is at fault, as far as that is known
        without the engine; asked for messages of one group, as a rule after the engine failed to
        read them together.

        May name none, as this does: then halves are tried. Must not name a message that the
        engine reads, and must say the same of a message whatever the others are.
        """
        return {}
