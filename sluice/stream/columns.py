"""Which column of the query goes into which column of the table, decided before the first row.

docs/STREAMS.md has the table of types.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark_types

from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.vanishing import why_tokens_go
from sluice.clickhouse.window import tables_with_windows
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.core.load_spec import Column
from sluice.core.suggestions import suggest
from sluice.decode.engine.types import TypeNode, decimal_shape, parse_type, scale_of
from sluice.stream.values import ColumnPlan, Wanted

_INTEGERS = {
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
}
_WHOLE = {
    **{f"Int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"UInt{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    # Arrow has none so wide; the server widens.
    **dict.fromkeys(("Int128", "Int256"), pa.int64()),
    **dict.fromkeys(("UInt128", "UInt256"), pa.uint64()),
}
_EPOCH_DAY = datetime.date(1970, 1, 1)
_DAYS = {
    "Date": (0, (datetime.date(2149, 6, 6) - _EPOCH_DAY).days),
    "Date32": (
        (datetime.date(1900, 1, 1) - _EPOCH_DAY).days,
        (datetime.date(2299, 12, 31) - _EPOCH_DAY).days,
    ),
}
_DAY_MICROSECONDS = 86_400_000_000
_DAY_NANOSECONDS = _DAY_MICROSECONDS * 1000
_IPV4 = r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.|$)){4}"
#: "::" stands for one group of zeros at least, once.
_IPV6 = "|".join(
    [
        *("(H:){7}H", "(H:){1,7}:", ":(:H){1,7}", "::"),
        *(f"(H:){{1,{7 - after}}}(:H){{1,{after}}}" for after in range(1, 7)),
    ]
).replace("H", "[0-9a-fA-F]{1,4}")
#: What a text has to look like.
_PATTERNS = {
    "UUID": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "IPv4": f"^{_IPV4}$",
    "IPv6": f"^({_IPV6}|(::[fF]{{4}}:)?{_IPV4})$",
}
#: What Spark's type may be cast to so that it fits, for hints.
_FITS = {
    "String": "string",
    "Bool": "boolean",
    "Float32": "float",
    "Float64": "double",
    "Date": "date",
    "Date32": "date",
    "DateTime": "timestamp",
    "DateTime64": "timestamp",
    "Time64": "time(6)",
    "UUID": "string",
    "IPv4": "string",
    "IPv6": "string",
    "FixedString": "binary",
    "Enum8": "string",
    "Enum16": "string",
    **dict.fromkeys(_WHOLE, "bigint"),
}


class UnfitError(Exception):
    """A Spark type that has no place in a ClickHouse type."""


def plan_columns(
    schema: spark_types.StructType, facts: TableFacts, *, checks_nulls: bool
) -> tuple[ColumnPlan, ...]:
    """Every column of the query, in its order, with what it becomes.

    :param checks_nulls: a column that Spark calls nullable may go into one that is not; each of
        its values is looked at.
    :raises ConfigurationError: columns are missing, unknown, twice there, or of types that do not
        fit; all of them are told.
    """
    known = {column.name: column for column in facts.columns}
    taken = {name: each for name, each in known.items() if each.kind in ("", "DEFAULT")}
    found, plans = list[str](), list[ColumnPlan]()
    for field in schema.fields:
        column = taken.get(field.name)
        if column is None:
            found.append(_no_place(field.name, known, taken))
            continue
        try:
            plans.append(_plan(field, column, checks_nulls))
        except UnfitError as error:
            found.append(str(error))
    names = [field.name for field in schema.fields]
    found += [f"column {name} is there twice" for name in {n for n in names if names.count(n) > 1}]
    found += [
        f"column {name} ({column.type}) of the table is missing in the query; add it, or give it "
        "a DEFAULT"
        for name, column in taken.items()
        if name not in names and column.kind == ""
    ]
    if found:
        raise ConfigurationError(
            f"the query does not fit {facts.target} on {facts.url}:\n" + "\n".join(sorted(found)),
            "Select the table's columns by name, with casts where the types differ.",
        )
    return tuple(plans)


def _no_place(name: str, known: dict[str, Column], taken: dict[str, Column]) -> str:
    if name in known:
        return f"column {name} of the table is {known[name].kind} and takes no values; leave it out"
    return f"column {name} of the query is not in the table; {suggest(name, taken)}"


def _plan(field: spark_types.StructField, column: Column, checks_nulls: bool) -> ColumnPlan:
    spark = field.dataType.simpleString()
    what = f"column {field.name} ({spark} into {column.type})"
    wanted = _wanted(field.dataType, parse_type(column.type), field.nullable, what, checks_nulls)
    return ColumnPlan(field.name, spark, wanted)


def _wanted(spark: Any, node: TypeNode, may_be_null: bool, what: str, checks_nulls: bool) -> Wanted:
    nullable, bare = _nullable(node), node.bare()
    if may_be_null and not nullable and not checks_nulls:
        raise UnfitError(
            f"{what}: Spark says that it may be null, and {node.text} may not: use coalesce(…), "
            'or a Nullable column, or option nulls = "check" if it never is'
        )

    def inner(part: Any, place: TypeNode, part_may_be_null: bool, called: str) -> Wanted:
        return _wanted(part, place, part_may_be_null, f"{what}, {called}", checks_nulls)

    match type(spark).__name__, bare.name:
        case "ArrayType", "Array":
            part = inner(spark.elementType, bare.inner(), spark.containsNull, "an element")
            return Wanted(node.text, pa.list_(part.arrow), nullable, parts=(part,))
        case "MapType", "Map":
            key = inner(spark.keyType, bare.inner(0), False, "a key")
            value = inner(spark.valueType, bare.inner(1), spark.valueContainsNull, "a value")
            arrow = pa.map_(key.arrow, value.arrow)
            return Wanted(node.text, arrow, nullable, parts=(key, value))
        case "StructType", "Tuple":
            return _tuple(spark, bare, node, nullable, what, inner)
    plan = _LEAVES.get(type(spark).__name__)
    fitting = plan(spark, bare) if plan else None
    if fitting is None:
        raise UnfitError(f"{what}: there is no way that loses nothing{_hint(spark, bare)}")
    arrow, more = fitting
    return Wanted(node.text, arrow, nullable, **more)


def _nullable(node: TypeNode) -> bool:
    if node.name == "LowCardinality":
        return _nullable(node.inner())
    return node.name == "Nullable"


def _tuple(
    spark: Any,
    bare: TypeNode,
    node: TypeNode,
    nullable: bool,
    what: str,
    inner: Callable[[Any, TypeNode, bool, str], Wanted],
) -> Wanted:
    elements = bare.elements()
    if [field.name for field in spark.fields] != [name for name, _ in elements]:
        raise UnfitError(
            f"{what}: the fields of the struct are not those of the Tuple, by name and in order"
        )
    parts = tuple(
        inner(field.dataType, element, field.nullable, f"field {field.name}")
        for field, (_, element) in zip(spark.fields, elements, strict=True)
    )
    arrow = pa.struct(
        [(field.name, part.arrow) for field, part in zip(spark.fields, parts, strict=True)]
    )
    return Wanted(node.text, arrow, nullable, parts=parts)


def _hint(spark: Any, bare: TypeNode) -> str:
    if type(spark).__name__ in ("VariantType", "NullType"):
        return "; use to_json(…) or cast(… AS string)"
    if type(spark).__name__ == "TimestampNTZType":
        return "; cast it to timestamp, or make the column's time zone 'UTC'"
    fits = _FITS.get(bare.name)
    return f"; cast(… AS {fits}) fits" if fits else f"; {bare.name} is not supported"


_Fitting = tuple[pa.DataType, dict[str, Any]] | None


def _integer(spark: Any, bare: TypeNode) -> _Fitting:
    return (_WHOLE[bare.name], {}) if bare.name in _WHOLE else None


def _boolean(_: Any, bare: TypeNode) -> _Fitting:
    return (pa.bool_(), {}) if bare.name == "Bool" else None


def _float(_: Any, bare: TypeNode) -> _Fitting:
    arrow = {"Float32": pa.float32(), "Float64": pa.float64()}
    return (arrow[bare.name], {}) if bare.name in arrow else None


def _double(_: Any, bare: TypeNode) -> _Fitting:
    return (pa.float64(), {}) if bare.name == "Float64" else None


def _decimal(spark: Any, bare: TypeNode) -> _Fitting:
    if bare.name in _WHOLE and not spark.scale:
        if bare.name.endswith(("128", "256")):  # All of Spark's 38 digits have room there.
            return pa.decimal128(38, 0), {"positive": bare.name.startswith("U")}
        return _WHOLE[bare.name], {}
    if not bare.name.startswith("Decimal"):
        return None
    precision, scale = decimal_shape(bare)
    if scale < spark.scale:
        return None
    kind = pa.decimal128 if precision <= 38 else pa.decimal256
    return kind(precision, scale), {}


def _string(_: Any, bare: TypeNode) -> _Fitting:
    match bare.name:
        case "String":
            return pa.string(), {}
        case "FixedString":
            return pa.string(), {"bytes_max": int(bare.arguments[0])}
        case "UUID" | "IPv4" | "IPv6":
            return pa.string(), {"pattern": _PATTERNS[bare.name]}
        case "Enum8" | "Enum16":
            return pa.string(), {"among": tuple(_enum_names(bare))}
    return None


def _enum_names(bare: TypeNode) -> list[str]:
    names = []
    for argument in bare.arguments:
        literal = argument.rpartition("=")[0].strip()
        names.append(literal[1:-1].replace("\\'", "'").replace("\\\\", "\\"))
    return names


def _binary(_: Any, bare: TypeNode) -> _Fitting:
    if bare.name == "FixedString":
        return pa.binary(), {"bytes_max": int(bare.arguments[0])}
    return (pa.binary(), {}) if bare.name == "String" else None


def _date(_: Any, bare: TypeNode) -> _Fitting:
    if bare.name not in _DAYS:
        return None
    low, high = _DAYS[bare.name]
    return pa.date32(), {"low": low, "high": high}


def _timestamp(_: Any, bare: TypeNode) -> _Fitting:
    arrow = pa.timestamp("us", "UTC")
    if bare.name == "DateTime":
        return arrow, {"low": 0, "high": (2**32 - 1) * 1_000_000, "unit": 1_000_000}
    if bare.name != "DateTime64":
        return None
    digits = scale_of(bare)
    low, high = (day * _DAY_MICROSECONDS for day in _DAYS["Date32"])
    high += _DAY_MICROSECONDS - 1
    if digits == 9:  # 64 bits of nanoseconds end earlier.
        high = (2**63 - 1) // 1000
    return arrow, {"low": low, "high": high, "unit": 10 ** max(0, 6 - digits)}


def _local_timestamp(spark: Any, bare: TypeNode) -> _Fitting:
    zones = [argument for argument in bare.arguments if argument.startswith("'")]
    return _timestamp(spark, bare) if zones == ["'UTC'"] else None


def _time(_: Any, bare: TypeNode) -> _Fitting:
    if bare.name != "Time64":
        return None
    unit = 10 ** (9 - scale_of(bare))
    return pa.time64("ns"), {"low": 0, "high": _DAY_NANOSECONDS - 1, "unit": unit}


_LEAVES: dict[str, Callable[[Any, TypeNode], _Fitting]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "BooleanType": _boolean,
    "FloatType": _float,
    "DoubleType": _double,
    "DecimalType": _decimal,
    **dict.fromkeys(("StringType", "CharType", "VarcharType"), _string),
    "BinaryType": _binary,
    "DateType": _date,
    "TimestampType": _timestamp,
    "TimestampNTZType": _local_timestamp,
    "TimeType": _time,
}


_IF_DETERMINISTIC = (
    'If the query makes the same rows in the same order again, option mode = "direct"'
)


def check_target(
    facts: TableFacts, mode: str, database_engine: str, *, replaces: bool = False
) -> None:
    """Whether rows can get into the table exactly once.

    :param database_engine: of the target's database.
    :param replaces: all rows of the table are replaced.
    :raises TerminalError: not in this mode, and why.
    """
    where = f"{facts.target} on {facts.url}"
    if unseen := ", ".join(facts.all_unseen()):
        raise TerminalError(
            f"{where} feeds {unseen}, of which the server shows no materialized view: this user "
            "may not see it, or it is a view of another kind. Rows that are moved feed none, and "
            "in mode direct nobody knows whether the tables behind it deduplicate",
            "GRANT SHOW TABLES ON it to the user of the option user, so that it is known what it "
            "is; or write into another table.",
        )
    if mode == "direct":
        for _, table in tables_with_windows(facts):
            if not table.deduplicates:
                raise TerminalError(
                    f"{table.target} on {facts.url} has no deduplication window: mode direct would "
                    "double what it repeats",
                    f"ALTER TABLE {table.target} MODIFY SETTING "
                    "non_replicated_deduplication_window = 10000; or leave the option mode out.",
                )
            if why := why_tokens_go(table):
                raise TerminalError(
                    f"mode direct on {facts.url}: {why}, and a repeat would double its rows",
                    f"ALTER TABLE {table.target} MODIFY SETTING remove_empty_parts = 0; or leave "
                    "the option mode out.",
                )
        return
    if facts.replicated:
        raise TerminalError(
            f"{where} is a {facts.engine}: mode staged moves parts of plain tables only",
            f"{_IF_DETERMINISTIC} does it.",
        )
    if replaces and facts.engine != "MergeTree":
        raise TerminalError(
            f'{where} is a {facts.engine}: output mode complete and mode("overwrite") count the '
            "rows of a table like it before it takes its place, and such a table merges some away",
            "Make it a MergeTree: what replaces a table has one row of each key anyway. Or add to "
            "it, in mode append, or by update_into(…).",
        )
    if facts.dependents:
        views = ", ".join(each.view for each in facts.dependents)
        raise TerminalError(
            f"{where} feeds {views}, and rows that are moved feed no view",
            "Write into the tables of the views by queries of their own. "
            f"{_IF_DETERMINISTIC} feeds them.",
        )
    if database_engine != "Atomic":
        raise TerminalError(
            f"{where} is in a database of the engine {database_engine}: only Atomic is known to "
            "rename tables for one client at a time",
            "Use a database that CREATE DATABASE makes without naming an engine.",
        )
