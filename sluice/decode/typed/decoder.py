"""Messages of formats that have types of their own, to one Native block.

What decides: the table text and the messages. A message is good if, and only if, it alone
makes rows: the format lays groups of messages out so that each row proves which message it is,
and every search ends with messages that were judged apart from the others.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoder import BlockDecoder, Rows
from sluice.decode.messages.format import Group, TypedFormat
from sluice.decode.messages.marked import buffer_of
from sluice.decode.typed.plan import Target
from sluice.decode.typed.search import Reading


class TypedDecoder(BlockDecoder):
    """Decodes the messages of one table entry. Made once for each table text.

    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(self, table: TableSpec, typed_format: TypedFormat) -> None:
        self.format = typed_format
        self.target = Target(table)
        super().__init__(table, self.target.keys)
        #: Where messages were broken, more will be. It saves time and decides nothing.
        self._expects_broken = False
        self.check()

    def compile(self) -> None:
        """Those of a relation without columns, and those of the format's own if it knows them
        beforehand."""
        nothing = np.zeros(0, np.int64)
        bare = Group("(SELECT 1 WHERE 0)", (), nothing, "toUInt32(0)", single=True)
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

    def _compile(self, group: Group) -> None:
        plan = self.target.plan(group.columns)
        run(plan.rows_into("/dev/null", group, throws=True, with_keys=True), "Null")
        run(plan.rows_into("/dev/null", group, throws=False, with_keys=False), "Null")
        run(plan.verdicts(group), "Null")
        run(plan.said(group), "Null")

    def rows(self, buffer: MessageBuffer, where: str) -> Rows:
        """As the base says."""
        reading = Reading(self.target, self.format, buffer, self._expects_broken)
        part = reading.rows(np.arange(buffer.messages, dtype=np.int64))
        self._expects_broken = reading.found_broken or (
            self._expects_broken and bool(reading.faults)
        )
        return Rows(part.body, part.messages, part.numbers, reading.faults, reading.dropped)
