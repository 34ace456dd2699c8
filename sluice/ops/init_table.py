"""The table that fits a sample: columns, sorting key, engine with a deduplication window."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.clickhouse.capabilities import Capabilities, read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import identifier, literal, qualified
from sluice.clickhouse.system import table_row
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Delivery, lineage_types
from sluice.ops.init_types import SampledColumn

#: Enough for every repeat that may come, however late (R10).
_WINDOW_BLOCKS = 10_000

#: A key of many rows, as a user of an order: its values come again.
_REPEATS_SHARE = 0.9
_ID = re.compile(r"(?:^|[_.\-])(?i:id|uuid|guid|key)$|[a-z0-9](?:Id|ID|Uuid|UUID|Key)$")
_TIME = re.compile(r"(?:^|_)(?:ts|time|timestamp|date|at|created|updated)(?:_|$)|Time$|At$|Date$")

#: Types that older servers do not know, and what takes their values there.
_SINCE = {
    "DateTime64": ((20, 1), re.compile(r"DateTime64\(\d\)"), "DateTime"),
    "Date32": ((21, 9), re.compile(r"Date32"), "Date"),
    "Bool": ((21, 12), re.compile(r"\bBool\b"), "UInt8"),
    "LowCardinality": ((19, 1), re.compile(r"LowCardinality\((\w+|Nullable\(\w+\))\)"), r"\1"),
    "Map": ((21, 1), re.compile(r"Map\(.*\)"), "String"),
}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the statement needs to know of the server.

    :param engine: with its arguments.
    :param window: the setting that gives the table a deduplication window.
    """

    version: tuple[int, ...]
    engine: str
    window: str
    has_database: bool
    has_table: bool


#: A server of today without replicas, where none was asked.
ASSUMED = ServerFacts((99,), "MergeTree", "non_replicated_deduplication_window", True, False)


def ask_server(
    server: Server, database: str, table: str, delivery: Delivery = "block"
) -> ServerFacts:
    """Look at the server that the table will be on; nothing is changed.

    :raises TerminalError: no table there could deduplicate.
    :raises SluiceError: it does not answer.
    """
    capabilities = read_capabilities(server)
    databases = server.query(f"SELECT name FROM system.databases WHERE name = {literal(database)}")
    row = table_row(server, database, table, "name")
    replica = _replica(server, capabilities, database, table)
    if replica is None and not capabilities.tokens and delivery == "block":
        raise TerminalError(
            f"{server.url}: ClickHouse {capabilities.version_text} deduplicates only in Replicated "
            "tables, and has no ZooKeeper",
            "Use ClickHouse 22.2 or newer, configure <zookeeper>, or take --delivery replacing.",
        )
    return ServerFacts(
        capabilities.version,
        "MergeTree" if replica is None else f"ReplicatedMergeTree({replica})",
        f"{'non_' if replica is None else ''}replicated_deduplication_window",
        bool(databases),
        row is not None,
    )


def _replica(server: Server, capabilities: Capabilities, database: str, table: str) -> str | None:
    """Arguments of a Replicated engine; None on a server without ZooKeeper or Keeper."""
    try:
        server.query("SELECT name FROM system.zookeeper WHERE path = '/' LIMIT 1")
    except TransientError:
        raise
    except TerminalError:
        return None
    try:
        macros = {str(row["macro"]) for row in server.query("SELECT macro FROM system.macros")}
    except TerminalError:
        macros = set()
    shard = "{shard}/" if "shard" in macros else ""
    name = "{replica}" if "replica" in macros else capabilities.host_name
    return f"{literal(f'/clickhouse/tables/{shard}{database}.{table}')}, {literal(name)}"


def fitted(columns: Sequence[SampledColumn], version: tuple[int, ...]) -> list[SampledColumn]:
    """The columns with types that a server of this version has."""
    fitting = []
    for column in columns:
        text = column.type
        for since, pattern, instead in _SINCE.values():
            if version < since:
                text = pattern.sub(instead, text)
        fitting.append(
            SampledColumn(column.name, text, column.values, column.distinct, column.lacking)
        )
    return fitting


def sorting_key(columns: Sequence[SampledColumn]) -> list[str]:
    """What the rows belong to, then when they happened; where they stood, if nothing else."""
    sortable = [c for c in columns if c.in_a_key and not c.lacking]
    times = [c for c in sortable if c.type.startswith("Date")]
    times = [c for c in times if _TIME.search(c.name)] or times
    times = times or [c for c in sortable if "Int" in c.type and _TIME.search(c.name)]
    ids = [c for c in sortable if _ID.search(c.name) and c not in times]
    owners = [c for c in ids if c.distinct < _REPEATS_SHARE * c.values]
    key = [*owners[:1], *times[:1]]
    if len(key) < 2:
        key += [c for c in ids if c not in key][:1]
    return [c.name for c in key] or ["_partition", "_offset"]


def create_table(
    database: str,
    table: str,
    columns: Sequence[SampledColumn],
    facts: ServerFacts,
    delivery: Delivery = "block",
) -> str:
    """The statement, without a semicolon."""
    lineage = lineage_types(facts.version)
    lines = [f"    {_quoted(c.name)} {c.type}" for c in columns]
    lines += [f"    {name} {text}" for name, text in lineage.items()]
    names, engine = sorting_key(columns), facts.engine
    settings = f"\nSETTINGS {facts.window} = {_WINDOW_BLOCKS}"
    if delivery == "replacing":  # one of the rows that the whole lineage makes equal is kept
        names += [name for name in lineage if name not in names]
        engine, settings = engine.replace("MergeTree", "ReplacingMergeTree", 1), ""
    key = ", ".join(map(_quoted, names))
    return (
        f"CREATE TABLE {qualified(database, table)} (\n"
        + ",\n".join(lines)
        + f"\n) ENGINE = {engine}\nORDER BY ({key})"
        + settings
    )


def _quoted(name: str) -> str:
    """The name, in backquotes where it needs them."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII)
    return name if plain and name.upper() not in _WORDS else identifier(name)


#: Words that a name cannot be without quotes at the head of a column's line.
_WORDS = frozenset(("INDEX", "CONSTRAINT", "PROJECTION", "PRIMARY", "CHECK", "ASSUME", "ALIAS"))
