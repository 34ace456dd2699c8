"""What a server says of its cluster, and of how its own replicas are doing."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import literal
from sluice.core.errors import ConfigurationError
from sluice.core.health import Condition
from sluice.core.topology import Member


def read_members(server: Server, cluster: str) -> list[Member]:
    """The servers of a cluster, by `system.clusters` of this one.

    :raises ConfigurationError: it knows no cluster of this name.
    :raises ServerError: terminal or transient.
    """
    rows = server.query(
        "SELECT shard_num, host_name, port FROM system.clusters WHERE cluster = {cluster:String} "
        "ORDER BY shard_num, replica_num",
        {"cluster": cluster},
    )
    if not rows:
        known = server.query("SELECT DISTINCT cluster AS name FROM system.clusters ORDER BY name")
        names = ", ".join(str(row["name"]) for row in known) or "none"
        raise ConfigurationError(
            f"{server.url} knows no cluster {cluster}; it knows {names}",
            "Correct `cluster` in [clickhouse], or <remote_servers> on that server.",
        )
    return [Member(int(r["shard_num"]), str(r["host_name"]), int(r["port"])) for r in rows]


def read_shard_name(server: Server, macro: str) -> str:
    """The shard that a server says it is of.

    :raises ConfigurationError: it has no such macro.
    :raises ServerError: terminal or transient.
    """
    rows = server.query(
        "SELECT substitution FROM system.macros WHERE macro = {macro:String}", {"macro": macro}
    )
    if not rows:
        raise ConfigurationError(
            f"{server.url} has no macro {{{macro}}}, which says what shard it is of",
            f"Give each server <macros><{macro}>its shard's name</{macro}></macros>, or name the "
            "macro that does (shard_macro); or write the replicas of each shard into [clickhouse] "
            'shards = { s1 = ["http://host:8123"] }.',
        )
    return str(rows[0]["substitution"])


def read_condition(server: Server, tables: Iterable[tuple[str, str]], *, counts: bool) -> Condition:
    """How the Replicated tables among these are doing on a server; the worst of them.

    :param counts: also how many replicas are active, for which the server has to ask ZooKeeper
        some times for each table; what else is read, it knows.
    :raises ServerError: terminal or transient.
    """
    wanted = " OR ".join(
        f"(database = {literal(database)} AND table = {literal(table)})"
        for database, table in sorted(set(tables))
    )
    if not wanted:
        return Condition()
    more = ", active_replicas, total_replicas" if counts else ""
    rows = server.query(
        "SELECT is_readonly, is_session_expired, absolute_delay, queue_size"
        f"{more} FROM system.replicas WHERE {wanted}"
    )
    fewest = (
        min(
            rows,
            key=lambda row: int(row["active_replicas"]) - int(row["total_replicas"]),
            default=None,
        )
        if counts
        else None
    )
    return Condition(
        is_readonly=any(int(row["is_readonly"]) for row in rows),
        is_session_expired=any(int(row["is_session_expired"]) for row in rows),
        delay_seconds=max((int(row["absolute_delay"]) for row in rows), default=0),
        queue=max((int(row["queue_size"]) for row in rows), default=0),
        active=None if fewest is None else int(fewest["active_replicas"]),
        total=None if fewest is None else int(fewest["total_replicas"]),
    )
