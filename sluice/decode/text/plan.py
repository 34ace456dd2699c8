"""The queries that decode one table entry, written once for each table text.

A value of each type is read so that nothing wraps, is cut or vanishes (H16).

The engine's JSON reader stores 300 in a UInt8 as 44, 70000 in a Date as 1982, 257 in an
Enum8 as element 1, 1e400 in a Float64 as infinity, epoch milliseconds in a DateTime64 as
the year 9999, and null in a number as 0, without a word. So a column is read in a wider type
and converted; what no expression can see (digits beyond 256 bits) is kept out by
`MessageBuffer.long_digits`.

What ClickHouse itself reads stays readable: numbers in strings, true and false as numbers. What no
reading shows, such as "" that is read as 0, is found in the messages before (misread.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.columns import check_default, filled_columns, lineage_of, nullable_type
from sluice.decode.engine.conversions import Conversion, ConversionFactory, required
from sluice.decode.engine.keys import Keys
from sluice.decode.engine.pair import FINE, RANGE, Expression, Lambdas, Pair, greatest
from sluice.decode.engine.scalars import scalar_of
from sluice.decode.engine.session import declared, identifier, literal, settings_clause, unlike
from sluice.decode.engine.types import (
    FLOATS,
    TypeNode,
    default_of,
    nested_groups,
    parse_type,
)


@dataclass(frozen=True, slots=True)
class Reader:
    """One way to read a column.

    :param wide: the type it is read as.
    :param loose: the type it is read as where no value may raise an error that stops the query.
    :param conversion: from either of them.
    """

    wide: str
    loose: str
    conversion: Conversion

    @property
    def target(self) -> str:
        return self.conversion.target


class ReaderFactory(ConversionFactory):
    """Chooses readers for the columns of one table.

    :param refuse_null: null in a non-nullable place is a fault; otherwise the engine puts
        the default there (setting input_format_null_as_default).
    :param widest_integer: what integers of up to 128 bits are read as.
    :param takes_words: floats that are infinite, or no number, are taken for what they are.
    """

    def __init__(self, refuse_null: bool, widest_integer: str, takes_words: bool = False) -> None:
        super().__init__(refuse_null)
        self._widest_integer = widest_integer
        self._takes_words = takes_words
        #: What is converted is an element of a tuple that may not be null: an absent one is the
        #: default of the type that is read.
        self._is_bare_element = False

    def of(self, type_text: str, in_tuple: bool = False) -> Reader:
        """The reader of a column, or of an element of a tuple."""
        node = parse_type(type_text)
        wide, loose = self._types(node, self.refuse_null, in_tuple=in_tuple)
        convert = self._element if in_tuple else self._any
        return Reader(wide, loose, convert(parse_type(wide), node))

    def required(self, type_text: str, read_as: str) -> Reader:
        """The reader of a column that must be there.

        :param read_as: the type, with null for what is absent.
        """
        wide, loose = self._types(parse_type(read_as), self.refuse_null)
        return Reader(wide, loose, required(self.conversion(wide, type_text)))

    def nested(self, types: Mapping[str, str]) -> dict[str, NestedColumn]:
        """The columns among these that a server made of a Nested."""
        found: dict[str, NestedColumn] = {}
        for head, elements in nested_groups(types).items():
            type_text = f"Array(Tuple({declared(elements.items())}))"
            records = self.of(type_text)
            for name, text in elements.items():
                element, flat = self.of(text, in_tuple=True), self.of(types[f"{head}.{name}"])
                found[f"{head}.{name}"] = NestedColumn(
                    head, type_text, name, records, flat, element, self.lambdas
                )
        return found

    def _types(
        self, node: TypeNode, refuse_null: bool, nullable: bool = False, in_tuple: bool = False
    ) -> tuple[str, str]:
        """What a type is read as, and what loosely."""
        match node.name:
            case "Nullable":
                return self._types(node.inner(), refuse_null, True, in_tuple)
            case "LowCardinality":
                return self._types(node.inner(), refuse_null, nullable, in_tuple)
            case "Array":
                item = self._types(node.inner(), refuse_null)
                found = [f"Array({text})" for text in item]
            case "Map":
                key = self._types(node.inner(0), refuse_null=False)
                item = self._types(node.inner(1), refuse_null)
                found = [f"Map({', '.join(pair)})" for pair in zip(key, item, strict=True)]
            case "Tuple":
                names = [f"{identifier(name)} " if name else "" for name, _ in node.elements()]
                parts = [self._types(part, refuse_null, False, True) for part in node.parts()]
                found = [
                    f"Tuple({', '.join(map(str.__add__, names, some))})"
                    for some in zip(*parts, strict=True)
                ]
            case _:
                tells_null = refuse_null and not nullable and in_tuple
                scalar = scalar_of(node, self._widest_integer, tells_null)
                found = [scalar.wide, scalar.loose]
                # Not in tuples, whose missing elements would be null.
                reads_null = refuse_null and not in_tuple and scalar.pair is not None
                nullable = nullable or reads_null
        wide, loose = (f"Nullable({text})" if nullable else text for text in found)
        return wide, loose

    def scalar(self, natural: TypeNode, target: TypeNode) -> Pair | None:
        """As the base says."""
        is_bare = self._is_bare_element
        scalar = scalar_of(target, self._widest_integer, is_bare and self.refuse_null)
        is_taken = self._takes_words and target.name in FLOATS
        pair = Pair(None) if scalar.pair is None or is_taken else scalar.pair
        return _or_missing(pair, target) if is_bare and scalar.parse is not None else pair

    def _item(self, natural: TypeNode, target: TypeNode) -> Conversion:
        return self._of_element(natural, target, False)

    def _element(self, natural: TypeNode, target: TypeNode) -> Conversion:
        return self._of_element(natural, target, natural.name != "Nullable")

    def _of_element(self, natural: TypeNode, target: TypeNode, is_bare: bool) -> Conversion:
        before, self._is_bare_element = self._is_bare_element, is_bare
        try:
            return self._any(natural, target)
        finally:
            self._is_bare_element = before


def _or_missing(pair: Pair, target: TypeNode) -> Pair:
    """Of a value that is read as String: an absent one is empty."""
    narrow, unfit = pair.narrow, pair.unfit
    assert narrow is not None and unfit is not None
    return Pair(
        lambda value: f"if(empty({value}), {default_of(target.text)}, {narrow(value)})",
        lambda value: f"(notEmpty({value}) AND {unfit(value)})",
        pair.unread,
    )


@dataclass(frozen=True, slots=True)
class NestedColumn:
    """A column that a server made of an element of a Nested. A message may have it as an array
    of its own, or all elements as an array of records.

    :param head: the name of the Nested, and `type` that of the records.
    :param records: reads them; `flat` reads the array of its own, `element` a value in a record.
    :param lambdas: makes expressions over the records.
    """

    head: str
    type: str
    element_name: str
    records: Reader
    flat: Reader
    element: Reader
    lambdas: Lambdas

    def reader(self, records: str) -> Reader:
        """Of the column.

        :param records: SQL of the array of records as it was read; empty if there is none.
        """
        flat, item, name = self.flat.conversion, self.element.conversion, literal(self.element_name)

        def of_record(expression: Expression) -> Expression:
            return lambda record: expression(f"tupleElement({record}, {name})")

        def narrow(value: str) -> str:
            items = self.lambdas.each(of_record(item.value), records)
            parts = (f"CAST({part}, {literal(flat.target)})" for part in (items, flat.value(value)))
            return f"if(notEmpty({records}), {', '.join(parts)})"

        def clashes(value: str) -> str:
            return f"if(notEmpty({records}) AND notEmpty({value}), {RANGE}, 0)"

        of_items = self.lambdas.greatest(item.fault and of_record(item.fault), lambda _: records)
        fault = greatest(clashes, flat.fault, of_items)
        return Reader(self.flat.wide, self.flat.loose, Conversion(flat.target, narrow, fault))


def _either(tests: list[str]) -> str:
    """Two by two: of more, the engine compares them row by row."""
    return reduce(lambda one, other: f"bitOr({one}, {other})", tests, "toUInt8(0)")


_UNFIT = "a value does not fit its column"


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

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns that are read from messages, by name."""
        return {name: part.column.type for name, part in self._by_name.items()}

    def strict(self, into: str, path: str, rows: int) -> str:
        """All rows as one Native block in a file, or an exception: the wide columns are narrowed,
        and a value that does not fit stops the query.

        :param rows: of the file; an upper bound is enough.
        """
        # The engine reads only columns that something asks for.
        tests = [f"ignore({', '.join(self._unstored)})"] if self._unstored else []
        tests += self._unfit
        throws = f"throwIf({_either(tests)}, {literal(_UNFIT)})"
        where = f" WHERE NOT {throws}" if tests else ""
        query = f"SELECT {self._values} FROM {self._rows_in(path, self.structure)}{where}"
        insert = self.keys.into(into, self._written, True, False)
        clause = self._clause(rows, min_insert_block_size_rows=0)
        return f"{insert} {clause} {self.keys.around(query)}"

    def _rows_in(self, path: str, structure: str) -> str:
        return f"file({literal(path)}, JSONEachRow, {literal(structure)}) AS {self._rows_as}"

    def are_unfit(self, path: str, rows: int, errors: str) -> str:
        """A byte for each row that a strict pass can read: whether a value of it does not fit.

        :param errors: a path where nothing is; which attempts to read a row failed stands there.
        """
        more = {"date_time_overflow_behavior": "'throw'"}
        return self._lenient(path, rows, errors, _either(self._unfit), self.structure, more)

    def fault_kinds(self, path: str, rows: int, errors: str = "") -> str:
        """Of each row that can be read the kind of fault of each of `columns`, a byte for each.

        :param errors: as in `are_unfit`; "": nobody asks.
        """
        faults = ((part.reader.conversion.fault, part.name) for part in self.columns)
        kinds = ", ".join(
            f"toUInt8({fault(self._read_value(name)) if fault else FINE})" for fault, name in faults
        )
        return self._lenient(path, rows, errors, kinds, self._loose)

    def readable_rows(
        self, path: str, rows: int, errors: str, columns: tuple[PlannedColumn, ...] = ()
    ) -> str:
        """A byte for each row that can be read in the wide types, moments being clamped.

        :param errors: as in `are_unfit`.
        :param columns: only these are read; none: all, and no other field if that is refused.
        """
        more = {"input_format_skip_unknown_fields": 1} if columns else {}
        some = columns or self.read
        structure = declared((part.name, part.reader.wide) for part in some)
        return self._lenient(path, rows, errors, "toUInt8(0)", structure, more, some)

    def _lenient(
        self,
        path: str,
        rows: int,
        errors: str,
        selected: str,
        structure: str,
        more: Mapping[str, object] = MappingProxyType({}),
        columns: tuple[PlannedColumn, ...] = (),
    ) -> str:
        """What is asked of each row that can be read. All of it is read, whatever is asked."""
        settings: dict[str, object] = {
            "input_format_allow_errors_num": "18446744073709551615",
            "input_format_allow_errors_ratio": "1",
            "date_time_overflow_behavior": "'saturate'",
        }
        if errors:
            settings["input_format_record_errors_file_path"] = literal(errors)
        read = ", ".join(self._read_value(part.name) for part in columns or self.read)
        query = f"SELECT {selected} FROM {self._rows_in(path, structure)} WHERE NOT ignore({read})"
        return f"{query} {self._clause(rows, **(settings | dict(more)))}"

    def _clause(self, rows: int, **more: object) -> str:
        return settings_clause(max_block_size=max(rows + 1, 1024), **(self._settings | more))
