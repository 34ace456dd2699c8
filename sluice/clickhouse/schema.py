"""What a target table is: columns, keys, deduplication window, and every view behind it.

System tables differ between versions, so rows are read whole (SELECT *) and a column that
this version lacks counts as empty. 18.16.1 and 26.9 are tested.

`describe_table` reads everything that matters about a table, in several queries; whether there is
a reason to, `read_structures` tells of all tables of a server, in one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import literal, qualified
from sluice.clickhouse.system import said_of_table, table_row
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Column, ColumnKind


@dataclass(frozen=True, slots=True)
class Dependent:
    """A materialized view that an insert feeds, and the table that it writes to.

    :param view: database.view.
    :param select: what it selects, as the server keeps it; `statement`: its CREATE.
    :param uuid: of the view, zeros where its database gives none.
    """

    view: str
    target: TableFacts
    select: str = ""
    statement: str = ""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts of one table on one server.

    :param engine_full: the engine with keys and SETTINGS.
    :param drops_empty_parts: parts that merged to no row are taken away.
    :param dropped_empty_until_ms: until when they may have been, by the server's clock: until the
        table was last altered, or EVER_MS.
    :param zookeeper_name: of the auxiliary ensemble that has the path; "": it is the server's own.
    :param replicas_total: 1 for a table that is not replicated.
    :param window_blocks: entries that the table's deduplication window surely keeps; 0 is none.
    :param window_seconds: how long it keeps them; None where time does not count.
    :param async_insert: the table setting, of its own or from the server's configuration, which is
        OR-ed to the one of an insert.
    :param dependents: views fed by this table; their targets carry their own dependents.
    :param create_table_query: as the server keeps it.
    :param takes_patches: rows may be updated and deleted by patch parts, without a mutation.
    :param fed_unseen: what else the server says that this table feeds: views that this user may not
        see, and such as are no materialized views.
    """

    url: str
    database: str
    table: str
    uuid: str
    engine: str
    engine_full: str
    columns: tuple[Column, ...]
    partition_key: str
    sorting_key: str
    replicated: bool
    zookeeper_path: str
    replicas_total: int
    replicas_active: int
    is_readonly: bool
    window_blocks: int
    window_seconds: int | None
    async_insert: bool
    dependents: tuple[Dependent, ...]
    create_table_query: str = ""
    fed_unseen: tuple[str, ...] = ()
    takes_patches: bool = False
    zookeeper_name: str = ""
    drops_empty_parts: bool = False
    dropped_empty_until_ms: int = 0

    @property
    def target(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def deduplicates(self) -> bool:
        return self.window_blocks > 0

    def all_unseen(self) -> Iterator[str]:
        """What this table and its views' targets feed besides; see `fed_unseen`."""
        yield from self.fed_unseen
        for dependent in self.all_dependents():
            yield from dependent.target.fed_unseen

    def own_uuids(self) -> Iterator[tuple[str, str]]:
        """Name and uuid of this table and its views' targets, where they are not replicated: which
        tables they are. Of a database whose tables have none, nothing is told."""
        for each in (self, *(dependent.target for dependent in self.all_dependents())):
            is_own = each.engine.endswith("MergeTree") and not each.replicated
            if is_own and each.uuid.strip("0-"):
                yield each.target, each.uuid

    def all_dependents(self) -> Iterator[Dependent]:
        """Every view behind this table, however deep."""
        for dependent in self.dependents:
            yield dependent
            yield from dependent.target.all_dependents()


def describe_table(server: Server, database: str, table: str) -> TableFacts:
    """Read the facts of a table that Sluice may load into.

    :raises TerminalError: no such database or table, or an engine without a contract.
    :raises ServerError: terminal or transient.
    """
    facts = _read_facts(server, database, table, frozenset(), via="")
    where = f"{facts.target} on {server.url}"
    if facts.engine.startswith("Shared") and facts.engine != "SharedReplacingMergeTree":
        raise TerminalError(
            f"{where} is a {facts.engine}: its deduplication window cannot be observed",
            "Load into a MergeTree or ReplicatedMergeTree table of your own servers; or into a "
            'SharedReplacingMergeTree with delivery = "replacing".',
        )
    if not facts.engine.endswith("MergeTree"):
        raise TerminalError(
            f"{where} has the engine {facts.engine}, which does not deduplicate inserts",
            _ENGINE_HINTS.get(
                facts.engine, "Name a table of the MergeTree family as `target` instead."
            ),
        )
    return facts


_ENGINE_HINTS = {
    "Distributed": "Name the local table as `target`, and every shard in [clickhouse] shards.",
    "Buffer": "Name the table behind the Buffer as `target`; Sluice's blocks are large already.",
    "Null": "Name the table that the views of this Null table write to as `target`.",
    "MaterializedView": "Name the table that the view reads from, or its TO table, as `target`.",
    "View": "Name the table behind the view as `target`.",
}


class OtherColumnsError(TerminalError):
    """A block's columns are not the table's."""


def check_header(columns: Sequence[Column], facts: TableFacts) -> None:
    """Compare a block's columns with this replica's, before the first insert of a text.

    Columns that only the replica has are filled by it, as for a column added later; all
    that the block carries must exist there, with the same type, and be insertable: 18.16
    drops extra columns without a word, 26.9 converts other types (H16).

    :param columns: what the block carries, in its order.
    :raises OtherColumnsError: they differ.
    """
    known = {column.name: column for column in facts.columns}
    where = f"{facts.target} on {facts.url}"
    for column in columns:
        there = known.get(column.name)
        if there is None:
            raise OtherColumnsError(
                f"{where} has no column {column.name}, which the block carries",
                f"ALTER TABLE {qualified(facts.database, facts.table)} "
                f"ADD COLUMN {column.name} {column.type}; or run `sluice resolve`.",
            )
        if _without_spaces(there.type) != _without_spaces(column.type):
            raise OtherColumnsError(
                f"{where}: column {column.name} is {there.type}, the block carries {column.type}",
                "Give all replicas the same columns, or run `sluice resolve`.",
            )
        if there.kind in ("MATERIALIZED", "ALIAS"):
            raise OtherColumnsError(
                f"{where}: column {column.name} is {there.kind} and takes no values",
                "Make it a DEFAULT column, or leave it out of the block.",
            )


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _read_facts(
    server: Server, database: str, table: str, path: frozenset[tuple[str, str]], via: str
) -> TableFacts:
    """The facts of any table.

    :param path: the tables above this one, against circles of views.
    :param via: the view that writes to it, for messages; "" for the target itself.
    """
    row = _table_row(server, database, table, via)
    engine = str(row["engine"])
    replicated = engine.startswith("Replicated") and engine.endswith("MergeTree")
    replica = _replica_row(server, database, table) if replicated else {}
    ensemble = str(replica.get("zookeeper_name", ""))
    settings = _settings(server, engine, replicated, str(row["engine_full"]))
    blocks, seconds = _window(engine, replicated, settings)
    if not replicated and _TWO_ENTRIES_SINCE <= server.version() < _ONE_ENTRY_SINCE:
        blocks //= 2
    dependents, unseen = _dependents(server, row, path | {(database, table)})
    return TableFacts(
        url=server.url,
        database=database,
        table=table,
        uuid=str(row.get("uuid", "")),
        engine=engine,
        engine_full=str(row["engine_full"]),
        columns=_columns(server, database, table),
        partition_key=str(row["partition_key"]),
        sorting_key=str(row["sorting_key"]),
        replicated=replicated,
        zookeeper_path=str(replica.get("zookeeper_path", "")),
        replicas_total=int(replica.get("total_replicas", 1)),
        replicas_active=int(replica.get("active_replicas", 1)),
        is_readonly=bool(replica.get("is_readonly", 0)),
        window_blocks=blocks,
        window_seconds=seconds,
        async_insert=_is_on(settings, "async_insert"),
        dependents=dependents,
        fed_unseen=unseen,
        create_table_query=str(row.get("create_table_query", "")),
        takes_patches=all(_is_on(settings, name) for name in _PATCHED),
        drops_empty_parts=_is_on(settings, _EMPTY),
        dropped_empty_until_ms=_dropped_empty_until_ms(settings, int(row["altered"])),
        zookeeper_name="" if ensemble == "default" else ensemble,
    )


def _table_row(server: Server, database: str, table: str, via: str) -> dict[str, Any]:
    altered = "toUnixTimestamp(metadata_modification_time) AS altered"
    row = table_row(server, database, table, f"*, {altered}")
    if row is not None:
        return row
    name = qualified(database, table)
    if via:
        raise TerminalError(
            f"the materialized view {via} on {server.url} writes to {name}, which does not exist, "
            "or its user may not see it",
            f"CREATE TABLE {name} (…), GRANT SHOW COLUMNS ON {name} to its user, or DROP TABLE "
            f"{via}.",
        )
    if not server.query(
        "SELECT name FROM system.databases WHERE name = {database:String}", {"database": database}
    ):
        raise TerminalError(
            f"there is no database {database} on {server.url}",
            f"CREATE DATABASE {qualified(database, table).partition('.')[0]}, "
            "or correct `database` in [clickhouse].",
        )
    raise TerminalError(
        f"there is no table {database}.{table} on {server.url}, or its user may not see it",
        f"CREATE TABLE {name} (…) ENGINE = MergeTree ORDER BY … "
        "SETTINGS non_replicated_deduplication_window = 10000; or correct `target`.",
    )


def _replica_row(server: Server, database: str, table: str) -> dict[str, Any]:
    rows = said_of_table(server, "SELECT * FROM system.replicas", database, table)
    return rows[0] if rows else {}


def _columns(server: Server, database: str, table: str) -> tuple[Column, ...]:
    rows = said_of_table(server, "SELECT * FROM system.columns", database, table)
    rows.sort(key=lambda row: int(row.get("position", 0)))  # 18.16 has none and keeps the order
    return tuple(
        Column(
            name=str(row["name"]),
            type=str(row["type"]),
            kind=_column_kind(str(row["default_kind"])),
            expression=str(row["default_expression"]),
        )
        for row in rows
    )


def _column_kind(text: str) -> ColumnKind:
    for kind in get_args(ColumnKind):
        if text == kind:
            return kind  # type: ignore[no-any-return]
    raise TerminalError(
        f"a column has the unknown default kind {text!r}", "Use a newer version of Sluice."
    )


_REPLICATED_WINDOW = ("replicated_deduplication_window", "replicated_deduplication_window_seconds")
_OWN_WINDOW = "non_replicated_deduplication_window"
#: Between these a plain table may keep two entries for each block (`compatible_double_hashes`, the
#: default then, as its source says), so that a window remembers half as many.
_TWO_ENTRIES_SINCE, _ONE_ENTRY_SINCE = (26, 2), (26, 6)
#: Without both no row can be named by a patch part.
_PATCHED = ("enable_block_number_column", "enable_block_offset_column")
_EMPTY = "remove_empty_parts"
#: Later than any moment.
EVER_MS = 1 << 62


def _settings(server: Server, engine: str, replicated: bool, engine_full: str) -> dict[str, str]:
    """What the facts are made of: the table's own settings over the server's."""
    own = table_settings(engine_full)
    if not engine.endswith("MergeTree"):
        return own
    window = _REPLICATED_WINDOW if replicated else (_OWN_WINDOW,)
    names = (*window, *_PATCHED, "async_insert", _EMPTY)
    missing = [name for name in names if name not in own]
    return {**merge_tree_defaults(server, replicated, missing), **own}


def _window(engine: str, replicated: bool, settings: Mapping[str, str]) -> tuple[int, int | None]:
    """(blocks, seconds) of the window."""
    if not engine.endswith("MergeTree"):
        return 0, None
    if not replicated:
        return int(settings.get(_OWN_WINDOW, 0)), None
    blocks, seconds = _REPLICATED_WINDOW
    return int(settings.get(blocks, 0)), int(settings[seconds])


def _dropped_empty_until_ms(settings: Mapping[str, str], altered: int) -> int:
    """What it was before is not known: the ALTER may have been that of the setting.

    :param altered: when the table was, in seconds; 0: the server does not say.
    """
    if _EMPTY not in settings:
        return 0  # such a server keeps them
    return 1000 * altered if altered and not _is_on(settings, _EMPTY) else EVER_MS


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "0") not in ("0", "false")


