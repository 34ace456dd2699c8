"""A block without some of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.core.rests import StoredRows
from sluice.decode.engine.native import (
    checksum,
    column_head,
    fixed_columns,
    read_header,
    with_columns,
)
from sluice.decode.engine.session import identifier, literal, run, settings_clause, unlike
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.memory import MemoryFile, memory_file


def kept(decoded: Decoded, mask: NDArray[np.bool_]) -> Decoded:
    """The block with the rows of which the mask is true, in their order.

    :param mask: of each row.
    :returns: the same object if that is all of them.
    :raises TransientError: the machine did it.
    """
    rows = int(np.count_nonzero(mask))
    if rows == decoded.rows:
        return decoded
    offsets = decoded.offsets[mask]
    native = _filtered(decoded, mask) if rows else memoryview(b"")
    found = read_header(native)[1] if rows else 0
    if found != rows:
        raise TerminalError(
            f"of {decoded.rows} rows {rows} were to be kept, and {found} are there",
            "This is a bug: report it. Nothing of this block was inserted.",
        )
    return replace(
        decoded,
        native=native,
        rows=rows,
        offsets=offsets,
        messages=_distinct(offsets),
        clickhouse_partitions=min(rows, decoded.clickhouse_partitions),
        checksum=checksum(native),
    )


def _distinct(offsets: NDArray[np.uint64]) -> int:
    """How many different ones: `np.unique` takes as long as the engine for the whole block."""
    is_ordered = bool((offsets[1:] >= offsets[:-1]).all())
    in_order = offsets if is_ordered else np.sort(offsets)
    return int(np.count_nonzero(in_order[1:] != in_order[:-1])) + min(1, len(in_order))


def _filtered(decoded: Decoded, mask: NDArray[np.bool_]) -> memoryview:
    """The engine reads the mask as one more column of the block."""
    name = unlike("_sluice_kept", decoded.columns)
    settings = settings_clause(
        # As one block: nothing is cut, nothing waits for more.
        max_insert_block_size=decoded.rows,
        min_insert_block_size_rows=0,
        min_insert_block_size_bytes=0,
    )
    marks = column_head(name, "UInt8") + mask.astype(np.uint8).tobytes()
    with memory_file(*with_columns(decoded.native, [marks])) as whole, MemoryFile("rest") as rest:
        run(
            f"INSERT INTO FUNCTION file({literal(rest.path)}, Native) "
            f"SELECT * EXCEPT({identifier(name)}) FROM file({literal(whole)}, Native) "
            f"WHERE {identifier(name)} {settings}",
            "Null",
        )
        return rest.mapped()


def without_rows(table: TableSpec, decoded: Decoded, stored: StoredRows) -> Decoded:
    """The block without these rows, which a probe has found.

    :param decoded: of a whole range, with the lineage column `_row`.
    :raises TerminalError: the block lacks some of them: somebody else's hands made them.
    :raises TransientError: the machine did it.
    """
    pairs = [(offset, row) for offset, first, end in stored for row in range(first, end)]
    is_stored = _are_among(pairs, decoded.offsets, _row_numbers(decoded))
    found = int(np.count_nonzero(is_stored))
    if found != len(pairs):
        raise TerminalError(
            f"{table.target} has {len(pairs)} rows of these messages, of which they make only "
            f"{found}: somebody else inserted or changed the others",
            "Look at the rows of these offsets in the table, then run `sluice resolve`.",
        )
    return kept(decoded, ~is_stored)


def _row_numbers(decoded: Decoded) -> NDArray[np.uint32]:
    """The number of each row within its message."""
    settings = settings_clause(input_format_skip_unknown_fields=1)
    with memory_file(decoded.native) as path:
        source = f"file({literal(path)}, Native, '_row UInt32')"
        (numbers,) = fixed_columns(
            run(f"SELECT _row FROM {source} {settings}", "Native").bytes(), ["<u4"]
        )
    return numbers


def _are_among(
    pairs: list[tuple[int, int]], offsets: NDArray[np.uint64], numbers: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Of each row, whether its offset and number are one of these pairs."""
    some = np.array(pairs, np.uint64).reshape(-1, 2)
    distinct = np.unique(some[:, 0])
    bits = np.uint64(32)

    def joined(of: NDArray[np.uint64], number: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.searchsorted(distinct, of).astype(np.uint64) << bits | number

    wanted = joined(some[:, 0], some[:, 1])
    return np.isin(offsets, distinct) & np.isin(joined(offsets, numbers.astype(np.uint64)), wanted)
