"""Whether a table can be what `delivery` of its entry says (R22).

A table keeps one of equal rows if its sorting key names each row, by all lineage columns; or if it
keeps the last row of each key, by a version that is the offset of its message. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.vanishing import engine_arguments, key_elements, lacking_in_key
from sluice.config import TableConfiguration
from sluice.core.errors import ConfigurationError
from sluice.core.load_spec import LINEAGE_TYPES, Column, Mapped
from sluice.decode.engine.expressions import nondeterministic_functions, referenced_columns

_ALL_ROWS = (
    f"ORDER BY (…, {', '.join(LINEAGE_TYPES)}) keeps each row; "
    "ENGINE = ReplacingMergeTree(_offset) ORDER BY (…) the last one of each key"
)
_VERSION_TYPES = ("UInt64", "Int64")
_OFFSET, _TOMBSTONE = "_offset", "_tombstone"

_Misfit = tuple[str, str]


def require_delivery(
    table: TableConfiguration,
    facts: TableFacts,
    carried: tuple[str, ...],
    shards: int,
    loaders: int,
) -> None:
    """See that a table can be what its entry says: of "replacing", that a repeated block changes
    nothing of what FINAL shows.

    :param carried: lineage columns that its blocks carry.
    :param shards: that the entry goes to.
    :param loaders: pairs of a connector and an entry that load the table.
    :raises ConfigurationError: it cannot.
    """
    if table.delivery == "replacing":
        for why, hint in _misfits(table, facts, carried, shards, loaders):
            raise ConfigurationError(
                f'table entry {table.name} has delivery = "replacing", and {facts.target} on '
                f"{facts.url} {why}",
                hint,
            )
    elif facts.engine.startswith("Shared"):
        raise ConfigurationError(
            f"table entry {table.name}: {facts.target} on {facts.url} is a {facts.engine}: its "
            "deduplication window cannot be observed",
            'delivery = "replacing" in its [[table]], if its sorting key allows that.',
        )


def keeps_last_values(facts: TableFacts) -> bool:
    """Whether, of a table that fits, rows are replaced by later ones of their key."""
    return bool(lacking_in_key(facts))


def _misfits(
    table: TableConfiguration,
    facts: TableFacts,
    carried: tuple[str, ...],
    shards: int,
    loaders: int,
) -> Iterator[_Misfit]:
    kind = facts.engine.removeprefix("Replicated").removeprefix("Shared")
    if kind != "ReplacingMergeTree":
        yield f"is a {facts.engine}, which keeps a row that comes twice", _ALL_ROWS
        return
    if "ORDER BY" not in facts.engine_full:
        yield "is declared in the old way, without ORDER BY", "Create it anew with ORDER BY."
        return
    for dependent in facts.all_dependents():
        if lacking_in_key(dependent.target):
            yield (
                f"feeds the view {dependent.view} again with each repeat, whose target "
                f"{dependent.target.target} does not keep one of equal rows",
                "Drop the view, and read with FINAL instead, or by a refreshable view.",
            )
    for what, key in (("sorted", facts.sorting_key), ("partitioned", facts.partition_key)):
        if volatile := _volatile(key, facts):
            yield (
                f"is {what} by {', '.join(volatile)}, which says something else of a row that "
                "comes again",
                "Sort and partition by columns that come from the messages.",
            )
    if keeps_last_values(facts):
        yield from _misfits_of_last_values(table, facts, carried, shards, loaders)
        return
    if lacking := sorted(LINEAGE_TYPES.keys() - set(carried)):
        yield f"gets no {', '.join(lacking)} from its blocks", "lineage = true in its [[table]]"
    if len(engine_arguments(facts)) > 1:
        yield "takes deleted rows out, though each row has a key of its own", _ALL_ROWS
    if table.tombstones == "delete":
        yield "keeps each row, so that a tombstone deletes none", _ALL_ROWS


def _misfits_of_last_values(
    table: TableConfiguration,
    facts: TableFacts,
    carried: tuple[str, ...],
    shards: int,
    loaders: int,
) -> Iterator[_Misfit]:
    """What keeps a table from being right at every moment that keeps the last row of each key."""
    key, arguments = key_elements(facts.sorting_key), engine_arguments(facts)
    if _OFFSET in key or not arguments:
        yield (
            "keeps, of rows that its sorting key does not tell apart, the one that was inserted "
            f"last, which a repeat changes: the key lacks {', '.join(lacking_in_key(facts))}",
            _ALL_ROWS,
        )
        return
    yield from _misfits_of_version(table, facts, carried, arguments[0])
    partitioned = referenced_columns(facts.partition_key, facts.columns)
    if outside := [column.name for column in partitioned if column.name not in key]:
        yield (
            f"is partitioned by {outside[0]}, which is not in its sorting key: rows of one key in "
            "two ClickHouse partitions never replace each other",
            "Partition by columns of the sorting key only, or not at all.",
        )
    if shards > 1 and not _is_sharded_by(table, facts, key):
        yield (
            "has several shards, and rows of one key may go to two of them",
            f"sharding = {{ key = … }} with a column of its sorting key: {', '.join(key)}",
        )
    if "_topic" not in key and (len(table.topics) > 1 or table.topic_pattern):
        yield (
            "keeps the row with the highest offset, and offsets of several topics say nothing of "
            "each other",
            "Load one topic into it, or put _topic into its sorting key.",
        )
    if loaders > 1 and not {"_topic", "_source"} <= set(key):
        yield (
            "is loaded by several entries or connectors, whose offsets say nothing of each other",
            "Give each a table of its own.",
        )
    if table.deduplicate is not None:
        yield (
            "loses rows to later ones of their key, so that claims cannot be read back from it",
            "Leave deduplicate out: a later row of a key replaces the earlier ones anyway.",
        )
    if table.on_error == "park":
        yield (
            "keeps the row with the highest offset: a message that is parked, and replayed later, "
            "would replace newer ones",
            'on_error = "stop-partition" in its [[table]]',
        )
    yield from _misfits_of_deletes(table, facts, key, arguments[1] if arguments[1:] else "")


def _misfits_of_version(
    table: TableConfiguration, facts: TableFacts, carried: tuple[str, ...], name: str
) -> Iterator[_Misfit]:
    mapped = _mapped(table, name)
    is_mapped = mapped is not None and (mapped.by, mapped.source) == ("kafka", _OFFSET)
    if not (is_mapped or (name == _OFFSET and _OFFSET in carried)):
        yield (
            f"has the version {name}, which is not the offset of the message: of two rows with one "
            "version a repeat may bring back the older one",
            f'ReplacingMergeTree({_OFFSET}), or {name} = {{ kafka = "offset" }} in '
            '[table.columns], or delivery = "block".',
        )
    column = _column(facts, name)
    if column is not None and column.type not in _VERSION_TYPES:
        yield f"has the version {name} {column.type}", f"Make it {' or '.join(_VERSION_TYPES)}."


def _misfits_of_deletes(
    table: TableConfiguration, facts: TableFacts, key: list[str], is_deleted: str
) -> Iterator[_Misfit]:
    if table.tombstones != "delete":
        return
    if not is_deleted:
        yield (
            "has no column that says that a key was deleted, which tombstones need",
            f"ReplacingMergeTree({_OFFSET}, is_deleted), from ClickHouse 23.2 on; before, there is "
            'tombstones = "skip" only.',
        )
        return
    if not _names(_mapped(table, is_deleted), _TOMBSTONE):
        yield (
            f"takes deleted rows out by {is_deleted}, which does not come from tombstones",
            f'{is_deleted} = {{ kafka = "tombstone" }} in [table.columns], or sql that names '
            f"{_TOMBSTONE}",
        )
    for name in key:
        mapped = _mapped(table, name)
        if name not in LINEAGE_TYPES and (mapped is None or mapped.by in ("field", "path")):
            yield (
                f"is sorted by {name}, which is read from the message's value, and a tombstone has "
                "none",
                f'Map it from the key: {name} = {{ kafka = "key" }}, or sql over _key, in '
                "[table.columns]",
            )


def _volatile(key: str, facts: TableFacts) -> tuple[str, ...]:
    """Functions in a key that say something else the next time."""
    plain = {column.name for column in facts.columns if not column.expression}
    is_plain = plain.issuperset(key_elements(key))
    return () if is_plain else nondeterministic_functions(key, facts.columns)


def _is_sharded_by(table: TableConfiguration, facts: TableFacts, key: list[str]) -> bool:
    """Whether all rows of a key go to one shard."""
    if table.sharding is None or table.sharding.by == "offset":
        return False
    if table.sharding.by == "key":
        return table.sharding.column in key
    columns = referenced_columns(table.sharding.expression, facts.columns)
    return bool(columns) and all(column.name in key for column in columns)


def _mapped(table: TableConfiguration, column: str) -> Mapped | None:
    return next((one for one in table.columns if one.column == column), None)


def _names(mapped: Mapped | None, fact: str) -> bool:
    return mapped is not None and mapped.by in ("kafka", "sql") and fact in mapped.source


def _column(facts: TableFacts, name: str) -> Column | None:
    return next((column for column in facts.columns if column.name == name), None)
