"""A block without the rows that its table has already."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.core.rests import StoredRows
from sluice.decode.engine.native import checksum, read_header
from sluice.decode.engine.session import literal, run, settings_clause
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.marked import memory_file


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
    file = os.memfd_create("sluice-rest", os.MFD_CLOEXEC)
    try:
        settings = settings_clause(
            # As one block: nothing is cut, nothing waits for more.
            max_insert_block_size=decoded.rows,
            min_insert_block_size_rows=0,
            min_insert_block_size_bytes=0,
        )
        with memory_file(decoded.native) as path, memory_file(keys) as found:
            run(
                f"INSERT INTO FUNCTION file('/proc/self/fd/{file}', Native) "
                f"SELECT * FROM file({literal(path)}, Native) "
                "WHERE (toUInt64(_offset), toUInt64(_row)) NOT IN (SELECT o, r "
                f"FROM file({literal(found)}, RowBinary, 'o UInt64, r UInt64')) {settings}",
                "Null",
            )
        if not os.fstat(file).st_size:
            rest = replace(
                decoded,
                native=memoryview(b""),
                rows=0,
                offsets=decoded.offsets[:0],
                messages=0,
                clickhouse_partitions=0,
                checksum=checksum(b""),
            )
            return _compared(table, decoded, rest, len(pairs))
        offsets = run(
            f"SELECT toUInt64(_offset) FROM file('/proc/self/fd/{file}', Native)", "RowBinary"
        )
        native = memoryview(mmap.mmap(file, os.fstat(file).st_size, prot=mmap.PROT_READ))
    finally:
        os.close(file)
    _, rows, _ = read_header(native)
    of_rows = np.frombuffer(offsets.bytes(), "<u8").astype(np.uint64)
    rest = replace(
        decoded,
        native=native,
        rows=rows,
        offsets=of_rows,
        messages=len(np.unique(of_rows)),
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
