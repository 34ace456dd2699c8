"""Fields of Kafka's keys, decoded by a format of their own, beside the fields of the values.

Each row of a message has the fields of the message's key. A key that cannot be read makes its
message bad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.formats import ENVELOPED
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.native import column_head, with_columns
from sluice.decode.engine.session import declared, identifier, literal, run, settings_clause
from sluice.decode.mapping.source import KEY_PREFIX, table_of_fields
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded, TableDecoder
from sluice.decode.messages.facts import MessageFacts
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, Fault
from sluice.decode.messages.framing import Framing
from sluice.decode.messages.marked import Indices, memory_file
from sluice.decode.messages.origins import NOWHERE
from sluice.decode.schema.named import HEADER_OPTION, KEY_SCHEMA_HEADER, schemas_named
from sluice.decode.schema.registry import UnknownSchemasError

_OUT = "_sluice_key_out"
_NO_KEY = Fault(NULL_IN_COLUMN, "the message has no key, which [table.key] is to read")


class KeyFields:
    """Made once for each table text.

    :param table: of the key's fields.
    :param columns: of the target, by the field of the key that fills them.
    :param structure: of the fields of values.
    """

    def __init__(
        self,
        table: TableSpec,
        columns: Mapping[str, str],
        structure: str,
        make: Callable[[TableSpec], TableDecoder],
        framing_of: Callable[[TableSpec], Framing],
    ) -> None:
        self.table = table
        self._columns, self._structure = columns, structure
        self._decoder = make(table)
        self._framing = framing_of(table)
        types = {column.name: column.type for column in table.columns}
        #: Of the key's fields in the joined block.
        self.fields = [(f"{KEY_PREFIX}{name}", types[name]) for name in self._decoder.columns]
        self._own = declared((name, types[name]) for name in self._decoder.columns)

    def joined(self, decoded: Decoded, facts: MessageFacts, messages: Indices) -> Joined:
        """The rows of a block with their keys' fields, without those whose key cannot be read.

        :param messages: of each row, its message's index in `facts`.
        """
        keys = [facts.keys[index] for index in messages.tolist()]
        there = [row for row, key in enumerate(keys) if key is not None]
        with self._buffer(facts, messages[there], there) as buffer:
            found = self._decoder.decode(buffer, NOWHERE)
        out = np.ones(decoded.rows, np.bool_)
        out[found.offsets.astype(np.int64)] = False
        faults = {row: _NO_KEY for row, key in enumerate(keys) if key is None}
        for bad in found.bad:
            column = self._columns.get(bad.column, "")
            faults[int(bad.offset)] = Fault(bad.reason, f"in the key: {bad.error}", column)
        for row in np.flatnonzero(out).tolist():
            faults.setdefault(row, Fault(CANNOT_PARSE, "the key has no row"))
        by_message = {int(messages[row]): fault for row, fault in faults.items()}
        native = self._block(decoded, found, out) if found.rows else b""
        offsets = decoded.offsets[~out]
        left = replace(decoded, native=memoryview(native), rows=found.rows, offsets=offsets)
        return left, messages[~out], by_message

    def _buffer(self, facts: MessageFacts, messages: Indices, rows: list[int]) -> MessageBuffer:
        """The keys of these messages, at the numbers of their rows."""
        buffer = MessageBuffer(self._framing)
        buffer.add([facts.keys[index] or b"" for index in messages.tolist()], rows)
        buffer.facts = facts.some(messages.tolist())
        return buffer

    def _block(self, decoded: Decoded, found: Decoded, out: NDArray[np.bool_]) -> bytes:
        """The rows that are left beside their keys, as one block."""
        marked = with_columns(decoded.native, [column_head(_OUT, "UInt8") + out.tobytes()])
        named = ", ".join(
            f"{identifier(name)} AS {identifier(KEY_PREFIX + name)}" for name in found.columns
        )
        columns = ", ".join(map(identifier, decoded.columns))
        settings = settings_clause(max_block_size=decoded.rows + 1, max_threads=1)
        with memory_file(marked) as values, memory_file(found.native) as keys:
            structure = f"{self._structure}, {_OUT} UInt8"
            of_values = f"file({literal(values)}, Native, {literal(structure)})"
            of_keys = f"file({literal(keys)}, Native, {literal(self._own)})"
            query = (
                f"SELECT * FROM (SELECT {columns} FROM {of_values} WHERE NOT {_OUT}) AS v "
                f"PASTE JOIN (SELECT {named} FROM {of_keys}) AS k {settings}"
            )
            return bytes(run(query, "Native").bytes())

    def told(
        self, error: UnknownSchemasError, values: TableSpec, buffer: MessageBuffer
    ) -> UnknownSchemasError:
        """The same with all schemas that the messages and their keys name, whichever of the two was
        looked at first: the text is to list them all."""
        keys = [index for index, key in enumerate(buffer.facts.keys if buffer.facts else []) if key]
        known, unknown = set(error.found.known), set(error.found.numbers)
        found = [schemas_named(values, buffer)]
        if buffer.facts is not None:
            with self._buffer(buffer.facts, np.array(keys, np.int64), keys) as own:
                found.append(schemas_named(self.table, own))
        for there, not_there in found:
            known |= there
            unknown |= not_there
        numbers = (*error.found.numbers, *sorted(unknown - set(error.found.numbers)))
        return UnknownSchemasError(
            replace(error.found, numbers=numbers, known=tuple(sorted(known - unknown)))
        )


#: A block, of each of its rows the message, and what is wrong with the other messages.
Joined = tuple[Decoded, Indices, dict[int, Fault]]


def key_table(table: TableSpec, fields: Mapping[str, str]) -> TableSpec | None:
    """The table of the key's fields; None: the entry reads none."""
    if table.key is None or not fields:
        return None
    columns = tuple(Column(name, kind) for name, kind in fields.items())
    return replace(
        table_of_fields(table, columns),
        format=table.key.format,
        options=(*table.key.options, (HEADER_OPTION, KEY_SCHEMA_HEADER)),
        rows="one",
        bad_rows="dead-letter",
        unknown_fields="ignore",
        decompress="",
        envelope="connect" if table.envelope and table.key.format in ENVELOPED else "",
        tombstones="skip",
        dynamic=None,
        key=None,
    )
