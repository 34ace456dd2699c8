"""Adding columns to a table, on every replica of a shard.

Whoever else adds the same column at the same time does no harm: what counts is that the table
has it in the end, and what it has is read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from sluice.clickhouse.capabilities import known_settings
from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import read_structures
from sluice.clickhouse.sql import identifier, qualified
from sluice.clickhouse.system import table_row
from sluice.core.dynamic import DynamicColumns, room_for_columns, type_of
from sluice.core.errors import TerminalError, TransientError

#: An ALTER waits for the other replicas.
ALTER_TIMEOUT_SECONDS = 90.0
#: So long all replicas that answer have time to show the columns.
REPLICAS_SECONDS = 30.0
_POLL_SECONDS = 0.2
#: Somebody else may add some of the columns meanwhile.
_ATTEMPTS = 5

_IF_NOT_EXISTS_SINCE = (20, 1)
#: Settings by which an ALTER waits for the replicas that are there, and not for those that are not.
_WAITING = {
    "alter_sync": "2",
    "replication_alter_partitions_sync": "2",
    "replication_wait_for_inactive_replica_timeout": "0",
}
#: Refusals that asking again does not change.
_FINAL_CODES = frozenset({36, 44, 48, 50, 161, 344, 524})


class ColumnsRefusedError(TerminalError):
    """The server does not let Sluice add columns."""


def add_columns(
    connect: Callable[[str], Server],
    urls: Sequence[str],
    where: tuple[str, str],
    kinds: Mapping[str, str],
    dynamic: DynamicColumns,
) -> dict[str, str]:
    """Give a table columns for these fields, as far as there is room, on all replicas of a shard.

    The columns of a Replicated table are replicated, and all replicas that answer are waited for;
    one that does not answer gets them when it is back. Of another table, each URL is a table of
    its own, and all have to answer.

    :param where: database and table.
    :param kinds: of the fields, by name; see `core.dynamic.kind_of`.
    :returns: what was added, as types by name; empty if all were there or there is no room.
    :raises ColumnsRefusedError: asking again will not help.
    :raises TransientError: it may.
    """
    added: dict[str, str] = {}
    is_replicated, changed, failure = False, 0, None
    for url in urls:
        if is_replicated and changed:
            break
        try:
            with connect(url) as server:
                is_replicated = _is_replicated(server, where)
                added |= _add(server, where, kinds, dynamic)
                changed += 1
        except TransientError as error:
            if not is_replicated and changed:
                raise
            failure = error
    if failure is not None and (not changed or not is_replicated):
        raise failure
    if is_replicated and added:
        _await_replicas(connect, urls, where, added)
    return added


def _is_replicated(server: Server, where: tuple[str, str]) -> bool:
    row = table_row(server, *where, "engine")
    return row is not None and str(row["engine"]).startswith("Replicated")


def _missing(
    server: Server, where: tuple[str, str], kinds: Mapping[str, str], dynamic: DynamicColumns
) -> list[str]:
    """Names of columns to add, in order, as many as there is room for."""
    found = read_structures(server, [where]).get(where)
    if found is None:
        raise TransientError(
            f"{where[0]}.{where[1]} on {server.url} does not exist, or its user may not see it",
            "Create the table, or correct `target`.",
        )
    names = [column.name for column in found.columns]
    missing = [name for name in kinds if name not in names]
    return missing[: room_for_columns(dynamic, names)]


def _add(
    server: Server, where: tuple[str, str], kinds: Mapping[str, str], dynamic: DynamicColumns
) -> dict[str, str]:
    missing = _missing(server, where, kinds, dynamic)
    if not missing:
        return {}
    families = server.query(
        "SELECT name FROM system.data_type_families WHERE name IN ('Bool', 'DateTime64')"
    )
    has = {str(family["name"]) for family in families}
    types = {
        name: type_of(kinds[name], has_bool="Bool" in has, has_times="DateTime64" in has)
        for name in missing
    }
    guard = "IF NOT EXISTS " if server.version() >= _IF_NOT_EXISTS_SINCE else ""
    known = {str(row["name"]) for row in known_settings(server, _WAITING)}
    settings = {name: value for name, value in _WAITING.items() if name in known}
    for attempt in range(_ATTEMPTS):
        columns = (f"ADD COLUMN {guard}{identifier(name)} {types[name]}" for name in missing)
        statement = f"ALTER TABLE {qualified(*where)} {', '.join(columns)}"
        try:
            server.execute(statement, settings=settings, timeout_seconds=ALTER_TIMEOUT_SECONDS)
        except ServerError as error:
            left = _missing(server, where, {name: kinds[name] for name in missing}, dynamic)
            if left == missing or attempt + 1 == _ATTEMPTS:
                raise _refused(error, server, where, statement) from error
            missing = left
        else:
            missing = []
        if not missing:
            break
    return types


def _refused(
    error: ServerError, server: Server, where: tuple[str, str], statement: str
) -> TerminalError | TransientError:
    said = f"columns cannot be added to {where[0]}.{where[1]} on {server.url}: {error}"
    if error.code in _FINAL_CODES or isinstance(error, TerminalError):
        hint = (
            f"GRANT ALTER ADD COLUMN ON {qualified(*where)} to Sluice's user; or run "
            f"`{statement}` yourself; or take dynamic_columns out of the entry."
        )
        return ColumnsRefusedError(said, hint)
    return TransientError(said, error.hint)


def _await_replicas(
    connect: Callable[[str], Server],
    urls: Sequence[str],
    where: tuple[str, str],
    names: Mapping[str, str],
) -> None:
    """:raises TransientError: a replica that answers does not have the columns in time."""
    until = time.monotonic() + REPLICAS_SECONDS
    for url in urls:
        while (lacking := _lacks(connect, url, where, names)) != "":
            if time.monotonic() > until:
                raise TransientError(
                    f"{where[0]}.{where[1]} on {url} has no column {lacking} yet, which another "
                    "replica has",
                    "Look at system.replication_queue and system.replicas of that server.",
                )
            time.sleep(_POLL_SECONDS)


def _lacks(
    connect: Callable[[str], Server], url: str, where: tuple[str, str], names: Mapping[str, str]
) -> str:
    try:
        with connect(url) as server:
            found = read_structures(server, [where]).get(where)
    except TransientError:
        return ""  # it takes no insert either
    there = set() if found is None else {column.name for column in found.columns}
    return next((name for name in names if name not in there), "")
