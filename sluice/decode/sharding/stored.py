"""A block without the rows that its table has already."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.core.rests import StoredRows
from sluice.decode.engine.native import checksum, read_header
from sluice.decode.engine.session import literal, run, settings_clause
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.marked import memory_file
from sluice.decode.messages.memory import MemoryFile


def without_rows(table: TableSpec, decoded: Decoded, stored: StoredRows) -> Decoded:
    """The block without these rows, which a probe has found.

    :param decoded: of a whole range, with the lineage columns `_offset` and `_row`.
    :raises TerminalError: the block lacks some of them: somebody else's hands made them.
    :raises TransientError: the machine did it.
    """
    pairs = [(offset, row) for offset, first, end in stored for row in range(first, end)]
    if not decoded.rows:
        return _compared(table, decoded, decoded, len(pairs))
    keys = memoryview(np.array(pairs, "<u8").tobytes())
    settings = settings_clause(
        # As one block: nothing is cut, nothing waits for more.
        max_insert_block_size=decoded.rows,
        min_insert_block_size_rows=0,
        min_insert_block_size_bytes=0,
    )
    native, rows, offsets = memoryview(b""), 0, decoded.offsets[:0]
    with MemoryFile("rest") as file:
        with memory_file(decoded.native) as path, memory_file(keys) as found:
            run(
                f"INSERT INTO FUNCTION file({literal(file.path)}, Native) "
                f"SELECT * FROM file({literal(path)}, Native) "
                "WHERE (toUInt64(_offset), toUInt64(_row)) NOT IN (SELECT o, r "
                f"FROM file({literal(found)}, RowBinary, 'o UInt64, r UInt64')) {settings}",
                "Null",
            )
        if file.size:
            native = memoryview(mmap.mmap(file.file, file.size, prot=mmap.PROT_READ))
            _, rows, _ = read_header(native)
            query = f"SELECT toUInt64(_offset) FROM file({literal(file.path)}, Native)"
            offsets = np.frombuffer(run(query, "RowBinary").bytes(), "<u8").astype(np.uint64)
    rest = replace(
        decoded,
        native=native,
        rows=rows,
        offsets=offsets,
        messages=len(np.unique(offsets)),
        clickhouse_partitions=min(rows, decoded.clickhouse_partitions),
        checksum=checksum(native),
    )
    return _compared(table, decoded, rest, len(pairs))


def _compared(table: TableSpec, decoded: Decoded, rest: Decoded, stored: int) -> Decoded:
    if decoded.rows - rest.rows != stored:
        raise TerminalError(
            f"{table.target} has {stored} rows of these messages, of which they make only "
            f"{decoded.rows - rest.rows}: somebody else inserted or changed the others",
            "Look at the rows of these offsets in the table, then run `sluice resolve`.",
        )
    return rest
