"""What `doctor` asks about the way to a server: does each URL lead to one server, and directly?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.capabilities import Capabilities, insert_settings
from sluice.clickhouse.connection import FAILURES
from sluice.clickhouse.front import (
    answers_before_the_body,
    begins_before_the_end,
    identity_of,
    proxy_named,
)
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import InsertPlan, plan_insert, query_id_of
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.reactions import QUERY_ID_REPLACED, TerminalServerError
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.system import said_of_table
from sluice.ops.doctor_findings import Examination, Finding

#: A balancer sends connections, or requests, to its servers in turn: with three servers, and two of
#: the turns taken by others, so many meet a second one.
_TRIES = 5

_NAME_SERVERS = (
    "Name each server by a URL of its own in [clickhouse] shards (Sluice goes from one replica to "
    "the next by itself), or let [clickhouse] cluster find them."
)
_LATE = (
    "that a worker's lease was good when its insert began says nothing of when it arrives, and an "
    "insert of a worker that is long dead may be stored beside its repeat"
)


@dataclass(slots=True)
class FrontLook:
    """What was seen of the way to a server.

    :param servers: identities that fresh connections reached.
    """

    servers: set[str] = field(default_factory=set)


def look_at_front(
    found: Examination,
    access: ClickHouseAccess,
    server: Server,
    capabilities: Capabilities,
    tables: Sequence[TableFacts],
) -> FrontLook:
    """Examine the way to one server.

    :param tables: of the targets there.
    :raises SluiceError: a question was not answered.
    """
    look = FrontLook()
    _check_query_ids(found, server)
    if _check_connection(found, server):
        look.servers = _check_balancer(found, access, server.url, tables)
    _check_buffering(found, access, server, capabilities, tables)
    found.ok("front", "the URL leads to one server, directly")
    return look


def _check_query_ids(found: Examination, server: Server) -> None:
    """Whether the server knows a query by the id that it is sent with."""
    try:
        running_query_ids(server, "sluice-doctor")
    except TerminalServerError as error:
        if error.name == QUERY_ID_REPLACED:
            found.error(
                "front",
                f"{error.message}. Lost: whether an insert of an earlier attempt still runs, whose "
                "rows may come when a probe has missed them",
                error.hint,
            )


def _check_connection(found: Examination, server: Server) -> bool:
    """Whether the requests of one connection reach one server."""
    connects = server.connects
    reached = {identity_of(server) for _ in range(_TRIES)}
    if len(reached) == 1 or server.connects != connects:
        return True
    found.error(
        "front",
        f"requests on one connection reach {len(reached)} servers, {_shown(reached)}: a balancer "
        f"stands before them. Lost: the order of check and insert, since another server answers "
        f"the check than executes the insert; {_LATE}",
        _NAME_SERVERS,
    )
    return False


def _check_balancer(
    found: Examination, access: ClickHouseAccess, url: str, tables: Sequence[TableFacts]
) -> set[str]:
    """Whether fresh connections reach one server; gives those that they reached."""
    reached: set[str] = set()
    paths: dict[str, set[str]] = {}
    for _ in range(_TRIES):
        with access.connect(url) as fresh:
            reached.add(identity_of(fresh))
            for table in tables:
                paths.setdefault(table.target, set()).add(_path_of(fresh, table))
    if len(reached) < 2:
        return reached
    what = (
        f"fresh connections reach {len(reached)} servers, {_shown(reached)}: a load balancer "
        "stands before them. "
    )
    # A Shared table is one on all servers, and is loaded past its window.
    shared = {table.target for table in tables if table.engine.startswith("Shared")}
    apart = {name for name, of in paths.items() if len(of) > 1 or "" in of}
    own = sorted(apart - shared)
    if own:
        found.error(
            "front",
            f"{what}Lost: exactly once, since each server has a window of its own for "
            f"{', '.join(own)}, and a block in doubt at one of them is unknown to the others",
            _NAME_SERVERS,
        )
    else:
        found.warning(
            "front",
            f"{what}Lost: failover by replica, since the next attempt may meet the server that "
            "just failed; the turns of partitions and the health of each replica; and receipts "
            "name the balancer, not the server. What is checked of one server (version, columns, "
            "its table being writable) may not be true of the one that gets the block",
            _NAME_SERVERS,
        )
    return reached


def _path_of(server: Server, table: TableFacts) -> str:
    """Which table it is in ZooKeeper; "" for one that is not replicated."""
    select = "SELECT zookeeper_path FROM system.replicas"
    rows = said_of_table(server, select, table.database, table.table)
    return str(rows[0]["zookeeper_path"]) if rows else ""


def _shown(reached: set[str]) -> str:
    return ", ".join(sorted(identity.rstrip(" /") for identity in reached))


def _check_buffering(
    found: Examination,
    access: ClickHouseAccess,
    server: Server,
    capabilities: Capabilities,
    tables: Sequence[TableFacts],
) -> None:
    """Whether what is sent arrives while it is sent."""
    credentials = access.headers()
    try:
        # Twice, since a server may be busy once.
        is_late = all(
            answers_before_the_body(server.url, access.tls, credentials) == "late" for _ in range(2)
        )
        if is_late and not _begins_an_insert(access, server, capabilities, tables, credentials):
            found.error(
                "front",
                "a request arrives only when all of it was sent: a proxy stands before the server "
                "that keeps bodies back. Lost: the bound on how late an insert arrives, since the "
                f"proxy may send it on whenever it likes; {_LATE}",
                "Name the server by its own URL, or switch the buffering off (nginx: "
                "proxy_request_buffering off; proxy_http_version 1.1).",
            )
            return
        named = proxy_named(server.url, access.tls)
    except FAILURES:
        return  # it went away meanwhile, which the other checks tell
    if named:
        found.warning(
            "front",
            f"an HTTP proxy stands before the server ({named}). Lost: the connection of check and "
            "insert ends at the proxy, so that its time-outs, not keep_alive_timeout of the "
            "server, bound how late an insert may arrive",
            "Name the server by its own URL, or let the proxy forward TCP.",
        )


def _begins_an_insert(
    access: ClickHouseAccess,
    server: Server,
    capabilities: Capabilities,
    tables: Sequence[TableFacts],
    credentials: Mapping[str, str | bytes],
) -> bool:
    """Whether the server begins with an insert while it is still being sent; True, too, where
    there is no table to try it with. A proxy that keeps connections open makes the server read
    whole requests before it refuses them, and need not keep anything back itself."""
    for facts in tables:
        if facts.is_readonly:
            continue
        plan = plan_no_rows(facts, insert_settings(capabilities), has_token=capabilities.tokens)

        def is_running(query_id: str = plan.query_id) -> bool:
            return bool(running_query_ids(server, query_id))

        return begins_before_the_end(server.url, access.tls, plan.path, credentials, is_running)
    return True


def plan_no_rows(facts: TableFacts, settings: Mapping[str, str], *, has_token: bool) -> InsertPlan:
    """An insert like that of a block, which changes nothing."""
    token = f"sluice-doctor-{os.urandom(8).hex()}"
    return plan_insert(
        facts.database,
        facts.table,
        [column.name for column in facts.columns if column.kind in ("", "DEFAULT")],
        b"",
        token if has_token else None,
        query_id_of(token, "0"),
        settings,
    )


def check_same_servers(
    shards: Sequence[tuple[str, str, FrontLook]],
) -> list[Finding]:
    """Two URLs of a shard that lead to the same server.

    :param shards: (shard, URL, what was seen there).
    """
    findings: list[Finding] = []
    first: dict[tuple[str, str], str] = {}
    for shard, url, look in shards:
        for identity in sorted(look.servers) if len(look.servers) == 1 else ():
            other = first.setdefault((shard, identity), url)
            if other != url:
                found = Examination(f"shard {shard}")
                found.warning(
                    "front",
                    f"{other} and {url} are the same server. Lost: failover, since the next "
                    "replica is the one that just failed",
                    "Name each server once, by its own URL.",
                )
                findings += found.findings
    return findings
