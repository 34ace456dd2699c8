"""A decoder for an entry whose deduplication key has to be there.

That a field is there costs a second pass over all messages (`decode.mapping`): as much again as
decoding [measured: 0.9 µs a row]. But a field that is absent is the column's default in its row. So
rows are made without that pass first, and with it only where some row has such a value in its key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sluice.core.load_spec import LINEAGE_TYPES, TableSpec
from sluice.decode.engine.session import declared, identifier, literal, run, settings_clause
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.marked import memory_file
from sluice.decode.messages.origins import Origins
from sluice.decode.messages.port import TableDecoder


def without_required_key(table: TableSpec) -> TableSpec | None:
    """The entry without the demand that its key is there; None where an absent field does not show
    in the rows, or nothing would be saved.

    An absent field shows as its type's default, unless the column has one of its own, or may be
    null, or is filled by something else than the field of its name.
    """
    if table.deduplicate is None:
        return None
    columns = {column.name: column for column in table.columns}
    mapped = {column.column for column in table.mapping}
    for name in table.deduplicate.key:
        column = columns.get(name)
        if column is None or column.kind or name in mapped or name not in table.require:
            return None
    others = tuple(name for name in table.require if name not in table.deduplicate.key)
    if others or table.mapping or table.fields or table.check or table.timestamps:
        return None
    return replace(table, require=())


class RequiredKeyDecoder:
    """See `TableDecoder`. Which of the two passes made the rows is a function of the messages, and
    both make the same of messages that have a key.

    :param quick: the entry without the demand.
    :param make: makes the decoder of an entry.
    """

    def __init__(
        self, table: TableSpec, quick: TableSpec, make: Callable[[TableSpec], TableDecoder]
    ) -> None:
        assert table.deduplicate is not None
        self._quick = make(quick)
        self._strict = make(table)
        types = {column.name: column.type for column in table.columns}
        key = [name for name in table.deduplicate.key if name not in LINEAGE_TYPES]
        self._key = frozenset(key)
        self._declared = literal(declared((name, types[name]) for name in key))
        self._is_default = " OR ".join(
            f"isNull({identifier(name)}) OR "
            f"{identifier(name)} = defaultValueOfTypeName({literal(types[name])})"
            for name in key
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return self._quick.columns

    def watch(self, buffer: MessageBuffer) -> None:
        self._quick.watch(buffer)

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        decoded = self._quick.decode(buffer, origins)
        is_at_fault = any(bad.column in self._key for bad in decoded.bad)
        if is_at_fault or (decoded.rows and self._has_default(decoded)):
            return self._strict.decode(buffer, origins)
        return decoded

    def _has_default(self, decoded: Decoded) -> bool:
        with memory_file(decoded.native) as path:
            settings = settings_clause(input_format_skip_unknown_fields=1)
            found = run(
                f"SELECT 1 FROM file({literal(path)}, Native, {self._declared}) "
                f"WHERE {self._is_default} LIMIT 1 {settings}",
                "TSV",
            )
        return bool(found.bytes())
