"""From the messages of a buffer to one block: what decoders of all formats have in common.

A format finds rows, each with the message that it is of, and what is wrong with the others. Here
they become a block, and the places of messages the columns of its lineage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.keys import Keys
from sluice.decode.engine.native import checksum
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.assemble import Body, Lineage
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import BadMessage, Decoded
from sluice.decode.messages.facts import Origins
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.memory import memory_file
from sluice.decode.messages.quick_look import QuickLook
from sluice.producer.wire import varint


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a buffer's messages.

    :param body: their columns but for those of the lineage.
    :param messages: of each row, its message's index; in the order of reading, which is not the
        block's if that is sorted.
    :param numbers: of each row within its message, in the same order; None: they are all 0.
    :param faults: of messages that made no row, by index.
    :param dropped: rows that were left out of messages that are not at fault.
    :param ignored: see `Decoded`; in any order.
    """

    body: Body
    messages: NDArray[np.int64]
    numbers: NDArray[np.uint32] | None
    faults: Mapping[int, Fault]
    dropped: int = 0
    ignored: Collection[str] = ()


class BlockDecoder(ABC):
    """Decodes the messages of one table entry; see `sluice.decode.messages.decoded.TableDecoder`.

    May be used from any thread; each uses its own session.

    :param keys: over the columns of its blocks.
    """

    #: What is looked at in messages.
    look: QuickLook | None = None

    def __init__(self, table: TableSpec, keys: Keys) -> None:
        self.table = table
        self.keys = keys
        self._columns = keys.names + tuple(column.name for column in keys.lineage)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of every block, in its order; lineage columns last."""
        return self._columns

    def check(self) -> None:
        """Let the engine compile the queries, on no rows.

        :raises TerminalError: it refuses one.
        """
        try:
            self.compile()
        except (EngineError, TerminalError) as error:
            raise TerminalError(
                f"table {self.table.target} cannot be decoded: {str(error)[:300]}",
                "Check its types, defaults, partition key and the format's options against this "
                "engine's version.",
            ) from error

    @abstractmethod
    def compile(self) -> None:
        """Run the queries on no rows.

        :raises EngineError, TerminalError: they cannot be run.
        """

    def watch(self, buffer: MessageBuffer) -> None:
        """Let an empty buffer look at its messages when they come. It saves time; nothing else
        depends on it."""
        if self.look is not None:
            buffer.watch(self.look)

    @abstractmethod
    def rows(self, buffer: MessageBuffer, where: str) -> Rows:
        """The rows of all messages but for the bad ones.

        :param where: the messages come from, for people.
        :raises TerminalError: messages that were proven one by one are refused together.
        """

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        """Turn messages into one block; bad ones are set aside, never an exception.

        :raises TerminalError: as `rows`, or a lineage column cannot hold a number.
        """
        found = self.rows(buffer, str(origins))
        body, offsets = found.body, buffer.offsets
        is_empty = np.ones(buffer.messages, np.bool_)
        is_empty[found.messages] = False
        messages = buffer.messages - int(np.count_nonzero(is_empty))
        is_empty[np.fromiter(found.faults, np.int64, len(found.faults))] = False
        lineage = Lineage(origins, offsets[found.messages], found.numbers).at(body.order)
        rows, partitions = body.rows, body.partitions
        native = memoryview(b"")
        if rows:
            header = varint(len(self._columns)) + varint(rows)
            native = body.finish(header, lineage.columns(self.keys.lineage))
            if self.keys.needs_lineage:
                with memory_file(native) as path:
                    partitions = int(run(self.keys.partitions_of(path), "TSV").bytes())
        bad = tuple(
            BadMessage(index, int(offsets[index]), fault.reason, fault.error, fault.column)
            for index, fault in sorted(found.faults.items())
        )
        return Decoded(
            native,
            rows,
            self._columns,
            lineage.places,
            partitions,
            checksum(native),
            messages,
            bad,
            tuple(offsets[is_empty].tolist()),
            found.dropped,
            tuple(sorted(found.ignored)),
        )
