"""The queries that turn a relation with types of its own into rows of a table.

Three layers: the relation's columns and the place of each row's message; the rows without
fault, converted; the table's columns, with what stands in for the absent ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.columns import check_default, filled_columns, lineage_of
from sluice.decode.engine.conversions import (
    Conversion,
    ConversionFactory,
    has_enum,
    required,
)
from sluice.decode.engine.expressions import READS_NO_CLOCK
from sluice.decode.engine.keys import PLACE_COLUMN, Keys
from sluice.decode.engine.pair import MISMATCH, NULL
from sluice.decode.engine.session import (
    EngineError,
    declared,
    identifier,
    literal,
    run,
    settings_clause,
    unlike,
)
from sluice.decode.engine.types import (
    INSTANT,
    TICKS,
    WRAPPED,
    default_of,
    meant_type,
    nested_groups,
    parse_type,
    stored_type,
)
from sluice.decode.messages.format import NO_MESSAGE, PLACE_IS_FIRST, Group, Natural
from sluice.decode.typed.scalars import TypedConversions, scalar_pair

#: Relations with other columns, whose queries are kept. Messages may bring any number of them.
_PLANS_MAX = 256
#: More rows than a block ever has.
_ALL_ROWS = 2**31


class Target:
    """What is known of a table before any message: its columns, keys and settings; and the queries
    for what messages bring.

    :raises TerminalError: the text cannot be executed.
    """

    def __init__(self, table: TableSpec) -> None:
        self.table = table
        self.read = filled_columns(table)
        self.columns = tuple(column for column in self.read if column.kind != "EPHEMERAL")
        self.names = tuple(column.name for column in self.columns)
        self.types = {column.name: parse_type(column.type).text for column in self.read}
        self.keys = Keys(table, self.names, lineage_of(table))
        for column in self.read:
            if column.kind and column.expression:
                check_default(table, column, self.types)
        self.structure = declared((name, self.types[name]) for name in self.names)
        self._plan = lru_cache(_PLANS_MAX)(partial(TypedPlan, self))

    def plan(self, columns: tuple[Natural, ...]) -> TypedPlan:
        """The queries for a relation with these columns.

        :raises TerminalError: a type is not understood.
        """
        return self._plan(columns)

    def default(self, column: Column) -> str:
        """SQL for what stands in for the column; it may name the table's other columns."""
        type_text = self.types[column.name]
        has_expression = column.kind and column.expression
        value = f"({column.expression})" if has_expression else default_of(type_text)
        return f"CAST({value}, {literal(type_text)})"

    def clause(self, more: Mapping[str, object], rows: int | None) -> str:
        """The settings of a query that makes one block.

        :param rows: an upper bound of the source's rows, if known.
        """
        settings: dict[str, object] = {
            "session_timezone": literal(self.table.time_zone),
            "cast_string_to_date_time_mode": "'best_effort'",
            "query_plan_remove_redundant_sorting": 0,
            "min_insert_block_size_bytes": 0,
            "min_insert_block_size_rows": 0,
            # What the engine makes one block of before it writes Native.
            "max_block_size": _ALL_ROWS if rows is None else max(rows + 1, 1024),
        }
        return settings_clause(**(settings | dict(more)))

    def joined(self, into: str, path: str) -> str:
        """Several blocks as one, in the order of their place columns, with keys."""
        number = "_sluice_number"
        kept = ", ".join([*map(identifier, self.names), PLACE_COLUMN])
        structure = literal(f"{self.structure}, {PLACE_COLUMN} UInt32")
        source = f"file({literal(path)}, Native, {structure})"
        numbered = f"SELECT *, rowNumberInAllBlocks() AS {number} FROM {source}"
        ordered = f"SELECT {kept} FROM ({numbered}) ORDER BY {PLACE_COLUMN}, {number}"
        inner = self.keys.around(ordered, (PLACE_COLUMN,))
        return f"{self.keys.into(into, self.structure, True, True)} {self.clause({}, None)} {inner}"


