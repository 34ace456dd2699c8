"""A block in the making: the engine's columns in a memfd, then the lineage columns behind them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import SOURCE, Column
from sluice.core.tokens import source_number
from sluice.decode.engine.keys import KEY_COLUMN, ORDER_COLUMN, Keys
from sluice.decode.engine.native import (
    column_head,
    numbers,
    read_header,
    repeated_numbers,
    repeated_texts,
)
from sluice.decode.messages.facts import Origins
from sluice.decode.messages.memory import MemoryFile


class BlockShapeError(TerminalError):
    """The engine did not write what it was asked for. No message can cause this."""


class Body(MemoryFile):
    """The block that the engine made, until the lineage columns are appended. It is empty if there
    was no row to write.

    `rows` and `header` are known after `measure`; `partitions` are the distinct values of the
    partition key; `order` is, of a sorted block, the place of each row in what was decoded.
    """

    def __init__(self) -> None:
        super().__init__("block")
        self.header = b""
        self.rows = 0
        self.partitions = 0
        self.order: NDArray[np.uint32] | None = None

    def measure(self) -> int:
        """Read the header that the engine wrote; gives the rows."""
        _, self.rows, begin = read_header(memoryview(os.pread(self.file, 32, 0)))
        self.header = os.pread(self.file, begin, 0)
        return self.rows

    def finish(self, header: bytes, columns: Iterable[bytes]) -> memoryview:
        """Append columns and count them; the result holds the memory until it is dropped."""
        end = os.lseek(self.file, 0, os.SEEK_END)
        for column in columns:
            end += os.pwrite(self.file, column, end)
        if len(header) == len(self.header):
            os.pwrite(self.file, header, 0)
            block = self.mapped()
        else:
            rest = os.pread(self.file, end - len(self.header), len(self.header))
            block = memoryview(header + rest)
        self.close()
        return block

    def cut(self, name: str, type_text: str, width: int) -> bytes:
        """Take the last column off, one of fixed width; gives its values.

        :raises BlockShapeError: the last column is another one.
        """
        begin = self.last_column(name, type_text, width)
        values = os.pread(self.file, width * self.rows, begin)
        os.ftruncate(self.file, begin - len(column_head(name, type_text)))
        return values

    def last_column(self, name: str, type_text: str, width: int) -> int:
        """Where the values of the last column begin. Proves that the file is one block.

        :raises BlockShapeError: the last column is another one.
        """
        begin = self.size - width * self.rows
        head = column_head(name, type_text)
        if os.pread(self.file, len(head), max(0, begin - len(head))) != head:
            raise BlockShapeError(
                f"the engine did not write one block that ends with {name}",
                "Report this; the engine's version may have changed how it writes Native.",
            )
        return begin

    def cut_keys(self, keys: Keys) -> None:
        """Take the columns off that say the order of the rows and their partitions."""
        if not self.rows:
            return
        self.partitions = 1
        if keys.has_order_column:
            self.order = np.frombuffer(self.cut(ORDER_COLUMN, "UInt32", 4), np.uint32)
        if keys.has_key_column:
            hashes = np.frombuffer(self.cut(KEY_COLUMN, "UInt64", 8), np.uint64)
            if (hashes != hashes[0]).any():
                self.partitions = len(np.unique(hashes))


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where each row of a block came from.

    :param places: one for each row, see `facts.Origins`.
    :param numbers: of each row within its message; None: each message is one row.
    """

    origins: Origins
    places: NDArray[np.uint64]
    numbers: NDArray[np.uint32] | None = None

    def at(self, order: NDArray[np.uint32] | None) -> Lineage:
        """Of the rows in another order."""
        if order is None:
            return self
        row_numbers = None if self.numbers is None else self.numbers[order]
        return replace(self, places=self.places[order], numbers=row_numbers)

    def columns(self, columns: Iterable[Column]) -> Iterator[bytes]:
        """The lineage columns as Native writes them.

        :raises TerminalError: a number does not fit the server's type.
        """
        rows, members = len(self.places), self.origins.members
        of_rows = self.origins.numbers(self.places)
        for column in columns:
            name, type_text = column.name, column.type
            if name == SOURCE and type_text == "UInt64":
                sources = [source_number(member.loaded_by) for member in members]
                yield repeated_numbers(name, type_text, sources, of_rows, rows)
            elif name == SOURCE:
                loaded_by = [member.loaded_by for member in members]
                yield repeated_texts(name, type_text, loaded_by, of_rows, rows)
            elif name == "_row":
                row_numbers = 0 if self.numbers is None else self.numbers.astype(np.uint64)
                yield numbers(name, type_text, row_numbers, rows)
            else:
                yield self.origins.column(name, type_text, self.places)
