"""Messages of one partition to one Native block (DESIGN: inside a task, decode and validate).

What decides: the table text and the messages, nothing else. The same messages give the same
bytes and the same bad messages, always, on any worker, as rule 8 demands; a DEFAULT that
asks the clock is the exception that `expressions.nondeterministic_functions` names.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.text import TableText
from sluice.decode.buffer import MessageBuffer
from sluice.decode.digits import STAND_IN, shorten_digits
from sluice.decode.isolate import (
    BadMessage,
    Fault,
    find_faults,
    halve,
    structure_fault,
)
from sluice.decode.marked import buffer_of, memory_file, subset, without
from sluice.decode.native import (
    checksum,
    column_head,
    constant_text,
    numbers,
    read_header,
    varint,
)
from sluice.decode.plan import KEY_COLUMN, ORDER_COLUMN, Plan
from sluice.decode.session import EngineError, run
from sluice.decode.suspects import find_loose_ends, find_suspects

__all__ = ["BadMessage", "Decoded", "Decoder"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of a buffer.

    :param native: one Native block, read-only, its memory freed with the last view; empty for
        no rows (nothing is to be inserted then).
    :param columns: the block's columns in its order; lineage columns last.
    :param offsets: of the rows; ascending as in the buffer unless the block is sorted.
    :param bad: the messages that made no row, by index.
    :param clickhouse_partitions: distinct values of the table's partition key in the block.
    :param checksum: of `native`; equal for equal bytes.
    """

    native: memoryview
    rows: int
    columns: tuple[str, ...]
    offsets: NDArray[np.uint64]
    bad: tuple[BadMessage, ...]
    clickhouse_partitions: int
    checksum: str


class _Body:
    """The block that the engine made, in a memfd, until the lineage columns are appended."""

    def __init__(self) -> None:
        self.file = os.memfd_create("sluice-block", os.MFD_CLOEXEC)
        self.path = f"/proc/self/fd/{self.file}"
        self.header = b""
        self.rows = 0
        self.partitions = 0
        #: Of a sorted block: the message of each row, as a place in what was decoded.
        self.order: NDArray[np.uint32] | None = None

    def finish(self, header: bytes, columns: Iterable[bytes]) -> memoryview:
        """Append columns and count them; the result holds the memory until it is dropped."""
        end = os.lseek(self.file, 0, os.SEEK_END)
        for column in columns:
            end += os.pwrite(self.file, column, end)
        if len(header) == len(self.header):
            os.pwrite(self.file, header, 0)
            block = memoryview(mmap.mmap(self.file, end, prot=mmap.PROT_READ))
        else:
            rest = os.pread(self.file, end - len(self.header), len(self.header))
            block = memoryview(header + rest)
        self.close()
        return block

    def cut(self, name: str, type_text: str, width: int) -> bytes:
        """Take the last column off, one of fixed width; gives its values."""
        begin = os.fstat(self.file).st_size - width * self.rows
        values = os.pread(self.file, width * self.rows, begin)
        os.ftruncate(self.file, begin - len(column_head(name, type_text)))
        return values

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        self.close()