def merge_tree_defaults(server: Server, replicated: bool, names: list[str]) -> dict[str, str]:
    """Server-wide values of settings; newer servers keep those of Replicated tables apart."""
    source = "merge_tree_settings"
    if replicated and server.query(
        "SELECT name FROM system.tables "
        "WHERE database = 'system' AND name = 'replicated_merge_tree_settings'"
    ):
        source = "replicated_merge_tree_settings"
    rows = server.query(
        f"SELECT name, value FROM system.{source} WHERE has({{names:Array(String)}}, name)",
        {"names": names},
    )
    return {str(row["name"]): str(row["value"]) for row in rows}


def table_setting(server: Server, facts: TableFacts, name: str) -> int:
    """A number that a table says for itself, or its server for all; 0 where neither does."""
    own = table_settings(facts.engine_full)
    if name not in own:
        own = merge_tree_defaults(server, facts.replicated, [name])
    return int(own.get(name, 0))


TOKENS = re.compile(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"|\w+|[^\w\s]")


def table_settings(engine_full: str) -> dict[str, str]:
    """The SETTINGS clause at the end of an engine's description, unquoted."""
    tokens = TOKENS.findall(engine_full)
    if "SETTINGS" not in tokens:
        return {}
    begin = len(tokens) - tokens[::-1].index("SETTINGS")
    settings: dict[str, str] = {}
    name = ""
    for before, token in zip(tokens[begin - 1 :], tokens[begin:], strict=False):
        if before in ("SETTINGS", ","):
            name = token
            settings[name] = ""
        elif token not in ("=", ","):
            settings[name] += token.strip("'")
    return settings


