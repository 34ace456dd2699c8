"""Messages of one partition to one Native block (DESIGN: inside a task, decode and validate).

What decides: the table text and the messages, nothing else. The same messages give the same
bytes and the same bad messages, always, on any worker, as R8 demands; a DEFAULT that
asks the clock is the exception that `expressions.nondeterministic_functions` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.text import TableText
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.assemble import Body, Lineage, finished
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import BadMessage, Decoded
from sluice.decode.messages.digits import STAND_IN, shorten_digits
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.framing import JSON_OBJECTS
from sluice.decode.messages.marked import buffer_of, memory_file, subset, without
from sluice.decode.messages.origins import Origins
from sluice.decode.messages.splitting import Split, Splitter
from sluice.decode.text.certain import Certainty
from sluice.decode.text.isolate import find_faults, halve
from sluice.decode.text.misread import Look, MisreadObjects
from sluice.decode.text.plan import KEY_COLUMN, ORDER_COLUMN, Plan
from sluice.decode.text.suspects import find_suspects
from sluice.decode.text.tolerant import find_unfit, overflow_behavior, sift

__all__ = ["BadMessage", "Decoded", "Decoder"]


class Decoder:
    """Decodes the messages of one table entry. Compile once for each table text.

    May be used from any thread; each uses its own session.

    :param split: takes messages of several rows apart; None: each message is one row.
    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(self, table: TableText, split: Splitter | None = None) -> None:
        self.table = table
        self._split = split
        self._plan = self._make_plan("Int256")
        #: The same rows, for buffers whose numbers are short: Int64 in place of Int256.
        self._short_plan = self._make_plan("Int64")
        self.columns = tuple(part.name for part in self._plan.columns) + tuple(
            column.name for column in self._plan.lineage
        )
        self._misread: Look = self._make_look()
        #: These two follow from what came before. They decide what is tried first, never the
        #: result. None: a tolerant pass cannot be taken, or is not worth it.
        self._overflow = overflow_behavior(self._plan)
        self._expects_faults = False
        self._certainty = Certainty(self._plan)
        self._check()

    def _make_plan(self, widest_integer: str) -> Plan:
        return Plan(self.table, widest_integer)

    def _make_look(self) -> Look:
        table = self.table
        refuses_unknown = table.unknown_fields == "refuse"
        return MisreadObjects(self._plan.types, table.fractions == "cut", refuses_unknown)

    def _check(self) -> None:
        """Let the engine compile the queries, on no rows."""
        with memory_file(b"") as path:
            try:
                run(self._plan.strict(path, 0), "Null")
                run(self._short_plan.strict(path, 0), "Null")
                run(self._plan.lenient(path, "_index", 0), "Null")
            except (EngineError, TerminalError) as error:
                raise self._cannot_compile(error) from error

    def _cannot_compile(self, error: Exception) -> TerminalError:
        return TerminalError(
            f"table {self.table.target} cannot be decoded: {str(error)[:300]}",
            "Check its types, defaults and partition key against this engine's version.",
        )

    def watch(self, buffer: MessageBuffer) -> None:
        """See `sluice.decode.messages.port.TableDecoder`."""
        if self.table.rows == "one":
            for look in self._misread.looks:
                buffer.watch(look)

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        """See `sluice.decode.messages.port.TableDecoder`."""
        split = self._split(buffer) if self._split is not None else None
        if split is not None:
            with split.rows:
                return self._decode_split(buffer, split, origins)
        body, faults = self._decode_rows(buffer, str(origins))
        all_offsets = buffer.offsets
        offsets = all_offsets[_without(buffer.messages, faults)] if faults else all_offsets
        lineage = Lineage(origins, offsets)
        return self._finished(body, lineage, _bad(faults, all_offsets), len(offsets))

    def _decode_split(self, buffer: MessageBuffer, split: Split, origins: Origins) -> Decoded:
        """A message is all or nothing, unless bad rows are to be dropped."""
        body, row_faults = self._decode_rows(split.rows, str(origins))
        numbers, faults = split.numbers, dict(split.faults)
        left_out = np.sort(np.fromiter(row_faults, np.int64, len(row_faults)))
        dropped = 0
        if self.table.bad_rows == "drop-row":
            dropped = len(left_out)
        elif len(left_out):
            for row in left_out.tolist():
                fault, number = row_faults[row], int(numbers[row])
                words = f"row {number}: {fault.error}" if self._has_many else fault.error
                words = words[:_ERROR_CHARACTERS_MAX]
                faults.setdefault(int(split.message_of[row]), replace(fault, error=words))
            left_out = split.with_neighbours(left_out)
            if len(left_out) > len(row_faults):
                body.close()
                again = self._rows_of(split.rows, dict.fromkeys(left_out.tolist(), _NEIGHBOUR))
                if again is None:
                    raise self._undecodable(str(origins))
                body = again
        kept = np.delete(np.arange(split.rows.messages), left_out)
        all_offsets, messages = buffer.offsets, split.message_of[kept]
        lineage = Lineage(origins, all_offsets[messages], numbers[kept])
        made = np.unique(messages)
        decoded = self._finished(body, lineage, _bad(faults, all_offsets), len(made))
        accounted = np.concatenate((made, np.fromiter(faults, np.int64, len(faults))))
        empty = all_offsets[np.setdiff1d(np.arange(buffer.messages), accounted)]
        return replace(decoded, empty=tuple(map(int, empty)), dropped_rows=dropped)

    def _decode_rows(self, buffer: MessageBuffer, where: str) -> tuple[Body, dict[int, Fault]]:
        """All rows of a buffer of one row for each message, and what is wrong with the others."""
        faults = self._structure_faults(buffer)
        faults = self._misread.faults(buffer) | faults
        faults |= self._long_digit_faults(buffer, faults)
        body, faults = self._rows_and_faults(buffer, faults)
        if body is None:
            raise self._undecodable(where)
        return body, faults

    def _structure_faults(self, buffer: MessageBuffer) -> dict[int, Fault]:
        """Messages that the engine must not see among others."""
        indices = buffer.faults
        broken = buffer.iterate(np.array(indices, np.int64))
        explain = buffer.framing.explain
        return {index: explain(value) for index, value in zip(indices, broken, strict=True)}

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

    def _finished(
        self, body: Body, lineage: Lineage, bad: tuple[BadMessage, ...], messages: int
    ) -> Decoded:
        plan = self._plan
        partitions_of = plan.partitions_of if plan.key_needs_lineage else None
        in_order = lineage.at(body.order)
        return finished(body, self.columns, plan.lineage, in_order, bad, messages, partitions_of)

    def _rows_and_faults(
        self, buffer: MessageBuffer, known: dict[int, Fault]
    ) -> tuple[Body | None, dict[int, Fault]]:
        """Decode what is not at fault; while that fails, look for faults more thoroughly."""
        plan, faults = self._plan, known
        body = None if self._expects_faults else self._rows_of(buffer, faults)
        if body is None:
            body, faults = self._sifted(buffer, faults)
        if body is None and (self._expects_faults or len(faults) > len(known)):
            body = self._rows_of(buffer, faults)

        def decodes(part: NDArray[np.int64]) -> bool:
            return self._decodes(buffer, part)

        searches: tuple[Callable[[NDArray[np.int64]], dict[int, Fault]], ...] = (
            lambda left: find_faults(plan, buffer, find_suspects(plan, buffer, left)),
            lambda left: find_faults(plan, buffer, left),
            lambda left: halve(plan, buffer, left, decodes),
        )
        for search in searches:
            if body is not None:
                break
            found = search(_without(buffer.messages, faults))
            if found:
                faults = faults | found
                body = self._rows_of(buffer, faults)
        self._expects_faults = len(faults) > len(known)
        return body, faults

    def _sifted(
        self, buffer: MessageBuffer, known: dict[int, Fault]
    ) -> tuple[Body | None, dict[int, Fault]]:
        """Rows and faults in one pass, or the faults alone, so far as that can be done."""
        if buffer.framing is not JSON_OBJECTS or not buffer.one_line_each:
            return None, known
        left = _without(buffer.messages, known)
        if not len(left):
            return Body(), known
        plan = self._short_plan if buffer.short_numbers else self._plan
        sifted, unfit, doubted = None, None, 0
        with without(buffer, np.sort(np.fromiter(known, np.int64, len(known)))):
            if self._overflow is not None:
                sifted = sift(plan, buffer, len(left), self._overflow)
            if sifted is not None:
                doubted = len(sifted.suspects)
            if sifted is None or _MANY * doubted > len(left):
                unfit = find_unfit(self._plan, buffer, len(left))
        if unfit is not None and _VAIN * len(unfit) < doubted:
            self._overflow = None
        unread = np.zeros(0, np.int64)
        if unfit is None and sifted is not None:
            unfit, unread = sifted.suspects, sifted.unread
        unfit = unread if unfit is None else unfit
        found = self._certain_faults(buffer, left[unfit])
        is_certain = np.isin(left, np.fromiter(found, np.int64, len(found)))
        unfit, unread = unfit[~is_certain[unfit]], unread[~is_certain[unread]]
        found |= find_faults(self._plan, buffer, left[unfit], left[unread])
        faults = known | found
        if sifted is None:
            return None, faults
        if sorted(found) == left[sifted.suspects].tolist():
            return self._with_keys(plan, sifted.body), faults
        sifted.body.close()
        return None, faults

    def _certain_faults(
        self, buffer: MessageBuffer, indices: NDArray[np.int64]
    ) -> dict[int, Fault]:
        """Those among these messages whose fault shows without the engine."""
        judged = map(self._certainty.fault, buffer.iterate(indices))
        pairs = zip(indices.tolist(), judged, strict=True)
        return {index: fault for index, fault in pairs if fault is not None}

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

    def _decodes(self, buffer: MessageBuffer, indices: NDArray[np.int64]) -> bool:
        with subset(buffer, indices) as part:
            return self._strict(part, part.messages) is not None

    def _rows_of(self, buffer: MessageBuffer, faults: dict[int, Fault]) -> Body | None:
        """Decode what is not at fault; None if that fails or rows are not messages."""
        bad = np.sort(np.fromiter(faults, np.int64, len(faults)))
        with without(buffer, bad):
            return self._strict(buffer, buffer.messages - len(bad))

    def _strict(self, buffer: MessageBuffer, messages: int) -> Body | None:
        """One query for the whole buffer; None if it fails or makes another number of rows."""
        if not messages:
            return Body()
        if buffer.short_numbers:
            body = self._run(self._short_plan, buffer, messages)
            if body is not None:
                return body
        return self._run(self._plan, buffer, messages)

    def _run(self, plan: Plan, buffer: MessageBuffer, messages: int) -> Body | None:
        body = Body()
        try:
            run(plan.strict_into(body.path, buffer.path, messages), "Null")
        except EngineError:
            body.close()
            return None
        if body.measure() != messages:
            body.close()
            return None
        return self._with_keys(plan, body)

    @staticmethod
    def _with_keys(plan: Plan, body: Body) -> Body:
        """Take the columns off that say order and partitions."""
        if not body.rows:
            return body
        body.partitions = 1
        if plan.has_order_column:
            order = body.cut(ORDER_COLUMN, "UInt32", 4)
            body.order = np.frombuffer(order, np.uint32)
        if plan.has_key_column:
            keys = np.frombuffer(body.cut(KEY_COLUMN, "UInt64", 8), np.uint64)
            if (keys != keys[0]).any():
                body.partitions = len(np.unique(keys))
        return body


#: Where one message in so many is doubted, one more pass tells which of them are at fault;
#: and where only one in so many of those is, doubting is not worth it for this table.
_MANY, _VAIN = 4, 2
#: Of rows that are good, in a message of which another row is not.
_NEIGHBOUR = Fault("", "")
_ERROR_CHARACTERS_MAX = 300


def _bad(faults: dict[int, Fault], offsets: NDArray[np.uint64]) -> tuple[BadMessage, ...]:
    """The faults of messages, in the order of their offsets."""
    return tuple(
        BadMessage(index, int(offsets[index]), fault.reason, fault.error, fault.column)
        for index, fault in sorted(faults.items())
    )


def _without(messages: int, faults: dict[int, Fault]) -> NDArray[np.int64]:
    """The indices that are not at fault."""
    kept = np.ones(messages, np.bool_)
    kept[np.fromiter(faults, np.int64, len(faults))] = False
    return np.flatnonzero(kept)
