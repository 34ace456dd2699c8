"""Entries whose columns are not simply the fields of their names, or whose rows are checked.

Two steps: the messages are decoded into a table of their fields, strictly, by whatever decodes
the format; over that block the columns are expressions, whose values are converted as strictly
into the target's types. A row that breaks a check makes its message bad.

Fields of Kafka's keys are decoded by a format of their own, beside the fields of the values: each
row of a message has those of the message's key. A key that cannot be read makes its
message bad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.formats import ENVELOPED
from sluice.core.load_spec import KAFKA_COLUMNS, Column, TableSpec
from sluice.decode.engine.expressions import settings_of
from sluice.decode.engine.native import column_head, with_columns
from sluice.decode.engine.session import declared, identifier, literal, run, settings_clause
from sluice.decode.mapping.source import KEY_PREFIX, makes_moments, source_of, table_of_fields
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded, TableDecoder
from sluice.decode.messages.facts import (
    NOWHERE,
    RAW_MESSAGE,
    TOMBSTONE,
    MessageFacts,
    fact_column,
    facts_named,
    raw_column,
)
from sluice.decode.messages.fault import CANNOT_PARSE, CHECK_FAILED, NULL_IN_COLUMN, Fault, absent
from sluice.decode.messages.format import Group, Natural, TypedFormat
from sluice.decode.messages.framing import BYTES, Framing
from sluice.decode.messages.memory import memory_file
from sluice.decode.messages.views import Indices, subset
from sluice.decode.schema.named import HEADER_OPTION, KEY_SCHEMA_HEADER, schemas_named
from sluice.decode.schema.registry import UnknownSchemasError

_KEY_OUT = "_sluice_key_out"
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
        marked = with_columns(decoded.native, [column_head(_KEY_OUT, "UInt8") + out.tobytes()])
        named = ", ".join(
            f"{identifier(name)} AS {identifier(KEY_PREFIX + name)}" for name in found.columns
        )
        columns = ", ".join(map(identifier, decoded.columns))
        settings = settings_clause(max_block_size=decoded.rows + 1, max_threads=1)
        with memory_file(*marked) as values, memory_file(found.native) as keys:
            structure = f"{self._structure}, {_KEY_OUT} UInt8"
            of_values = f"file({literal(values)}, Native, {literal(structure)})"
            of_keys = f"file({literal(keys)}, Native, {literal(self._own)})"
            query = (
                f"SELECT * FROM (SELECT {columns} FROM {of_values} WHERE NOT {_KEY_OUT}) AS v "
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
        timestamps="",
        tombstones="skip",
        dynamic=None,
        key=None,
    )


_PLACE = "_sluice_field_place"
_OUT = "_sluice_field_out"


def is_mapped(table: TableSpec) -> bool:
    """Whether an entry needs more than its format's decoder."""
    named = table.mapping or table.fields or table.check
    return bool(named or makes_moments(table))