def _dependents(
    server: Server, row: dict[str, Any], path: frozenset[tuple[str, str]]
) -> tuple[tuple[Dependent, ...], tuple[str, ...]]:
    """The views that a table feeds; and the names of what it feeds besides."""
    names = sorted(zip(row["dependencies_database"], row["dependencies_table"], strict=True))
    dependents, unseen = [], []
    for database, name in names:
        view = table_row(server, database, name)
        if view is None or view["engine"] != "MaterializedView":
            unseen.append(f"{database}.{name}")
            continue
        statement = str(view["create_table_query"])
        if _REFRESHABLE.match(statement):
            continue  # runs by the clock; an insert does not feed it
        target = _view_target(view, statement)
        if target in path:
            raise TerminalError(
                f"the materialized view {database}.{name} on {server.url} writes back to "
                f"{target[0]}.{target[1]}, which feeds it",
                f"DROP TABLE {qualified(database, name)}.",
            )
        via = f"{database}.{name}"
        facts = _read_facts(server, *target, path, via)
        select, uuid = (str(view.get(name, "")) for name in ("as_select", "uuid"))
        dependents.append(Dependent(via, facts, select, statement, uuid))
    return tuple(dependents), tuple(unseen)


_NAME = r"(`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"|\w+)"
_HEAD = rf"CREATE MATERIALIZED VIEW {_NAME}\.{_NAME}(?: UUID '[^']*')?(?: ON CLUSTER {_NAME})?"
_REFRESHABLE = re.compile(rf"{_HEAD} REFRESH\b")
_TO = re.compile(rf"{_HEAD} TO {_NAME}\.{_NAME}")


