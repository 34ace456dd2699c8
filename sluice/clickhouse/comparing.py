"""Whether a recorded load spec still can be executed, as the tables are today (R8). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.clickhouse.schema import TableFacts
from sluice.core.load_spec import Column, LoadSpec, TableSpec

#: Kinds of columns that take values from a block.
INSERTABLE = ("", "DEFAULT")
_COMPUTED = ("MATERIALIZED", "ALIAS")
_STORED = (*INSERTABLE, "MATERIALIZED")
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Today:
    """What a recorded load spec is compared with.

    :param shards: names of the shards that are configured.
    :param tables: facts by database.table; a table that cannot be loaded now is missing.
    :param tokens: whether all servers know tokens; one that does not hashes what it stores.
    :param paths: by (database.table, shard), the zookeeper_path of a Replicated table.
    :param uuids: by (database.table, shard), names and uuids of tables that are not replicated,
        see `TableFacts.own_uuids`.
    """

    decoder: str
    time_zone: str
    shards: frozenset[str]
    tables: Mapping[str, TableFacts]
    tokens: bool = True
    paths: Mapping[tuple[str, str], str] = field(default_factory=dict)
    uuids: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)


def why_not_executable(recorded: LoadSpec, today: Today, topic: str) -> str | None:
    """Why the recorded load spec would not make the same rows of this topic today; None if it does.

    Columns that were added since do not matter where blocks carry tokens: they name their
    columns. A server that hashes what it stores hashes added columns too.
    """
    if recorded.decoder != today.decoder:
        return f"it was decoded by {recorded.decoder}, and today's decoder is {today.decoder}"
    for table in recorded.tables_of(topic):
        if table.parked:
            continue
        why = why_not_insertable(table, today) or _why_other_table(table, today)
        if why is not None:
            return why
    return None


def _why_other_table(table: TableSpec, today: Today) -> str | None:
    """A table that is not replicated, or a view's target, that another one was put in the place of:
    its window does not know what the one before it was given."""
    for shard, name, uuid in table.uuids:
        now = today.uuids.get((table.target, shard), {}).get(name, uuid)
        if now != uuid:
            return other_table(name, uuid, now)
    return None


def other_table(name: str, then: str, now: str) -> str:
    """Words for a table that another one was put in the place of."""
    return f"{name} was the table with the uuid {then}, and is another one now: {now}"


def zone_matters(table: TableSpec, facts: TableFacts, *, tokens: bool) -> bool:
    """Whether the server's time zone decides where the rows of a block lie, or by what it is known
    again: tokens end where a ClickHouse partition ends."""
    keys = (dependent.target.partition_key for dependent in facts.all_dependents())
    return bool(table.partition_key) or any(keys) or not tokens


def other_zone(then: str, now: str) -> str:
    """Words for a server whose time zone was changed."""
    return f"the server's time zone was {then}, and is {now} today"


def why_not_insertable(table: TableSpec, today: Today) -> str | None:
    """Why blocks of this load spec must not be inserted again; None if they may."""
    gone = sorted(set(table.shards) - today.shards)
    if gone:
        return f"shard {gone[0]} of table entry {table.entry} is not configured any more"
    facts = today.tables.get(table.target)
    if facts is None:
        return f"{table.target} of table entry {table.entry} cannot be loaded any more"
    for shard, path in table.zookeeper_paths:
        now = today.paths.get((table.target, shard), path)
        if now != path:
            # Its window is another one, and so may be its rows (H15).
            return f"{table.target} in shard {shard} was the table at {path}, and is {now} today"
    if facts.partition_key != table.partition_key:
        return (
            f"{table.target} was partitioned by {table.partition_key or 'nothing'}, "
            f"and is by {facts.partition_key or 'nothing'} today"
        )
    is_hashed = not (today.tokens or table.is_replacing)
    is_other_zone = today.time_zone != table.time_zone
    if is_other_zone and zone_matters(table, facts, tokens=not is_hashed):
        return other_zone(table.time_zone, today.time_zone)
    why = why_other_columns(table, facts.columns) or _why_other_key(table, facts.columns)
    if why is None and is_hashed:
        return why_other_hash(table, facts.columns, facts.sorting_key)
    return why


def why_other_columns(table: TableSpec, columns: Iterable[Column]) -> str | None:
    """Columns that blocks of this load spec carry and that are gone or others now, with both
    definitions; None if a block still fits."""
    now = {column.name: column for column in columns}
    found = []
    for column in table.columns:
        if column.kind not in INSERTABLE:
            continue
        there = now.get(column.name)
        if there is None:
            found.append(f"has no column {column.name} any more, which was {definition(column)}")
        elif there.type != column.type or there.kind not in INSERTABLE:
            found.append(
                f"column {column.name} was {definition(column)}, and is {definition(there)} now"
            )
    return f"{table.target}: {'; '.join(found)}" if found else None


def definition(column: Column) -> str:
    """A column's type and what it defaults to, as a statement has it."""
    return " ".join(filter(None, (column.type, column.kind, column.expression)))


def _why_other_key(table: TableSpec, columns: Iterable[Column]) -> str | None:
    """A partition key over computed columns that are computed otherwise now: the same row may
    lie in another ClickHouse partition, and tokens end there (H10)."""
    now = {column.name: column for column in columns}
    computed = [column for column in table.columns if column.kind in _COMPUTED]
    waiting, seen = [table.partition_key], set[str]()
    while waiting:
        words = set(_WORDS.findall(waiting.pop()))
        for column in computed:
            if column.name in words and column.name not in seen:
                seen.add(column.name)
                waiting.append(column.expression)
                if now.get(column.name) != column:
                    return f"{table.target} is partitioned over {column.name}, which has changed"
    return None


def why_other_hash(table: TableSpec, columns: Iterable[Column], sorting_key: str) -> str | None:
    """Why a server that hashes what it stores would not know a block of this load spec again.

    It adds to each block what the block does not carry, sorts it, and hashes the files of all
    columns: with a column added, the same block was stored twice [measured on 18.16].
    """
    then = {c.name: c for c in table.columns if c.kind in _STORED}
    now = {c.name: c for c in columns if c.kind in _STORED}
    for name in sorted(now.keys() ^ then.keys()):
        verb = "has" if name in now else "had"
        return f"{table.target} {verb} a column {name}, and the server hashes all that it stores"
    for name, column in now.items():
        if "MATERIALIZED" in (column.kind, then[name].kind) and column != then[name]:
            return f"{table.target} computes its column {name} otherwise now"
    if sorting_key != table.sorting_key:
        return f"{table.target} was sorted by {table.sorting_key}, and is by {sorting_key} now"
    return None
