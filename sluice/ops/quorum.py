"""`sluice quorum`: what inserts with a quorum wait for, in every shard, and fixing it.

Reads Replicated tables of the configuration, and those that views behind them write to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.quorum import (
    Identity,
    InZooKeeper,
    read_identity,
    read_own_view,
    read_zookeeper,
    rows_of_part,
)
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.config import Configuration
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.quorum import Action, Judgement, OwnView, TableQuorum, judge
from sluice.driver.specs import access_of

_logger = logging.getLogger("sluice.quorum")

_THREADS_MAX = 16
#: A replica whose fetches are started again tries within so long (18.16: 8 s were measured).
WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.5
_SECOND_LOOK_SECONDS = 5.0
_STATEMENT_SECONDS = 60.0
_MESSAGE_CHARACTERS_MAX = 300

_Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class QuorumSelection:
    """What to look at; None is all.

    :param table: the name of a table entry.
    """

    shard: str | None = None
    table: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A Replicated table in a shard."""

    facts: TableQuorum
    judgement: Judgement

    @property
    def where(self) -> str:
        view = f" (behind the view {self.facts.view})" if self.facts.view else ""
        return f"shard {self.facts.shard} {'.'.join(self.facts.target)}{view}"


def look(configuration: Configuration, selection: QuorumSelection) -> list[Report]:
    """Look at every Replicated table in every shard; changes nothing.

    That a part is lost is said only if a second look, a while later, says so too: a replica that
    has just started has not yet queued what it misses.

    :returns: in the order of the file; empty if nothing is Replicated.
    :raises ConfigurationError: there is no such shard or table entry.
    """
    names = _names_by_shard(configuration, selection)
    reports = _look_once(configuration, names)
    lost = {report.where for report in reports if report.judgement.last_resort}
    if not lost:
        return reports
    time.sleep(_SECOND_LOOK_SECONDS)
    return [
        report
        if report.where in lost
        else replace(report, judgement=replace(report.judgement, last_resort=()))
        for report in _look_once(configuration, names)
    ]


def _look_once(
    configuration: Configuration,
    names: dict[str, tuple[_Name, ...]],
) -> list[Report]:
    access = access_of(configuration)
    with ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="quorum") as pool:
        futures = [
            pool.submit(_look_at_shard, access, shard, targets)
            for shard, targets in names.items()
            if targets
        ]
        found = [facts for future in futures for facts in future.result()]
    return [Report(facts, judge(facts)) for facts in found]


def apply_fixes(
    configuration: Configuration,
    selection: QuorumSelection,
    agree: Callable[[Sequence[str]], bool],
    wait_seconds: float = WAIT_SECONDS,
) -> list[Report]:
    """Take what actions there are, and wait whether they help; then those that come after them.

    :param agree: is shown what will be done, and says whether to do it.
    :param wait_seconds: for an action to help.
    :returns: how it stands afterwards.
    """
    tried: set[tuple[str, str]] = set()
    reports = look(configuration, selection)
    while actions := [action for report in reports for action in report.judgement.actions]:
        if not agree([f"{each.statement} on {each.url} ({each.why})" for each in actions]):
            break
        for action in actions:
            _take(access_of(configuration), action)
            tried.add(action.key)
        reports = _wait(configuration, selection, tried, wait_seconds)
    return reports


def _wait(
    configuration: Configuration,
    selection: QuorumSelection,
    tried: AbstractSet[tuple[str, str]],
    seconds: float,
) -> list[Report]:
    """Look until nothing is left to fix, or the time is over.

    :returns: how it stands, with the actions that come after those that were tried.
    """
    until = time.monotonic() + seconds
    while True:
        reports = look(configuration, selection)
        judgements = [report.judgement for report in reports]
        if not any(each.is_stuck or each.actions for each in judgements):
            return reports
        if time.monotonic() > until:
            return [_after(report, tried) for report in reports]
        time.sleep(_POLL_SECONDS)


def _after(report: Report, tried: AbstractSet[tuple[str, str]]) -> Report:
    actions = judge(report.facts, tried).actions
    return replace(report, judgement=replace(report.judgement, actions=actions))


def _take(access: ClickHouseAccess, action: Action) -> None:
    """What fails is told, and does not keep the others back."""
    try:
        with access.connect(action.url) as server:
            server.execute(action.statement, timeout_seconds=_STATEMENT_SECONDS)
    except SluiceError as error:
        _logger.error("%s on %s failed: %s", action.statement, action.url, error)
    else:
        _logger.info("%s on %s", action.statement, action.url)