def _view_target(view: dict[str, Any], statement: str) -> tuple[str, str]:
    """(database, table) that a materialized view writes to."""
    if view.get("target_table"):
        return str(view["target_database"]), str(view["target_table"])
    named = _TO.match(statement)
    if named:
        return unquoted(named.group(4)), unquoted(named.group(5))
    uuid = str(view.get("uuid", ""))
    if uuid.strip("0-"):
        return str(view["database"]), f".inner_id.{uuid}"
    return str(view["database"]), f".inner.{view['name']}"


def unquoted(name: str) -> str:
    """A name as it is, with or without quotes."""
    if name[0] in '`"':
        return re.sub(r"\\(.)", r"\1", name[1:-1])
    return name


#: From these versions on.
_KNOWS_UUIDS, _KNOWS_SESSION_ZONES = (20, 5), (23, 6)


@dataclass(frozen=True, slots=True)
class Structure:
    """What a table says about its rows.

    :param columns: in the server's order.
    :param uuid: "" of a Replicated table, and where tables have none.
    :param time_zone: the server's.
    :param zookeeper_path: of a Replicated table.
    """

    columns: tuple[Column, ...]
    partition_key: str
    sorting_key: str
    uuid: str = ""
    time_zone: str = ""
    zookeeper_path: str = ""


@dataclass(frozen=True, slots=True)
class Identities:
    """Which server and which tables answer to their names now.

    :param uuids: by "database.table"; "" as in `Structure`. Tables that do not exist are missing.
    :param zookeeper_paths: the same of the Replicated ones that were asked for.
    """

    time_zone: str
    uuids: Mapping[str, str]
    zookeeper_paths: Mapping[str, str] = field(default_factory=dict)


