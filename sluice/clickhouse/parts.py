"""How near a table is to the number of parts from which its server delays inserts."""

from __future__ import annotations

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, merge_tree_defaults, table_settings

_SETTING = "parts_to_delay_insert"


def crowding(server: Server, facts: TableFacts) -> float:
    """Active parts of the fullest ClickHouse partition, as a share of `parts_to_delay_insert`:
    from 1.0 on the server delays inserts. Over the table and its views' targets, the largest.

    :raises ServerError: terminal or transient.
    """
    tables = [facts, *(dependent.target for dependent in facts.all_dependents())]
    return max(_crowding(server, table) for table in tables)


def _crowding(server: Server, facts: TableFacts) -> float:
    if not facts.engine.endswith("MergeTree"):
        return 0.0
    own = table_settings(facts.engine_full)
    if _SETTING not in own:
        own = merge_tree_defaults(server, facts.replicated, [_SETTING])
    limit = int(own.get(_SETTING, 0))
    if limit < 1:
        return 0.0  # this server never delays
    rows = server.query(
        "SELECT max(parts) AS parts FROM (SELECT count() AS parts FROM system.parts "
        "WHERE database = {database:String} AND table = {table:String} AND active "
        "GROUP BY partition)",
        {"database": facts.database, "table": facts.table},
    )
    return int(rows[0]["parts"]) / limit