def _names_by_shard(
    configuration: Configuration, selection: QuorumSelection
) -> dict[str, tuple[_Name, ...]]:
    """The targets in each shard, once."""
    shards = [shard.name for shard in configuration.clickhouse.shards]
    entries = [table.name for table in configuration.tables]
    for what, name, known in (
        ("shard", selection.shard, shards),
        ("table", selection.table, entries),
    ):
        if name is not None and name not in known:
            raise ConfigurationError(
                f'{configuration.path}: {what}: none is named "{name}"',
                f"Name one of: {', '.join(known)}.",
            )
    tables = [each for each in configuration.tables if selection.table in (None, each.name)]
    found = {
        shard: configuration.targets_on(shard, tables)
        for shard in dict.fromkeys(s for each in tables for s in configuration.shards_of(each))
        if selection.shard in (None, shard)
    }
    if not found:
        raise ConfigurationError(
            f'{configuration.path}: table[{selection.table}]: has no rows in shard "'
            f'{selection.shard}"',
            "Leave --shard or --table out.",
        )
    return found


@dataclass(slots=True)
class _Servers:
    """Of one shard: open connections, and why others do not answer."""

    open: list[Server]
    silent: dict[str, str]


def _look_at_shard(
    access: ClickHouseAccess, shard: str, targets: tuple[_Name, ...]
) -> list[TableQuorum]:
    found: list[TableQuorum] = []
    with ExitStack() as stack:
        servers = _Servers([], {})
        for url in access.shards[shard]:
            server = stack.enter_context(access.connect(url))
            try:
                server.ping()
                servers.open.append(server)
            except SluiceError as error:
                servers.silent[server.url] = error.message
        wanted = access.quorum_of(shard)
        for target in targets:
            for facts in _replicated(servers, shard, target):
                read = facts if facts.unread else _read(servers, facts)
                found.append(read if facts.view else replace(read, wanted=wanted))
    return found


def _replicated(servers: _Servers, shard: str, target: _Name) -> Iterator[TableQuorum]:
    """The target and what views behind it write to, if they are Replicated; nothing else is known
    of them yet."""
    failures = list(servers.silent.items())
    for server in servers.open:
        try:
            described = describe_table(server, *target)
        except SluiceError as error:
            failures.append((server.url, error.message))
            continue
        views = [(each.target, each.view) for each in described.all_dependents()]
        for each, view in [(described, ""), *views]:
            if each.replicated:
                yield TableQuorum(shard, _name(each), each.zookeeper_path, view)
        return
    unread = f"no server of the shard describes {'.'.join(target)}"
    yield TableQuorum(shard, target, "", silent=tuple(failures), unread=unread)


def _name(facts: TableFacts) -> _Name:
    return facts.database, facts.table


def _read(servers: _Servers, facts: TableQuorum) -> TableQuorum:
    silent = dict(servers.silent)
    identities: dict[str, tuple[Server, Identity]] = {}
    for server in servers.open:
        try:
            identity = read_identity(server, *facts.target)
        except SluiceError as error:
            silent[server.url] = error.message
            continue
        if identity is None or identity.path != facts.path:
            silent[server.url] = f"it has no replica of the table at {facts.path}"
        else:
            identities[identity.name] = server, identity
    facts = replace(facts, silent=tuple(silent.items()))
    seen, why = _zookeeper([server for server, _ in identities.values()], facts.path)
    if seen is None:
        return replace(facts, unread=why)
    parts = [each.part for each in seen.pending]
    replicas = []
    for each in seen.replicas:
        if each.name in identities:
            server, identity = identities[each.name]
            own = _own_view(server, facts, identity, parts)
            each = replace(each, url=server.url, own=own)  # noqa: PLW2901
        replicas.append(each)
    pending = []
    for part in seen.pending:
        holders = [each for each in replicas if part.part in each.parts and each.own is not None]
        rows = _rows(identities[holders[0].name][0], facts, part.part) if holders else ""
        pending.append(replace(part, rows=rows))
    return replace(
        facts,
        pending=tuple(pending),
        failed_parts=seen.failed_parts,
        replicas=tuple(replicas),
    )


def _zookeeper(servers: Sequence[Server], path: str) -> tuple[InZooKeeper | None, str]:
    """From whichever server can read it, else why none can."""
    failures = []
    for server in servers:
        try:
            return read_zookeeper(server, path), ""
        except SluiceError as error:
            failures.append(error.message[:_MESSAGE_CHARACTERS_MAX])
    told = "; ".join(failures) or "no server of the shard answers"
    return None, f"nothing can be read from ZooKeeper: {told}"


def _own_view(
    server: Server, facts: TableQuorum, identity: Identity, parts: Sequence[str]
) -> OwnView | None:
    try:
        return read_own_view(server, *facts.target, identity.row, parts)
    except SluiceError as error:
        _logger.warning("%s: %s", server.url, error)
        return None


def _rows(server: Server, facts: TableQuorum, part: str) -> str:
    try:
        return rows_of_part(server, *facts.target, part)
    except SluiceError:
        return ""  # it only helps to know