@dataclass(frozen=True, slots=True)
class _Filled:
    """A column that the relation fills."""

    column: Column
    natural: Natural
    conversion: Conversion
    place: int

    @property
    def source(self) -> str:
        return f"_sluice_c{self.place}"

    @property
    def narrowed(self) -> str:
        return f"_sluice_n{self.place}"

    @property
    def null(self) -> str:
        return f"_sluice_z{self.place}"

    @property
    def hidden(self) -> str:
        """The fault that the value does not show."""
        return f"_sluice_h{self.place}"

    def fault(self) -> str:
        """SQL for the kind of fault; "" if there never is one."""
        own, hidden = self.conversion.fault, self.natural.fault
        if own is None:
            return self.hidden if hidden else ""
        shown = own(self.source)
        return f"if({self.hidden} != 0, {self.hidden}, toUInt8({shown}))" if hidden else shown


class TypedPlan:
    """The queries for relations with these columns.

    :raises TerminalError: a type is not understood.
    """

    def __init__(self, target: Target, columns: tuple[Natural, ...]) -> None:
        self.target = target
        self._rows_as = unlike("_sluice_row", (natural.name for natural in columns))
        self._nulls_to_default = target.table.on_null == "default"
        columns = tuple(self._without_records(columns))
        self._columns = columns
        refuses_unknown = target.table.unknown_fields == "refuse"
        factory = TypedConversions(not self._nulls_to_default, target.table.fractions == "cut")
        by_name = {natural.name: natural for natural in columns}
        self.filled = tuple(
            _Filled(column, natural, self._conversion(factory, natural, column), place)
            for place, column in enumerate(target.read)
            if (natural := by_name.get(column.name)) is not None
        )
        wanted = (column.name for column in target.read if column.name in target.table.require)
        #: What is required, and the relation has not; "" for none.
        self.lacking = next((name for name in wanted if name not in by_name), "")
        strange = [natural.name for natural in columns if natural.name not in target.types]
        strange += factory.strange
        #: What the relation has, and the table must have and has not; "" for none.
        self.unknown = strange[0] if strange and refuses_unknown else ""
        #: What the relation has, and the table need not have and has not.
        self.ignored = frozenset(() if refuses_unknown else strange)
        self._faults = [(part, fault) for part in self.filled if (fault := part.fault())]
        self._outer = self._outer_layer()

    def _conversion(
        self, factory: ConversionFactory, natural: Natural, column: Column
    ) -> Conversion:
        made = factory.conversion(natural.type, self.target.types[column.name])
        return required(made) if column.name in self.target.table.require else made

    def _relation(self, group: Group) -> str:
        values = [f"{self._value(part.natural)} AS {part.source}" for part in self.filled]
        values += [
            f"toUInt8({part.natural.fault}) AS {part.hidden}"
            for part in self.filled
            if part.natural.fault
        ]
        selected = ", ".join([*values, f"{group.place} AS {PLACE_COLUMN}"])
        relation = f"SELECT {selected} FROM {group.source} AS {self._rows_as}"
        table = self.target.table
        if table.mapping or table.fields or table.check:
            # Its values may be people's own expressions.
            return f"{relation} {settings_clause(**READS_NO_CLOCK)}"
        return relation

    def _value(self, natural: Natural) -> str:
        return natural.value or f"{self._rows_as}.{identifier(natural.name)}"

    def _without_records(self, columns: tuple[Natural, ...]) -> Iterator[Natural]:
        """The relation's columns; an array of records for columns that the server made of a
        Nested as an array for each of them."""
        groups = nested_groups(self.target.types)
        for natural in columns:
            elements = groups.get(natural.name)
            if elements is None:
                yield natural
                continue
            names = {f"{natural.name}.{name}" for name in elements}
            both = names.intersection(other.name for other in columns)
            if both:
                raise TerminalError(
                    f"the message has both {natural.name} and {min(both)}",
                    "Write the records, or an array for each column.",
                )
            yield from self._of_records(natural, elements)

    def _of_records(self, natural: Natural, elements: Mapping[str, str]) -> Iterator[Natural]:
        """The columns of a Nested, from an array of tuples with names."""
        node, records = parse_type(natural.type), self._value(natural)
        record = node.inner() if node.name == "Array" else node
        one, fault = "_r", natural.fault
        if record.name == "Nullable":
            record, one = record.inner(), "assumeNotNull(_r)"
            if not self._nulls_to_default:
                fault = f"if(arrayExists(_r -> isNull(_r), {records}), {NULL}, {fault or 0})"
        have = dict(record.elements()) if record.name == "Tuple" else {}
        is_one = node.name == "Array" and bool(have) and all(have)
        for name, type_text in elements.items():
            column = f"{natural.name}.{name}"
            if not is_one:
                mismatch = f"{MISMATCH} + ignore({records})"
                yield Natural(column, natural.type, records, mismatch)
            elif name in have:
                value = f"arrayMap(_r -> tupleElement({one}, {literal(name)}), {records})"
                yield Natural(column, f"Array({have[name].text})", value, fault)
            else:
                # All arrays of a Nested are of one length.
                default = f"CAST({default_of(type_text)}, {literal(type_text)})"
                value = f"arrayMap(_r -> {default}, {records})"
                yield Natural(column, f"Array({type_text})", value, fault)
        for name in have:
            if is_one and name not in elements:
                yield Natural(f"{natural.name}.{name}", "String", "''")

    def _with_default(self, part: _Filled) -> bool:
        """Whether null asks for the column's own default expression."""
        return bool(
            self._nulls_to_default
            and part.column.kind
            and part.column.expression
            and part.natural.type.startswith(("Nullable(", "LowCardinality(Nullable("))
            and not part.column.type.startswith(("Nullable(", "LowCardinality(Nullable("))
        )

    def _converted(self, where: str) -> str:
        values = []
        for part in self.filled:
            values.append(f"{part.conversion.value(part.source)} AS {part.narrowed}")
            if self._with_default(part):
                values.append(f"isNull({part.source}) AS {part.null}")
        return f"SELECT {', '.join([*values, PLACE_COLUMN])} FROM ({{relation}}) {where}"

    def _outer_layer(self) -> str:
        """The table's columns over the converted ones. Names of columns in default expressions
        mean the aliases that stand here."""
        filled = {part.column.name: part for part in self.filled}
        stored: list[str] = []
        unstored: list[str] = []
        for column in self.target.read:
            part = filled.get(column.name)
            type_text = self.target.types[column.name]
            if part is None:
                value = self.target.default(column)
            else:
                value = part.narrowed
                if part.conversion.target != type_text:
                    value = f"CAST({value}, {literal(type_text)})"
                if self._with_default(part):
                    value = f"if({part.null}, {self.target.default(column)}, {value})"
            into = unstored if column.kind == "EPHEMERAL" else stored
            into.append(f"{value} AS {identifier(column.name)}")
        clause = f"WITH {', '.join(unstored)} " if unstored else ""
        return f"{clause}SELECT {', '.join([*stored, PLACE_COLUMN])} FROM ({{converted}})"

    def rows_into(self, into: str, group: Group, throws: bool, with_keys: bool) -> str:
        """The rows without fault as one Native block in a file, their places in the last column.

        :param throws: a fault stops the query; otherwise its row is left out.
        :param with_keys: add the key column and sort, if the table asks for it.
        """
        tests = [f"{PLACE_COLUMN} != {NO_MESSAGE}", *(f"{fault} = 0" for _, fault in self._faults)]
        if throws:
            tests = [f"NOT throwIf(NOT ({test}), 'a value does not fit')" for test in tests]
        converted = self._converted(f"WHERE {' AND '.join(f'({test})' for test in tests)}")
        converted = converted.replace("{relation}", self._relation(group))
        inner = self._outer.replace("{converted}", converted)
        if with_keys:
            inner = self.target.keys.around(inner, (PLACE_COLUMN,))
        insert = self.target.keys.into(into, self.target.structure, with_keys, True)
        return f"{insert} {self._clause(group)} {inner}"

    def _clause(self, group: Group) -> str:
        return self.target.clause(group.settings, group.rows_max)

    def _coded(self, group: Group) -> str:
        tests = ["0", "0"]
        for number, (_, fault) in enumerate(self._faults):
            tests += [f"({fault}) AS _f{number} != 0", f"{4 * number} + _f{number}"]
        read = ", ".join([part.source for part in self.filled] or ["0"])
        code = f"toUInt32(multiIf({', '.join([*tests, '0'])}) + ignore({read}))"
        return f"SELECT *, {code} AS _sluice_code FROM ({self._relation(group)})"

    def verdicts(self, group: Group) -> str:
        """Place and fault code of every row: 0, or 4 x (number of the first test that failed) +
        kind of fault."""
        query = f"SELECT {PLACE_COLUMN} AS i, _sluice_code AS f FROM ({self._coded(group)})"
        return f"{query} {self._clause(group)}"

    def said(self, group: Group) -> str:
        """Of every row at fault: its number, and what the column at fault says."""
        texts = ["0", "''"]
        for number, (part, _) in enumerate(self._faults):
            texts += [f"intDiv(_sluice_code, 4) = {number}", _shown(part)]
        shown = f"multiIf({', '.join([*texts, repr('')])})"
        coded = self._coded(group).replace(
            "SELECT *,", "SELECT *, toUInt32(rowNumberInAllBlocks()) AS _sluice_row,", 1
        )
        query = f"SELECT _sluice_row, substringUTF8({shown}, 1, 100) FROM ({coded})"
        return f"{query} WHERE _sluice_code != 0 {self._clause(group)}"

    def compiles(self) -> bool:
        """Whether the engine takes the query that makes rows, as far as that is known without
        messages: columns that are SQL over others are taken on trust."""
        if any(natural.value for natural in self._columns):
            return True
        structure = declared((one.name, stored_type(one.type)) for one in self._columns)
        source, nothing = f"null({literal(structure or '_ UInt8')})", np.zeros(0, np.int64)
        group = Group(source, self._columns, nothing, PLACE_IS_FIRST, single=True)
        try:
            run(self.rows_into("/dev/null", group, throws=False, with_keys=False), "Null")
        except (EngineError, TerminalError):
            return False
        return True

    def fault_of(self, code: int) -> tuple[Column, str, int]:
        """The column at fault, its natural type, and the kind of fault."""
        part, _ = self._faults[code // 4]
        return part.column, meant_type(part.natural.type), code % 4


def _shown(part: _Filled) -> str:
    """A value for people. An Enum's element may not exist, and has no name then."""
    natural = part.natural.type
    node = parse_type(natural).bare()
    there = f"assumeNotNull({part.source})"
    if node.name in (TICKS, INSTANT):
        pair = scalar_pair(node, parse_type("String"), cuts=False)
        assert pair is not None and pair.narrow is not None
        return f"if(isNull({part.source}), 'null', {pair.narrow(there)})"
    if node.name == WRAPPED:
        text = f"toString(tupleElement({there}, 1))"
        text = f"concat('\"', {text}, '\"')" if node.arguments[0] == "String" else text
        return f"if(isNull({part.source}), 'null', {text})"
    inner = natural.removeprefix("Nullable(")
    if inner.startswith("Enum"):
        return f"ifNull(toString(toInt16({part.source})), 'null')"
    if has_enum(natural):
        return "'the value'"
    text = f"ifNull(toString({part.source}), 'null')"
    is_text = inner.startswith(("String", "LowCardinality(String", "FixedString"))
    return f"concat('\"', {text}, '\"')" if is_text else text
