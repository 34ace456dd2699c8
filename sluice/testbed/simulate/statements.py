"""What a simulated server answers to the statements of the real code.

Each statement is known by where it reads from, and answered with rows as a server shows them;
what becomes of the rows is the real code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.clickhouse.vanishing import ALWAYS_KNOWN
from sluice.core.load_spec import LINEAGE_TYPES
from sluice.core.ranges import TopicPartition
from sluice.testbed.simulate.clickhouse import Host, Table, groups_of
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.world import World

Rows = list[dict[str, Any]]

#: Settings that a server knows, with the values that a hostile profile gave them.
_SETTINGS = {
    "async_insert": "1",
    "insert_deduplicate": "0",
    "deduplicate_blocks_in_dependent_materialized_views": "0",
    "max_partitions_per_insert_block": "1",
    "insert_quorum": "0",
    "insert_quorum_timeout": "600000",
    "max_execution_time": "1",
}
_TOKENS = {"insert_deduplication_token": "", "insert_quorum_parallel": "0"}

_TEXT = r"'((?:[^'\\]|\\.)*)'"
_TABLE = re.compile(rf"database = {_TEXT} AND `?(?:table|name)`? = {_TEXT}")
_PATH = re.compile(rf"path = {_TEXT}")
_LOOK = re.compile(rf"WHERE query_id = {_TEXT}")
_PREFIX = re.compile(rf"substring\(\w+, 1, \d+\) = {_TEXT}")
_PRESENT = re.compile(
    rf"FROM `d`\.`(\w+)`\s+WHERE .*?_topic = {_TEXT} AND _partition = (\d+)\s+"
    r"AND _offset >= (\d+) AND _offset < (\d+)",
    re.DOTALL,
)
_LOADER = re.compile(rf"AND _source = {_TEXT}")


@dataclass(frozen=True, slots=True)
class Statement:
    """A kind of statement.

    :param part: what it contains.
    :param label: of the step that it is; "": it goes with the statement before it.
    """

    part: str
    label: str
    answer: Callable[[Parts, Host, str], Rows]
    #: It comes again and again, and mostly nothing strikes it.
    is_light: bool = False


def find(sql: str) -> Statement:
    """The kind of a statement.

    :raises LookupError: the simulator does not know it.
    """
    for statement in STATEMENTS:
        if statement.part in sql:
            return statement
    raise LookupError(f"the simulated server does not know the statement {sql}")


def _table(host: Host, sql: str) -> Table | None:
    match = _TABLE.search(sql)
    return None if match is None else _named(host, match.group(2))


def _named(host: Host, name: str) -> Table | None:
    found = host.tables.get(name.removesuffix("_view").removesuffix("_target"))
    if found is None or not name.endswith("_target"):
        return found
    return found.views[0] if found.views else None


def _is_read_only(world: World, host: Host) -> bool:
    return host.read_only_until > world.now


def _version(parts: Parts, host: Host, sql: str) -> Rows:
    return [{"version": "26.9.1.1" if parts.world.plan.tokens else "18.16.1"}]


def _server_facts(parts: Parts, host: Host, sql: str) -> Rows:
    return [{"time_zone": "UTC", "host_name": host.url, "hashes": ""}]


def _settings(parts: Parts, host: Host, sql: str) -> Rows:
    known = {**_SETTINGS, **(_TOKENS if parts.world.plan.tokens else {})}
    told = {"readonly": 0, "known": len(known)}
    return [{"name": name, "value": value, **told} for name, value in known.items()]


def _tables(parts: Parts, host: Host, sql: str) -> Rows:
    match = _TABLE.search(sql)
    table = _table(host, sql)
    if match is None or table is None:
        return []
    name = match.group(2)
    if name.endswith("_view"):
        source = f"d.{name.removesuffix('_view')}"
        target, select = f"{source}_target", f"SELECT * FROM {source}"
        return [
            {
                "engine": "MaterializedView",
                "create_table_query": f"CREATE MATERIALIZED VIEW d.{name} TO {target} AS {select}",
                "as_select": select,
                "database": "d",
                "name": name,
            }
        ]
    shape = table.shape
    kind = "replicated" if shape.is_replicated else "non_replicated"
    settings = f"{kind}_deduplication_window = {shape.window_blocks}"
    if shape.seconds is not None:
        settings += f", replicated_deduplication_window_seconds = {shape.seconds}"
    engine = "ReplacingMergeTree" if shape.merges or shape.replaces else "MergeTree"
    key = ", ".join(LINEAGE_TYPES) if shape.replaces else "number"
    engine = f"Replicated{engine}" if shape.is_replicated else engine
    return [
        {
            "uuid": "",
            "altered": 0,
            "engine": engine,
            "engine_full": f"{engine} ORDER BY ({key}) SETTINGS {settings}",
            "partition_key": shape.partition_key,
            "sorting_key": key,
            "dependencies_database": ["d"] if table.views else [],
            "dependencies_table": [f"{shape.name}_view"] if table.views else [],
        }
    ]


def _replicas(parts: Parts, host: Host, sql: str) -> Rows:
    table = _table(host, sql)
    if table is None:
        return []
    hosts = parts.world.clickhouse.replicas_of(host.shard)
    unfetched = table.unfetched.get(host.url)
    away = sum(
        _is_read_only(parts.world, other) or other.down_until > parts.world.now for other in hosts
    )
    return [
        {
            "zookeeper_path": table.path,
            "total_replicas": len(hosts),
            "active_replicas": len(hosts) - away,
            "is_readonly": int(_is_read_only(parts.world, host)),
            "is_session_expired": 0,
            "parts_to_check": 0,
            # It has not read of the newest part that it has not fetched.
            "log_pointer": unfetched[-1].number - 1 if unfetched else table.insert_counter,
        }
    ]


def _queue(parts: Parts, host: Host, sql: str) -> Rows:
    """What it has read of and not fetched."""
    table = _table(host, sql)
    queued = () if table is None else table.unfetched.get(host.url, ())[:-1]
    return [{"node_name": str(id(part))} for part in queued]


def _columns(parts: Parts, host: Host, sql: str) -> Rows:
    table = _table(host, sql)
    return (
        []
        if table is None
        else [
            {
                "name": column.name,
                "type": column.type,
                "default_kind": column.kind,
                "default_expression": column.expression,
                "position": place,
            }
            for place, column in enumerate(table.columns)
        ]
    )


def _merge_tree_settings(parts: Parts, host: Host, sql: str) -> Rows:
    return [{"name": "parts_to_delay_insert", "value": "150"}]


def _newest_block(parts: Parts, host: Host, sql: str) -> Rows:
    table = _table(host, sql)
    assert table is not None
    insert_counter = table.insert_counter - table.fallen
    parts.invariants.looks.insert_counter_answered(table)
    return [{"insert_counter": insert_counter, "parts": int(insert_counter > 0)}]


def _block_numbers(parts: Parts, host: Host, sql: str) -> Rows:
    table = _at_path(host, sql)
    if table is not None:
        parts.invariants.looks.insert_counter_answered(table)
    return [] if table is None else [{"numbers": table.insert_counter}]


def _given_up(parts: Parts, host: Host, sql: str) -> Rows:
    table = _at_path(host, sql)
    return [] if table is None else [{"given_up": parts.quorums.lost_of[table.path]}]


def _partitions_forgotten(parts: Parts, host: Host, sql: str) -> Rows:
    return [{"forgotten": 0, "hashes": 0}]


def _log_end(parts: Parts, host: Host, sql: str) -> Rows:
    table = _at_path(host, sql)
    last = 0 if table is None else table.insert_counter
    return [{"last": f"log-{last - 1:010d}" if last else ""}]


def _children(parts: Parts, host: Host, sql: str) -> Rows:
    return []


def _at_path(host: Host, sql: str) -> Table | None:
    (path,) = groups_of(_PATH, sql)
    every = [t for table in host.tables.values() for t in (table, *table.views)]
    return next((t for t in every if t.path == path.rpartition("/")[0]), None)


#: What servers say of their parts, one after the other.
_CROWDING = (0, 60, 105, 225)
_CROWDED_MS = 7_000


def _server_run(parts: Parts, host: Host, sql: str) -> Rows:
    up_seconds = (parts.world.now - host.started_at) // 1000
    now = parts.world.now + host.skew_ms
    return [{"base": f"base {host.restarts}", "one": "", "now": now, "up": up_seconds}]


def _active_parts(parts: Parts, host: Host, sql: str) -> Rows:
    return [{"parts": _CROWDING[parts.world.now // _CROWDED_MS % len(_CROWDING)]}]


def _processes(parts: Parts, host: Host, sql: str) -> Rows:
    (own,), (prefix,) = groups_of(_LOOK, sql), groups_of(_PREFIX, sql)
    running = (name for name, count in host.running.items() if count)
    found = [name for name in sorted(running) if name.startswith(prefix)]
    return [{"query_id": name} for name in (own, *found)]


def _structures(parts: Parts, host: Host, sql: str) -> Rows:
    parts.world.looking[parts.world.process] = None
    rows: Rows = []
    for name in re.findall(rf"database = 'd' AND table = {_TEXT}", sql):
        table = _named(host, name)
        if table is None:
            continue
        of = {"in_database": "d", "of_table": name}
        for column in table.columns:
            shown = {"column_name": column.name, "column_type": column.type}
            values = {"kind": column.kind, "expression": column.expression}
            rows.append({"what": "column", **of, **shown, **values})
        key = ", ".join(LINEAGE_TYPES) if table.shape.replaces else "number"
        keys = {"kind": table.shape.partition_key, "expression": key}
        rows.append({"what": "table", **of, "column_name": "", "column_type": "UTC", **keys})
        path = {"column_name": "", "column_type": "", "kind": "", "expression": table.path}
        rows.append({"what": "path", **of, **path})
    return rows


def _identities(parts: Parts, host: Host, sql: str) -> Rows:
    rows: Rows = [{"in_database": "", "of_table": "", "own": "", "zone": "UTC", "path": ""}]
    for name in re.findall(rf"database = 'd' AND name = {_TEXT}", sql):
        table, of = _named(host, name), {"in_database": "d", "of_table": name}
        if table is not None:
            rows.append({**of, "own": "", "zone": "", "path": ""})
            if "system.replicas" in sql:
                rows.append({**of, "own": "", "zone": "", "path": table.path})
    return rows


def _counted(host: Host, sql: str) -> tuple[Table, TopicPartition, int, int]:
    """The range whose rows a statement counts, and the table that it looks into."""
    name, topic, partition, begin, end = groups_of(_PRESENT, sql)
    table = _named(host, name)
    assert table is not None
    return table, TopicPartition(topic, int(partition)), int(begin), int(end)


def _rows_in(host: Host, sql: str) -> dict[int, Counter[int]]:
    """How often each row of each offset is there that a statement counts."""
    (table, source, begin, end), loader = _counted(host, sql), _LOADER.search(sql)
    return table.present(host.url, source, begin, end, loader and loader.group(1))


def _present(parts: Parts, host: Host, sql: str) -> Rows:
    parts.world.faults.note("probe")
    table, source, begin, end = _counted(host, sql)
    parts.invariants.probed(table, host.url, source, begin, end)
    return [
        {"first": offset, "last": offset, "found": rows.total(), "different": len(rows)}
        for offset, rows in _rows_in(host, sql).items()
    ]


def _stored(parts: Parts, host: Host, sql: str) -> Rows:
    parts.world.faults.note("probe of the rows of messages")
    return [
        {"o": offset, "first": row, "last": row, "most": count}
        for offset, rows in _rows_in(host, sql).items()
        for row, count in sorted(rows.items())
    ]


def _settings_of_a_reader(parts: Parts, host: Host, sql: str) -> Rows:
    return [{"name": name, "value": value} for name, value in ALWAYS_KNOWN.items()]


def _count(parts: Parts, host: Host, sql: str) -> Rows:
    return [{"n": sum(rows.total() for rows in _rows_in(host, sql).values())}]


def _nothing(parts: Parts, host: Host, sql: str) -> Rows:
    return []


def _staging_tables(parts: Parts, host: Host, sql: str) -> Rows:
    names = [] if parts.staging is None else parts.staging.names(host, *groups_of(_PREFIX, sql))
    return [{"name": name} for name in names]


def _markers(parts: Parts, host: Host, sql: str) -> Rows:
    assert parts.staging is not None
    return [
        {"marker": name, "note": note}
        for name in _names_in(sql)
        for note in parts.staging.notes(host, name)
    ]


def _names_in(sql: str) -> list[str]:
    return re.findall(rf"[\[ ]{_TEXT}", sql.partition("has(")[2])


def _rows_stored(parts: Parts, host: Host, sql: str) -> Rows:
    assert parts.staging is not None
    found = parts.staging.rows(host, _names_in(sql))
    return [{"table": name, "stored": rows} for name, rows in found.items()]


def _stored_columns(parts: Parts, host: Host, sql: str) -> Rows:
    assert parts.staging is not None
    _, name = groups_of(_TABLE, sql)
    return [{"name": column} for column in sorted(parts.staging.columns(host, name))]


def _parts_of(parts: Parts, host: Host, sql: str) -> Rows:
    assert parts.staging is not None
    _, name = groups_of(_TABLE, sql)
    return parts.staging.parts(host, name)


def _by_partition(parts: Parts, host: Host, sql: str) -> Rows:
    assert parts.staging is not None
    (loader,) = groups_of(_LOADER, sql)
    found = parts.staging.arrived.rows_by_partition(*_counted(host, sql), loader)
    return [{"place": str(place), "n": count} for place, count in sorted(found.items())]


def _drop(parts: Parts, host: Host, sql: str) -> Rows:
    assert parts.staging is not None
    parts.staging.collected(host, sql)
    return []


#: The first that fits.
STATEMENTS = (
    Statement("AND substring(name, 1", "staging tables", _staging_tables),
    Statement("SELECT table AS marker", "", _markers),
    Statement("SELECT database, name, create_table_query", "", _nothing),
    Statement("SELECT name FROM system.columns", "", _stored_columns),
    Statement("SELECT * FROM system.parts", "", _parts_of),
    Statement("SELECT table, sum(rows) AS stored", "", _rows_stored),
    Statement("AS place, count() AS n", "rows by partition", _by_partition),
    Statement("DROP TABLE", "collects", _drop),
    Statement("SELECT name, value FROM system.settings", "settings", _settings_of_a_reader),
    Statement("FROM system.mutations", "mutations", _nothing),
    Statement("SELECT name, rows, active FROM system.parts", "parts", _nothing),
    Statement("SELECT _part AS part", "", _nothing),
    Statement("SELECT count() AS n FROM `d`", "", _count),
    Statement("ARRAY JOIN offsets AS o", "present offsets", _present),
    Statement("ARRAY JOIN found AS r", "stored rows", _stored),
    Statement("AS base, ", "server run", _server_run, True),
    Statement("FROM system.processes", "processes", _processes),
    Statement("max(max_block_number)", "window insert counter", _newest_block, True),
    Statement("AND name = 'failed_parts'", "quorums given up", _given_up, True),
    Statement("AS forgotten, ", "", _partitions_forgotten, True),
    Statement("AS numbers FROM system.zookeeper", "window insert counter", _block_numbers, True),
    Statement("max(name) AS last", "replicas", _log_end),
    Statement("SELECT 'column' AS what", "structures", _structures, True),
    Statement("SELECT '' AS in_database", "identities", _identities, True),
    Statement("AS known FROM system.settings", "capabilities", _settings, True),
    Statement("AS altered FROM system.tables", "describe table", _tables, True),
    Statement("SELECT * FROM system.tables", "", _tables),
    Statement("AS hashes FROM system.server_settings", "", lambda *_: [{"hashes": ""}]),
    Statement("SELECT * FROM system.columns", "", _columns),
    Statement("SELECT * FROM system.replicas", "", _replicas),
    Statement("FROM system.replication_queue", "", _queue),
    Statement("SELECT name FROM system.tables", "", _nothing),
    Statement("FROM system.merge_tree_settings", "", _merge_tree_settings),
    Statement("SELECT max(parts) AS parts", "", _active_parts),
    Statement("SELECT name FROM system.zookeeper", "", _children),
    Statement("SELECT name FROM system.databases", "", lambda *_: [{"name": "d"}]),
    Statement("SELECT version()", "", _version),
    Statement("SELECT timezone()", "", _server_facts),
    Statement("SELECT serverTimezone()", "", _server_facts),
)