class Decoder:
    """Decodes the messages of one table entry. Compile once for each table text.

    May be used from any thread; each uses its own session.

    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(self, table: TableText) -> None:
        self.table = table
        self._plan = Plan(table)
        #: The same rows, for buffers whose numbers are short: Int64 in place of Int256.
        self._short_plan = Plan(table, widest_integer="Int64")
        self.columns = tuple(part.name for part in self._plan.columns) + tuple(
            column.name for column in self._plan.lineage
        )
        self._check()

    def _check(self) -> None:
        """Let the engine compile the queries, on no rows."""
        with memory_file(b"") as path:
            try:
                run(self._plan.strict(path, 0), "Null")
                run(self._short_plan.strict(path, 0), "Null")
                run(self._plan.lenient(path, "_index", 0), "Null")
            except (EngineError, TerminalError) as error:
                raise TerminalError(
                    f"table {self.table.target} cannot be decoded: {str(error)[:300]}",
                    "Check its types, defaults and partition key against this engine's version.",
                ) from error

    def decode(self, buffer: MessageBuffer, topic: str, partition: int) -> Decoded:
        """Turn messages into one block; bad ones are set aside, never an exception.

        :raises TerminalError: the engine fails although every message was proven, or a
            lineage column cannot hold a number.
        """
        faults: dict[int, Fault] = {}
        if buffer.faults:
            broken = buffer.iterate(np.array(buffer.faults, np.int64))
            faults = {i: structure_fault(v) for i, v in zip(buffer.faults, broken, strict=True)}
        faults |= self._long_digit_faults(buffer, faults)
        body, faults = self._rows_and_faults(buffer, faults)
        if body is None:
            raise TerminalError(
                f"{topic}/{partition} into {self.table.target}: messages that decode one "
                "by one do not decode together",
                "Report this with the range's messages; `sluice resolve` decides about it.",
            )
        return self._assemble(buffer, faults, body, topic, partition)

    def _rows_and_faults(
        self, buffer: MessageBuffer, known: dict[int, Fault]
    ) -> tuple[_Body | None, dict[int, Fault]]:
        """Decode what is not at fault; while that fails, look for faults more thoroughly."""
        plan, faults = self._plan, known
        body = self._rows_of(buffer, faults)

        def decodes(part: NDArray[np.int64]) -> bool:
            return self._decodes(buffer, part)

        searches: tuple[Callable[[NDArray[np.int64]], dict[int, Fault]], ...] = (
            lambda left: find_faults(plan, buffer, find_suspects(plan, buffer, left)),
            lambda left: find_faults(plan, buffer, find_loose_ends(buffer, left)),
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
        return body, faults

    def _long_digit_faults(
        self, buffer: MessageBuffer, known: dict[int, Fault]
    ) -> dict[int, Fault]:
        """Messages with numbers that would wrap even in the widest reader."""
        indices = [index for index in buffer.long_digits if index not in known]
        if not indices:
            return {}
        values = [shorten_digits(v) for v in buffer.iterate(np.array(indices, np.int64))]
        with buffer_of(values) as shortened:
            _, found = self._rows_and_faults(shortened, {})
        stand_in, words = STAND_IN.decode(), "a number of over 60 digits"
        return {
            indices[place]: replace(fault, error=fault.error.replace(stand_in, words))
            for place, fault in found.items()
        }

    def _decodes(self, buffer: MessageBuffer, indices: NDArray[np.int64]) -> bool:
        with subset(buffer, indices) as part:
            return self._strict(part, part.messages) is not None

    def _rows_of(self, buffer: MessageBuffer, faults: dict[int, Fault]) -> _Body | None:
        """Decode what is not at fault; None if that fails or rows are not messages."""
        bad = np.sort(np.fromiter(faults, np.int64, len(faults)))
        with without(buffer, bad):
            return self._strict(buffer, buffer.messages - len(bad))

    def _strict(self, buffer: MessageBuffer, messages: int) -> _Body | None:
        """One query for the whole buffer; None if it fails or makes another number of rows."""
        if not messages:
            return _Body()
        if buffer.short_numbers:
            body = self._run(self._short_plan, buffer, messages)
            if body is not None:
                return body
        return self._run(self._plan, buffer, messages)

    @staticmethod
    def _run(plan: Plan, buffer: MessageBuffer, messages: int) -> _Body | None:
        body = _Body()
        try:
            run(plan.strict_into(body.path, buffer.path, messages), "Null")
        except EngineError:
            body.close()
            return None
        _, body.rows, begin = read_header(memoryview(os.pread(body.file, 32, 0)))
        if body.rows != messages:
            body.close()
            return None
        body.header = os.pread(body.file, begin, 0)
        body.partitions = 1
        if plan.has_order_column:
            order = body.cut(ORDER_COLUMN, "UInt32", 4)
            body.order = np.frombuffer(order, np.uint32)
        if plan.has_key_column:
            keys = np.frombuffer(body.cut(KEY_COLUMN, "UInt64", 8), np.uint64)
            if (keys != keys[0]).any():
                body.partitions = len(np.unique(keys))
        return body

    def _assemble(
        self,
        buffer: MessageBuffer,
        faults: dict[int, Fault],
        body: _Body,
        topic: str,
        partition: int,
    ) -> Decoded:
        """The engine's columns and the lineage columns as one block."""
        all_offsets = buffer.offsets
        offsets = all_offsets[_without(buffer.messages, faults)] if faults else all_offsets
        if body.order is not None:
            offsets = offsets[body.order]
        bad = tuple(
            BadMessage(index, int(all_offsets[index]), fault.reason, fault.error, fault.column)
            for index, fault in sorted(faults.items())
        )
        rows, partitions = body.rows, body.partitions
        native = memoryview(b"")
        if rows:
            parts = (
                self._lineage(column.name, column.type, topic, partition, offsets)
                for column in self._plan.lineage
            )
            native = body.finish(varint(len(self.columns)) + varint(rows), parts)
        if rows and self._plan.key_needs_lineage:
            with memory_file(native) as path:
                partitions = int(run(self._plan.partitions_of(path), "TSV").bytes())
        return Decoded(native, rows, self.columns, offsets, bad, partitions, checksum(native))

    @staticmethod
    def _lineage(
        name: str, type_text: str, topic: str, partition: int, offsets: NDArray[np.uint64]
    ) -> bytes:
        rows = len(offsets)
        if name == "_topic":
            return constant_text(name, type_text, topic, rows)
        if name == "_partition":
            return numbers(name, type_text, partition, rows)
        if name == "_offset":
            return numbers(name, type_text, offsets, rows)
        return numbers(name, type_text, 0, rows)


def _without(messages: int, faults: dict[int, Fault]) -> NDArray[np.int64]:
    """The indices that are not at fault."""
    kept = np.ones(messages, np.bool_)
    kept[np.fromiter(faults, np.int64, len(faults))] = False
    return np.flatnonzero(kept)
