"""One block of a table entry into one block for each shard."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.keys import Keys, lineage_of
from sluice.decode.engine.native import checksum, read_header
from sluice.decode.engine.of_rows import settings_of
from sluice.decode.engine.session import EngineError, literal, run
from sluice.decode.messages.decoded import Block, Decoded
from sluice.decode.messages.marked import memory_file
from sluice.decode.sharding.function import check_sharding, place_of


class Splitter:
    """Splits the blocks of one table entry. Made once for each table text.

    What decides: the table text and the block, nothing else.

    :param columns: of every block.
    :raises TerminalError: the sharding cannot be executed.
    """

    def __init__(self, table: TableSpec, columns: tuple[str, ...]) -> None:
        self._table = table
        self._keys: Keys | None = None
        if table.sharding is None:
            return
        check_sharding(table, columns)
        self._place = place_of(table)
        if table.partition_key.strip():
            lineage = lineage_of(table)
            names = {column.name for column in lineage}
            own = tuple(name for name in columns if name not in names)
            self._keys = Keys(table, own, lineage)

    def split(self, decoded: Decoded, *, with_offsets: bool = False) -> list[tuple[str, Block]]:
        """The shards that rows go to, by name, each with its block.

        :param with_offsets: say which offsets a shard's rows are of, which is else left open. That
            costs a pass over the block.
        :raises TerminalError: the engine cannot say of some row where it goes.
        :raises TransientError: the machine did it.
        """
        if self._table.sharding is None:
            (shard,) = self._table.shards
            return [(shard, decoded)]
        shards = self._shards_of_rows(decoded) if with_offsets else None
        files = [os.memfd_create("sluice-shard", os.MFD_CLOEXEC) for _ in self._table.shards]
        try:
            self._write(decoded, files)
            parts = [
                (shard, self._block(decoded, place, file, shards))
                for place, (shard, file) in enumerate(zip(self._table.shards, files, strict=True))
                if os.fstat(file).st_size
            ]
        finally:
            for file in files:
                os.close(file)
        rows = sum(part.rows for _, part in parts)
        if rows != decoded.rows:
            raise TerminalError(
                f"{self._table.target}: {decoded.rows} rows became {rows} on their way to shards",
                "This is a bug: report it. Nothing of this table entry was inserted.",
            )
        return parts

    def _write(self, decoded: Decoded, files: Iterable[int]) -> None:
        """Each row into the file of its shard: one pass, one block for each file, in order."""
        numbers = ", ".join(map(str, files))
        table = self._table
        settings = settings_of(
            table,
            # As one block: nothing is cut, nothing waits for more.
            max_insert_block_size=max(1, decoded.rows),
            min_insert_block_size_rows=0,
            min_insert_block_size_bytes=0,
            max_partitions_per_insert_block=0,
        )
        with memory_file(decoded.native) as path:
            query = (
                "INSERT INTO FUNCTION file('/proc/self/fd/{_partition_id}', Native) "
                f"PARTITION BY arrayElement([{numbers}], toUInt32({self._place}) + 1) "
                f"SELECT * FROM file({literal(path)}, Native) {settings}"
            )
            try:
                run(query, "Null")
            except EngineError as error:
                raise TerminalError(
                    f"sharding of table entry {table.entry}: it fails on a row: {str(error)[:300]}",
                    "Correct the expression so that it cannot fail on any value (as with "
                    "toUInt64OrZero). The range keeps the one that it was intended under: if "
                    "nothing of it is in any table, `sluice adopt --offset` at its begin loads it "
                    "under the new one.",
                ) from error

    def _shards_of_rows(self, decoded: Decoded) -> NDArray[np.uint32]:
        """The number of each row's shard."""
        with memory_file(decoded.native) as path:
            settings = settings_of(self._table)
            source = f"file({literal(path)}, Native)"
            found = run(f"SELECT toUInt32({self._place}) FROM {source} {settings}", "RowBinary")
        return np.frombuffer(found.bytes(), "<u4")

    def _block(
        self, decoded: Decoded, place: int, file: int, shards: NDArray[np.uint32] | None
    ) -> Block:
        """The rows of a shard, in the order that they had."""
        size = os.fstat(file).st_size
        native = memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))
        _, rows, _ = read_header(native)
        partitions = min(rows, decoded.clickhouse_partitions)
        if self._keys is not None and self._keys.has_partition_key and partitions > 1:
            query = self._keys.partitions_of(f"/proc/self/fd/{file}")
            partitions = int(run(query, "TSV").bytes())
        messages, offsets = rows, decoded.offsets[:0]
        if shards is not None:
            offsets = decoded.offsets[shards == place]
            messages = len(np.unique(offsets))
        elif decoded.messages != decoded.rows:
            messages = self._messages_at(decoded.offsets, place)
        columns = decoded.columns
        return Block(native, rows, columns, offsets, partitions, checksum(native), messages)

    def _messages_at(self, offsets: NDArray[np.uint64], place: int) -> int:
        """Of several rows each: by offset, since their rows stay together."""
        sharding = self._table.sharding
        assert sharding is not None and sharding.by == "offset"
        distinct = np.unique(offsets)
        places = distinct // np.uint64(sharding.stripe) % np.uint64(len(self._table.shards))
        return int(np.count_nonzero(places == place))
