"""The table that fits a sample: columns, sorting key, engine with a deduplication window."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.clickhouse.capabilities import Capabilities, read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.sql import identifier, literal, qualified
from sluice.clickhouse.system import table_row
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Delivery, lineage_types
from sluice.ops.init_types import SampledColumn

#: Enough for every repeat that may come, however late (R10).
_WINDOW_BLOCKS = 10_000
#: Replicated tables forget blocks by time, too: after a week, and in servers from this version on
#: after an hour, which is short for a range that is in doubt.
_SHORT_WINDOWS, _WINDOW_SECONDS = (25, 10), 7 * 24 * 3600

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
    :param settings: that give the table a deduplication window.
    :param remarks: what whoever makes the table has to know.
    """

    version: tuple[int, ...]
    engine: str
    settings: str
    has_database: bool
    has_table: bool
    remarks: tuple[str, ...] = ()


_PLAIN = f"non_replicated_deduplication_window = {_WINDOW_BLOCKS}"
#: A server of today without replicas, where none was asked.
ASSUMED = ServerFacts((99,), "MergeTree", _PLAIN, True, False)


def ask_server(
    server: Server, database: str, table: str, delivery: Delivery = "block"
) -> ServerFacts:
    """Look at the server that the table will be on; nothing is changed.

    :raises TerminalError: no table there could deduplicate.
    :raises SluiceError: it does not answer.
    """
    capabilities = read_capabilities(server)
    databases = server.query(
        f"SELECT name, engine FROM system.databases WHERE name = {literal(database)}"
    )
    row = table_row(server, database, table, "name")
    if _is_cloud(server):
        engine, remarks = _in_the_cloud(server, delivery)
    elif databases and databases[0]["engine"] == "Replicated":
        # It names the table in ZooKeeper by itself, and makes it on each replica.
        engine, remarks = "ReplicatedMergeTree", (_ALL_REPLICAS,)
    else:
        engine, remarks = _engine(server, capabilities, database, table)
    is_plain = engine == "MergeTree"
    if is_plain and not capabilities.tokens and delivery == "block":
        raise TerminalError(
            f"{server.url}: ClickHouse {capabilities.version_text} deduplicates only in Replicated "
            "tables, and has no ZooKeeper",
            "Use ClickHouse 22.2 or newer, configure <zookeeper>, or take --delivery replacing.",
        )
    settings = _PLAIN if is_plain else _PLAIN.removeprefix("non_")
    if not is_plain and capabilities.version >= _SHORT_WINDOWS:
        settings += f", replicated_deduplication_window_seconds = {_WINDOW_SECONDS}"
    facts = capabilities.version, engine, settings, bool(databases), row is not None
    return ServerFacts(*facts, remarks)


def _is_cloud(server: Server) -> bool:
    """Whether it is ClickHouse Cloud, whose engines no other server has."""
    name = "'SharedMergeTree'"
    try:
        return bool(server.query(f"SELECT name FROM system.table_engines WHERE name = {name}"))
    except TransientError:
        raise
    except TerminalError:  # an old server has no such table
        return False


def _in_the_cloud(server: Server, delivery: Delivery) -> tuple[str, tuple[str, ...]]:
    """The engine there, without arguments: it becomes a Shared one by itself.

    :raises TerminalError: a table there could not be loaded by this delivery.
    """
    if delivery != "replacing":
        raise TerminalError(
            f"{server.url} is ClickHouse Cloud: it makes Shared tables, whose deduplication window "
            "cannot be observed",
            "Take --delivery replacing, and read the table with FINAL (docs/DELIVERIES.md).",
        )
    return "MergeTree", ()


def _engine(
    server: Server, capabilities: Capabilities, database: str, table: str
) -> tuple[str, tuple[str, ...]]:
    """The engine with its arguments; a Replicated one on a server with ZooKeeper or Keeper."""
    try:
        server.query("SELECT name FROM system.zookeeper WHERE path = '/' LIMIT 1")
    except TransientError:
        raise
    except TerminalError as error:
        is_hidden = isinstance(error, ServerError) and error.code == _ACCESS_DENIED
        return "MergeTree", (_HIDDEN,) if is_hidden else ()
    try:
        macros = {str(row["macro"]) for row in server.query("SELECT macro FROM system.macros")}
    except TerminalError:
        macros = set()
    shard = "{shard}/" if "shard" in macros else ""
    remarks = [f"{_EACH_REPLICA} {_ALL_REPLICAS}"]
    name = "{replica}" if "replica" in macros else capabilities.host_name
    if name == capabilities.host_name:
        remarks.append(
            f"the server has no macro {{replica}}: '{name}' in the statement is this server, write "
            "another name there on each other replica"
        )
    arguments = f"{literal(f'/clickhouse/tables/{shard}{database}.{table}')}, {literal(name)}"
    return f"ReplicatedMergeTree({arguments})", tuple(remarks)


_ACCESS_DENIED = 497
_HIDDEN = (
    "this user may not see whether the server has ZooKeeper or Keeper, and so replicas: the table "
    "that is proposed is on one server only. Try: GRANT SELECT ON system.zookeeper, and again"
)
_EACH_REPLICA = "give the statement to each replica, or add ON CLUSTER behind the table's name."
_ALL_REPLICAS = (
    'Where there are several replicas, name all of them in `shards`, and take durability = "quorum"'
)


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
    settings = f"\nSETTINGS {facts.settings}"
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
