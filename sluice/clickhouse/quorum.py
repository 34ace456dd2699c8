"""Reads what is known of a table's quorum: ZooKeeper through a server, and the servers' own views.

No ZooKeeper client is needed: `system.zookeeper` answers for one path at a time, on 18.16 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.system import children, said_of_table
from sluice.core.quorum import (
    OwnView,
    PendingQuorum,
    QueueEntry,
    Replica,
    covers,
    parse_status,
)

#: A part has so many pieces at most in what is shown.
_PIECES_MAX = 3


@dataclass(frozen=True, slots=True)
class InZooKeeper:
    """What ZooKeeper says of one table.

    :param replicas: without what their servers say.
    """

    pending: tuple[PendingQuorum, ...]
    failed_parts: tuple[str, ...]
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which replica of a table a server is.

    :param row: of system.replicas.
    """

    name: str
    path: str
    row: dict[str, Any]


def read_zookeeper(server: Server, path: str) -> InZooKeeper:
    """Read a table's nodes. What is big (parts, blocks) is read only while something is pending.

    :param path: of the table in ZooKeeper.
    :raises ServerError: transient without a session with ZooKeeper; terminal where Sluice's
        user may not read system.zookeeper.
    """
    nodes = {str(row["name"]): row for row in _nodes(server, f"{path}/quorum")}
    pending = [_pending("status", nodes["status"])] if "status" in nodes else []
    if "parallel" in nodes:
        below = _nodes(server, f"{path}/quorum/parallel")
        pending += [_pending(f"parallel/{row['name']}", row) for row in below]
    failed = children(server, f"{path}/quorum/failed_parts") if "failed_parts" in nodes else []
    known = [each for each in pending if each is not None]
    if known:
        blocks = _nodes(server, f"{path}/blocks")
        known = [
            replace(each, block_ids=tuple(sorted(_ids_of(blocks, each.part)))) for each in known
        ]
    parts = [each.part for each in known]
    return InZooKeeper(
        tuple(known),
        tuple(failed),
        tuple(_replica(server, path, name, parts) for name in children(server, f"{path}/replicas")),
    )


def _replica(server: Server, path: str, name: str, parts: Sequence[str]) -> Replica:
    below = f"{path}/replicas/{name}"
    is_active = "is_active" in children(server, below)
    there = children(server, f"{below}/parts") if parts else []
    found = {part for part in parts if any(covers(other, part) for other in there)}
    return Replica(name, "", is_active, frozenset(found))


def read_identity(server: Server, database: str, table: str) -> Identity | None:
    """Which replica a server is; None if it has none of this table.

    :raises ServerError: it does not answer.
    """
    rows = said_of_table(server, "SELECT * FROM system.replicas", database, table)
    if not rows:
        return None
    return Identity(str(rows[0]["replica_name"]), str(rows[0]["zookeeper_path"]), rows[0])


def read_own_view(
    server: Server, database: str, table: str, row: dict[str, Any], parts: Sequence[str]
) -> OwnView:
    """What a replica's server says of itself.

    :param row: of system.replicas.
    :param parts: that wait for their quorum.
    :raises ServerError: it does not answer.
    """
    ask = partial(said_of_table, server, database=database, table=table)
    queue = "SELECT * FROM system.replication_queue"
    entries: list[dict[str, Any]] = []
    stored: list[dict[str, Any]] = []
    if parts:
        named = "AND has({parts:Array(String)}, new_part_name)"
        entries = ask(queue, more=named, parts=list(parts))
        stored = ask("SELECT name FROM system.parts")
    in_trouble = "AND (last_exception != '' OR postpone_reason != '')"
    trouble = ask(queue, more=f"{in_trouble} ORDER BY create_time LIMIT 1")
    read = int(row["log_pointer"])
    return OwnView(
        is_readonly=bool(row["is_readonly"]),
        is_session_expired=bool(row["is_session_expired"]),
        delay_seconds=int(row["absolute_delay"]),
        queue_size=int(row["queue_size"]),
        log_behind=max(0, int(row["log_max_index"]) + 1 - read) if read else 0,
        parts_to_check=int(row["parts_to_check"]),
        entries=tuple(map(_entry, entries)),
        stored=frozenset(
            part for part in parts if any(covers(str(each["name"]), part) for each in stored)
        ),
        trouble=_trouble(trouble[0]) if trouble else "",
    )


def _entry(row: dict[str, Any]) -> QueueEntry:
    return QueueEntry(
        part=str(row["new_part_name"]),
        tries=int(row["num_tries"]),
        is_executing=bool(row["is_currently_executing"]),
        exception=_short(row["last_exception"]),
        postpone_reason=_short(row["postpone_reason"]),
    )


def _trouble(row: dict[str, Any]) -> str:
    said = _short(row["last_exception"]) or _short(row["postpone_reason"])
    return f"{row['type']} of {row['new_part_name']}, tried {row['num_tries']} times: {said}"


def rows_of_part(server: Server, database: str, table: str, part: str) -> str:
    """Which messages a part holds, by its lineage columns; "" where it has none.

    :raises ServerError: it does not answer.
    """
    wanted = "AND name IN ('_topic', '_partition', '_offset')"
    columns = said_of_table(server, "SELECT name FROM system.columns", database, table, wanted)
    if len(columns) < 3:
        return ""
    rows = server.query(
        "SELECT _topic, _partition, count() AS n, min(_offset) AS low, max(_offset) AS high FROM "
        f"{qualified(database, table)} WHERE _part = {{part:String}} GROUP BY _topic, _partition "
        "ORDER BY _topic, _partition",
        {"part": part},
    )
    shown = [
        f"{row['n']} rows of {row['_topic']}[{row['_partition']}], offsets {row['low']} to "
        f"{row['high']}"
        for row in rows[:_PIECES_MAX]
    ]
    return "; ".join([*shown, "…"] if len(rows) > _PIECES_MAX else shown)


def _pending(node: str, row: dict[str, Any]) -> PendingQuorum | None:
    return parse_status(node, str(row["value"]), max(0, int(row["age"])))


def _ids_of(blocks: Sequence[dict[str, Any]], part: str) -> list[str]:
    return [str(row["name"]) for row in blocks if str(row["value"]).strip() == part]


def _nodes(server: Server, path: str) -> list[dict[str, Any]]:
    return server.query(
        "SELECT name, value, toInt64(toUInt32(now())) - toInt64(toUInt32(ctime)) AS age "
        "FROM system.zookeeper WHERE path = {path:String}",
        {"path": path},
    )


def _short(text: object) -> str:
    """Without what 18.16 puts around each message."""
    words = " ".join(str(text).split())
    return words.replace(", e.what() = DB::Exception", "").replace("e.displayText() = ", "")[:300]
