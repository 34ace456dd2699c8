"""The queries that decode one table entry, written once for each table text."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.core.errors import TerminalError
from sluice.core.text import LINEAGE_TYPES, Column, TableText
from sluice.decode.expressions import referenced_columns
from sluice.decode.native import check_lineage_type
from sluice.decode.readers import ReaderFactory
from sluice.decode.scalars import Reader, default_of
from sluice.decode.session import identifier, literal, settings_clause

KEY_COLUMN = "_sluice_partition_key"
#: Of a sorted block: which message of the buffer each row was.
ORDER_COLUMN = "_sluice_order"
OUT_OF_RANGE = "a value does not fit its column"


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column that messages fill."""

    column: Column
    reader: Reader

    @property
    def name(self) -> str:
        return self.column.name


class Plan:
    """The queries of a table.

    :param widest_integer: what integers of up to 128 bits are read as. It must hold every
        number of the messages: Int64 is for those whose numbers are short.
    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(self, table: TableText, widest_integer: str = "Int256") -> None:
        self.table = table
        if table.format != "JSONEachRow":
            raise TerminalError(
                f"table {table.target}: format {table.format} is not supported",
                'Use format = "JSONEachRow".',
            )
        self.lineage = self._lineage()
        factory = ReaderFactory(table.on_null == "dead-letter", widest_integer)
        read = tuple(
            PlannedColumn(column, factory.of(column.type))
            for column in table.columns
            if column.name not in table.lineage and column.kind in ("", "DEFAULT", "EPHEMERAL")
        )
        self.columns = tuple(part for part in read if part.column.kind != "EPHEMERAL")
        if not self.columns:
            raise TerminalError(
                f"table {table.target} has no column that a message could fill",
                "Add a column, or take the entry out of the configuration.",
            )
        self._by_name = {part.name: part for part in read}
        self._unstored = [f"t.{identifier(p.name)}" for p in read if p not in self.columns]
        self.structure = ", ".join(self._declaration(part, part.reader.wide) for part in read)
        self._bare = ", ".join(f"{identifier(part.name)} {part.reader.wide}" for part in read)
        self._loose = ", ".join(self._declaration(part, part.reader.loose) for part in read)
        self._settings = {
            "input_format_null_as_default": int(table.on_null == "default"),
            "input_format_skip_unknown_fields": int(table.unknown_fields == "ignore"),
            "session_timezone": literal(table.time_zone),
        }
        self._narrowed = self._narrowing()
        self._faults = self._fault_code()
        self._key = self._partition_key()
        self._sorting = self._sorting_clauses() if table.sort else None

    def _lineage(self) -> tuple[Column, ...]:
        """The lineage columns as the server has them, in our order."""
        by_name = {column.name: column for column in self.table.columns}
        lineage = []
        for name in LINEAGE_TYPES:
            if name in self.table.lineage:
                column = by_name.get(name)
                if column is None or column.kind not in ("", "DEFAULT"):
                    raise TerminalError(
                        f"table {self.table.target} has no plain lineage column {name}",
                        f"ALTER TABLE … ADD COLUMN {name} {LINEAGE_TYPES[name]}, "
                        "or set lineage = false.",
                    )
                check_lineage_type(name, column.type)
                lineage.append(column)
        return tuple(lineage)

    def _declaration(self, part: PlannedColumn, read_as: str) -> str:
        """The column as it is read, with what stands in for an absent field."""
        head = f"{identifier(part.name)} {read_as}"
        column, target = part.column, part.reader.target
        if column.kind and column.expression:
            value = self._over_typed_columns(column, read_as == part.reader.loose)
        elif not part.reader.plain or (read_as.startswith("Nullable(") and read_as != target):
            value = default_of(target)
        else:
            return head
        return f"{head} DEFAULT CAST(CAST(({value}), {literal(target)}), {literal(read_as)})"

    def _over_typed_columns(self, column: Column, loose: bool) -> str:
        """A default expression; the columns it names have the table's types in it."""
        table = self.table
        used = referenced_columns(column.expression, table.columns)
        unknown = [other.name for other in used if other.name not in self._by_name]
        if unknown:
            raise TerminalError(
                f"table {table.target}: the default of {column.name} refers to {unknown[0]}, "
                "which is not read from messages",
                "Change the DEFAULT expression to refer to plain columns only.",
            )
        if not used:
            return column.expression
        names = ", ".join(identifier(other.name) for other in used)
        values = ", ".join(f"[{_typed(self._by_name[other.name], loose)}]" for other in used)
        return f"arrayMap(({names}) -> ({column.expression}), {values})[1]"

    def _narrowing(self) -> str:
        """The wide columns, narrowed; throws if a value does not fit."""
        parts, silent = [], []
        if self._unstored:
            # The engine reads only columns that something asks for.
            silent.append(f"ignore({', '.join(self._unstored)})")
        for part in self.columns:
            value = f"t.{identifier(part.name)}"
            parts.append(f"{part.reader.narrow(value)} AS {identifier(part.name)}")
            if part.reader.silent is not None:
                silent.append(f"toUInt8({part.reader.silent(value)})")
        where = ""
        if silent:
            where = f" WHERE NOT throwIf(greatest(0, {', '.join(silent)}), {literal(OUT_OF_RANGE)})"
        return f"SELECT {', '.join(parts)} FROM {{source}} AS t{where}"

    def _fault_code(self) -> str:
        """Per row: 0, or 4 x (position of the first faulty column) + kind of fault."""
        tests = ["0", "0"]
        for index, part in enumerate(self.columns):
            if part.reader.fault is not None:
                fault = part.reader.fault(f"t.{identifier(part.name)}")
                tests += [f"({fault}) AS _f{index} != 0", f"{4 * index} + _f{index}"]
        # Columns without a test of their own are read too: reading them can fail.
        read = ", ".join(f"t.{identifier(name)}" for name in self._by_name)
        return f"toUInt32(multiIf({', '.join([*tests, '0'])}) + ignore({read}))"

    def _partition_key(self) -> str | None:
        """SELECT … FROM ({inner}) with a hash of the partition key as last column."""
        table = self.table
        if not table.partition_key.strip():
            return None
        aliases, used = self._computed(table.partition_key)
        lineage = {column.name for column in self.lineage}
        missing = used - {part.name for part in self.columns} - lineage - set(aliases)
        if missing:
            raise TerminalError(
                f"table {table.target}: the partition key depends on {min(missing)}, "
                "which blocks do not carry",
                "Partition by columns that are inserted.",
            )
        self.key_needs_lineage = bool(used & lineage)
        clause = f"WITH {', '.join(aliases.values())} " if aliases else ""
        names = [identifier(part.name) for part in self.columns]
        key = f"sipHash64(tuple({table.partition_key})) AS {KEY_COLUMN}"
        self._key_alone = f"{clause}SELECT uniqExact(tuple({table.partition_key})) FROM {{source}}"
        return f"{clause}SELECT {', '.join([*names, key])} FROM ({{inner}})"

    def _computed(self, key: str) -> tuple[dict[str, str], set[str]]:
        """The columns below a key that the server computes, as definitions by name; and the
        names of all columns that the key depends on."""
        aliases: dict[str, str] = {}
        waiting = [key]
        while waiting:
            for column in referenced_columns(waiting.pop(), self.table.columns):
                if column.kind in ("MATERIALIZED", "ALIAS") and column.name not in aliases:
                    cast = f"CAST(({column.expression}), {literal(column.type)})"
                    aliases[column.name] = f"{cast} AS {identifier(column.name)}"
                    waiting.append(column.expression)
        texts = [key, *aliases.values()]
        used = {c.name for text in texts for c in referenced_columns(text, self.table.columns)}
        return aliases, used

    def _sorting_clauses(self) -> tuple[str, str] | None:
        """What stands before and after a query whose rows are to be sorted; None if the table
        has no order.

        Lineage columns are not there yet: within a block, `_offset` grows with the order of the
        messages and the others are constant. The server sorts what is not in its order, so
        an expression over them costs time at worst.
        """
        table = self.table
        if not table.sorting_key.strip():
            return None
        aliases, used = self._computed(f"tuple({table.sorting_key})")
        stand_ins = {"_topic": "''", "_partition": "0", "_row": "0", "_offset": ORDER_COLUMN}
        missing = used - {part.name for part in self.columns} - set(stand_ins) - set(aliases)
        if missing:
            raise TerminalError(
                f"table {table.target}: the sorting key depends on {min(missing)}, "
                "which blocks do not carry",
                "Set sort = false for this entry.",
            )
        order = f"toUInt32(rowNumberInAllBlocks()) AS {ORDER_COLUMN}"
        names = [identifier(part.name) for part in self.columns]
        if self.has_key_column:
            names.append(KEY_COLUMN)
        terms = [f"{value} AS {name}" for name, value in stand_ins.items() if name in used]
        terms += aliases.values()
        clause = f"WITH {', '.join(terms)} " if terms else ""
        head = f"{clause}SELECT {', '.join([*names, order])} FROM ("
        return head, f") ORDER BY {table.sorting_key}, {ORDER_COLUMN}"

    #: Whether the partition key can only be known once the lineage columns are there.
    key_needs_lineage = False

    @property
    def has_key_column(self) -> bool:
        """Whether `strict` gives the hash of the partition key as last column."""
        return self._key is not None and not self.key_needs_lineage

    @property
    def has_order_column(self) -> bool:
        """Whether `strict` gives the places of the messages as last column."""
        return self._sorting is not None

    @property
    def has_partition_key(self) -> bool:
        """Whether blocks can touch more than one ClickHouse partition."""
        return self._key is not None

    def strict(self, path: str, rows: int) -> str:
        """All rows as one block, or an exception.

        :param rows: of the file; an upper bound is enough.
        """
        return f"{self._select(path)} {self._block_clause(rows)}"

    def bare(self, path: str) -> str:
        """Read one row and do nothing with it, not even fill in what is absent.

        What cannot be read fails as in `strict`, with the same words, at a third of the cost.
        """
        return f"SELECT * FROM {_file(path, 'JSONEachRow', self._bare)} {self._block_clause(1)}"

    def strict_into(self, target: str, path: str, rows: int) -> str:
        """The same, written to a file as Native: no copy of the block in the engine's memory."""
        clause = self._block_clause(rows, min_insert_block_size_rows=0)
        return f"INSERT INTO FUNCTION file({literal(target)}, Native) {clause} {self._select(path)}"

    def _select(self, path: str) -> str:
        inner = self._narrowed.replace("{source}", _file(path, "JSONEachRow", self.structure))
        if self._key is not None and self.has_key_column:
            inner = self._key.replace("{inner}", inner)
        if self._sorting is not None:
            inner = inner.join(self._sorting)
        return inner

    def _block_clause(self, rows: int, **more: object) -> str:
        return self._clause(max_block_size=max(rows + 1, 1024), **more)

    def partitions_of(self, path: str) -> str:
        """The number of ClickHouse partitions of a Native block in a file."""
        query = self._key_alone.replace("{source}", f"file({literal(path)}, Native)")
        return f"{query} {self._clause()}"

    def lenient(self, path: str, index: str, rows: int) -> str:
        """Index and fault code of each row that can be read; the others are skipped.

        :param index: the field that carries the index.
        """
        structure = f"{identifier(index)} UInt32, {self._loose}"
        source = _file(path, "JSONEachRow", structure)
        query = f"SELECT t.{identifier(index)} AS i, {self._faults} AS f FROM {source} AS t"
        return f"{query} {self._lenient_clause(rows)}"

    def lenient_column(self, path: str, index: str, rows: int, part: PlannedColumn) -> str:
        """Index of each row in which this column alone can be read."""
        structure = f"{identifier(index)} UInt32, {identifier(part.name)} {part.reader.loose}"
        source = _file(path, "JSONEachRow", structure)
        query = f"SELECT t.{identifier(index)} AS i, toUInt32(0) AS f FROM {source} AS t"
        return f"{query} {self._lenient_clause(rows, input_format_skip_unknown_fields=1)}"

    def _lenient_clause(self, rows: int, **more: object) -> str:
        return self._block_clause(
            rows,
            input_format_allow_errors_num="18446744073709551615",
            input_format_allow_errors_ratio="1",
            date_time_overflow_behavior="'saturate'",
            **more,
        )

    def _clause(self, **more: object) -> str:
        return settings_clause(**(self._settings | more))


def _typed(part: PlannedColumn, loose: bool) -> str:
    """A column as it was read, in the table's type."""
    value, reader = identifier(part.name), part.reader
    read_as = reader.loose if loose else reader.wide
    if read_as.startswith("Nullable(") and not reader.target.startswith("Nullable("):
        default = f"CAST({default_of(reader.target)}, {literal(read_as)})"
        value = f"ifNull({value}, {default})"
    return f"CAST({value}, {literal(reader.target)})" if reader.plain else reader.narrow(value)


def _file(path: str, file_format: str, structure: str) -> str:
    return f"file({literal(path)}, {file_format}, {literal(structure)})"
