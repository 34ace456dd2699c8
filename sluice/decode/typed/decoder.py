"""Messages of formats that have types of their own, to one Native block.

What decides: the table text and the messages. A message is good if, and only if, it alone
makes rows: the format lays groups of messages out so that each row proves which message it is,
and every search ends with messages that were judged apart from the others.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.assemble import Lineage, finished
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded, bad_messages
from sluice.decode.messages.format import Group, TypedFormat
from sluice.decode.messages.marked import buffer_of
from sluice.decode.messages.origins import Origins
from sluice.decode.typed.plan import Target
from sluice.decode.typed.search import Reading


class TypedDecoder:
    """Decodes the messages of one table entry. Made once for each table text.

    May be used from any thread; each uses its own session.

    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(self, table: TableSpec, typed_format: TypedFormat) -> None:
        self.table = table
        self.format = typed_format
        self.target = Target(table)
        self._columns = self.target.names + tuple(column.name for column in self.target.lineage)
        #: Where messages were broken, more will be. It saves time and decides nothing.
        self._expects_broken = False
        self._check()

    @property
    def columns(self) -> tuple[str, ...]:
        """Of every block, in its order; lineage columns last."""
        return self._columns

    def _check(self) -> None:
        """Let the engine compile the queries, on no rows: those of a relation without columns,
        and those of the format's own if it knows them beforehand."""
        nothing = np.zeros(0, np.int64)
        bare = Group("(SELECT 1 WHERE 0)", (), nothing, "toUInt32(0)", single=True)
        try:
            with suppress(EngineError):
                # A default over columns that are all constants may throw, as it may for a row.
                self._compile(bare)
            with buffer_of([]) as buffer:
                for group in self.format.groups(buffer, nothing):
                    if not self.target.plan(group.columns).filled:
                        names = ", ".join(column.name for column in group.columns)
                        raise TerminalError(
                            f"none of its columns is one of the messages, which have {names}",
                            "Correct the names: upper and lower case are told apart.",
                        )
                    self._compile(group)
        except (EngineError, TerminalError) as error:
            raise TerminalError(
                f"table {self.table.target} cannot be decoded: {str(error)[:300]}",
                "Check its types, defaults, partition key and the format's options.",
            ) from error

    def _compile(self, group: Group) -> None:
        plan = self.target.plan(group.columns)
        run(plan.rows_into("/dev/null", group, throws=True, with_keys=True), "Null")
        run(plan.rows_into("/dev/null", group, throws=False, with_keys=False), "Null")
        run(plan.verdicts(group), "Null")
        run(plan.said(group), "Null")

    def watch(self, buffer: MessageBuffer) -> None:
        """Nothing of the messages is looked at when they come."""

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        """Turn messages into one block; bad ones are set aside, never an exception.

        :raises TerminalError: parts that were read cannot be joined, or a lineage column cannot
            hold a number.
        """
        reading = Reading(self.target, self.format, buffer, self._expects_broken)
        everything = np.arange(buffer.messages, dtype=np.int64)
        part = reading.rows(everything)
        self._expects_broken = reading.found_broken or (
            self._expects_broken and bool(reading.faults)
        )
        offsets, faults = buffer.offsets, reading.faults
        numbers = part.numbers if part.numbers.any() else None
        lineage = Lineage(origins, offsets[part.messages], numbers)
        has_rows = np.zeros(buffer.messages, np.bool_)
        has_rows[part.messages] = True
        is_empty = ~has_rows
        is_empty[np.fromiter(faults, np.int64, len(faults))] = False
        target = self.target
        decoded = finished(
            part.body,
            self.columns,
            target.lineage,
            lineage.at(part.body.order),
            bad_messages(faults, offsets),
            int(np.count_nonzero(has_rows)),
            target.partitions_of if target.keys.needs_lineage else None,
        )
        empty = tuple(offsets[is_empty].tolist())
        return replace(decoded, empty=empty, dropped_rows=reading.dropped)
