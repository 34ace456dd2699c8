"""The fields that a mapped entry reads: a table of its own, which the server does not have.

Names of columns and names of fields are two things here. A field has the type of the column that
it fills, unless `fields` says another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sluice.core.errors import TerminalError
from sluice.core.formats import ENVELOPED_JSON
from sluice.core.load_spec import KAFKA_COLUMNS, Column, Mapped, TableSpec
from sluice.decode.engine.columns import nullable_type
from sluice.decode.engine.expressions import (
    dependencies,
    nondeterministic_functions,
    referenced_columns,
)
from sluice.decode.engine.session import declared, identifier, literal
from sluice.decode.engine.types import parse_type
from sluice.decode.messages import events

_READ = ("", "DEFAULT")
#: The unit of whole numbers that are moments: what makes one of it, and how many are a second.
_TICKS = {
    "ms": ("fromUnixTimestamp64Milli", 10**3),
    "us": ("fromUnixTimestamp64Micro", 10**6),
    "ns": ("fromUnixTimestamp64Nano", 10**9),
}
_DAYS = ("Date", "Date32")
#: Before the names of the key's fields, among those of the value.
KEY_PREFIX = "_key."


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, and how the columns follow from it.

    :param table: of the fields.
    :param values: SQL over fields and KAFKA_COLUMNS, by column.
    :param required: by column, SQL that is null where the field is absent.
    :param keys: fields of Kafka's keys that are read, with their types.
    :param filled: by field of the key, a column that it fills.
    :param seconds: paths of fields of which `timestamps` does not say what their numbers are.
    """

    table: TableSpec
    values: dict[str, str]
    required: dict[str, str]
    keys: dict[str, str]
    filled: dict[str, str]
    seconds: frozenset[tuple[str, ...]]


