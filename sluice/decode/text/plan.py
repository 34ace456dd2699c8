"""The queries that decode one table entry, written once for each table text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.keys import (
    PLACE_COLUMN,
    Keys,
    check_default,
    filled_columns,
    lineage_of,
    nullable_type,
)
from sluice.decode.engine.pair import FINE
from sluice.decode.engine.session import declared, identifier, literal, settings_clause, unlike
from sluice.decode.engine.types import default_of
from sluice.decode.text.readers import Reader, ReaderFactory

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
    :param takes_words: for messages in which nothing is known to be doubtful, see misread.py:
        floats may be infinite, or no number, and nulls stand beside a Dynamic.
    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(
        self, table: TableSpec, widest_integer: str = "Int256", takes_words: bool = False
    ) -> None:
        self.table = table
        self.takes_words = takes_words
        factory = ReaderFactory(table.on_null == "dead-letter", widest_integer, takes_words)
        taken = filled_columns(table)
        self._rows_as = unlike("_sluice_row", (column.name for column in taken))
        self._nested = factory.nested({column.name: column.type for column in taken})
        read = tuple(PlannedColumn(column, self._reader(factory, column)) for column in taken)
        read += tuple(
            PlannedColumn(Column(group.head, group.type, "EPHEMERAL"), group.records)
            for group in {one.head: one for one in self._nested.values()}.values()
        )
        self.read = read
        self.columns = tuple(part for part in read if part.column.kind != "EPHEMERAL")
        self._by_name = {part.name: part for part in read}
        self._written = declared((part.name, part.reader.target) for part in self.columns)
        self._unstored = [self._read_value(p.name) for p in read if p not in self.columns]
        self.structure = ", ".join(self._declaration(part, part.reader.wide) for part in read)
        self._loose = ", ".join(self._declaration(part, part.reader.loose) for part in read)
        # The engine reads no null in a Dynamic where null is not read everywhere.
        has_dynamic = any("Dynamic" in column.type for column in taken)
        reads_null = table.on_null == "default" or (takes_words and has_dynamic)
        self._settings = {
            "input_format_null_as_default": int(reads_null),
            "input_format_skip_unknown_fields": int(table.unknown_fields == "ignore"),
            "input_format_json_ignore_unknown_keys_in_named_tuple": int(
                table.unknown_fields == "ignore"
            ),
            # In the brackets of lines, elements of tuples have no names.
            "input_format_json_named_tuples_as_objects": int(table.format.startswith("JSON")),
            "session_timezone": literal(table.time_zone),
        }
        values = ((part, self._read_value(part.name)) for part in self.columns)
        self._values = ", ".join(
            f"{part.reader.conversion.value(value)} AS {identifier(part.name)}"
            for part, value in values
        )
        made = ((part.reader.conversion, self._read_value(part.name)) for part in self.columns)
        tests = ((one.quick or one.fault, value) for one, value in made)
        self._unfit = [f"toUInt8({test(value)})" for test, value in tests if test is not None]
        self.keys = Keys(table, tuple(part.name for part in self.columns), lineage_of(table))

    def _reader(self, factory: ReaderFactory, column: Column) -> Reader:
        nested = self._nested.get(column.name)
        if column.name in self.table.require:
            return factory.required(column.type, nullable_type(self.table, column))
        if nested is None:
            return factory.of(column.type)
        return nested.reader(self._read_value(nested.head))

    def _declaration(self, part: PlannedColumn, read_as: str) -> str:
        """The column as it is read, with what stands in for an absent field."""
        head = f"{identifier(part.name)} {read_as}"
        column, target = part.column, part.reader.target
        if column.name in self.table.require:
            return head
        if column.kind and column.expression:
            value = self._over_typed_columns(column, read_as == part.reader.loose)
        elif read_as != target and read_as.startswith(("Nullable(", "String")):
            value = default_of(target)
        else:
            return head
        return f"{head} DEFAULT CAST(CAST(({value}), {literal(target)}), {literal(read_as)})"

    def _over_typed_columns(self, column: Column, loose: bool) -> str:
        """A default expression; the columns it names have the table's types in it."""
        used = check_default(self.table, column, self._by_name)
        if not used:
            return column.expression
        names = ", ".join(identifier(other.name) for other in used)
        values = ", ".join(f"[{self._typed(other.name, loose)}]" for other in used)
        return f"arrayMap(({names}) -> ({column.expression}), {values})[1]"

    def _read_value(self, name: str) -> str:
        """A column as it was read."""
        return f"{self._rows_as}.{identifier(name)}"

    def _typed(self, name: str, loose: bool) -> str:
        """A column as it was read, in the table's type."""
        value, reader = identifier(name), self._by_name[name].reader
        if name in self._nested:
            nested = self._nested[name]
            reader = nested.reader(identifier(nested.head))
        read_as = reader.loose if loose else reader.wide
        if read_as.startswith("Nullable(") and not reader.target.startswith("Nullable("):
            default = f"CAST({default_of(reader.target)}, {literal(read_as)})"
            value = f"ifNull({value}, {default})"
        return f"CAST({reader.conversion.value(value)}, {literal(reader.target)})"

    def _rows(self, path: str, throws: bool, more: str = "") -> str:
        """The wide columns, narrowed, of rows whose values fit.

        :param throws: a value that does not fit stops the query; otherwise its row is left out.
        :param more: further columns.
        """
        # The engine reads only columns that something asks for.
        tests = [f"ignore({', '.join(self._unstored)})"] if self._unstored else []
        tests += self._unfit
        # Two by two: of more, the engine compares them row by row.
        is_unfit = reduce(lambda one, other: f"bitOr({one}, {other})", tests, "toUInt8(0)")
        if throws:
            is_unfit = f"throwIf({is_unfit}, {literal(OUT_OF_RANGE)})"
        where = f" WHERE NOT {is_unfit}" if tests else ""
        source = self._file(path, self.structure)
        return f"SELECT {self._values}{more} FROM {source} AS {self._rows_as}{where}"

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns that are read from messages, by name."""
        return {name: part.column.type for name, part in self._by_name.items()}

    @property
    def readable(self) -> frozenset[str]:
        """The names of the columns that are read from messages, stored or not."""
        return frozenset(self._by_name)

    def strict(self, path: str, rows: int) -> str:
        """All rows as one block, or an exception.

        :param rows: of the file; an upper bound is enough.
        """
        return f"{self._select(path)} {self._block_clause(rows)}"

    def strict_into(self, target: str, path: str, rows: int) -> str:
        """The same, written to a file as Native: no copy of the block in the engine's memory."""
        clause = self._block_clause(rows, min_insert_block_size_rows=0)
        into = self.keys.into(target, self._written, True, False)
        return f"{into} {clause} {self._select(path)}"

    def tolerant_into(self, target: str, path: str, rows: int, errors: str) -> str:
        """The same of the rows that can be read and whose values fit. The last column is
        PLACE_COLUMN, the row's place among all that can be read.

        :param errors: a path where nothing is; which attempts to read a row failed stands there.
        """
        place = f", toUInt32(assumeNotNull({self._rows_as}._row_number)) AS {PLACE_COLUMN}"
        inner = self._rows(path, throws=False, more=place)
        clause = self._lenient_clause(
            rows,
            min_insert_block_size_rows=0,
            input_format_record_errors_file_path=literal(errors),
            # Not only of what is read, but also in people's default expressions.
            date_time_overflow_behavior="'throw'",
        )
        into = self.keys.into(target, self._written, True, True)
        return f"{into} {clause} {self.keys.around(inner, (PLACE_COLUMN,))}"

    def _select(self, path: str) -> str:
        return self.keys.around(self._rows(path, throws=True))

    def _file(self, path: str, structure: str) -> str:
        return f"file({literal(path)}, JSONEachRow, {literal(structure)})"

    def _block_clause(self, rows: int, **more: object) -> str:
        return self._clause(max_block_size=max(rows + 1, 1024), **more)

    def fault_kinds(self, path: str, rows: int, errors: str = "") -> str:
        """Of each row that can be read the kind of fault of each of `columns`, a byte for each.

        :param errors: as in `tolerant_into`; "": nobody asks.
        """
        faults = ((part.reader.conversion.fault, part.name) for part in self.columns)
        kinds = ", ".join(
            f"toUInt8({fault(self._read_value(name)) if fault else FINE})" for fault, name in faults
        )
        # All are read whole: reading can fail, and a test may ask for no more than what is null.
        read = ", ".join(map(self._read_value, self._by_name))
        source = f"{self._file(path, self._loose)} AS {self._rows_as}"
        more = {"input_format_record_errors_file_path": literal(errors)} if errors else {}
        query = f"SELECT {kinds} FROM {source} WHERE NOT ignore({read})"
        return f"{query} {self._lenient_clause(rows, **more)}"

    def readable_rows(
        self, path: str, rows: int, errors: str, columns: tuple[PlannedColumn, ...] = ()
    ) -> str:
        """A byte for each row that can be read in the wide types, moments being clamped.

        :param errors: as in `tolerant_into`.
        :param columns: only these are read; none: all, and no other field if that is refused.
        """
        more = {"input_format_skip_unknown_fields": 1} if columns else {}
        some = columns or self.read
        structure = declared((part.name, part.reader.wide) for part in some)
        read = ", ".join(self._read_value(part.name) for part in some)
        clause = self._lenient_clause(
            rows, input_format_record_errors_file_path=literal(errors), **more
        )
        source = f"{self._file(path, structure)} AS {self._rows_as}"
        return f"SELECT toUInt8(0) FROM {source} WHERE NOT ignore({read}) {clause}"

    def _lenient_clause(self, rows: int, **more: object) -> str:
        settings: dict[str, object] = {
            "input_format_allow_errors_num": "18446744073709551615",
            "input_format_allow_errors_ratio": "1",
            "date_time_overflow_behavior": "'saturate'",
        }
        return self._block_clause(rows, **(settings | more))

    def _clause(self, **more: object) -> str:
        return settings_clause(**(self._settings | more))
