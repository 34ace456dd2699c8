"""What a server says of its cluster, and of how its own replicas are doing; and whether the servers
of a shard are replicas of one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, one_of
from sluice.clickhouse.sql import qualified
from sluice.core.errors import ConfigurationError, TerminalError, TransientError
from sluice.core.load_spec import TableSpec
from sluice.core.replicas import Condition
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
    wanted = sorted(set(tables))
    if not wanted:
        return Condition()
    more = ", active_replicas, total_replicas" if counts else ""
    rows = server.query(
        "SELECT is_readonly, is_session_expired, absolute_delay, queue_size"
        f"{more} FROM system.replicas WHERE {one_of(wanted, 'table')}"
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


class ReplicaAwayError(TransientError):
    """This replica takes no inserts now; another one may. Nothing was sent."""

    hint = "See system.replicas on that server; the block goes to another replica meanwhile."


def refuse_own_windows(facts: TableFacts, shard: str, urls: Sequence[str]) -> None:
    """Several servers must not have a window each, of a table or of a view's target.

    :param urls: all servers of the shard.
    :raises TerminalError: they have.
    """
    for each in (facts, *(dependent.target for dependent in facts.all_dependents())):
        if len(urls) > 1 and each.engine.endswith("MergeTree") and not each.replicated:
            raise TerminalError(
                f"{each.target} on {each.url} is a {each.engine}, which is not replicated, and the "
                f"shard {shard} names {len(urls)} servers: a block in doubt at one is unknown to "
                "the others",
                "Use ReplicatedMergeTree tables, or name one server in that shard.",
            )


def refuse_async_inserts(facts: TableFacts) -> None:
    """A server that queues blocks makes other blocks of them, and may answer before it has any.

    :raises TerminalError: it would, whatever an insert asks for.
    """
    if facts.async_insert:
        raise TerminalError(
            f"{facts.target} on {facts.url} has the table setting async_insert, of its own or from "
            "<merge_tree> of the server's configuration, which overrides that of an insert",
            f"ALTER TABLE {qualified(facts.database, facts.table)} MODIFY SETTING async_insert = 0",
        )


class OtherPathError(TerminalError):
    """A replica that is named in a shard is of another table than the shard's."""

    hint = (
        "Name only servers whose replicas share one zookeeper_path in a shard, then start the "
        "driver again."
    )


def refuse_other_path(where: str, now: str, path: str) -> None:
    """:raises OtherPathError: a name means the table at another path in ZooKeeper.

    :param where: it does, in words.
    :param path: of the table that blocks are for.
    """
    if now != path:
        raise OtherPathError(
            f"{where} is the table at {now} in ZooKeeper, and the blocks are for the one at "
            f"{path}: what is in doubt there is unknown here"
        )


def refuse_other_table(
    facts: TableFacts, table: TableSpec, shard: str, urls: Sequence[str]
) -> None:
    """Blocks in doubt at one replica are known at another only if both are one table (H15).

    :param facts: of the table on one server.
    :param table: what the block was made for.
    :param urls: all servers of the shard.
    :raises TerminalError: it is another table, or each server has one of its own; or it queues
        blocks.
    :raises ReplicaAwayError: it takes no inserts now.
    """
    refuse_own_windows(facts, shard, urls)
    refuse_async_inserts(facts)
    where = f"{facts.target} on {facts.url}"
    path = dict(table.zookeeper_paths).get(shard)
    if path is None:
        return
    if facts.zookeeper_path:
        refuse_other_path(where, facts.zookeeper_path, path)
    if not facts.replicated:
        raise TerminalError(
            f"{where} is a {facts.engine}, and the blocks are for the Replicated table at {path}",
            "Start the driver again: what is in doubt is probed.",
        )
    if facts.is_readonly or not facts.zookeeper_path:
        raise ReplicaAwayError(f"{where} is read-only: it has no session with ZooKeeper")