@dataclass(slots=True)
class _Node:
    """A field, or what is inside of one.

    :param is_of_unit: the step that unwraps an envelope makes its moments, by `timestamps`.
    """

    type: str = ""
    kind: str = ""
    expression: str = ""
    is_of_unit: bool = False
    inside: dict[str, _Node] = field(default_factory=dict)

    def type_text(self) -> str:
        if not self.inside:
            return self.type
        parts = ((name, node.type_text()) for name, node in self.inside.items())
        return f"Tuple({declared(parts)})"

    def in_seconds(self, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The paths of what is not of the unit.

        :param path: its own.
        """
        if not self.inside and not self.is_of_unit:
            yield path
        for name, node in self.inside.items():
            yield from node.in_seconds((*path, name))


def _integer_for(type_text: str) -> str:
    """What a number is read as that fills a column of this type of moments."""
    node = parse_type(type_text)
    node = node.inner() if node.name == "LowCardinality" else node
    return "Nullable(Int64)" if node.name == "Nullable" else "Int64"


def _moment(value: str, ticks: str, type_text: str) -> str:
    """SQL of the moment that a number of these units is; in days, the one in UTC that it is of."""
    function, per_second = _TICKS[ticks]
    if parse_type(type_text).bare().name in _DAYS:
        per_day = 86400 * per_second
        return f"intDiv(toInt128({value}) - positiveModulo({value}, {per_day}), {per_day})"
    return f"{function}({value}, 'UTC')"


def makes_moments(table: TableSpec) -> bool:
    """Whether the mapping makes moments of whole numbers. Of those in an envelope of JSON the step
    does that unwraps it: it has the schema, which may say another unit."""
    return bool(table.timestamps) and not (table.envelope and table.format in ENVELOPED_JSON)


def table_of_fields(table: TableSpec, fields: tuple[Column, ...]) -> TableSpec:
    """A table of fields that are read, for an entry whose own columns are made of them."""
    return replace(
        table,
        columns=fields,
        lineage=(),
        partition_key="",
        sorting_key="",
        sort=False,
        mapping=(),
        fields=(),
        require=(),
        check=(),
        timestamps="" if makes_moments(table) else table.timestamps,
    )


def source_of(table: TableSpec) -> Source:
    """Take an entry with a mapping apart.

    :raises TerminalError: the mapping contradicts itself, or the table.
    """
    return _Maker(table).made()


class _Maker:
    def __init__(self, table: TableSpec) -> None:
        self._table = table
        self._mapped = {one.column: one for one in table.mapping}
        self._fields: dict[str, _Node] = {
            name: _Node(type_text) for name, type_text in table.fields
        }
        self._declared = dict(table.fields)
        self._values: dict[str, str] = {}
        self._required: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._filled: dict[str, str] = {}
        columns = {column.name: column for column in table.columns}
        for name in [*self._mapped, *table.require]:
            if name not in columns or columns[name].kind not in _READ or name in table.lineage:
                raise self._error(
                    f"has no column {name} that messages can fill",
                    "Correct [table.columns] and require, or add the column.",
                )

    def made(self) -> Source:
        table = self._table
        for column in table.columns:
            if column.name in table.lineage or column.kind not in _READ:
                continue
            self._take(column, self._mapped.get(column.name))
        for expression in [*self._expressions(), *table.check]:
            self._refuse_volatile(expression)
        for name in KAFKA_COLUMNS:
            if name in self._fields:
                raise self._error(
                    f"reads a field {name}, which is a name of Kafka's own facts",
                    "Map the column by another field, or with sql.",
                )
        fields = tuple(
            Column(name, node.type_text(), node.kind, node.expression)  # type: ignore[arg-type]
            for name, node in self._fields.items()
        )
        if not fields:
            raise self._error(
                "reads no field of its messages",
                "Name at least one in [table.columns] or [table.fields].",
            )
        source = table_of_fields(table, fields)
        seconds = frozenset(
            path for name, node in self._fields.items() for path in node.in_seconds((name,))
        )
        return Source(source, self._values, self._required, self._keys, self._filled, seconds)

    def _expressions(self) -> list[str]:
        return [one.source for one in self._table.mapping if one.by == "sql"]

    def _take(self, column: Column, mapped: Mapped | None) -> None:
        name = column.name
        is_required = name in self._table.require
        if mapped is None or mapped.by in ("field", "path"):
            path = [name] if mapped is None else [mapped.source]
            if mapped is not None and mapped.by == "path":
                path = mapped.source.split(".")
            ticks = self._ticks_of(column, path)
            read = replace(column, type=_integer_for(column.type)) if ticks else column
            value = self._read(read, path, is_required)
            self._values[name] = _moment(value, ticks, column.type) if ticks else value
            if is_required:
                self._required[name] = value
            return
        if mapped.by == "value":
            self._values[name] = literal(mapped.source)
        elif mapped.by == "kafka":
            self._values[name] = identifier(mapped.source)
        elif mapped.by == "key":
            self._values[name] = self._read_key(column, mapped.source, is_required)
        elif mapped.by == "header":
            self._values[name] = f"_headers[{literal(mapped.source)}]"
        else:
            self._values[name] = f"({mapped.source})"
        if is_required:
            self._required[name] = self._values[name]

    def _ticks_of(self, column: Column, path: list[str]) -> str:
        """The unit of whole numbers of which a column of moments is made here, where it is another
        than the second. A DEFAULT is no number of any unit, so a column that has one is read as
        ever. To a step that unwraps an envelope, a field that is declared a number is one."""
        is_moment = parse_type(column.type).bare().name in ("DateTime", "DateTime64", *_DAYS)
        kind = parse_type(self._declared.get(path[0], "")).bare().name
        is_here = makes_moments(self._table) or kind.startswith(("Int", "UInt"))
        if not is_moment or column.kind or not is_here or not self._table.timestamps:
            return ""
        own = events.TICKS if self._table.envelope == "debezium" else {}
        return own.get(tuple(path), self._table.timestamps)

    def _is_of_unit(self, column: Column) -> bool:
        """Whether a step makes the moments of a column, by `timestamps`."""
        is_by_step = bool(self._table.timestamps) and not makes_moments(self._table)
        return is_by_step and "Date" in column.type and not column.kind

    def _read_key(self, column: Column, field: str, is_required: bool) -> str:
        """Read a field of the key for a column; gives the SQL for it."""
        kind = nullable_type(self._table, column) if is_required else column.type
        if self._keys.setdefault(field, kind) != kind:
            raise self._error(
                f"reads the key's field {field} for {column.name} and as another type as well",
                "Give the columns that it fills one type, or map them with sql over _key.",
            )
        self._filled.setdefault(field, column.name)
        return identifier(KEY_PREFIX + field)

    def _read(self, column: Column, path: list[str], is_required: bool) -> str:
        """Read a field for a column; gives the SQL for it."""
        if not all(path):
            raise self._error(
                f"maps {column.name} by a path with an empty part: {'.'.join(path)}",
                "Write the names of fields with one dot between.",
            )
        type_text = column.type
        if is_required:
            type_text = nullable_type(self._table, column)
        node = self._fields.setdefault(path[0], _Node())
        value = identifier(path[0])
        for part in path[1:]:
            if node.type:
                raise self._conflict(column, path)
            node = node.inside.setdefault(part, _Node())
            value = f"tupleElement({value}, {literal(part)})"
        is_declared, is_of_unit = path[0] in self._declared, self._is_of_unit(column)
        is_other = node.type != type_text or node.is_of_unit != is_of_unit
        if node.inside or (node.type and not is_declared and is_other):
            raise self._conflict(column, path)
        node.is_of_unit |= is_of_unit
        if not node.type:
            node.type = type_text
            if len(path) == 1 and column.kind == "DEFAULT" and not is_required:
                self._keep_default(column, node, path[0])
        return value

    def _keep_default(self, column: Column, node: _Node, read_as: str) -> None:
        """An absent field becomes the column's default, whose columns must be fields too."""
        for other in referenced_columns(column.expression, self._table.columns):
            mapped = self._mapped.get(other.name)
            if mapped is not None or read_as != column.name:
                raise self._error(
                    f"maps {other.name if mapped else column.name}, and the DEFAULT of "
                    f"{column.name} refers to {other.name}",
                    f"Map {column.name} with sql, which says what it is when its field is absent.",
                )
        node.kind, node.expression = "DEFAULT", column.expression

    def _refuse_volatile(self, expression: str) -> None:
        try:
            dependencies(expression)
        except TerminalError as error:
            raise self._error(
                f"has an expression that cannot be read: {error}", error.hint
            ) from None
        found = nondeterministic_functions(expression, self._table.columns)
        if found:
            is_date = any("besteffort" in name.lower() for name in found)
            raise self._error(
                f"has an expression with {', '.join(found)}, which says something else the next "
                f"time: {expression}",
                "It completes a text without a year with the year in which it reads it. Leave it "
                "a String: a DateTime column reads it in the same way, and refuses such a text; or "
                "use parseDateTime with a format."
                if is_date
                else "A repeat of a range must make the same rows. Use _timestamp, Kafka's time of "
                "the message, or a DEFAULT in ClickHouse.",
            )

    def _conflict(self, column: Column, path: list[str]) -> TerminalError:
        return self._error(
            f"reads the field {'.'.join(path)} for {column.name} and as another type as well",
            f'Give its type once in [table.fields], like {path[0]} = "String", and map the columns '
            "with sql.",
        )

    def _error(self, what: str, hint: str) -> TerminalError:
        return TerminalError(
            f"table entry {self._table.entry} into {self._table.target} {what}", hint
        )