def read_structures(
    server: Server, tables: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], Structure]:
    """The structure of these tables, (database, table); those that do not exist are missing.

    9 ms on 26.9 and 2.5 ms on 18.16 for two tables [measured].

    :raises ServerError: terminal or transient.
    """
    wanted = sorted(set(tables))
    if not wanted:
        return {}
    # No alias may be called like a column that WHERE looks at.
    rows = server.query(
        "SELECT 'column' AS what, database AS in_database, table AS of_table, "
        "name AS column_name, type AS column_type, default_kind AS kind, "
        f"default_expression AS expression FROM system.columns WHERE {one_of(wanted, 'table')} "
        "UNION ALL SELECT 'table' AS what, database AS in_database, name AS of_table, "
        f"{_uuid(server)} AS column_name, {zone_of(server)} AS column_type, partition_key AS kind, "
        f"sorting_key AS expression FROM system.tables WHERE {one_of(wanted, 'name')} "
        # Of ZooKeeper nothing is asked for a path.
        "UNION ALL SELECT 'path' AS what, database AS in_database, table AS of_table, "
        "'' AS column_name, '' AS column_type, '' AS kind, zookeeper_path AS expression "
        f"FROM system.replicas WHERE {one_of(wanted, 'table')}"
    )
    columns: dict[tuple[str, str], list[Column]] = {}
    keys: dict[tuple[str, str], tuple[str, str, str, str]] = {}
    paths: dict[tuple[str, str], str] = {}
    for row in rows:
        where = (str(row["in_database"]), str(row["of_table"]))
        if row["what"] == "table":
            uuid, zone = known_uuid(str(row["column_name"])), str(row["column_type"])
            keys[where] = (str(row["kind"]), str(row["expression"]), uuid, zone)
        elif row["what"] == "path":
            paths[where] = str(row["expression"])
        else:
            # A kind that this version does not know is a difference, and read as an error later.
            column = Column(row["column_name"], row["column_type"], row["kind"], row["expression"])
            columns.setdefault(where, []).append(column)
    return {
        where: Structure(tuple(columns.get(where, ())), *found, paths.get(where, ""))
        for where, found in keys.items()
    }


def read_identities(
    server: Server,
    tables: Iterable[tuple[str, str]],
    replicated: Collection[tuple[str, str]] = (),
) -> Identities:
    """Asked before each block is sent: 2 ms on 26.9.

    :param replicated: those whose path in ZooKeeper is asked for, too.
    :raises ServerError: terminal or transient.
    """
    sql = (
        f"SELECT '' AS in_database, '' AS of_table, '' AS own, {zone_of(server)} AS zone, "
        "'' AS path UNION ALL SELECT database AS in_database, name AS of_table, "
        f"{_uuid(server)} AS own, '' AS zone, '' AS path "
        f"FROM system.tables WHERE {one_of(sorted(set(tables)), 'name')}"
    )
    if replicated:
        sql += (
            " UNION ALL SELECT database AS in_database, table AS of_table, '' AS own, '' AS zone, "
            f"zookeeper_path AS path FROM system.replicas WHERE {one_of(replicated, 'table')}"
        )
    uuids: dict[str, str] = {}
    paths: dict[str, str] = {}
    zone = ""
    for row in server.query(sql):
        name = f"{row['in_database']}.{row['of_table']}"
        if not row["of_table"]:
            zone = str(row["zone"])
        elif row["path"]:
            paths[name] = str(row["path"])
        else:
            uuids[name] = known_uuid(str(row["own"]))
    return Identities(zone, uuids, paths)


def read_uuids(server: Server, tables: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Of these tables, (database, table), in their order; "" as in `Structure`.

    :raises TransientError: one of them is not there, or not for now: a server may list a table that
        it renames under neither name [measured, 26.9].
    :raises ServerError: terminal or transient.
    """
    found = read_identities(server, tables).uuids
    names = [f"{database}.{table}" for database, table in tables]
    if missing := ", ".join(name for name in names if name not in found):
        raise TransientError(
            f"{server.url} does not list {missing} now, so nobody can say which table has the name",
            "Somebody renames or drops it. If it has another name by now, give it this one back.",
        )
    return tuple(found[name] for name in names)


def zone_of(server: Server) -> str:
    """SQL for the server's own time zone, whatever the session's is."""
    return "serverTimezone()" if server.version() >= _KNOWS_SESSION_ZONES else "timezone()"


def known_uuid(text: str) -> str:
    """A uuid; "" for one of zeros, which a table in a database of the engine Ordinary has."""
    return text if text.strip("0-") else ""


def _uuid(server: Server) -> str:
    if server.version() < _KNOWS_UUIDS:
        return "''"
    return "if(engine LIKE '%MergeTree' AND engine NOT LIKE 'Replicated%', toString(uuid), '')"


def one_of(tables: Iterable[tuple[str, str]], name: str) -> str:
    """SQL: it is one of these, (database, table), whose name is in this column."""
    terms = [
        f"(database = {literal(database)} AND {name} = {literal(table)})"
        for database, table in tables
    ]
    return f"({' OR '.join(terms)})"
