"""One block of a table entry into one block for each shard.

The function that says which shard a row goes to, in ClickHouse SQL, is a UInt64, modulo the number
of shards: what a Distributed table over them does with the same sharding key, where all weights are
equal and its shards stand in the order of their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Sharding, TableSpec
from sluice.decode.engine.columns import lineage_of
from sluice.decode.engine.expressions import Compiled, run_over_rows, settings_of
from sluice.decode.engine.keys import Keys
from sluice.decode.engine.native import checksum, read_header
from sluice.decode.engine.session import identifier, literal, run
from sluice.decode.messages.decoded import Block, Decoded
from sluice.decode.messages.memory import MemoryFile, memory_file

_WHOLE_NUMBER = re.compile(r"U?Int(8|16|32|64|128|256)")
_LOW_CARDINALITY = re.compile(r"LowCardinality\((.*)\)", re.DOTALL)


def sharding_key(sharding: Sharding, columns: Iterable[Column]) -> str:
    """A UInt64 of a row, in ClickHouse SQL.

    :param columns: of the table.
    :raises TerminalError: they have no such column, or one that cannot be divided.
    """
    if sharding.by == "expression":
        # The newline ends a comment that the expression may end with.
        return f"toUInt64({sharding.expression}\n)"
    name = "_offset" if sharding.by == "offset" else sharding.column
    number = f"toUInt64({identifier(name)})"
    type_text = next((column.type for column in columns if column.name == name), None)
    if type_text is None:
        raise TerminalError(
            f"sharding by {sharding.by}: the table has no column {name}",
            "Shard by columns of the table.",
        )
    if sharding.by == "key" and not _is_whole_number(type_text):
        if sharding.stripe != 1:
            raise TerminalError(
                f"sharding by key: stripe divides numbers, and {name} is {type_text}",
                "Leave stripe out: other values are spread by their hash.",
            )
        return f"xxHash64({identifier(name)})"
    return number if sharding.stripe == 1 else f"intDiv({number}, toUInt64({sharding.stripe}))"


def place_of(table: TableSpec) -> str:
    """The place of a row's shard among `table.shards`, in ClickHouse SQL.

    :raises TerminalError: see `sharding_key`.
    """
    assert table.sharding is not None
    return f"{sharding_key(table.sharding, table.columns)} % {len(table.shards)}"


def check_sharding(table: TableSpec, columns: Iterable[str]) -> None:
    """Let the engine compile the function.

    :param columns: of the blocks.
    :raises TerminalError: it would not give each row one shard, always the same.
    """
    sharding = table.sharding
    assert sharding is not None
    expression = sharding.expression or identifier(
        "_offset" if sharding.by == "offset" else sharding.column
    )
    compiled = Compiled(table, columns, _what(table), "Shard by")
    compiled.check(expression, "a message that is loaded again could go to another shard")
    key = sharding_key(sharding, table.columns)
    found = compiled.type_of(expression, key)
    if "Nullable(" in found or found in ("Null", "Nothing"):
        raise TerminalError(
            f"{compiled.what}: {expression} is {found}, and null belongs to no shard",
            'Say where null goes: sharding = { by = "expression", expression = '
            f'"xxHash64(ifNull({expression}, …))" }}.',
        )
    if sharding.by == "expression" and not _is_whole_number(found):
        raise TerminalError(
            f"{compiled.what}: {expression} is {found}, not a whole number",
            f"Hash it, as in xxHash64({expression}).",
        )


def _is_whole_number(type_text: str) -> bool:
    inner = _LOW_CARDINALITY.fullmatch(type_text)
    return _WHOLE_NUMBER.fullmatch(inner[1] if inner else type_text) is not None


def _what(table: TableSpec) -> str:
    return f"sharding of table entry {table.entry}"


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
        with ExitStack() as stack:
            files = [stack.enter_context(MemoryFile("shard")) for _ in self._table.shards]
            self._write(decoded, files)
            parts = [
                (shard, self._block(decoded, place, file, shards))
                for place, (shard, file) in enumerate(zip(self._table.shards, files, strict=True))
                if file.size
            ]
        rows = sum(part.rows for _, part in parts)
        if rows != decoded.rows:
            raise TerminalError(
                f"{self._table.target}: {decoded.rows} rows became {rows} on their way to shards",
                "This is a bug: report it. Nothing of this table entry was inserted.",
            )
        return parts

    def _write(self, decoded: Decoded, files: Iterable[MemoryFile]) -> None:
        """Each row into the file of its shard: one pass, one block for each file, in order."""
        numbers = ", ".join(str(file.file) for file in files)
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
            run_over_rows(query, "Null", _what(table))

    def _shards_of_rows(self, decoded: Decoded) -> NDArray[np.uint32]:
        """The number of each row's shard."""
        with memory_file(decoded.native) as path:
            settings = settings_of(self._table)
            source = f"file({literal(path)}, Native)"
            query = f"SELECT toUInt32({self._place}) FROM {source} {settings}"
            found = run_over_rows(query, "RowBinary", _what(self._table))
        return np.frombuffer(found, "<u4")

    def _block(
        self, decoded: Decoded, place: int, file: MemoryFile, shards: NDArray[np.uint32] | None
    ) -> Block:
        """The rows of a shard, in the order that they had."""
        native = file.mapped()
        _, rows, _ = read_header(native)
        partitions = min(rows, decoded.clickhouse_partitions)
        if self._keys is not None and self._keys.has_partition_key and partitions > 1:
            query = self._keys.partitions_of(file.path)
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
