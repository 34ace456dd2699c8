"""Messages of one table entry, of one partition or of several, to one Native block.

What decides: the table text and the messages, nothing else. The same messages give the same
bytes and the same bad messages, always, on any worker, as R8 demands; a DEFAULT that
asks the clock is the exception that `expressions.nondeterministic_functions` names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.scalars import holds_float
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.assemble import Body
from sluice.decode.messages.buffer import STAND_IN, MessageBuffer, shorten_digits
from sluice.decode.messages.decoder import BlockDecoder, Rows
from sluice.decode.messages.events import ADDED
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.memory import memory_file
from sluice.decode.messages.splitting import RowSplitter, Split
from sluice.decode.messages.views import Indices, buffer_of, replaced, subset, without
from sluice.decode.text.fields import NamesIn, ignored_fields
from sluice.decode.text.isolate import find_faults, halve
from sluice.decode.text.misread import MisreadObjects
from sluice.decode.text.plan import Plan
from sluice.decode.text.rewriting import PlainNames, Rewriting


def _said_of(table: TableSpec) -> frozenset[str]:
    """Fields that an envelope says of a row: most tables want few of them."""
    return frozenset(ADDED if table.envelope == "debezium" else ())


class Decoder(BlockDecoder):
    """Decodes the messages of one table entry. Compile once for each table text.

    :param split: takes messages of several rows apart; None: each message is one row.
    :param names_in: of formats whose messages name their fields.
    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(
        self,
        table: TableSpec,
        split: RowSplitter | None = None,
        names_in: NamesIn | None = None,
    ) -> None:
        self._split = split
        self._names_in = names_in if table.unknown_fields == "ignore" else None
        self._plan = Plan(table, "Int256")
        super().__init__(table, self._plan.keys)
        self._known = frozenset(part.name for part in self._plan.read) | _said_of(table)
        #: The same rows, for buffers whose numbers are short: Int64 in place of Int256.
        self._short_plan = Plan(table, "Int64")
        #: The same rows, and those with floats that say that they are infinite, or no number. For
        #: messages of which `find_faults` has judged all that another plan refuses.
        self._judged_plan = self._plan
        if any(map(holds_float, self._plan.types.values())):
            self._judged_plan = Plan(table, "Int256", takes_words=True)
        #: Whether messages at fault came before. It decides what is tried first, never the result.
        self._expects_faults = False
        self.check()
        self._misread = MisreadObjects(
            self._plan.types,
            table.fractions == "cut",
            table.unknown_fields == "refuse",
            names_fields=table.format == "JSONEachRow",
        )
        self._rewriting: Rewriting | None = None
        self._plain_names: PlainNames | None = None
        if table.format.startswith("JSON"):
            self._plain_names = PlainNames(self._plan.types)
            self._rewriting = Rewriting(self._plan.types, table.unknown_fields == "ignore")
        if split is None:
            self.look = self._misread.look

    def compile(self) -> None:
        """The queries for rows, and the one for faults."""
        with memory_file(b"") as path:
            for plan in (self._plan, self._short_plan):
                run(plan.strict("/dev/null", path, 0), "Null")
            run(self._plan.fault_kinds(path, 0), "Null")

    def rows(self, buffer: MessageBuffer, where: str) -> Rows:
        """As the base says."""
        ignored: Collection[str] = ()
        if self._names_in is not None:
            ignored = ignored_fields(self._names_in, self._known, buffer)
        return replace(self._rows(buffer, where), ignored=ignored)

    def _rows(self, buffer: MessageBuffer, where: str) -> Rows:
        split = self._split(buffer) if self._split is not None else None
        if split is not None:
            with split.rows, self._plainly_named(split.rows) as rows:
                return self._rows_of_split(split, rows, where)
        with self._plainly_named(buffer) as rows:
            body, faults = self._decode_rows(rows, where, {})
        if self._has_many:
            faults = {index: fault.in_row(0) for index, fault in faults.items()}
        return Rows(body, without_faults(buffer.messages, faults), None, faults)

    @contextmanager
    def _plainly_named(self, buffer: MessageBuffer) -> Iterator[MessageBuffer]:
        """The buffer, with the names that the engine would not know written anew."""
        anew = self._plain_names.values(buffer) if self._plain_names is not None else {}
        if not anew:
            yield buffer
            return
        with replaced(buffer, anew) as written:
            yield written

    def _rows_of_split(self, split: Split, rows: MessageBuffer, where: str) -> Rows:
        """A message is all or nothing, unless bad rows are to be dropped.

        :param rows: those of the split.
        """
        body, row_faults = self._decode_rows(rows, where, split.bad_rows)
        numbers, faults = split.numbers, dict(split.faults)
        left_out = np.sort(np.fromiter(row_faults, np.int64, len(row_faults)))
        drops = self.table.bad_rows == "drop-row"
        if len(left_out) and not drops:
            for row in left_out.tolist():
                fault = row_faults[row]
                fault = fault.in_row(int(numbers[row])) if self._has_many else fault
                faults.setdefault(int(split.message_of[row]), fault)
            left_out = split.with_neighbours(left_out)
            if len(left_out) > len(row_faults):
                body.close()
                out = dict.fromkeys(left_out.tolist(), _NEIGHBOUR)
                again, _ = self._rows_and_faults(rows, out)
                if again is None:
                    raise self._undecodable(where)
                body = again
        kept = np.delete(np.arange(rows.messages), left_out)
        dropped = len(left_out) if drops else 0
        return Rows(body, split.message_of[kept], numbers[kept], faults, dropped)

    def _decode_rows(
        self, buffer: MessageBuffer, where: str, known: dict[int, Fault]
    ) -> tuple[Body, dict[int, Fault]]:
        """All rows of a buffer of one row for each message, and what is wrong with the others.

        :param known: what is wrong with some of them.
        """
        faults = self._structure_faults(buffer) | known
        faults = self._misread.faults(buffer) | faults
        faults |= self._long_digit_faults(buffer, faults)
        body, faults = self._rows_and_faults(buffer, faults)
        if body is None:
            raise self._undecodable(where)
        return body, faults

    def _structure_faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """Messages that the engine must not see among others."""
        broken = buffer.items(np.array(buffer.faults, np.int64))
        return {index: buffer.framing.explain(value) for index, value in broken}

    def _undecodable(self, where: str) -> TerminalError:
        return TerminalError(
            f"{where} into {self.table.target}: messages that decode one by one do not decode "
            "together",
            "Report this with the range's messages; `sluice resolve` decides about it.",
        )

    @property
    def _has_many(self) -> bool:
        """A message may have several rows, so that words about one say which."""
        return self.table.rows == "many"

    def _rows_and_faults(
        self, buffer: MessageBuffer, known: dict[int, Fault]
    ) -> tuple[Body | None, dict[int, Fault]]:
        """Decode what is not at fault; if that fails, write anew what the engine refuses without
        need, and look for faults."""
        body = None if self._expects_faults else self._rows_of(buffer, known)
        if body is not None:
            return body, known
        left = without_faults(buffer.messages, known)
        anew = self._rewriting.values(buffer, left) if self._rewriting is not None else {}
        if not anew:
            body, faults = self._searched(buffer, known)
        else:
            faults = self._misread_among(anew) | known
            with replaced(buffer, anew) as written:
                body = self._rows_of(written, faults)
                if body is None:
                    body, faults = self._searched(written, faults)
        self._expects_faults = bool(anew) or len(faults) > len(known)
        return body, faults

    def _misread_among(self, values: dict[int, bytes]) -> dict[int, Fault]:
        indices = list(values)
        with buffer_of(list(values.values())) as buffer:
            found = self._misread.faults(buffer)
        return {indices[place]: fault for place, fault in found.items()}

    def _searched(
        self, buffer: MessageBuffer, faults: dict[int, Fault]
    ) -> tuple[Body | None, dict[int, Fault]]:
        """Look for faults, until what is left decodes."""
        for search in (self._judged, self._halved):
            faults = faults | search(buffer, without_faults(buffer.messages, faults))
            body = self._rows_of(buffer, faults, are_judged=True)
            if body is not None:
                break
        return body, faults

    def _judged(self, buffer: MessageBuffer, left: Indices) -> dict[int, Fault]:
        strict = self._short_plan if buffer.short_numbers else self._plan
        return find_faults(self._judged_plan, buffer, left, strict)

    def _halved(self, buffer: MessageBuffer, left: Indices) -> dict[int, Fault]:
        return halve(self._judged_plan, buffer, left, partial(self._decodes, buffer))

    def _long_digit_faults(
        self, buffer: MessageBuffer, known: dict[int, Fault]
    ) -> dict[int, Fault]:
        """Messages with numbers that would wrap even in the widest reader."""
        indices = [index for index in buffer.long_digits if index not in known]
        if not indices:
            return {}
        values = [shorten_digits(v) for v in buffer.iterate(np.array(indices, np.int64))]
        with buffer_of(values, buffer.framing) as shortened:
            _, found = self._rows_and_faults(shortened, {})
        stand_in, words = STAND_IN.decode(), "a number of over 60 digits"
        return {
            indices[place]: replace(fault, error=fault.error.replace(stand_in, words))
            for place, fault in found.items()
        }

    def _decodes(self, buffer: MessageBuffer, indices: Indices) -> bool:
        with subset(buffer, indices) as part:
            return self._strict(part, part.messages, are_judged=True) is not None

    def _rows_of(
        self, buffer: MessageBuffer, faults: dict[int, Fault], are_judged: bool = False
    ) -> Body | None:
        """Decode what is not at fault; None if that fails or rows are not messages."""
        bad = np.sort(np.fromiter(faults, np.int64, len(faults)))
        with without(buffer, bad):
            return self._strict(buffer, buffer.messages - len(bad), are_judged)

    def _strict(
        self, buffer: MessageBuffer, messages: int, are_judged: bool = False
    ) -> Body | None:
        """One query for the whole buffer; None if it fails or makes another number of rows.

        :param are_judged: see `_judged_plan`.
        """
        if not messages:
            return Body()
        if buffer.short_numbers:
            body = self._run(self._short_plan, buffer, messages)
            if body is not None:
                return body
        return self._run(self._judged_plan if are_judged else self._plan, buffer, messages)

    def _run(self, plan: Plan, buffer: MessageBuffer, messages: int) -> Body | None:
        body = Body()
        try:
            run(plan.strict(body.path, buffer.path, messages), "Null")
        except EngineError:
            body.close()
            return None
        if body.measure() != messages:
            body.close()
            return None
        body.cut_keys(plan.keys)
        return body


#: Of rows that are good, in a message of which another row is not.
_NEIGHBOUR = Fault("", "")


def without_faults(messages: int, faults: dict[int, Fault]) -> Indices:
    """The indices that are not at fault."""
    kept = np.ones(messages, np.bool_)
    kept[np.fromiter(faults, np.int64, len(faults))] = False
    return np.flatnonzero(kept)
