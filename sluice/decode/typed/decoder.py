"""Messages of formats that have types of their own, to one Native block.

What decides: the table text and the messages. A message is good if, and only if, it alone
makes rows: the format lays groups of messages out so that each row proves which message it is,
and every search ends with messages that were judged apart from the others.

What is read together proves itself: each row names its message. What cannot be read together is
taken apart, first by what the format knows of structure, then by halves; what has a fault in a
value is judged by one query. A fault is a function of its message alone, so it does not
matter with which others the message was tried.

The price: one reading of all; for faults in values one more of those at fault; for broken
structure that the format does not see, two readings of each half on the way down, so
2 x bad x log2(all / bad) readings of parts.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.pair import MISMATCH, NULL
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.assemble import BlockShapeError, Body
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoder import BlockDecoder, Rows
from sluice.decode.messages.fault import (
    NO_COLUMN,
    NOT_ONE_ROW,
    REASONS,
    UNKNOWN_FIELD,
    Fault,
    absent,
    refused_by_engine,
    refused_value,
)
from sluice.decode.messages.format import Group, Indices, TypedFormat
from sluice.decode.messages.splitting import numbers_within
from sluice.decode.messages.views import buffer_of
from sluice.decode.typed.part import Part, Pile, read_rows, run_on_messages
from sluice.decode.typed.plan import Target, TypedPlan
from sluice.decode.typed.texts import remark_on


@dataclass(frozen=True, slots=True)
class _Piece:
    """Messages to be read together.

    :param is_tested: the format has already looked for broken ones among them.
    :param is_judged: they made no row, and nothing is wrong with their values.
    :param made_no_row: so it is to be found out what is wrong with them.
    """

    messages: Indices
    is_tested: bool = False
    is_judged: bool = False
    made_no_row: bool = False

    def part(self, messages: Indices) -> _Piece:
        """Some of these messages, in other company."""
        return replace(self, messages=messages, is_tested=True)


class Reading:
    """One reading of a buffer. `faults` are the bad messages so far, by index; `dropped` the
    rows that were left out of messages that are not bad.

    :param expects_broken: look for broken messages before the first reading, not after it failed.
    """

    def __init__(
        self,
        target: Target,
        typed_format: TypedFormat,
        buffer: MessageBuffer,
        expects_broken: bool,
    ) -> None:
        self._expects_broken = expects_broken
        self._format = typed_format
        self._target = target
        self._buffer = buffer
        self._many = target.table.rows == "many"
        self._drops = self._many and target.table.bad_rows == "drop-row"
        self._waiting: list[_Piece] = []
        self._whole: Part | None = None
        self._pile = Pile()
        self.faults: dict[int, Fault] = {}
        self.dropped = 0
        #: Whether a reading failed for structure.
        self.found_broken = False
        #: Fields that no column takes.
        self.ignored = set[str]()

    def rows(self, indices: Indices) -> Part:
        """The rows of these messages but for the bad ones, as one block."""
        self._read_all(indices, may_be_whole=True)
        if self._whole is not None and not self._pile.is_empty:
            self._whole.body.close()
            self._read_all(self._without_faults(indices), may_be_whole=False)
        return self._whole or self._pile.joined(self._target)

    def _read_all(self, indices: Indices, may_be_whole: bool) -> None:
        self._whole, self._pile, self.dropped = None, Pile(), 0
        self._waiting = [_Piece(indices)]
        while self._waiting:
            piece = self._waiting.pop()
            for group in self._format.groups(self._buffer, piece.messages):
                self.faults |= group.unreadable
                if len(group.messages):
                    covers = len(group.messages) == len(self._without_faults(piece.messages))
                    is_first = self._whole is None and self._pile.is_empty and not self._waiting
                    self._read(group, piece, may_be_whole and covers and is_first)

    def _keep(
        self, body: Body, messages: Indices, numbers: NDArray[np.uint32], whole: bool
    ) -> None:
        part = Part(body, messages, numbers)
        if whole:
            self._whole = part
        else:
            self._pile.add(part)

    def _without_faults(self, indices: Indices) -> Indices:
        if not self.faults:
            return indices
        bad = np.fromiter(self.faults, np.int64, len(self.faults))
        return indices[~np.isin(indices, bad)]

    def _read(self, group: Group, piece: _Piece, is_whole: bool) -> None:
        """Make a part of a group, or put its messages back into the queue in other company."""
        try:
            plan = self._target.plan(group.columns)
        except TerminalError as error:
            self._refuse(group, refused_by_engine(error))
            return
        if not plan.filled:
            names = ", ".join(natural.name for natural in group.columns)
            said = f"the message fills no column of the table, it has only {names}"
            self._refuse(group, Fault(NO_COLUMN, said))
            return
        if plan.unknown:
            said = f"the table has no column {plan.unknown}"
            self._refuse(group, Fault(UNKNOWN_FIELD, said, plan.unknown))
            return
        self.ignored |= plan.ignored.union(group.ignored)
        if plan.lacking:
            self._refuse(group, absent(plan.lacking))
            return
        if self._expects_broken and not piece.is_tested:
            found = self._format.broken(self._buffer, group.messages)
            self.faults |= found
            if found:
                self._again(group)
                return
        try:
            if piece.made_no_row:
                self._judge(group, plan)
            elif group.single:
                self._read_single(group, plan, piece, is_whole)
            else:
                self._read_several(group, plan, is_whole)
        except BlockShapeError:
            raise
        except (EngineError, TerminalError) as error:
            if isinstance(error, TerminalError) and not plan.compiles():
                # The columns themselves are the fault.
                self._refuse(group, refused_by_engine(error))
            else:
                self._take_apart(piece, group.messages, error)

    def _refuse(self, group: Group, fault: Fault) -> None:
        """All of a group are at fault, for its columns."""
        self.faults |= dict.fromkeys(group.messages.tolist(), fault)

    def _take_apart(self, piece: _Piece, messages: Indices, error: Exception) -> None:
        """Messages of a piece that cannot be read together."""
        found = {} if piece.is_tested else self._format.broken(self._buffer, messages)
        self.found_broken |= not piece.made_no_row
        if found:
            self.faults |= found
            self._put_back(piece.part(self._without_faults(messages)))
        elif len(messages) == 1:
            self.faults[int(messages[0])] = refused_by_engine(error)
        else:
            middle = len(messages) // 2
            self._waiting += [piece.part(messages[middle:]), piece.part(messages[:middle])]

    def _put_back(self, piece: _Piece) -> None:
        if len(piece.messages):
            self._waiting.append(piece)

    def _read_single(self, group: Group, plan: TypedPlan, piece: _Piece, is_whole: bool) -> None:
        """Messages of one row each: rows at fault are left out, and their messages judged."""
        body, places = read_rows(self._target, plan, group, throws=False, is_whole=is_whole)
        count = len(group.messages)
        if len(places) and (places[-1] >= count or (np.diff(places) <= 0).any()):
            body.close()
            raise EngineError("a row is not the message that it should be")
        absent = np.ones(count, np.bool_)
        absent[places] = False
        if len(places):
            numbers = np.zeros(len(places), np.uint32)
            self._keep(body, group.messages[places], numbers, is_whole)
        elif piece.is_judged:
            raise EngineError("the message does not make one row")
        if absent.any():
            messages = group.messages[absent]
            self.faults |= self._format.broken(self._buffer, messages)
            rest = self._without_faults(messages)
            self._put_back(_Piece(rest, is_tested=True, made_no_row=True))

    def _judge(self, group: Group, plan: TypedPlan) -> None:
        """Find what is wrong with messages that made no row; the others are read again."""
        places, codes = self._verdicts(group, plan)
        if not np.array_equal(places, np.arange(len(group.messages))):
            raise EngineError("the message is not exactly one row")
        faulty = np.flatnonzero(codes)
        if self._drops:
            self.dropped += len(faulty)
        elif len(faulty):
            self._blame(group, plan, places, codes)
        self._put_back(_Piece(group.messages[codes == 0], is_tested=True, is_judged=True))

    def _verdicts(self, group: Group, plan: TypedPlan) -> tuple[Indices, Indices]:
        """Place and fault code of every row."""
        block = run_on_messages(plan.verdicts(group), "RowBinary").bytes()
        places, codes = np.frombuffer(block, "<u4").reshape(-1, 2).T.astype(np.int64)
        return places, codes

    def _read_several(self, group: Group, plan: TypedPlan, is_whole: bool) -> None:
        """Messages of any number of rows each. A message is all or nothing."""
        count = len(group.messages)
        numbers = group.numbers
        try:
            body, places = read_rows(self._target, plan, group, throws=True, is_whole=is_whole)
        except EngineError:
            all_places, codes = self._verdicts(group, plan)
            if not codes.any() or (all_places >= count).any():
                raise
            if not self._drops:
                self._blame(group, plan, all_places, codes)
                self._again(group)
                return
            body, places = read_rows(self._target, plan, group, throws=False, is_whole=is_whole)
            numbers = (numbers_within(all_places) if numbers is None else numbers)[codes == 0]
            self.dropped += int(np.count_nonzero(codes))
        if len(places) and (places[-1] >= count or (np.diff(places) < 0).any()):
            body.close()
            raise EngineError("a row is not of the message that it should be of")
        if not self._many:
            rows_of = np.bincount(places, minlength=count)
            wrong = np.flatnonzero(rows_of != 1)
            for place in wrong.tolist():
                said = f"the message has {rows_of[place]} rows"
                self.faults[int(group.messages[place])] = Fault(NOT_ONE_ROW, said)
            if len(wrong):
                body.close()
                self._again(group)
                return
        self.dropped += group.dropped
        if len(places):
            numbers = numbers_within(places) if numbers is None else numbers
            self._keep(body, group.messages[places], numbers, is_whole)

    def _again(self, group: Group) -> None:
        self._put_back(_Piece(self._without_faults(group.messages), is_tested=True))

    def _blame(self, group: Group, plan: TypedPlan, places: Indices, codes: Indices) -> None:
        """Say of each message with a row at fault what is wrong with the first one."""
        found = run_on_messages(plan.said(group), "JSONCompactEachRow")
        text = found.bytes().decode(errors="replace")
        said = dict(json.loads(line) for line in text.split("\n") if line)
        numbers = numbers_within(places) if group.numbers is None else group.numbers
        for row in np.flatnonzero(codes).tolist():
            column, natural, kind = plan.fault_of(int(codes[row]))
            value = " ".join(said.get(row, "the value").split())
            why = remark_on(value.strip('"'), column.type) if value.startswith('"') else ""
            if kind == MISMATCH:
                value += f" {natural}"
            fault = refused_value(REASONS[kind], value, column.name, column.type, why)
            if kind == NULL and column.name in self._target.table.require:
                fault = absent(column.name)
            if self._many:
                fault = fault.in_row(int(numbers[row]))
            self.faults.setdefault(int(group.messages[places[row]]), fault)


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
        found = part.body, part.messages, part.numbers
        return Rows(*found, reading.faults, reading.dropped, reading.ignored)