class MappedFormat(TypedFormat):
    """The fields of messages as a relation. What cannot be read is found on the way.

    :param make: makes the decoder of the fields, and of those of keys.
    :param framing_of: how keys stand in a buffer.
    :raises TerminalError: the mapping contradicts itself, or an expression cannot be computed.
    """

    def __init__(
        self,
        table: TableSpec,
        make: Callable[..., TableDecoder],
        framing_of: Callable[[TableSpec], Framing] = lambda _: BYTES,
    ) -> None:
        self._table = table
        self._source = source_of(table)
        self._facts = facts_named(table)
        self._fields = make(self._source.table, self._source.seconds)
        types = {column.name: column.type for column in self._source.table.columns}
        read = [(name, types[name]) for name in self._fields.columns]
        self._keys: KeyFields | None = None
        keys = key_table(table, self._source.keys)
        if keys is not None:
            self._keys = KeyFields(keys, self._source.filled, declared(read), make, framing_of)
            read += self._keys.fields
        read += [(name, KAFKA_COLUMNS[name]) for name in self._facts]
        self._structure = declared(read)
        self._columns = self._naturals()
        self._tests = [
            (absent(name), f"isNotNull({value})") for name, value in self._source.required.items()
        ]
        self._tests += [
            (Fault(CHECK_FAILED, f"the check {check} does not hold"), f"({check})")
            for check in table.check
        ]
        if table.tombstones == "delete":  # it has no fields that a test could be about
            self._tests = [(fault, f"({TOMBSTONE} OR {test})") for fault, test in self._tests]
        self._verdict = self._verdict_query()

    def _naturals(self) -> tuple[Natural, ...]:
        """The columns with the types that their expressions have."""
        values = self._source.values
        # By numbers: an expression may name a field like another column.
        selected = ", ".join(f"{v} AS _sluice_{n}" for n, v in enumerate(values.values()))
        nothing = f"null({literal(self._structure)})"
        # Named tuples would be described in several lines.
        in_one_line = settings_of(self._table, print_pretty_type_names=0)
        query = f"DESCRIBE (SELECT {selected} FROM {nothing}) {in_one_line}"
        try:
            lines = run(query, "TSVRaw").bytes().decode().rstrip("\n").split("\n")
        except Exception as error:
            raise TerminalError(
                f"table entry {self._table.entry} into {self._table.target}: an expression cannot "
                f"be computed: {str(error)[:300]}",
                "Correct the expressions in [table.columns]; the fields are: " + self._structure,
            ) from None
        types = [line.split("\t")[1] for line in lines]
        found = zip(values.items(), types, strict=True)
        return tuple(Natural(name, type_text, value) for (name, value), type_text in found)

    def _verdict_query(self) -> str:
        """Number of each row that breaks a test, and of the first test that it breaks, from 1."""
        if not self._tests:
            return ""
        parts = [
            f"NOT ifNull(toBool({test}), false), {number}"
            for number, (_, test) in enumerate(self._tests, 1)
        ]
        code = f"toUInt32(multiIf({', '.join(parts)}, 0))"
        row = "toUInt32(rowNumberInAllBlocks())"
        rows = f"SELECT {row} AS i, {code} AS f FROM {{source}}"
        query = f"SELECT i, f FROM ({rows}) WHERE f != 0 {settings_of(self._table)}"
        nothing = f"null({literal(self._structure)})"
        try:
            run(query.replace("{source}", nothing), "Null")
        except Exception as error:
            raise TerminalError(
                f"table entry {self._table.entry} into {self._table.target}: a check cannot be "
                f"computed: {str(error)[:300]}",
                "Correct the expressions in check; the fields are: " + self._structure,
            ) from None
        return query

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See `sluice.decode.messages.format.TypedFormat`."""
        if not len(indices):
            source = f"null({literal(f'{self._structure}, {_PLACE} UInt32')})"
            yield Group(source, self._columns, indices, _PLACE, self._is_single)
            return
        dead = self._tombstones(buffer, indices)
        if len(dead):
            yield from self._grouped(buffer, dead, self._without_fields(buffer.offsets[dead]))
            indices = np.setdiff1d(indices, dead)
            if not len(indices):
                return
        if len(indices) == buffer.messages:
            yield from self._with_fields(buffer, buffer, indices)
        else:
            with subset(buffer, indices) as part:
                yield from self._with_fields(buffer, part, indices)

    def _with_fields(
        self, buffer: MessageBuffer, part: MessageBuffer, indices: Indices
    ) -> Iterator[Group]:
        """
        :param part: the messages of these indices.
        """
        try:
            yield from self._grouped(buffer, indices, self._fields.decode(part, NOWHERE))
        except UnknownSchemasError as error:
            if self._keys is None:
                raise
            raise self._keys.told(error, self._source.table, part) from None

    def _tombstones(self, buffer: MessageBuffer, indices: Indices) -> Indices:
        """Which of these have no value that could be read."""
        facts = buffer.facts
        if self._table.tombstones == "skip" or facts is None:
            return indices[:0]
        return indices[np.array(facts.tombstones, np.bool_)[indices]]

    def _without_fields(self, offsets: NDArray[np.uint64]) -> Decoded:
        """The block of fields of messages that have none."""
        types = {column.name: column.type for column in self._source.table.columns}
        names = self._fields.columns
        structure = literal(declared((name, types[name]) for name in names))
        count = len(offsets)
        settings = settings_clause(max_block_size=count, input_format_parallel_parsing=0)
        with memory_file(b"{}\n" * count) as path:
            source = f"file({literal(path)}, JSONEachRow, {structure})"
            native = run(f"SELECT * FROM {source} {settings}", "Native").bytes()
        return Decoded(memoryview(native), count, names, offsets, 1, "", count)

    @property
    def _is_single(self) -> bool:
        return self._table.rows == "one"

    def _grouped(
        self, buffer: MessageBuffer, indices: Indices, decoded: Decoded
    ) -> Iterator[Group]:
        offsets = buffer.offsets[indices]
        unreadable = {
            int(indices[bad.index]): Fault(bad.reason, bad.error, bad.column) for bad in decoded.bad
        }
        rows = np.searchsorted(offsets, decoded.offsets)
        if self._keys is not None and decoded.rows:
            facts = self._facts_of(buffer)
            decoded, messages, faults = self._keys.joined(decoded, facts, indices[rows])
            rows = np.searchsorted(indices, messages)
            unreadable |= faults
        block = self._with_facts(buffer, decoded, indices[rows]) if decoded.rows else b""
        out = np.zeros(decoded.rows, np.bool_)
        for row, fault in self._broken_rows(block):
            out[row] = True
            if self._table.bad_rows != "drop-row":
                unreadable.setdefault(int(indices[rows[row]]), fault)
        is_left = np.ones(len(indices), np.bool_)
        is_left[np.searchsorted(indices, np.fromiter(unreadable, np.int64, len(unreadable)))] = (
            False
        )
        out |= ~is_left[rows]
        places = (np.cumsum(is_left) - 1)[rows]
        added = [
            _column(_PLACE, "UInt32", np.where(out, 0, places).astype("<u4")),
            _column(_OUT, "UInt8", out.astype("u1")),
        ]
        structure = f"{self._structure}, {_PLACE} UInt32, {_OUT} UInt8"
        with memory_file(*with_columns(block, added)) as path:
            source = f"file({literal(path)}, Native, {literal(structure)})"
            if out.any():
                source = f"(SELECT * FROM {source} WHERE NOT {_OUT})"
            yield Group(
                source,
                self._columns,
                indices[is_left],
                _PLACE,
                self._is_single,
                unreadable=unreadable,
                ignored=decoded.ignored,
            )

    def _with_facts(self, buffer: MessageBuffer, decoded: Decoded, messages: Indices) -> bytes:
        """The block of fields with the facts that expressions name."""
        added = [self._fact(name, buffer, messages, decoded.offsets) for name in self._facts]
        return b"".join(with_columns(decoded.native, added))

    def _fact(
        self, name: str, buffer: MessageBuffer, messages: Indices, places: NDArray[np.uint64]
    ) -> bytes:
        if name != RAW_MESSAGE:
            return fact_column(name, self._facts_of(buffer), messages, places)
        chosen, of_rows = np.unique(messages, return_inverse=True)
        values = list(buffer.iterate(chosen))
        if buffer.facts is not None and buffer.facts.tombstones:  # what is read for them is not it
            dead = (buffer.facts.tombstones[index] for index in chosen.tolist())
            values = [b"" if is_dead else v for v, is_dead in zip(values, dead, strict=True)]
        return raw_column(values[number] for number in of_rows.tolist())

    def _facts_of(self, buffer: MessageBuffer) -> MessageFacts:
        if buffer.facts is None:
            raise TerminalError(
                f"table entry {self._table.entry}: nobody took {self._facts[0]} of the messages",
                "This is a bug: report it with the configuration.",
            )
        return buffer.facts

    def _broken_rows(self, block: bytes) -> Iterator[tuple[int, Fault]]:
        """Rows that break a test, with the first that they break."""
        if not self._verdict or not block:
            return
        with memory_file(block) as path:
            source = f"file({literal(path)}, Native, {literal(self._structure)})"
            found = run(self._verdict.replace("{source}", source), "RowBinary")
        pairs = np.frombuffer(found.bytes(), "<u4").reshape(-1, 2)
        for row, test in pairs.tolist():
            yield row, self._tests[test - 1][0]


def _column(name: str, type_text: str, values: NDArray[np.generic]) -> bytes:
    return column_head(name, type_text) + values.tobytes()
